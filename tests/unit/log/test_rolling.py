"""Rolls: what a held ledger tells and doesn't tell, what fails with what, and two writers that take it in turns."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from tests.hooks import former_of, present_of, roller_of
from tests.in_process import DEADLINE_S, InProcess
from tests.unit.log.stories import Tale, check
from tests.unit.log.support import contents, positions_of
from tests.unit.log.test_takeovers import FAST, faulty_client
from tests.waiting import eventually

from bkpy.client.client import log_parts, replication_context
from bkpy.errors import (
    BookKeeperError,
    ClientClosedError,
    ConfigError,
    FrameTooLargeError,
    LogFencedError,
    LogLockedError,
    MetadataUnavailableError,
    UnauthorizedError,
    WouldBlock,
)
from bkpy.log.appends import LogAppends
from bkpy.metadata.store.store import Create, Put
from bkpy.protocol.log.log_list import OPEN_MAX
from bkpy.protocol.wire.records import STAMP_BYTES

if TYPE_CHECKING:
    from bkpy.protocol.wire.messages import AddColumns


class Dropped:
    """A bookie that loses what is sent to it of one ledger, from an entry on: as if it was on its way for ever."""

    def __init__(self, cluster: InProcess, name: str, ledger_id: int, first_id: int, monkeypatch: Any) -> None:
        storage = cluster.storage(name)
        add = storage.add

        def drop(columns: AddColumns, head: Any, body: Any, done: Any) -> None:
            if ledger_id not in columns.ledger_ids or min(columns.first_ids) < first_id:
                add(columns, head, body, done)

        monkeypatch.setattr(storage, "add", drop)


@pytest.mark.scenario(65)
@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 2, 2), (1, 1, 1)])
async def test_a_held_ledger_tells_nothing_and_is_dropped_if_the_one_before_ends_short(
    cluster: InProcess,
    sizes: tuple[int, int, int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The last entry of a ledger is stuck, those of the next reach their ack quorum, and the writer dies."""
    ensemble_size, write_quorum, ack_quorum = sizes
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    log = await client.open_log(
        "orders",
        create=True,
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
    )
    assert [await log.append(b"%d" % i) for i in range(3)] == [0, 1, 2]
    before = present_of(log)
    for name in before.ensemble:
        Dropped(cluster, name, before.ledger_id, 3, monkeypatch)
    stuck = log.append_nowait(b"stuck")
    await asyncio.sleep(0)
    await roller_of(log).roll()
    held = [log.append_nowait(b"held %d" % i) for i in range(5)]
    following = present_of(log)
    await eventually(lambda: following.pending.replication.confirmed == 4)
    # They are on their ack quorums, and neither the writer nor a bookie says so, even when it pauses.
    await asyncio.sleep(0.3)
    assert following.last_add_confirmed == -1
    reader = await other.open_ledger(following.ledger_id)
    assert reader.last_add_confirmed == -1
    assert not any(future.done() for future in [stuck, *held])
    assert former_of(log) is before

    after = await other.open_log("orders")
    assert after.next_position == 3
    assert f"5 entries of ledger {following.ledger_id} are no part of log orders" in caplog.text
    with pytest.raises(LogFencedError):
        await log.append(b"late")
    for future in [stuck, *held]:
        failure = future.exception()
        assert isinstance(failure, LogFencedError)
        assert failure.outcome_unknown
    assert await after.append(b"new") == 3
    await after.close()
    log.abandon()
    assert await contents(other, "orders") == [b"0", b"1", b"2", b"new"]
    log_list, _ = await log_parts(other).logs.read("orders")
    assert following.ledger_id not in {segment.ledger_id for segment in log_list.segments}


