"""Appends with numbers: repeated, taken over, cancelled and failed, with real bookies in one process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from contextlib import aclosing
from itertools import count
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from tests.examples import stride
from tests.hooks import former_of, present_of, roller_of
from tests.in_process import DEADLINE_S, ROOT
from tests.stepping import naming, run_to
from tests.unit.client.write.test_frame_limits import SMALL
from tests.unit.log.stepwise_log import all_of
from tests.unit.log.test_interrupted import HOW, ending
from tests.unit.log.test_rolling import Dropped
from tests.unit.log.test_takeovers import AWAY, FAST, GONE, REPLY_LOST, REQUEST_LOST, faulty_client
from tests.waiting import eventually, turns

from bkpy.client.client import log_parts
from bkpy.errors import (
    BookKeeperError,
    ConfigError,
    ForgottenProducerError,
    FrameTooLargeError,
    LogFencedError,
    LogLockedError,
    MetadataConflictError,
    SequenceError,
    WouldBlock,
)
from bkpy.metadata.logs.catalog import LogStore
from bkpy.metadata.store.store import Create
from bkpy.protocol.log.log_producers import SEQUENCE_MAX
from bkpy.protocol.wire.records import NUMBERED_STAMP_BYTES

if TYPE_CHECKING:
    from tests.in_process import InProcess

    from bkpy.client.client import Client
    from bkpy.log.entries import LogEntry
    from bkpy.log.writer import LogWriter

NAME = "orders"


async def entries_of(client: Client, name: str = NAME) -> list[LogEntry]:
    async with await client.read_log(name) as reader:
        found = await all_of(reader.read())
    assert [entry.position for entry in found] == list(range(len(found)))
    return found


async def read_all(client: Client) -> list[tuple[bytes, str | None, int | None]]:
    found = await entries_of(client)
    return [(entry.data, entry.producer, entry.sequence) for entry in found]


@pytest.mark.parametrize("digest", ["crc32c", "hmac-sha256"])
async def test_a_repeated_append_gets_the_position_of_the_first_and_writes_nothing(
    cluster: InProcess, digest: str
) -> None:
    client = await cluster.client()
    async with await client.open_log(NAME, create=True, producer="shop", digest=digest) as log:
        assert log.last_sequence == -1
        assert [await log.append(b"%d" % n, sequence=n) for n in (7, 8, 9)] == [0, 1, 2]
        assert log.last_sequence == 9
        assert [await log.append(b"again", sequence=n) for n in (9, 7, 8)] == [2, 0, 1]
        assert await log.append_nowait(b"again", sequence=8) == 1
        assert await log.append_nowait(b"10", sequence=10) == 3
        assert await log.append_batch([b"9", b"10", b"11", b"12"], first_sequence=9) == range(2, 6)
        assert await log.append_batch([b"11", b"12"], first_sequence=11) == range(4, 6)
        assert await log.append_batch([], first_sequence=50) == range(6, 6)
        with pytest.raises(SequenceError, match="so the next one is 13, not 14"):
            await log.append(b"14", sequence=14)
        with pytest.raises(SequenceError, match="it is not known whether log orders has number 6 of producer shop"):
            await log.append(b"6", sequence=6)
        for refused in (None, -1, True, "1", 2**62):
            with pytest.raises(ConfigError, match="each append of producer shop to log orders has a sequence"):
                await log.append(b"0", sequence=refused)  # type: ignore[arg-type]
        assert log.next_position == 6
    assert await read_all(client) == [(b"%d" % n, "shop", n) for n in range(7, 13)]


async def test_a_batch_whose_last_number_is_none_is_refused(cluster: InProcess) -> None:
    client = await cluster.client()
    async with await client.open_log(NAME, create=True, producer="shop") as log:
        with pytest.raises(ConfigError, match="has a sequence, a number"):
            await log.append_batch([b"a", b"b"], first_sequence=SEQUENCE_MAX - 1)
        assert log.next_position == 0


async def test_the_next_writer_of_the_producer_goes_on_where_the_log_ends(cluster: InProcess) -> None:
    """Over rolls, a takeover without a notice, and restarts; beside a writer without a producer."""
    old_client, client = await cluster.client(), await cluster.client()
    old = await old_client.open_log(NAME, create=True, producer="shop", roll_entries=3)
    for n in range(8):
        assert await old.append(b"%d" % n, sequence=n) == n
        await asyncio.sleep(0.01)
    new = await client.open_log(NAME, producer="shop", roll_entries=3)
    assert new.last_sequence == 7
    with pytest.raises(LogFencedError):
        await old.append(b"8", sequence=8)
    assert await old.append(b"7", sequence=7) == 7
    for n in range(4, 12):
        assert await new.append(b"%d" % n, sequence=n) == n
    await new.close()
    async with await client.open_log(NAME) as plain:
        assert plain.last_sequence == -1
        assert await plain.append(b"plain") == 12
        with pytest.raises(ConfigError, match="this writer of log orders has no producer to number appends"):
            await plain.append(b"plain", sequence=12)
    async with await client.open_log(NAME, producer="shop") as last:
        assert last.last_sequence == 11
        assert [await last.append(b"12", sequence=n) for n in (0, 11, 12, 12)] == [0, 11, 13, 13]
    expected = [(b"%d" % n, "shop", n) for n in range(12)]
    assert await read_all(client) == [*expected, (b"plain", None, None), (b"12", "shop", 12)]


async def test_a_repeated_append_proves_itself_like_the_first(cluster: InProcess) -> None:
    """Whether its ledger is in the list, in a page, or was truncated."""
    client = await cluster.client(log_page_rows=2)
    async with await client.open_log(NAME, create=True, producer="shop", roll_entries=1) as log:
        first = []
        for n in range(12):
            first.append(await log.append(b"%d" % n, sequence=n))
            await asyncio.sleep(0.02)
        again = [await log.append(b"%d" % n, sequence=n) for n in range(12)]
        assert [(p, p.log_uid, p.ledger_id, p.entry_id) for p in again] == [
            (p, p.log_uid, p.ledger_id, p.entry_id) for p in first
        ]
        assert roller_of(log).log_list.pages
        await log.truncate(5)
        assert [await log.append(b"0", sequence=0), (await log.append_nowait(b"11", sequence=11)).ledger_id] == [
            0,
            first[11].ledger_id,
        ]


async def test_appends_that_wait_for_room_keep_their_order_and_go_on_when_cancelled(cluster: InProcess) -> None:
    client = await cluster.client(write_window_entries=4)
    async with await client.open_log(NAME, create=True, producer="shop", roll_entries=3) as log:
        appending = [asyncio.create_task(log.append(b"%d" % n, sequence=n)) for n in range(20)]
        await asyncio.sleep(0)
        for n in (5, 7, 19):
            appending[n].cancel()
        repeated = asyncio.create_task(log.append(b"again", sequence=7))
        with pytest.raises(WouldBlock):
            log.append_nowait(b"20", sequence=20)
        batch = asyncio.create_task(log.append_batch([b"19", b"20", b"21"], first_sequence=19))
        results = await asyncio.gather(*appending, return_exceptions=True)
        assert [n for n, result in enumerate(results) if result != n] == [5, 7, 19]
        assert await repeated == 7
        assert await batch == range(19, 22)
        assert await log.append(b"again", sequence=5) == 5
    assert await read_all(client) == [(b"%d" % n, "shop", n) for n in range(22)]


async def test_an_append_that_waits_is_as_good_in_a_ledger_whose_bookies_take_less(cluster: InProcess) -> None:
    """It has its number, and so have those behind it: none may be missing from the log, or get another one's."""
    large = b"x" * (2 * SMALL["entry_bytes_max"])
    client = await cluster.client(write_window_entries=1)
    log = await client.open_log(NAME, create=True, producer="shop", ensemble_size=1, write_quorum=1, ack_quorum=1)
    assert await log.append(b"0", sequence=0) == 0
    cluster.settings = SMALL
    await cluster.start_node("d")
    await eventually(lambda: "d" in client.bookies)
    for name in "abc":
        log_parts(client).shared.ensembles.failed(name)  # so that the roll takes d
    rolling = asyncio.create_task(roller_of(log).roll())
    while not roller_of(log).appends.state.switching:
        await asyncio.sleep(0)
    appending = [log.append(large if n == 2 else b"%d" % n, sequence=n) for n in range(1, 6)]
    assert await asyncio.gather(*appending) == [1, 2, 3, 4, 5]
    await rolling
    assert [await log.append(b"again", sequence=n) for n in (5, 2)] == [5, 2]
    await log.close()
    expected = [large if n == 2 else b"%d" % n for n in range(6)]
    assert [(data, n) for data, _, n in await read_all(client)] == [(data, n) for n, data in enumerate(expected)]


