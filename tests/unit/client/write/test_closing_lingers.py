"""Closing a ledger waits a little for the bookies that the ack quorum was quicker than: its client may end at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.hooks import cluster_of
from tests.in_process import runtime_here
from tests.stepping import run_to
from tests.unit.replication.repairing import held, whole
from tests.waiting import eventually

from bkpy.admin.client import AdminClient
from bkpy.client.client import open_client
from bkpy.config.client import client_settings
from bkpy.metadata.replication.underreplication import LossReason, UnderreplicationQueue
from bkpy.protocol.ledger.ledger_metadata import LedgerState

if TYPE_CHECKING:
    from tests.in_process import InProcess

    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter


async def recorded(client: Client, ledger_id: int) -> dict[str, str]:
    """Which bookies the ledger's under-replication record names, and why."""
    record = await AdminClient(client).under_replication(ledger_id)
    return {} if record is None else {name: lost.reason for name, lost in record.lost.items()}


async def test_a_bookie_that_is_slower_than_the_ack_quorum_has_everything_when_the_client_is_closed(
    cluster: InProcess,
) -> None:
    client = await cluster.client()
    async with await client.create_ledger() as writer:
        slow = cluster.connections("b")
        for connection in slow:
            connection.pause("busy")
        await writer.append_batch([b"entry"] * 10)
        for connection in slow:
            asyncio.get_running_loop().call_later(0.05, connection.resume, "busy")
    assert await recorded(client, writer.ledger_id) == {}
    await client.close()
    await whole(await cluster.client(), writer.ledger_id)


@pytest.mark.parametrize("linger_s", [0.0, 0.1])
async def test_a_bookie_that_does_not_answer_is_waited_for_so_long(cluster: InProcess, linger_s: float) -> None:
    client = await cluster.client(close_linger_s=linger_s, add_timeout_s=60.0)
    async with await client.create_ledger() as writer:
        cluster.hang("b")
        await writer.append(b"entry")
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began >= linger_s
    assert (await client.ledger_metadata(writer.ledger_id)).last_entry == 0
    # What it was sent may never get there, and nobody else would know.
    assert await recorded(client, writer.ledger_id) == {"b": LossReason.RETURNED}


async def test_a_bookie_that_fails_behind_the_end_of_the_ledger_is_recorded(cluster: InProcess) -> None:
    client = await cluster.client(close_linger_s=60.0, add_timeout_s=60.0)
    writer = await client.create_ledger()
    cluster.hang("b")
    await writer.append(b"entry")
    closing = asyncio.create_task(writer.close())
    await eventually(lambda: not writer.usable)
    assert not closing.done()
    cluster.kill("b")
    await closing
    assert await recorded(client, writer.ledger_id) == {"b": LossReason.RETURNED}


async def closed_without_b(cluster: InProcess, client: Client) -> tuple[LedgerWriter, asyncio.Task[None]]:
    """A writer whose ledger is CLOSED, and its `close`, which waits for a bookie that doesn't answer."""
    writer = await client.create_ledger()
    cluster.hang("b")
    await writer.append(b"entry")
    closing = asyncio.create_task(writer.close())
    await eventually(lambda: writer.metadata.state is LedgerState.CLOSED)
    assert not closing.done()
    return writer, closing


async def test_a_client_that_is_closed_meanwhile_records_what_bookies_miss(cluster: InProcess) -> None:
    client = await cluster.client(close_linger_s=60.0, add_timeout_s=120.0)
    other = await cluster.client()
    writer, closing = await closed_without_b(cluster, client)
    await client.close()
    assert await recorded(other, writer.ledger_id) == {"b": LossReason.RETURNED}
    await closing


async def test_what_a_bookie_misses_is_dated_no_later_than_the_end_of_the_ledger(cluster: InProcess) -> None:
    """Else a bookie that is lost and returns would be taken for whole: the ledger was CLOSED long before."""
    client = await cluster.client(close_linger_s=120.0, add_timeout_s=240.0)
    writer, closing = await closed_without_b(cluster, client)
    await closing
    catalog, ledger_id = cluster_of(client).catalog, writer.ledger_id
    record = await catalog.marks().read(ledger_id)
    assert record is not None
    assert not await catalog.closed_before(ledger_id, record.lost["b"].since_ms)