@pytest.mark.parametrize("roll_late", [False, True])
async def test_what_is_held_is_told_in_order_when_the_former_ledger_has_ended(
    cluster: InProcess, roll_late: bool
) -> None:
    client = await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    order: list[int] = []
    futures = []
    replication = present_of(log).pending.replication
    futures.append(log.append_nowait(b"1"))
    await asyncio.sleep(0)
    replication.acks.freeze()
    if roll_late:
        await asyncio.sleep(0.05)
    await roller_of(log).roll()
    futures += [log.append_nowait(b"%d" % i) for i in range(2, 6)]
    flushed = asyncio.create_task(log.flush())
    for future in futures:
        future.add_done_callback(lambda done: order.append(done.result()))
    following = present_of(log).pending
    await eventually(lambda: following.replication.confirmed == 3)
    assert order == []
    assert not flushed.done()
    confirmed = replication.acks.thaw()
    if confirmed > replication.confirmed:
        count, replication.confirmed = confirmed - replication.confirmed, confirmed
        replication.source.on_confirmed(confirmed, count)
    assert await asyncio.gather(*futures) == [1, 2, 3, 4, 5]
    await flushed  # gathering what is done takes no turn of the loop from Python 3.12 on
    assert order == [1, 2, 3, 4, 5]
    assert present_of(log).last_add_confirmed == 3
    await log.close()
    assert await contents(client, "orders") == [b"%d" % i for i in range(6)]


async def test_a_log_rolls_under_load_without_a_gap(cluster: InProcess) -> None:
    client = await cluster.client(**FAST, write_window_entries=50)
    log = await client.open_log("orders", create=True, roll_entries=40)
    positions = await asyncio.gather(*(log.append(b"%d" % i) for i in range(1000)))
    assert positions == list(range(1000))
    batches = [await log.append_batch([b"%d" % i for i in range(first, first + 30)]) for first in (1000, 1030)]
    assert batches == [range(1000, 1030), range(1030, 1060)]
    await log.close()
    assert await contents(client, "orders") == [b"%d" % i for i in range(1060)]
    log_list, _ = await log_parts(client).logs.read("orders")
    assert len(log_list.segments) > 3
    times = [(segment.begun_ms, segment.last_ms) for segment in log_list.segments]
    assert all(begun <= last for begun, last in times)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(times))


@pytest.mark.thorough
@pytest.mark.scenario(65)
async def test_two_who_take_the_log_from_each_other_both_get_on(cluster: InProcess) -> None:
    clients = [await cluster.client(**FAST), await cluster.client(**FAST)]
    await (await clients[0].open_log("orders", create=True)).close()
    tales: list[Tale] = []

    async def contend(number: int) -> None:
        mine = 0
        while mine < 5:
            log = await clients[number].open_log("orders", roll_entries=3)
            tale = Tale(f"{number}.{len(tales)}")
            tales.append(tale)
            with contextlib.suppress(LogFencedError):
                await tale.append(log, 8)
            mine += bool(tale.acknowledged)
            log.abandon()
            log_list, _ = await log_parts(clients[number]).logs.read("orders")
            assert len(log_list.open_segments) <= 2

    async with asyncio.timeout(60):
        await asyncio.gather(contend(0), contend(1))
    async with await clients[0].open_log("orders") as log:
        end = log.next_position
    found = await contents(clients[0], "orders")
    assert len(found) == end
    check(tales, found)


async def test_the_lease_tells_those_who_want_to_be_alone(cluster: InProcess) -> None:
    client, other = await cluster.client(), await cluster.client()
    first = await client.open_log("orders", create=True, wait=False)
    with pytest.raises(LogLockedError, match="log orders has a writer since"):
        await other.open_log("orders", wait=False)
    assert await first.append(b"undisturbed") == 0
    await first.close()
    second = await other.open_log("orders", wait=False)
    assert await second.append(b"next") == 1
    await second.close()


async def test_a_wrong_password_disturbs_nobody(cluster: InProcess) -> None:
    client = await cluster.client()
    log = await client.open_log("orders", create=True, password=b"right", digest="hmac-sha256")
    with pytest.raises(UnauthorizedError, match="orders"):
        await client.open_log("orders", password=b"wrong")
    assert await log.append(b"x") == 0
    await log.close()
    again = await client.open_log("orders", password=b"right")
    assert again.next_position == 1
    await again.close()