async def test_cancelled_appends_that_wait_are_bounded(cluster: InProcess) -> None:
    client = await cluster.client(write_window_entries=1)
    async with await client.open_log(NAME, create=True, producer="shop") as log:
        appending = [asyncio.create_task(log.append(b"%d" % n, sequence=n)) for n in range(3)]
        await asyncio.sleep(0)
        appending[1].cancel()
        await asyncio.gather(appending[1], return_exceptions=True)
        with pytest.raises(WouldBlock, match="1 cancelled appends to log orders wait for room"):
            await log.append(b"3", sequence=3)
        await log.flush()
        assert await log.append(b"3", sequence=3) == 3
    assert await read_all(client) == [(b"%d" % n, "shop", n) for n in range(4)]


@pytest.mark.thorough
async def test_a_flush_returns_though_others_wait_for_room_all_the_time(cluster: InProcess) -> None:
    """It waits for what was appended before it, and not for what comes meanwhile."""
    client = await cluster.client(write_window_entries=4)
    async with await client.open_log(NAME, create=True, producer="shop") as log:
        numbers, going_on = count(), True

        async def append() -> None:
            while going_on:
                number = next(numbers)
                await log.append(b"%d" % number, sequence=number)

        appending = [asyncio.create_task(append()) for _ in range(6)]
        await asyncio.sleep(0.05)
        last = next(numbers)
        waiting = asyncio.create_task(log.append(b"%d" % last, sequence=last))
        await asyncio.sleep(0)
        assert not waiting.done()
        async with asyncio.timeout(1.0):
            await log.flush()
        assert log.last_sequence >= last
        going_on = False
        await asyncio.gather(waiting, *appending)


