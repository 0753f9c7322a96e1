"""Appends, and ends of ledgers, of which nobody told the writer whether they were stored: what their errors say."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.in_process import DEADLINE_S, InProcess, contents, runtime_here
from tests.stepping import run_to

import bkpy
from bkpy.bookie.connection.connection import Connection
from bkpy.client.client import open_client, replication_context
from bkpy.config.client import client_settings
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path)
    await local.start("abcd")
    yield local
    await local.stop()


@pytest.mark.parametrize("status", [Status.FORBIDDEN, Status.FENCED])
@pytest.mark.parametrize("batch", [False, True])
async def test_what_one_bookie_refuses_for_good_another_may_have(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, status: Status, batch: bool
) -> None:
    client, other = await cluster.client(), await cluster.client()
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"0")
    refusing, *having = writer.ensemble
    stored = asyncio.Event()
    reply = Connection.reply

    def refuse(self: Connection, op: int, correlation_id: int, head: bytes, body: Any = ()) -> None:
        if op == Op.ADD and self.service.bookie_id == refusing:
            head = m.pack([int(status)])
        if op == Op.ADD and self.service.bookie_id == having[0]:
            stored.set()
            return  # its answer is on its way for ever
        if op == Op.ADD and self.service.bookie_id == having[1]:
            return
        reply(self, op, correlation_id, head, body)

    monkeypatch.setattr(Connection, "reply", refuse)
    appending = asyncio.create_task(writer.append_batch([b"1"]) if batch else writer.append(b"1"))  # type: ignore[arg-type]
    async with asyncio.timeout(DEADLINE_S):
        await stored.wait()
        await asyncio.wait([appending])
    error = appending.exception()
    assert isinstance(error, bkpy.UnauthorizedError | bkpy.LedgerFencedError)
    assert error.outcome_unknown
    assert error.entry_id == 1
    monkeypatch.setattr(Connection, "reply", reply)
    writer.abandon()
    await other.recover_ledger(writer.ledger_id)
    assert await contents(other, writer.ledger_id) == [b"0", b"1"]


async def test_what_was_never_sent_is_known_not_to_be_in_the_ledger(cluster: InProcess) -> None:
    client, other = await cluster.client(add_timeout_s=2 * DEADLINE_S), await cluster.client()
    writer = await client.create_ledger()
    await writer.append(b"0")
    for name in writer.ensemble:
        cluster.hang(name)
    sent = writer.append_nowait(b"1")
    replication_context(client).parts.dispatcher.send()
    flushing = asyncio.create_task(writer.flush())
    await asyncio.sleep(0)
    unsent = writer.append_nowait(b"2")
    writer.pending.replication.failed(bkpy.LedgerFencedError("fenced"))
    with pytest.raises(bkpy.LedgerFencedError) as failure:
        await sent
    assert failure.value.outcome_unknown
    with pytest.raises(bkpy.LedgerFencedError) as failure:
        await unsent
    assert not failure.value.outcome_unknown
    with pytest.raises(bkpy.LedgerFencedError) as failure:
        await flushing
    assert failure.value.outcome_unknown
    with pytest.raises(bkpy.LedgerFencedError) as failure:
        await writer.flush()
    assert failure.value.outcome_unknown
    writer.abandon()
    for name in writer.ensemble:
        for connection in cluster.connections(name):
            connection.resume("hung")
        cluster.admit(name)
    async with asyncio.timeout(DEADLINE_S):
        reader = await other.recover_ledger(writer.ledger_id)
    assert b"2" not in [entry.data async for entry in reader.read()]


async def test_who_flushes_when_all_is_acknowledged_hears_nothing_of_doubt(cluster: InProcess) -> None:
    client = await cluster.client()
    for entries in (0, 2):
        writer = await client.create_ledger()
        for _ in range(entries):
            await writer.append(b"0")
        writer.pending.replication.failed(bkpy.LedgerFencedError("fenced"))
        with pytest.raises(bkpy.LedgerFencedError) as failure:
            await writer.flush()
        assert not failure.value.outcome_unknown
        writer.abandon()


async def test_a_close_that_was_cancelled_in_its_write_leaves_the_next_one_in_doubt(cluster: InProcess) -> None:
    session = cluster.tree.session()
    client = await open_client(session, cluster.root, runtime_here(), client_settings(), owns_store=True)
    writer = await client.create_ledger()
    await writer.append(b"0")
    assert await run_to(writer.close(), 1, False, None)
    session.suspend()
    with pytest.raises(bkpy.MetadataUnavailableError) as failure:
        await writer.close()
    assert failure.value.outcome_unknown
    session.resume()
    assert (await (await cluster.client()).ledger_metadata(writer.ledger_id)).state is LedgerState.CLOSED
    await client.close()
