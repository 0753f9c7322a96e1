"""Ledgers whose callers choose the ids of their entries, and ledgers whose syncs are deferred."""

import asyncio
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from tests.hooks import out_of_order_of, pool_of, storage_of_adds, window_of
from tests.in_process import DEADLINE_S, InProcess, contents
from tests.waiting import eventually

import bkpy
from bkpy.bookie.connection.add_handler import AddHandler
from bkpy.client.client import Client
from bkpy.protocol.wire.frame import Frame

# --- caller-chosen ids --------------------------------------------------------------------------------------------


@pytest.mark.scenario(32)
async def test_entries_in_any_order_are_acknowledged_in_id_order(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger(caller_ids=True)
    done: list[int] = []
    appends = []
    for entry_id in (3, 1, 4, 2):
        append = asyncio.create_task(writer.append(b"%d" % entry_id, entry_id=entry_id))
        append.add_done_callback(lambda task: done.append(task.result()))
        appends.append(append)
    await asyncio.sleep(0.1)
    assert done == []  # entry 0 is still to come
    assert writer.last_add_confirmed == -1
    assert await writer.append(b"0", entry_id=0) == 0
    async with asyncio.timeout(DEADLINE_S):
        assert await asyncio.gather(*appends) == [3, 1, 4, 2]
    assert done == [1, 2, 3, 4]
    assert writer.length == 5
    await writer.close()
    assert await contents(client, writer.ledger_id) == [b"0", b"1", b"2", b"3", b"4"]
    assert (await client.ledger_metadata(writer.ledger_id)).caller_ids


async def test_a_flush_waits_for_no_entry_that_has_no_place_yet(cluster: InProcess) -> None:
    client = await cluster.client(write_window_entries=1)
    with_ids = await client.create_ledger(caller_ids=True)
    early = with_ids.append_nowait(b"1", entry_id=1)
    writer = await client.create_ledger()
    appends = [asyncio.create_task(writer.append(b"%d" % n)) for n in range(2)]
    await asyncio.sleep(0)  # the second one waits for room
    async with asyncio.timeout(DEADLINE_S):
        await with_ids.flush()
        await writer.flush()
        assert not early.done()
        assert writer.last_add_confirmed == 0
        assert await asyncio.gather(*appends) == [0, 1]
        assert await with_ids.append(b"0", entry_id=0) == 0
        assert await early == 1
    await writer.close()
    await with_ids.close()


@pytest.mark.scenario(32)
async def test_an_id_is_taken_once(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger(caller_ids=True)
    await writer.append(b"0", entry_id=0)
    early = writer.append_nowait(b"2", entry_id=2)
    for taken in (0, 2):
        with pytest.raises(bkpy.DuplicateEntryError) as failure:
            await writer.append(b"again", entry_id=taken)
        assert (failure.value.entry_id, failure.value.outcome_unknown) == (taken, False)
    await writer.append(b"1", entry_id=1)
    assert await early == 2
    await writer.close()
    assert await contents(client, writer.ledger_id) == [b"0", b"1", b"2"]


@pytest.mark.scenario(32)
async def test_closing_fails_what_waits_behind_a_gap(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger(caller_ids=True)
    first = writer.append_nowait(b"0", entry_id=0)
    behind = writer.append_nowait(b"2", entry_id=2)
    await writer.close()
    assert await first == 0
    with pytest.raises(bkpy.LedgerClosedError) as failure:
        await behind
    assert (failure.value.entry_id, failure.value.outcome_unknown) == (2, False)
    assert await contents(client, writer.ledger_id) == [b"0"]


@pytest.mark.scenario(32)
async def test_the_next_id_in_order_always_has_room(cluster: InProcess) -> None:
    """Entries that wait for it fill the window, and more wait for room; among those is the very next one."""
    client = await cluster.client(write_window_entries=4)
    writer = await client.create_ledger(caller_ids=True)
    appends = [asyncio.create_task(writer.append(b"%d" % i, entry_id=i)) for i in (5, 6, 7, 8, 3, 2, 1, 4)]
    await eventually(lambda: len(out_of_order_of(writer).early) == 4)
    with pytest.raises(bkpy.WouldBlock):
        writer.append_nowait(b"9", entry_id=9)
    async with asyncio.timeout(DEADLINE_S):
        await writer.append(b"0", entry_id=0)
        assert await asyncio.gather(*appends) == [5, 6, 7, 8, 3, 2, 1, 4]
        await writer.close()
    assert window_of(writer).filled() == (0, 0)
    assert await contents(client, writer.ledger_id) == [b"%d" % i for i in range(9)]


@pytest.mark.scenario(32)
@pytest.mark.scenario(34)
@pytest.mark.parametrize("ending", ["failed", "abandoned", "closed", "client closed"])
async def test_appends_that_wait_for_room_end_with_their_writer(cluster: InProcess, ending: str) -> None:
    client = await cluster.client(write_window_entries=2)
    writer = await client.create_ledger(caller_ids=True)
    appends = [asyncio.create_task(writer.append(b"x", entry_id=i)) for i in (5, 6, 7, 8)]
    await eventually(lambda: len(out_of_order_of(writer).early) == len(out_of_order_of(writer).room_waiters) == 2)
    error: type[bkpy.BookKeeperError] = bkpy.ClientClosedError
    if ending == "failed":
        writer.pending.replication.failed(bkpy.LedgerFencedError("another client is recovering the ledger"))
        error = bkpy.LedgerFencedError
    elif ending == "abandoned":
        writer.abandon()
    elif ending == "closed":
        await writer.close()
        error = bkpy.LedgerClosedError
    else:
        await client.close()
    async with asyncio.timeout(DEADLINE_S):
        results = await asyncio.gather(*appends, return_exceptions=True)
    assert [type(result) for result in results] == [error] * 4
    assert not any(result.outcome_unknown for result in results if isinstance(result, bkpy.BookKeeperError))


@pytest.mark.scenario(32)
async def test_the_window_holds_for_ids_in_order(cluster: InProcess) -> None:
    """The next id in order needs no room of its own only while nothing else can make some."""
    client = await cluster.client(write_window_entries=10, add_timeout_s=2 * DEADLINE_S)
    writer = await client.create_ledger(caller_ids=True)
    await writer.append(b"0", entry_id=0)
    for name in writer.ensemble:
        cluster.hang(name)
    pending = [writer.append_nowait(b"%d" % i, entry_id=i) for i in range(1, 11)]
    with pytest.raises(bkpy.WouldBlock):
        writer.append_nowait(b"11", entry_id=11)
    waiting = [asyncio.create_task(writer.append(b"%d" % i, entry_id=i)) for i in (12, 11, 13)]
    await eventually(lambda: len(out_of_order_of(writer).room_waiters) == 3)
    assert window_of(writer).filled()[0] == 10
    for name in writer.ensemble:
        for connection in cluster.connections(name):
            connection.resume("hung")
    async with asyncio.timeout(DEADLINE_S):
        assert await asyncio.gather(*pending, *waiting) == [*range(1, 11), 12, 11, 13]
        await writer.close()
    assert await contents(client, writer.ledger_id) == [b"%d" % i for i in range(14)]


@pytest.mark.scenario(32)
async def test_ids_are_for_the_ledgers_that_were_created_for_them(cluster: InProcess) -> None:
    client = await cluster.client()
    chosen, counted = await client.create_ledger(caller_ids=True), await client.create_ledger()
    with pytest.raises(bkpy.ConfigError, match="caller_ids"):
        await counted.append(b"x", entry_id=0)
    with pytest.raises(bkpy.ConfigError, match="entry_id"):
        await chosen.append(b"x")
    with pytest.raises(bkpy.ConfigError, match="entry_id"):
        await chosen.append(b"x", entry_id=-1)
    with pytest.raises(bkpy.ConfigError, match="one by one"):
        await chosen.append_batch([b"x"])
    assert await counted.append(b"x") == 0
    for writer in (chosen, counted):
        await writer.close()


@pytest.mark.scenario(32)
async def test_a_ledger_with_a_gap_is_recovered_up_to_it(five: InProcess) -> None:
    client, other = await five.client(), await five.client()
    writer = await client.create_ledger(caller_ids=True)
    for i in range(3):
        await writer.append(b"%d" % i, entry_id=i)
    behind = writer.append_nowait(b"4", entry_id=4)
    five.kill(writer.ensemble[0])
    reader = await other.recover_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == 2
    with pytest.raises(bkpy.LedgerFencedError):
        await writer.append(b"3", entry_id=3)
    with pytest.raises(bkpy.LedgerFencedError):
        await behind


# --- deferred sync ------------------------------------------------------------------------------------------------


async def connected_again(client: Client, name: str) -> None:
    """Return once the client has a connection to the bookie, which was lost before."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await pool_of(client).channel(name).connect(again=True)
                return
            except bkpy.BookieUnavailableError:
                await asyncio.sleep(0.01)


@pytest.mark.scenario(35)
async def test_force_moves_last_add_confirmed_and_nothing_else_does(cluster: InProcess) -> None:
    client, other = await cluster.client(), await cluster.client()
    writer = await client.create_ledger(deferred_sync=True)
    for i in range(10):
        assert await writer.append(b"%d" % i) == i
    assert writer.last_add_confirmed == -1
    reader = await other.open_ledger(writer.ledger_id)
    assert reader.last_add_confirmed == -1
    assert await writer.force() == 9
    assert writer.last_add_confirmed == 9
    async with asyncio.timeout(DEADLINE_S):
        while await reader.read_last_add_confirmed() < 9:  # published by the idle writer
            await asyncio.sleep(0.01)
    await writer.append(b"10")
    await writer.close()  # which forces
    assert await contents(client, writer.ledger_id) == [b"%d" % i for i in range(11)]
    metadata = await client.ledger_metadata(writer.ledger_id)
    assert (metadata.last_entry, metadata.length, metadata.deferred_sync) == (10, 12, True)


@pytest.mark.scenario(35)
async def test_force_needs_the_whole_ensemble(five: InProcess) -> None:
    client = await five.client()
    writer = await client.create_ledger(deferred_sync=True)
    await writer.append(b"0")
    await writer.force()
    first = writer.ensemble
    five.kill(first[0])
    assert await writer.append(b"1") == 1  # on the two that are left
    with pytest.raises(bkpy.BookieUnavailableError) as failure:
        await writer.force()
    assert failure.value.bookie == first[0]
    assert writer.last_add_confirmed == 0
    assert writer.ensemble == first
    with pytest.raises(bkpy.BookieUnavailableError):
        await writer.close()
    writer.abandon()


@pytest.mark.scenario(35)
async def test_a_bookie_that_was_away_may_have_lost_what_was_not_forced(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger(deferred_sync=True)
    await writer.append(b"0")
    await writer.force()
    await writer.append(b"1")
    cluster.kill("b")
    await cluster.restart("b")
    await connected_again(client, "b")
    with pytest.raises(bkpy.BookieUnavailableError, match="connection was lost") as failure:
        await writer.force()
    assert failure.value.outcome_unknown
    assert not failure.value.retriable
    assert writer.last_add_confirmed == 0
    await writer.close()
    assert await contents(client, writer.ledger_id) == [b"0"]


@pytest.mark.scenario(35)
@pytest.mark.parametrize("forced", [True, False])
@pytest.mark.parametrize("before", [0, 1])
async def test_a_bookie_that_was_away_while_nothing_was_unforced_costs_nothing(
    cluster: InProcess, before: int, forced: bool
) -> None:
    """Also if nobody called `force` between its return and the next append."""
    client = await cluster.client()
    writer = await client.create_ledger(deferred_sync=True)
    for number in range(before):
        await writer.append(b"%d" % number)
        await writer.force()
    cluster.kill("b")
    await cluster.restart("b")
    await connected_again(client, "b")
    if forced:
        assert await writer.force() == before - 1
    await writer.append(b"%d" % before)
    assert await writer.force() == before
    await writer.close()
    assert await contents(client, writer.ledger_id) == [b"%d" % number for number in range(before + 1)]


@pytest.mark.scenario(35)
@pytest.mark.parametrize("again", [True, False])
async def test_what_a_bookie_was_not_sent_is_not_forced(cluster: InProcess, again: bool) -> None:
    """It is away as the first entry behind the last `force` is appended, and there again when the next is called."""
    client = await cluster.client()
    writer = await client.create_ledger(deferred_sync=True)
    await writer.append(b"0")
    await writer.force()
    cluster.kill("b")
    await eventually(lambda: not pool_of(client).channel("b").up)
    await writer.append(b"1")
    await cluster.restart("b")
    await connected_again(client, "b")
    if again:
        await writer.append(b"2")
    with pytest.raises(bkpy.BookieUnavailableError, match="connection was lost"):
        await writer.force()
    assert writer.last_add_confirmed == 0
    await writer.close()


@contextmanager
def held_back(cluster: InProcess, bookie: str) -> Iterator[list[Callable[[], None]]]:
    """Appends that the bookie receives meanwhile; each is taken when its item is called."""
    add, waiting = AddHandler.add, list[Callable[[], None]]()

    def late(handler: AddHandler, frame: Frame) -> None:
        if storage_of_adds(handler) is cluster.storage(bookie):
            waiting.append(functools.partial(add, handler, frame))
        else:
            add(handler, frame)

    with patch.object(AddHandler, "add", late):
        yield waiting


@pytest.mark.scenario(35)
async def test_what_a_bookie_has_not_answered_is_forced_there_too(cluster: InProcess) -> None:
    """An append waits at a bookie, which could answer `force` before: then a crash would take what it acknowledged."""
    client = await cluster.client()
    writer = await client.create_ledger(deferred_sync=True)
    with held_back(cluster, "a") as waiting:
        await writer.append(b"0")
    forcing = asyncio.create_task(writer.force())
    await asyncio.sleep(0.1)
    assert not forcing.done()
    assert writer.last_add_confirmed == -1
    waiting[0]()
    async with asyncio.timeout(DEADLINE_S):
        assert await forcing == 0
    for name in writer.ensemble:
        found = await cluster.storage(name).read(writer.ledger_id, 0, 0, 1 << 20)
        assert b"".join(found.segments)
    await writer.close()


@pytest.mark.scenario(35)
async def test_force_waits_for_what_was_sent_before_it_alone(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger(deferred_sync=True)
    with held_back(cluster, "a") as waiting:
        await writer.append(b"0")
        forcing = asyncio.create_task(writer.force())
        await asyncio.sleep(0.05)
        await writer.append(b"1")
        waiting.pop(0)()
        async with asyncio.timeout(DEADLINE_S):
            assert await forcing == 0
        waiting.pop(0)()
    await writer.close()
    assert await contents(client, writer.ledger_id) == [b"0", b"1"]


@pytest.mark.scenario(35)
async def test_force_does_not_wait_for_ever(cluster: InProcess) -> None:
    client = await cluster.client(add_timeout_s=0.3)
    writer = await client.create_ledger(deferred_sync=True)
    await writer.append(b"0")
    await writer.force()
    cluster.hang(writer.ensemble[0])
    await writer.append(b"1")
    with pytest.raises(bkpy.BookieUnavailableError) as failure:
        await writer.force()
    assert failure.value.bookie == writer.ensemble[0]
    writer.abandon()


async def test_force_is_for_the_ledgers_that_were_created_for_it(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await client.create_ledger()
    with pytest.raises(bkpy.ConfigError, match="deferred_sync"):
        await writer.force()
    await writer.close()


@pytest.mark.scenario(35)
async def test_a_forced_ledger_is_recovered_at_least_that_far(cluster: InProcess) -> None:
    client, other = await cluster.client(), await cluster.client()
    writer = await client.create_ledger(deferred_sync=True)
    for i in range(20):
        await writer.append(b"%d" % i)
    await writer.force()
    writer.abandon()
    reader = await other.recover_ledger(writer.ledger_id)
    assert reader.last_add_confirmed >= 19
    assert [entry.data async for entry in reader.read()][:20] == [b"%d" % i for i in range(20)]
    with pytest.raises(bkpy.ClientClosedError):
        await writer.append(b"x")
