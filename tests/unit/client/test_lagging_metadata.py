"""Clients whose metadata server lags behind: plain reads give what was there before somebody else's write."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from tests.in_process import DEADLINE_S, InProcess, contents, lag_behind, stored
from tests.unit.client.support import check_closed, payload

from bkpy.client.connect import Client
from bkpy.client.writer import LedgerWriter


async def behind(client: Client, writer: LedgerWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    await lag_behind(client._cluster.store, client._cluster.catalog.path_of(writer.ledger_id), monkeypatch)


@pytest.mark.scenario(11)
async def test_a_recovery_finds_the_fragment_that_was_added_last(
    five: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = await five.client(explicit_lac_interval_s=0), await five.client()
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(payload(0))
    await behind(other, writer, monkeypatch)
    five.kill(writer.ensemble[0])
    await writer.append(payload(1))
    async with asyncio.timeout(DEADLINE_S):
        await other.recover_ledger(writer.ledger_id)
    await check_closed(client, writer.ledger_id, 2)
    assert len((await client.ledger_metadata(writer.ledger_id)).fragments) == 2


@pytest.mark.scenario(33)
async def test_a_writer_closes_a_ledger_that_somebody_else_has_changed(
    five: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = await five.client(), await five.client()
    writer = await client.create_ledger()
    await writer.append(payload(0))
    await behind(client, writer, monkeypatch)
    metadata, version = await other._cluster.catalog.read(writer.ledger_id)
    stored(await other._cluster.catalog.write(dataclasses.replace(metadata, custom_metadata={"by": b"other"}), version))
    async with asyncio.timeout(DEADLINE_S):
        await writer.close()
    await check_closed(other, writer.ledger_id, 1)


@pytest.mark.scenario(27)
async def test_a_writer_adopts_the_ensemble_that_somebody_else_has_stored(
    five: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = await five.client(), await five.client()
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"0")
    first = writer.ensemble
    spare = sorted(set("abcde") - set(first))[0]
    await behind(client, writer, monkeypatch)
    metadata, version = await other._cluster.catalog.read(writer.ledger_id)
    stored(await other._cluster.catalog.write(metadata.new_fragment(1, (spare, *first[1:])), version))
    five.kill(first[0])
    async with asyncio.timeout(DEADLINE_S):
        assert await writer.append(b"1") == 1
        await writer.close()
    assert writer.ensemble == (spare, *first[1:])
    assert await contents(other, writer.ledger_id) == [b"0", b"1"]
