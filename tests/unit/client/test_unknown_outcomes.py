"""What nobody told the writer: whether its change of the ensemble was stored, whether an append that failed was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.in_process import DEADLINE_S, InProcess, contents, eventually

import bkpy
from bkpy.bookie.connection import Connection
from bkpy.errors import MetadataUnavailableError
from bkpy.metadata.ledgers import LedgerCatalog
from bkpy.metadata.outcome import NotDone, PutOutcome, Unknown
from bkpy.protocol import messages as m
from bkpy.protocol.ledger_metadata import LedgerMetadata
from bkpy.protocol.messages import Op, Status


class Vanishing:
    """A writer's catalog. From `armed` on, one write is applied, and then the store is away until `back`."""

    def __init__(self, catalog: LedgerCatalog) -> None:
        self._catalog = catalog
        self.armed = False
        self.away = False

    @property
    def reachable(self) -> bool:
        return not self.away

    async def write(self, metadata: LedgerMetadata, expected_version: int) -> PutOutcome:
        if self.away:
            return NotDone(MetadataUnavailableError("the store is away"))
        outcome = await self._catalog.write(metadata, expected_version)
        if self.armed:
            self.armed, self.away = False, True
            return Unknown(MetadataUnavailableError("the store went away"))
        return outcome

    async def read(self, ledger_id: int, *, fresh: bool = False) -> tuple[LedgerMetadata, int]:
        if self.away:
            raise MetadataUnavailableError("the store is away")
        return await self._catalog.read(ledger_id, fresh=fresh)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path)
    await local.start("abcd")
    yield local
    await local.stop()


async def test_nothing_is_acknowledged_on_bookies_that_the_stored_change_does_not_name(cluster: InProcess) -> None:
    client = await cluster.client(add_timeout_s=1)
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    writer._catalog = catalog = Vanishing(writer._catalog)  # type: ignore[assignment]
    await writer.append(b"0")
    replaced, slow, fast = writer.ensemble
    catalog.armed = True
    cluster.kill(replaced)
    first = asyncio.create_task(writer.append(b"1"))
    await eventually(lambda: catalog.away)  # and the metadata name the fourth bookie instead

    # The replaced bookie returns, and another one goes.
    await cluster.node(replaced).stop()
    await cluster.start_node(replaced)
    cluster.kill(slow)
    second = asyncio.create_task(writer.append(b"2"))
    await asyncio.wait([second], timeout=3)  # it must not be acknowledged yet: the writer can't know by whom
    acknowledged = writer.last_add_confirmed
    if second.done():
        cluster.kill(fast)
        await cluster.node(slow).stop()
        await cluster.start_node(slow)
        writer.abandon()
    else:
        catalog.away = False
        async with asyncio.timeout(DEADLINE_S):
            acknowledged = await second
        writer.abandon()
    await asyncio.wait([first])
    other = await cluster.client()
    reader = await other.recover_ledger(writer.ledger_id)
    assert reader.last_add_confirmed >= acknowledged


@pytest.mark.parametrize("status", [Status.UNAUTHORIZED, Status.FENCED])
@pytest.mark.parametrize("batch", [False, True])
async def test_what_one_bookie_refuses_for_good_another_may_have(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, status: Status, batch: bool
) -> None:
    client, other = await cluster.client(), await cluster.client()
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"0")
    refusing, *having = writer.ensemble
    stored = asyncio.Event()
    reply = Connection._reply

    def refuse(self: Connection, op: int, correlation_id: int, head: bytes, body: Any = ()) -> None:
        if op == Op.ADD and self._server.bookie_id == refusing:
            head = m.pack([int(status)])
        if op == Op.ADD and self._server.bookie_id == having[0]:
            stored.set()
            return  # its answer is on its way for ever
        if op == Op.ADD and self._server.bookie_id == having[1]:
            return
        reply(self, op, correlation_id, head, body)

    monkeypatch.setattr(Connection, "_reply", refuse)
    appending = asyncio.create_task(writer.append_batch([b"1"]) if batch else writer.append(b"1"))  # type: ignore[arg-type]
    async with asyncio.timeout(DEADLINE_S):
        await stored.wait()
        await asyncio.wait([appending])
    error = appending.exception()
    assert isinstance(error, bkpy.UnauthorizedError | bkpy.LedgerFencedError)
    assert error.outcome_unknown
    assert error.entry_id == 1
    monkeypatch.setattr(Connection, "_reply", reply)
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
    client._flights.launch()
    flushing = asyncio.create_task(writer.flush())
    await asyncio.sleep(0)
    unsent = writer.append_nowait(b"2")
    writer.failed(bkpy.LedgerFencedError("fenced"))
    with pytest.raises(bkpy.LedgerFencedError) as failure:
        await sent
    assert failure.value.outcome_unknown
    with pytest.raises(bkpy.LedgerFencedError) as failure:
        await unsent
    assert not failure.value.outcome_unknown
    with pytest.raises(bkpy.LedgerFencedError) as failure:
        await flushing
    assert failure.value.outcome_unknown
    writer.abandon()
    for name in writer.ensemble:
        for connection in cluster.connections(name):
            connection.resume("hung")
        cluster.admit(name)
    async with asyncio.timeout(DEADLINE_S):
        reader = await other.recover_ledger(writer.ledger_id)
    assert b"2" not in [entry.data async for entry in reader.read()]