async def test_an_append_that_does_not_wait_says_that_the_log_rolls(cluster: InProcess) -> None:
    client = await cluster.client()
    async with await client.open_log("orders", create=True) as log:
        futures = [log.append_nowait(b"first")]
        rolling = asyncio.create_task(roller_of(log).roll())
        told = set()
        while not rolling.done():
            try:
                futures.append(log.append_nowait(b"x"))
            except WouldBlock as full:
                told.add(str(full))
            await asyncio.sleep(0)
        assert all("log orders is rolling" in text for text in told)
        assert told
        assert await asyncio.gather(*futures) == list(range(len(futures)))


async def test_an_append_that_does_not_wait_says_that_the_window_is_full(cluster: InProcess) -> None:
    client = await cluster.client(write_window_entries=2)
    async with await client.open_log("orders", create=True) as log:
        futures = [log.append_nowait(b"0"), log.append_nowait(b"1")]
        with pytest.raises(WouldBlock, match="window is full"):
            log.append_nowait(b"2")
        await asyncio.gather(*futures)


async def test_the_window_counts_what_is_pending_in_both_ledgers(cluster: InProcess) -> None:
    client = await cluster.client(**FAST, write_window_bytes=100)
    async with await client.open_log("orders", create=True) as log:
        replication = present_of(log).pending.replication
        pending = [log.append_nowait(bytes(42))]  # 50 bytes with its time
        await asyncio.sleep(0)
        replication.acks.freeze()
        await roller_of(log).roll()
        with pytest.raises(WouldBlock, match="window is full"):
            log.append_nowait(bytes(43))
        pending.append(log.append_nowait(bytes(42)))
        replication.confirmed = replication.acks.thaw()
        if replication.confirmed == 0:
            replication.source.on_confirmed(0, 1)
        assert await asyncio.gather(*pending) == [0, 1]
        assert await log.append_nowait(bytes(92)) == 2  # the whole window


async def test_the_window_counts_the_entries_of_both_ledgers(cluster: InProcess) -> None:
    client = await cluster.client(**FAST, write_window_entries=2)
    async with await client.open_log("orders", create=True) as log:
        replication = present_of(log).pending.replication
        pending = [log.append_nowait(b"0")]
        await asyncio.sleep(0)
        replication.acks.freeze()
        await roller_of(log).roll()
        pending.append(log.append_nowait(b"1"))
        with pytest.raises(WouldBlock, match="window is full"):
            log.append_nowait(b"2")
        waiting = asyncio.create_task(log.append(b"2"))
        await asyncio.sleep(0)
        assert log.next_position == 2
        # What the next ledger has was never told of, however soon it was on its ack quorum.
        with pytest.raises(ConfigError, match="known to reach up to position 0"):
            await log.truncate(1)
        replication.confirmed = replication.acks.thaw()
        if replication.confirmed == 0:
            replication.source.on_confirmed(0, 1)
        assert await asyncio.gather(*pending, waiting) == [0, 1, 2]


async def test_the_room_of_an_append_that_is_cancelled_when_it_gets_it_goes_to_the_next(cluster: InProcess) -> None:
    client = await cluster.client(**FAST, write_window_entries=1)
    async with await client.open_log("orders", create=True) as log:
        first = log.append_nowait(b"0")
        second = asyncio.create_task(log.append(b"1"))
        await asyncio.sleep(0)
        third = asyncio.create_task(log.append(b"2"))
        first.add_done_callback(lambda _: second.cancel())  # before it goes on, and after it was given room
        async with asyncio.timeout(DEADLINE_S):
            assert await third == 1
        assert second.cancelled()


async def test_an_append_that_was_cancelled_while_the_log_rolls_is_not_waited_for(cluster: InProcess) -> None:
    client = await cluster.client(**FAST)
    async with await client.open_log("orders", create=True) as log:
        appends = roller_of(log).appends
        await appends.stop()
        waiting = asyncio.create_task(log.append(b"0"))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        async with asyncio.timeout(DEADLINE_S):
            await appends.window.drained()
        assert waiting.cancelled()
        appends.resume()
        assert await log.append(b"0") == 0