async def test_nothing_is_recorded_of_a_ledger_that_is_deleted_meanwhile(
    cluster: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    client = await cluster.client(close_linger_s=60.0, add_timeout_s=120.0)
    other = await cluster.client()
    writer, closing = await closed_without_b(cluster, client)
    await other.delete_ledger(writer.ledger_id)
    await closing
    assert await recorded(other, writer.ledger_id) == {}
    assert "failed to mark" not in caplog.text


async def test_a_client_whose_store_is_away_ends_in_time(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = await cluster.client(close_linger_s=0.1, metadata_close_timeout_s=1.0)
    writer, closing = await closed_without_b(cluster, client)
    monkeypatch.setattr(UnderreplicationQueue, "add", lambda *_: asyncio.Event().wait())
    await client.close()
    await closing
    assert f"ledger {writer.ledger_id}: the client ended before it was known whether" in caplog.text


async def test_a_call_that_is_cancelled_ends_no_look_for_what_bookies_miss(cluster: InProcess) -> None:
    client = await cluster.client()
    writer, closing = await closed_without_b(cluster, client)
    closing.cancel()
    await asyncio.wait([closing])
    await writer.close()
    assert await recorded(client, writer.ledger_id) == {"b": LossReason.RETURNED}


async def test_the_second_of_two_calls_returns_when_what_bookies_miss_is_recorded(cluster: InProcess) -> None:
    client = await cluster.client()
    writer, first = await closed_without_b(cluster, client)
    await writer.close()
    assert await recorded(client, writer.ledger_id) == {"b": LossReason.RETURNED}
    await first


async def test_a_log_that_is_closed_right_behind_a_roll_records_what_bookies_miss_of_both_ledgers(
    cluster: InProcess,
) -> None:
    """The log's end cancels the end of its former ledger, and begins that again."""
    client = await cluster.client()
    log = await client.open_log("log", create=True, roll_entries=3)
    former = log.ledger_id
    cluster.hang("b")
    for _ in range(4):
        await log.append(b"entry")
    await eventually(lambda: log.ledger_id != former)
    await log.append(b"entry")

    async def former_is_closed() -> bool:
        return (await client.ledger_metadata(former)).state is LedgerState.CLOSED

    await eventually(former_is_closed)
    last = log.ledger_id
    await log.close()
    for ledger_id in (former, last):
        assert await recorded(client, ledger_id) == {"b": LossReason.RETURNED}


async def test_a_bookie_of_a_former_fragment_that_has_not_answered_is_recorded(four: InProcess) -> None:
    """Its disk stalls before an entry is synced. It refuses the next one, and another bookie replaces it."""
    client = await four.client(add_timeout_s=60.0)
    writer = await client.create_ledger()
    slow, *others = writer.ensemble
    four.disks[slow].stall("journal")
    try:
        await writer.append(b"entry")
        refusing = asyncio.create_task(four.node(slow).set_read_only(True, "its disk is full"))
        await eventually(lambda: four.service(slow).read_only)
        for name in others:  # else they acknowledge the next entry before it is refused
            four.disks[name].stall("journal")
        appended = writer.append_nowait(b"entry")
        await eventually(lambda: slow not in writer.ensemble)
        for name in others:
            four.disks[name].unstall()
        await appended
        await writer.close()
        assert [slow in fragment.bookies for fragment in writer.metadata.fragments] == [True, False]
        assert await recorded(client, writer.ledger_id) == {slow: LossReason.RETURNED}
    finally:
        for disk in four.disks.values():
            disk.unstall()
    await refusing


@pytest.mark.parametrize("fails", [False, True], ids=["silent", "fails"])
async def test_a_recovery_records_what_a_bookie_misses_that_is_slower_than_the_ack_quorum(
    cluster: InProcess, fails: bool
) -> None:
    """It doesn't wait for it, its client does."""
    client = await cluster.client()
    writer = await client.create_ledger()
    cluster.hang("b")
    await writer.append_batch([b"entry"] * 5)  # no bookie knows that these are acknowledged
    writer.abandon()
    other = await cluster.client(close_linger_s=60.0, add_timeout_s=120.0)
    began = asyncio.get_running_loop().time()
    await other.recover_ledger(writer.ledger_id)
    assert asyncio.get_running_loop().time() - began < 60.0
    assert await recorded(client, writer.ledger_id) == {}
    if fails:
        cluster.kill("b")
    await other.close()
    assert (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies == writer.ensemble
    assert await recorded(client, writer.ledger_id) == {"b": LossReason.RETURNED}
    if not fails:
        cluster.kill("b")
    await cluster.node("b").stop()
    await cluster.start_node("b")
    assert not await held(client, writer.ledger_id, "b", 4)


@pytest.mark.thorough
@pytest.mark.parametrize("client_closes", [False, True], ids=["the call is cancelled", "the client is closed"])
@pytest.mark.parametrize("recovery", [False, True], ids=["close", "recovery"])
async def test_whenever_a_call_ends_that_closes_a_ledger_what_bookies_miss_is_recorded(
    cluster: InProcess, recovery: bool, client_closes: bool
) -> None:
    """At each of its waits."""
    other = await cluster.client()
    closed, at, reached = 0, 0, True
    while reached:
        settings = client_settings(close_linger_s=0.5, add_timeout_s=60.0)
        session = cluster.tree.session()
        client = await open_client(session, cluster.root, runtime_here(), settings, owns_store=True)
        writer = await client.create_ledger()
        cluster.hang("b")
        if recovery:
            await writer.append_batch([b"entry"] * 3)
            writer.abandon()
            cluster.kill("b")
        else:
            await writer.append(b"entry")
        ends: list[asyncio.Task[None]] = []
        call = client.recover_ledger(writer.ledger_id) if recovery else writer.close()
        act = (lambda c=client, e=ends: e.append(asyncio.create_task(c.close()))) if client_closes else None
        reached = await run_to(call, at, False, act)
        await asyncio.gather(*ends)
        await client.close()
        if (await other.ledger_metadata(writer.ledger_id)).state is LedgerState.CLOSED:
            closed += 1
            assert await recorded(other, writer.ledger_id) == {"b": LossReason.RETURNED}, at
        cluster.kill("b")
        await cluster.node("b").stop()
        await cluster.start_node("b")
        await eventually(lambda: "b" in other.bookies)
        at += 1
    assert closed > 1