async def test_a_batch_is_not_torn_where_others_came_in_between(cluster: InProcess) -> None:
    """The first part of a batch is in the log, then somebody else's entry, so the rest can't follow it."""
    client = await cluster.client()
    async with await client.open_log(NAME, create=True, producer="shop") as log:
        await log.append_batch([b"0", b"1"], first_sequence=0)
    async with await client.open_log(NAME) as plain:
        await plain.append(b"plain")
    async with await client.open_log(NAME, producer="shop") as log:
        with pytest.raises(SequenceError, match="the first 2 of 3 entries, from number 0 on, are in log orders"):
            await log.append_batch([b"0", b"1", b"2"], first_sequence=0)
        assert await log.append_batch([b"0", b"1"], first_sequence=0) == range(2)
        assert await log.append_batch([b"2"], first_sequence=2) == range(3, 4)


async def test_a_producer_that_was_forgotten_fences_nobody(cluster: InProcess) -> None:
    client = await cluster.client(log_producer_idle_s=0.5)
    async with await client.open_log(NAME, create=True, producer="shop") as log:
        await log.append(b"0", sequence=0)
    await asyncio.sleep(1)
    plain = await client.open_log(NAME)
    with pytest.raises(ForgottenProducerError, match="forgotten producer shop"):
        await client.open_log(NAME, producer="shop")
    assert await plain.append(b"plain") == 1
    async with await client.open_log(NAME, producer="shop", new_producer=True) as log:
        assert await log.append(b"5", sequence=5) == 2
    assert await read_all(client) == [(b"0", "shop", 0), (b"plain", None, None), (b"5", "shop", 5)]
    with pytest.raises(ConfigError, match="new_producer says of a producer that it is new, and there is none"):
        await client.open_log(NAME, new_producer=True)