async def test_truncating_deletes_ledgers(cluster: InProcess) -> None:
    client = await cluster.client(**FAST)
    async with await client.open_log("orders", create=True) as log:
        for _ in range(3):
            await log.append_batch([b"x"] * 10)
            await roller_of(log).roll()
        await log.append(b"y")
        await eventually(lambda: roller_of(log).log_list.segments[2].sealed)
        ledgers = [ledger_id async for ledger_id in client.list_ledgers()]
        await log.truncate(before=25)
        assert log.first_position == 25
        assert positions_of((await log_parts(client).logs.read("orders"))[0])[0] == (20, 10)
        assert len([ledger_id async for ledger_id in client.list_ledgers()]) == len(ledgers) - 2
        with pytest.raises(ConfigError, match="32"):
            await log.truncate(before=32)
        assert await log.append(b"z") == 31
        await roller_of(log).roll()
        assert await log.append(b"z") == 32
    log_list, _ = await log_parts(client).logs.read("orders")
    assert log_list.first_position == 25
    assert log_list.sealed_end == 33


async def test_a_ledger_that_is_truncated_while_it_is_open_goes_once_the_log_has_rolled(cluster: InProcess) -> None:
    client = await cluster.client(**FAST)
    async with await client.open_log("orders", create=True) as log:
        await log.append_batch([b"x"] * 10)
        truncated = log.ledger_id
        await log.truncate(before=10)
        await roller_of(log).roll()
        assert await log.append(b"y") == 10

        async def gone() -> bool:
            return truncated not in [ledger_id async for ledger_id in client.list_ledgers()]

        assert await eventually(gone)
        assert (await log_parts(client).logs.read("orders", fresh=True))[0].first_position == 10
    async with await client.read_log("orders") as reader:
        assert [(entry.position, entry.data) async for entry in reader.read()] == [(10, b"y")]


async def test_times_never_fall_in_a_striped_ledger(cluster: InProcess) -> None:
    client = await cluster.client()
    clock = replication_context(client).parts.runtime.clock
    now = clock.time()
    ticking = itertools.count()
    with patch.object(type(clock), "time", lambda clock: now + next(ticking)):
        async with await client.open_log("orders", create=True, ensemble_size=3, write_quorum=2) as log:
            await log.append_batch([b"x" * 60] * 20)
    reader = await client.read_log("orders")
    times = [entry.time async for entry in reader.read()]
    assert len(times) == 20
    assert times == sorted(times)


async def test_a_roll_in_doubt_appends_nothing_until_it_is_known(cluster: InProcess) -> None:
    """The write that adds the next ledger is made, its reply is lost, and then the store is away for a while."""
    client, session = await faulty_client(cluster, metadata_write_attempts_max=1)
    log = await client.open_log("orders", create=True)
    assert await log.append(b"0") == 0
    listed = await log_parts(client).logs.read("orders")
    away = False

    async def multi(operations: Any) -> Any:
        nonlocal away
        if away:
            raise MetadataUnavailableError("the store is away")
        adds = len(operations) == 3 and any(b"segments" in getattr(operation, "data", b"") for operation in operations)
        result = await whole(operations)
        if adds and not away:
            away = True
            raise MetadataUnavailableError("the reply was lost", outcome_unknown=True)
        return result

    whole = session.multi
    with patch.object(session, "multi", multi):
        rolling = asyncio.create_task(roller_of(log).roll())
        await eventually(lambda: away)
        await asyncio.sleep(0.05)
        appending = asyncio.create_task(log.append(b"1"))
        with pytest.raises(WouldBlock):
            log.append_nowait(b"too early")
        await asyncio.sleep(0.05)
        assert not appending.done()
        assert not rolling.done()
    await rolling
    assert await appending == 1
    await log.close()
    log_list, version = await log_parts(client).logs.read("orders")
    assert version > listed[1]
    assert positions_of(log_list) == [(0, 1), (1, 1)]
    assert await contents(client, "orders") == [b"0", b"1"]


