"""bkpy's client in a BookKeeper cluster, on bkpy's bookies: both sides of the protocol, without Java."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.hooks import storage_of
from tests.in_process import DEADLINE_S, InProcess, contents

import bkpy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path, of_bookkeeper=True)
    await local.start("abc")
    yield local
    await local.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("write_quorum", [2, 3])
async def test_what_a_client_appends_another_reads_tails_and_recovers(three: InProcess, write_quorum: int) -> None:
    client, other = await three.client(), await three.client()
    writer = await client.create_ledger(ensemble_size=3, write_quorum=write_quorum, ack_quorum=2, password=b"secret")
    reader = await other.open_ledger(writer.ledger_id, password=b"secret")

    async def tail() -> list[bytes]:
        return [entry.data async for entry in reader.tail()]

    tailing = asyncio.create_task(tail())
    entries = [b"%d" % i * size for i, size in enumerate([1, 50_000, 10, 5_000, *range(1, 100)])]
    for entry in entries:
        await writer.append(entry)
    async with asyncio.timeout(DEADLINE_S):
        recovered = await other.recover_ledger(writer.ledger_id, password=b"secret")
        assert recovered.last_add_confirmed == len(entries) - 1
        assert await tailing == entries
        with pytest.raises(bkpy.LedgerFencedError):
            await writer.append(b"late")
        assert await contents(other, writer.ledger_id, b"secret") == entries


async def test_a_ledger_outlives_its_bookies(three: InProcess) -> None:
    client = await three.client()
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    for i in range(20):
        await writer.append(b"%d" % i)
    await writer.close()
    for name in "abc":
        await storage_of(three.node(name)).checkpoint()
        await three.restart(name)
    assert await contents(await three.client(), writer.ledger_id) == [b"%d" % i for i in range(20)]


async def test_a_writer_goes_on_without_a_bookie_that_dies(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path, of_bookkeeper=True)
    await cluster.start("abcd")
    client = await cluster.client()
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    for i in range(30):
        await writer.append(b"%d" % i)
        if i == 10:
            cluster.kill(writer.metadata.fragments[-1].bookies[0])
    await writer.close()
    assert len(writer.metadata.fragments) == 2
    assert await contents(client, writer.ledger_id) == [b"%d" % i for i in range(30)]
    await cluster.stop()