def make_next_opening_late(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Its first try takes a second, in which the list changes. Returns what is not empty when that has happened."""
    write, late = LogStore.write, list[bool]()

    async def write_late(logs: LogStore, *args: Any, **named: Any) -> Any:
        if not late:
            late.append(True)
            log_list, version = await logs.read(NAME, fresh=True)
            await write(logs, NAME, log_list, version)
            await asyncio.sleep(1)
        return await write(logs, *args, **named)

    monkeypatch.setattr(LogStore, "write", write_late)
    return late


async def test_a_producer_whose_time_passes_while_its_writer_opens_the_log_is_not_forgotten(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former writer is fenced by then, and the list has changed, so that the opening begins again."""
    client = await cluster.client(log_producer_idle_s=0.5)
    async with await client.open_log(NAME, create=True, producer="shop") as log:
        await log.append(b"0", sequence=0)
    plain = await client.open_log(NAME)
    late = make_next_opening_late(monkeypatch)
    async with await client.open_log(NAME, producer="shop") as log:
        assert late
        assert log.last_sequence == 0
        assert await log.append(b"1", sequence=1) == 1
    with pytest.raises(LogFencedError):
        await plain.append(b"plain")


async def test_an_opening_that_took_long_is_no_time_without_the_producer(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client(log_producer_idle_s=0.5)
    async with await client.open_log(NAME, create=True, producer="shop") as log:
        await log.append(b"0", sequence=0)
    late = make_next_opening_late(monkeypatch)
    (await client.open_log(NAME, producer="shop")).abandon()  # before it has appended anything
    assert late
    async with await client.open_log(NAME, producer="shop") as log:
        assert log.last_sequence == 0


@pytest.mark.parametrize("retention_interval_s", [0.1, 60.0])
async def test_a_writer_that_is_idle_keeps_its_producer_known(cluster: InProcess, retention_interval_s: float) -> None:
    client = await cluster.client(log_producer_idle_s=4.0, log_retention_interval_s=retention_interval_s)
    log = await client.open_log(NAME, create=True, producer="shop")
    await log.append(b"0", sequence=0)
    await asyncio.sleep(10)
    log.abandon()
    async with await client.open_log(NAME, producer="shop") as log:
        assert log.last_sequence == 0


async def test_a_writer_keeps_its_lease_and_its_producer_though_a_ledger_can_not_be_deleted(cluster: InProcess) -> None:
    client = await cluster.client(**FAST, log_producer_idle_s=4.0, log_retention_interval_s=0.1)
    log = await client.open_log(NAME, create=True, producer="shop")
    await log.append(b"0", sequence=0)
    ledger_id = log.ledger_id
    await roller_of(log).roll()
    await log.append(b"1", sequence=1)
    logs = log_parts(client).logs
    cluster.tree.apply(Create(f"{logs.ledger_check(ledger_id, 0).path}/stranger", b""), 0)
    await eventually(lambda: former_of(log) is None)
    with pytest.raises(MetadataConflictError, match="there are nodes below"):
        await log.truncate(1)
    log_list, _ = await logs.read(NAME)
    await logs.drop_lease(NAME, log_list.uid, log_list.writer)
    await asyncio.sleep(10)
    with pytest.raises(LogLockedError):
        await client.open_log(NAME, wait=False)
    log.abandon()
    async with await client.open_log(NAME, producer="shop") as log:
        assert log.last_sequence == 1


async def test_a_ledger_that_is_closed_while_the_list_is_written_for_its_producer_is_sealed_later(
    cluster: InProcess,
) -> None:
    """The list that is being written doesn't say yet where the ledger ends."""
    client, session = await faulty_client(cluster, log_producer_idle_s=4.0, log_retention_interval_s=0.1)
    log = await client.open_log(NAME, create=True, producer="shop")
    assert await log.append(b"0", sequence=0) == 0
    writing = asyncio.Event()
    put, multi = session.put, session.multi

    async def put_while_the_list_is_written(path: str, data: bytes, version: int) -> int:
        await writing.wait()
        return await put(path, data, version)

    async def multi_until_the_ledger_is_closed(operations: Any) -> Any:
        result = await multi(operations)
        if operations[0].path == f"{ROOT}/logs/{NAME}" and former_of(log) is not None:
            writing.set()
            await eventually(lambda: former_of(log) is None)
        return result

    with (
        patch.object(session, "put", put_while_the_list_is_written),
        patch.object(session, "multi", multi_until_the_ledger_is_closed),
    ):
        await roller_of(log).roll()
        await eventually(writing.is_set)
        await eventually(lambda: former_of(log) is None)
    for number in (1, 2):
        assert await log.append(b"%d" % number, sequence=number) == number
        await roller_of(log).roll()
    assert await log.append(b"3", sequence=3) == 3
    await log.close()
    async with await client.open_log(NAME, producer="shop") as log:
        assert log.last_sequence == 3
    assert await read_all(client) == [(b"%d" % number, "shop", number) for number in range(4)]


async def test_one_producer_more_than_allowed_fences_nobody(cluster: InProcess) -> None:
    client = await cluster.client(log_producers_max=1)
    log = await client.open_log(NAME, create=True, producer="shop")
    with pytest.raises(ConfigError, match="as many as log_producers_max allows, so mail can't be a further one"):
        await client.open_log(NAME, producer="mail")
    assert await log.append(b"0", sequence=0) == 0
    await log.close()
    for name in ("", "a b", "x" * 256):
        with pytest.raises(ConfigError, match="can't be the name of a producer"):
            await client.open_log(NAME, producer=name)


@pytest.mark.thorough
@pytest.mark.parametrize("late", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("how", HOW)
async def test_an_append_that_is_interrupted_anywhere_is_repeated(cluster: InProcess, how: str, late: bool) -> None:
    """By its own writer, and by the next one."""
    client, other = await cluster.client(**FAST, write_window_entries=2), await cluster.client(**FAST)
    for at in count():
        name = f"log-{at}"
        log = await client.open_log(name, create=True, producer="shop", roll_entries=2)
        with naming(name, at, late):
            others: list[asyncio.Task[int]] = []

            async def append(log: LogWriter = log, others: list[asyncio.Task[int]] = others) -> None:
                await log.append(b"0", sequence=0)
                await log.append_batch([b"1", b"2"], first_sequence=1)
                others += [asyncio.create_task(log.append(b"%d" % n, sequence=n)) for n in range(3, 7)]
                await asyncio.sleep(0)
                await log.append(b"7", sequence=7)  # waits for room
                await log.append(b"again", sequence=6)
                others += [asyncio.create_task(log.append(b"%d" % n, sequence=n)) for n in range(8, 12)]
                await asyncio.sleep(0)
                await log.append(b"again", sequence=11)  # waits with the first one
                await log.flush()

            reached = await run_to(append(), at, late, ending(client, how))
            await asyncio.gather(*others)
            for n in range(5):
                assert await log.append(b"%d" % n, sequence=n) == n
            log.abandon()
            async with await other.open_log(name, producer="shop") as after:
                assert after.last_sequence >= 4
                for n in range(14):
                    assert await after.append(b"%d" % n, sequence=n) == n
            assert [entry.data for entry in await entries_of(other, name)] == [b"%d" % n for n in range(14)]
        if not reached:
            break
    assert at > 6


@pytest.mark.thorough
@pytest.mark.parametrize("late", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("how", HOW)
async def test_an_opening_that_is_interrupted_anywhere_is_repeated(cluster: InProcess, how: str, late: bool) -> None:
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    for at in count(0, stride()):
        name = f"log-{at}"
        before = await other.open_log(name, create=True, producer="shop", roll_entries=2)
        for n in range(5):
            assert await before.append(b"%d" % n, sequence=n) == n
        before.abandon()
        with naming(name, at, late):
            opened: list[LogWriter] = []

            async def open_it(name: str = name, opened: list[LogWriter] = opened) -> None:
                opened.append(await client.open_log(name, producer="shop"))

            reached = await run_to(open_it(), at, late, ending(client, how))
            for writer in opened:
                assert await writer.append(b"5", sequence=5) == 5
                writer.abandon()
            async with await other.open_log(name, producer="shop") as after:
                for n in range(8):
                    assert await after.append(b"%d" % n, sequence=n) == n
            assert [entry.sequence for entry in await entries_of(other, name)] == list(range(8))
        if not reached:
            break
    assert at > 10


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of clients that are closed with writers in trouble
@pytest.mark.parametrize(
    "trouble",
    [REPLY_LOST, *(pytest.param(it, marks=pytest.mark.exhaustive) for it in (REQUEST_LOST, AWAY, GONE))],
)
async def test_whatever_the_store_does_each_number_is_there_once(cluster: InProcess, trouble: str) -> None:
    """A writer opens, appends and rolls, and the store fails at one of its calls; the next one repeats everything."""
    steady = await cluster.client(**FAST)
    at, reached = 0, True
    while reached:
        at += stride()
        name = f"log-{at}"
        log = await steady.open_log(name, create=True, producer="shop")
        for n in range(3):
            assert await log.append(b"%d" % n, sequence=n) == n
        client, session = await faulty_client(cluster)
        session.count(at, trouble)
        with contextlib.suppress(BookKeeperError):
            troubled = await client.open_log(name, producer="shop")
            for n in range(1, 6):
                assert await troubled.append(b"%d" % n, sequence=n) == n
                if n in (3, 4):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.1 if trouble == GONE else DEADLINE_S):
                            await roller_of(troubled).roll()
            await troubled.close()
        reached = session.calls >= at
        session.calls = -1
        await client.close()
        cluster.clients.remove(client)
        async with await steady.open_log(name, producer="shop") as after:
            for n in range(8):
                assert await after.append(b"%d" % n, sequence=n) == n
        assert [entry.data for entry in await entries_of(steady, name)] == [b"%d" % n for n in range(8)]
        log.abandon()
    assert at > 20


async def test_a_repeat_of_what_is_pending_waits_for_that_outcome(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry gets to no bookie, so it is lost with its writer; the next one appends it."""
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    log = await client.open_log(NAME, create=True, producer="shop")
    assert await log.append(b"0", sequence=0) == 0
    before = present_of(log)
    for name in before.ensemble:
        Dropped(cluster, name, before.ledger_id, 1, monkeypatch)
    first = log.append_nowait(b"1", sequence=1)
    repeats = [asyncio.create_task(log.append(b"1", sequence=1)), log.append_nowait(b"1", sequence=1)]
    await asyncio.sleep(1)
    assert not any(one.done() for one in (first, *repeats))
    assert log.last_sequence == 0
    async with await other.open_log(NAME, producer="shop") as after:
        for one in (first, *repeats):
            with pytest.raises(LogFencedError) as failed:
                await one
            assert failed.value.outcome_unknown
        assert await log.append(b"0", sequence=0) == 0
        assert after.last_sequence == 0
        assert await after.append(b"1", sequence=1) == 1
    assert await read_all(other) == [(b"0", "shop", 0), (b"1", "shop", 1)]


async def test_a_repeat_of_what_is_confirmed_while_it_waits_succeeds(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the writer fails meanwhile by an entry behind it."""
    client = await cluster.client(**FAST)
    log = await client.open_log(NAME, create=True, producer="shop")
    before = present_of(log)
    for name in before.ensemble:
        Dropped(cluster, name, before.ledger_id, 1, monkeypatch)
    pending = [log.append_nowait(b"0", sequence=0)]
    repeat = asyncio.create_task(log.append(b"0", sequence=0))
    await asyncio.sleep(0)
    pending.append(log.append_nowait(b"1", sequence=1))
    late = asyncio.create_task(log.append(b"0", sequence=0))
    await asyncio.sleep(0)
    assert await pending[0] == 0
    log.abandon()
    assert (await repeat, await late) == (0, 0)
    await asyncio.gather(*pending, return_exceptions=True)


async def test_a_large_batch_of_a_striped_log_has_its_numbers(five: InProcess) -> None:
    """It leaves in several parts."""
    client = await five.client(batch_bytes_max=100)
    payloads = [b"%d" % n + b"x" * (n % 50) for n in range(60)]
    sizes = {"ensemble_size": 4, "write_quorum": 3, "ack_quorum": 2}
    async with await client.open_log(NAME, create=True, producer="shop", **sizes) as log:
        assert await log.append_batch(payloads, first_sequence=100) == range(60)
    assert await read_all(client) == [(payload, "shop", 100 + n) for n, payload in enumerate(payloads)]


async def test_readers_have_numbers_of_a_tail_and_of_blocks(cluster: InProcess) -> None:
    client = await cluster.client()
    log = await client.open_log(NAME, create=True, producer="shop", roll_entries=3)
    for n in range(7):
        await log.append(b"%d" % n, sequence=n)
    async with await client.read_log(NAME) as reader:
        found = []
        async with aclosing(reader.tail()) as entries:
            async for entry in entries:
                found.append((entry.producer, entry.sequence))
                if len(found) == 7:
                    break
        assert found == [("shop", n) for n in range(7)]
        async with aclosing(reader.read_blocks()) as blocks:
            numbers = [(block.producer, list(block.sequences())) async for block in blocks]
        assert [n for producer, some in numbers for n in some if producer == "shop"] == list(range(7))
    await log.close()
    async with await client.open_log("plain", create=True) as plain:
        await plain.append(b"0")
    async with await client.read_log("plain") as reader, aclosing(reader.read_blocks()) as blocks:
        assert [(block.producer, len(block.sequences())) async for block in blocks] == [(None, 0)]


async def test_sizes_and_limits_do_not_count_the_longer_stamp(cluster: InProcess) -> None:
    client = await cluster.client()
    async with await client.open_log(NAME, create=True, producer="shop") as log:
        limit = present_of(log).pending.replication.entry_bytes_max - NUMBERED_STAMP_BYTES
        with pytest.raises(FrameTooLargeError, match=f"{limit + 1} bytes is over the limit of {limit} bytes"):
            await log.append(b"x" * (limit + 1), sequence=0)
        assert await log.append(b"x" * 1000, sequence=0) == 0
    log_list, _ = await log_parts(client).logs.read(NAME)
    assert [segment.payload_bytes for segment in log_list.segments] == [1000]


async def test_a_cancelled_batch_whose_writer_fails_then_is_nothing_to_complain_of(cluster: InProcess) -> None:
    loop = asyncio.get_running_loop()
    complaints: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda loop, context: complaints.append(context))
    client = await cluster.client(write_window_entries=2)
    log = await client.open_log("orders", create=True, producer="shop")
    first = asyncio.create_task(log.append_batch([b"0", b"1"], first_sequence=0))
    second = asyncio.create_task(log.append_batch([b"2", b"3"], first_sequence=2))
    await asyncio.sleep(0)
    second.cancel()  # while it waits for room
    await first
    for name in "abc":
        cluster.hang(name)
    await eventually(lambda: log.next_position == 4)
    log.abandon()
    await asyncio.wait([second])
    del second
    gc.collect()
    await turns()
    assert not complaints