async def test_a_roll_in_doubt_that_moves_ledgers_into_a_page_appends_nothing_until_it_is_known(
    cluster: InProcess,
) -> None:
    """The reply of the write is lost. Then the store is away when the writer looks whether the page is there."""
    client, session = await faulty_client(cluster, log_page_rows=2, metadata_write_attempts_max=1)
    log = await client.open_log("orders", create=True)
    count = 0
    while len(roller_of(log).log_list.segments) < 2 * 2 + OPEN_MAX:
        assert await log.append(b"%d" % count) == count
        await roller_of(log).roll()
        count += 1
    assert await log.append(b"%d" % count) == count
    count += 1
    await eventually(lambda: former_of(log) is None and len(roller_of(log).log_list.open_segments) == 1)
    away = False

    async def multi(operations: Any) -> Any:
        nonlocal away
        result = await whole(operations)
        if isinstance(operations[0], Put) and any(isinstance(other, Create) for other in operations):
            away = True
            raise MetadataUnavailableError("the reply was lost", outcome_unknown=True)
        return result

    async def get(path: str) -> tuple[bytes, int]:
        if away:
            raise MetadataUnavailableError("the store is away")
        return await found(path)

    whole, found = session.multi, session.get
    with patch.object(session, "multi", multi), patch.object(session, "get", get):
        rolling = asyncio.create_task(roller_of(log).roll())
        await eventually(lambda: away)
        await asyncio.sleep(0.05)
        assert not rolling.done()
        with pytest.raises(WouldBlock):
            log.append_nowait(b"too early")
    await rolling
    assert await log.append(b"%d" % count) == count
    await log.close()
    assert await contents(client, "orders") == [b"%d" % n for n in range(count + 1)]
    async with await client.open_log("orders") as after:
        assert after.next_position == count + 1


async def test_closing_does_not_wait_for_a_roll_that_the_store_holds_up(cluster: InProcess) -> None:
    client, session = await faulty_client(cluster)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    away = False
    put, multi = session.put, session.multi

    async def put_if_there(path: str, data: bytes, version: int) -> int:
        if away:
            raise MetadataUnavailableError("the store is away")
        return await put(path, data, version)

    async def roll_and_lose_the_store(operations: Any) -> Any:
        nonlocal away
        result = await multi(operations)
        away = True
        return result

    with patch.object(session, "put", put_if_there), patch.object(session, "multi", roll_and_lose_the_store):
        await roller_of(log).roll()
        await log.append(b"1")
        rolling = asyncio.create_task(roller_of(log).roll())
        await asyncio.sleep(0.05)
        assert not rolling.done()
        with pytest.raises(MetadataUnavailableError):
            async with asyncio.timeout(DEADLINE_S):
                await log.close()
        away = False
    await log.close()
    await rolling
    assert await contents(client, "orders") == [b"0", b"1"]


# --- the window, and what waits ---------------------------------------------------------------------------------------


async def test_an_append_larger_than_the_window_goes_alone(cluster: InProcess) -> None:
    client = await cluster.client(write_window_bytes=100)
    async with await client.open_log("orders", create=True) as log:
        async with asyncio.timeout(DEADLINE_S):
            assert await log.append(bytes(200)) == 0
            assert await log.append_batch([bytes(200)] * 2) == range(1, 3)


async def test_an_entry_over_the_limit_is_refused_by_what_its_caller_gave(cluster: InProcess) -> None:
    """The time that is stored with it is none of the caller's bytes."""
    client = await cluster.client()
    async with await client.open_log("orders", create=True) as log:
        limit = present_of(log).pending.replication.entry_bytes_max - STAMP_BYTES
        refused = f"an entry of {limit + 1} bytes is over the limit of {limit} bytes"
        for append in (log.append, log.append_nowait):
            with pytest.raises(FrameTooLargeError, match=refused) as failed:
                await append(bytes(limit + 1))
            assert not failed.value.outcome_unknown
        with pytest.raises(FrameTooLargeError, match=refused):
            await log.append_batch([b"0", bytes(limit + 1)])
        assert await log.append(bytes(limit)) == 0


async def test_closing_waits_for_the_appends_that_wait_for_room(cluster: InProcess) -> None:
    client = await cluster.client(write_window_entries=1)
    log = await client.open_log("orders", create=True)
    appending = [asyncio.create_task(log.append(b"%d" % i)) for i in range(5)]
    await asyncio.sleep(0)
    async with asyncio.timeout(DEADLINE_S):
        await log.close()
        assert await asyncio.gather(*appending) == list(range(5))
    assert await contents(client, "orders") == [b"%d" % i for i in range(5)]


