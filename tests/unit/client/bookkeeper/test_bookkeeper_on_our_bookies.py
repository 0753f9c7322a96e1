"""Our client on our bookies, both by BookKeeper's protocol."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.in_process import InProcess, contents

from bkpy.errors import LedgerFencedError
from bkpy.protocol.bookkeeper.entries import DigestType
from bkpy.protocol.bookkeeper.ledger_metadata import DIGEST_NAMES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PASSWORD = b"secret"
PAYLOADS = [f"entry {n}".encode() * (n % 7) for n in range(200)]


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[InProcess]:
    cluster = InProcess(tmp_path, of_bookkeeper=True)
    await cluster.start("abcd")
    yield cluster
    await cluster.stop()


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("striped", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
async def test_entries_come_back_also_after_a_restart(ours: InProcess, digest_type: DigestType, striped: bool) -> None:
    client = await ours.client()
    quorum = 2 if striped else 3
    writer = await client.create_ledger(write_quorum=quorum, digest=DIGEST_NAMES[digest_type], password=PASSWORD)
    await writer.append_batch(PAYLOADS)
    await writer.close()
    assert await contents(client, writer.ledger_id, PASSWORD) == PAYLOADS
    for name in "abcd":
        await ours.restart(name)
    assert await contents(await ours.client(), writer.ledger_id, PASSWORD) == PAYLOADS


@pytest.mark.thorough
async def test_a_recovery_finds_all_that_was_acknowledged_and_fences(ours: InProcess) -> None:
    client = await ours.client()
    writer = await client.create_ledger(write_quorum=2)
    await writer.append_batch(PAYLOADS)
    reader = await (await ours.client()).recover_ledger(writer.ledger_id)
    assert [entry.data async for entry in reader.read()] == PAYLOADS
    with pytest.raises(LedgerFencedError):
        await writer.append(b"late")


async def test_a_tail_sees_what_a_writer_appends(ours: InProcess) -> None:
    client = await ours.client(explicit_lac_interval_s=0.05)
    writer = await client.create_ledger()
    await writer.append(PAYLOADS[1])
    reader, found = await (await ours.client()).open_ledger(writer.ledger_id), []

    async def follow() -> None:
        async for entry in reader.tail():
            found.append(entry.data)

    following = asyncio.ensure_future(follow())
    for n in range(2, 10):
        await writer.append(PAYLOADS[n])
        while len(found) < n:
            await asyncio.sleep(0.01)
    await writer.close()
    await following
    assert found == PAYLOADS[1:10]


@pytest.mark.thorough
async def test_a_dead_bookie_ends_no_ledger(ours: InProcess) -> None:
    client = await ours.client(read_timeout_s=2)
    writer = await client.create_ledger(ensemble_size=3)
    await writer.append_batch(PAYLOADS)
    dead = writer.metadata.fragments[0].bookies[0]
    ours.kill(dead)
    await client.close()
    reader = await (await ours.client(read_timeout_s=2)).recover_ledger(writer.ledger_id)
    assert [entry.data async for entry in reader.read()] == PAYLOADS


async def test_a_writer_goes_on_when_a_bookie_dies(ours: InProcess) -> None:
    client = await ours.client()
    writer = await client.create_ledger()
    await writer.append_batch(PAYLOADS[:100])
    dead = writer.metadata.fragments[0].bookies[0]
    ours.kill(dead)
    await writer.append_batch(PAYLOADS[100:])
    while dead in writer.metadata.fragments[-1].bookies:
        await asyncio.sleep(0.01)
    await writer.close()
    assert await contents(await ours.client(), writer.ledger_id) == PAYLOADS


async def test_a_ledger_of_many_bytes_goes_through_small_frames(ours: InProcess) -> None:
    client = await ours.client(bookkeeper_reads_at_once=1, bookkeeper_reads_first=1, read_bytes=20_000)
    writer = await client.create_ledger(ensemble_size=2, write_quorum=2)
    payloads = [bytes([n]) * 30_000 for n in range(50)]
    await asyncio.gather(*map(writer.append, payloads))
    await writer.close()
    assert await contents(client, writer.ledger_id) == payloads
