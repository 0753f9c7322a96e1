"""Adds whose sync is deferred: answered from memory, durable once they were forced."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import codec_of, pool_of
from tests.in_process import DEADLINE_S, InProcess, add
from tests.waiting import eventually

from bkpy.errors import BookieUnavailableError
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Flags, Op, Status
from bkpy.protocol.wire.records import ledger_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter

DEFERRED = int(Flags.DEFERRED_SYNC)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[InProcess]:
    local = InProcess(tmp_path)
    await local.start("abc", journal_group_bytes_max=1000)
    yield local
    await local.stop()


@contextmanager
def stalled(cluster: InProcess) -> Iterator[None]:
    """Nothing is written to bookie a's journal meanwhile."""
    cluster.disks["a"].stall("journal")
    try:
        yield
    finally:
        cluster.disks["a"].unstall()


async def ledger(client: Client) -> LedgerWriter:
    """A ledger of one entry, known to all bookies."""
    writer = await client.create_ledger(ack_quorum=3)
    await writer.append(b"x")
    return writer


async def send(client: Client, writer: LedgerWriter, entry_id: int, flags: int = DEFERRED, size: int = 10) -> Any:
    parts: list[Any] = []
    codec_of(writer).encode(parts, [b"d" * size], entry_id, 1, entry_id - 1, [100])
    body = b"".join(parts)
    columns = [flags, [writer.ledger_id], [entry_id], [1], 1, [len(body)]]
    return await add(pool_of(client).channel("a"), columns, body, pool_of(client))


async def force(client: Client, ledger_id: int, *, present: bool = True) -> Status:
    reply = (
        await pool_of(client)
        .channel("a")
        .call(Op.FORCE, m.pack([ledger_id]), present=ledger_id if present else None, timeout_s=DEADLINE_S)
    )
    assert m.decode_error(reply.head).status == m.reply_status(reply.head)
    return m.reply_status(reply.head)


@pytest.mark.scenario(35)
async def test_an_add_with_deferred_sync_is_answered_before_it_is_synced_and_forced_when_it_is(
    cluster: InProcess,
) -> None:
    client = await cluster.client()
    writer = await ledger(client)
    with stalled(cluster):
        for entry_id in range(1, 50):
            assert await send(client, writer, entry_id) == Status.OK
        usual = asyncio.create_task(send(client, writer, 50, flags=0))
        forcing = asyncio.create_task(force(client, writer.ledger_id))
        found = await cluster.storage("a").read(writer.ledger_id, 1, 49, 1 << 20)
        assert found.examined_to >= 49  # it is served from memory
        assert b"".join(found.segments).count(b"d" * 10) == 49
        await asyncio.sleep(0.05)
        assert not usual.done()
        assert not forcing.done()
    async with asyncio.timeout(DEADLINE_S):
        assert await forcing == Status.OK
        assert await usual == Status.OK
    await cluster.restart("a")
    found = await cluster.storage("a").read(writer.ledger_id, 0, 50, 1 << 20)
    assert b"".join(found.segments).count(b"d" * 10) == 50


@pytest.mark.scenario(35)
async def test_an_add_with_deferred_sync_of_a_new_ledger_is_answered_before_it_is_synced(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger()
    with stalled(cluster):
        assert await send(client, writer, 0) == Status.OK
    assert await force(client, writer.ledger_id) == Status.OK


@pytest.mark.scenario(35)
async def test_a_journal_that_is_far_behind_makes_deferred_adds_wait(cluster: InProcess) -> None:
    """So that what is not on disk stays bounded."""
    cluster.settings["deferred_sync_bytes_max"] = 10_000
    await cluster.restart("a")
    client = await cluster.client()
    writer = await ledger(client)
    with stalled(cluster):
        adds = [asyncio.create_task(send(client, writer, 1 + i, size=1000)) for i in range(50)]
        await eventually(lambda: cluster.storage("a").unsynced_bytes >= 40_000)
        await eventually(lambda: sum(task.done() for task in adds) >= 5)
        await asyncio.sleep(0.05)
        assert sum(task.done() for task in adds) <= 15
    async with asyncio.timeout(DEADLINE_S):
        assert set(await asyncio.gather(*adds)) == {Status.OK}


@pytest.mark.scenario(35)
async def test_nothing_is_answered_after_the_journal_failed(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await ledger(client)
    cluster.storage("a").fail(OSError("the disk is gone"))
    sending = asyncio.create_task(send(client, writer, 1))
    reply = (
        await pool_of(client)
        .channel("a")
        .call(Op.FORCE, m.pack([writer.ledger_id]), present=writer.ledger_id, timeout_s=DEADLINE_S)
    )
    assert m.reply_status(reply.head) == Status.UNKNOWN
    assert not sending.done()
    await client.close()
    with pytest.raises(BookieUnavailableError):
        await sending


@pytest.mark.scenario(35)
async def test_forcing_needs_the_key_and_a_ledger_that_is_not_fenced(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger(ack_quorum=3, password=b"pw")
    await writer.append(b"x")
    rival = await cluster.client()
    assert await force(rival, writer.ledger_id) == Status.KEY_REQUIRED
    pool_of(rival).add_key(writer.ledger_id, ledger_key(b"wrong"))
    assert await force(rival, writer.ledger_id) == Status.UNAUTHORIZED
    assert await force(client, writer.ledger_id) == Status.OK
    other = await cluster.client()
    pool_of(other).add_key(writer.ledger_id, ledger_key(b"pw"))
    await (
        pool_of(other)
        .channel("a")
        .call(
            Op.READ_LAC, m.pack([int(Flags.RECOVERY), writer.ledger_id]), present=writer.ledger_id, timeout_s=DEADLINE_S
        )
    )
    assert await force(client, writer.ledger_id) == Status.FENCED
    assert await send(client, writer, 1) == [Status.FENCED]


async def test_forcing_a_ledger_of_which_nothing_is_here_has_nothing_to_do(cluster: InProcess) -> None:
    client = await cluster.client()
    pool_of(client).add_key(12345, ledger_key(b""))
    assert await force(client, 12345) == Status.OK
    assert (await cluster.storage("a").states((12345,)))[12345] is None


async def test_a_key_is_known_at_once_though_appends_before_it_still_wait(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests without an order overtake the backlog, but not their own key."""
    client = await cluster.client()
    first, second = await ledger(client), await ledger(client)
    rival = await cluster.client()
    for writer in (first, second):
        pool_of(rival).add_key(writer.ledger_id, writer.metadata.ledger_key)
    await pool_of(rival).channel("a").connect()
    storage = cluster.storage("a")
    states, held = storage.states, asyncio.Event()

    async def slow_states(ids: Any) -> Any:
        if first.ledger_id in ids:
            await held.wait()
        return await states(ids)

    monkeypatch.setattr(storage, "states", slow_states)
    sending = asyncio.create_task(send(rival, first, 1, flags=int(Flags.RECOVERY)))
    await asyncio.sleep(0)
    assert await force(rival, second.ledger_id) == Status.OK
    assert not sending.done()
    held.set()
    assert await sending == Status.OK