async def test_what_waits_for_room_fails_with_the_writer_and_was_not_sent(cluster: InProcess) -> None:
    client = await cluster.client(write_window_entries=1)
    log = await client.open_log("orders", create=True)
    first = log.append_nowait(b"0")
    waiting = [asyncio.create_task(log.append(b"%d" % i)) for i in (1, 2)]
    await asyncio.sleep(0)
    roller_of(log).appends.fail(LogFencedError("somebody else has become the writer"))
    waiting[1].cancel()  # in the very turn in which it fails
    await asyncio.wait(waiting)
    error = waiting[0].exception()
    assert isinstance(error, LogFencedError)
    assert not error.outcome_unknown
    assert waiting[1].cancelled()
    sent = first.exception()
    assert isinstance(sent, LogFencedError)
    log.abandon()


async def test_a_flush_hears_of_a_writer_that_fails_as_the_former_ledger_is_acknowledged(cluster: InProcess) -> None:
    """It waits for that one; the failure comes in the turn of the loop in which its last entry is acknowledged."""
    client = await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    replication = present_of(log).pending.replication
    completed = type(replication).completed
    arrived: list[Any] = []

    def hold(self: Any, batch: Any) -> None:
        arrived.append(batch)

    with patch.object(type(replication), "completed", hold):
        last = log.append_nowait(b"1")
        await roller_of(log).roll()
        following = log.append_nowait(b"2")
        await eventually(lambda: len(arrived) == 2)
        flushing = asyncio.create_task(log.flush())
        await asyncio.sleep(0)
        completed(replication, arrived[0])
        roller_of(log).appends.fail(LogFencedError("somebody else has become the writer"))
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(LogFencedError) as failed:
                await flushing
    assert failed.value.outcome_unknown
    assert await last == 1
    assert isinstance(following.exception(), LogFencedError)
    log.abandon()


async def test_a_roll_goes_on_once_all_has_left_though_nothing_is_acknowledged(cluster: InProcess) -> None:
    """Nothing tells when a batch has left but its acknowledgement, which may take as long as the bookies do."""
    client = await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    before = present_of(log)
    for name in before.ensemble:
        cluster.hang(name)
    pending = log.append_nowait(b"1")
    assert before.pending.has_unsent
    async with asyncio.timeout(1):
        await roller_of(log).roll()
    assert former_of(log) is before
    assert not pending.done()
    log.abandon()
    assert isinstance(pending.exception(), ClientClosedError)


# --- when a log rolls -------------------------------------------------------------------------------------------------


async def test_a_ledger_that_is_old_is_rolled_as_soon_as_it_has_an_entry(cluster: InProcess) -> None:
    client = await cluster.client()
    async with await client.open_log("orders", create=True, roll_s=10) as log:
        first = log.ledger_id
        await asyncio.sleep(25)
        assert log.ledger_id == first
        await log.append(b"0")
        await asyncio.sleep(4)
        assert log.ledger_id == first
        await asyncio.sleep(2)
        assert log.ledger_id != first
        second = log.ledger_id
        await log.append(b"1")
        await asyncio.sleep(11)
        assert log.ledger_id != second


async def test_a_roll_that_dies_ends_the_writer(cluster: InProcess, caplog: pytest.LogCaptureFixture) -> None:
    """As a fault in the code does: appends would wait for it for ever."""
    client = await cluster.client(**FAST)
    log = await client.open_log("orders", create=True, roll_entries=1)

    async def stop(appends: LogAppends) -> None:
        raise RuntimeError("a fault in the code")

    with patch.object(LogAppends, "stop", stop):
        await log.append(b"0")
        await eventually(lambda: not log.usable)
    assert "log orders: rolling failed" in caplog.text
    with pytest.raises(BookKeeperError, match=r"rolling log orders failed: RuntimeError\('a fault in the code'\)"):
        await log.append(b"1")
    log.abandon()
    caplog.clear()
