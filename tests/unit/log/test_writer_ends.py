"""A log's writer that ends while something is under way, or whose log is no more: nothing is left that does harm."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import math
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from tests.hooks import cluster_of, roller_of, tasks_of
from tests.in_process import DEADLINE_S
from tests.stepping import naming, run_to
from tests.unit.log.support import contents, left_running
from tests.unit.log.test_between_steps import before_the_list_is_written, ledgers_of, opened_without_news
from tests.unit.log.test_takeovers import AWAY, FAST, GONE, REPLY_LOST, REQUEST_LOST, faulty_client
from tests.waiting import eventually

from bkpy.client.client import log_parts, replication_context
from bkpy.errors import (
    ClientClosedError,
    ConfigError,
    LogFencedError,
    LogLockedError,
    MetadataUnavailableError,
    NoSuchLogError,
    NotEnoughBookiesError,
    QuorumTimeoutError,
)
from bkpy.log.client import NewLog, create_log
from bkpy.metadata.logs.catalog import LogStore
from bkpy.metadata.logs.deletions import LogDeletions
from bkpy.metadata.logs.maintenance import LogMaintenance, Swept
from bkpy.metadata.store.outcome import Done
from bkpy.metadata.store.store import Create, Delete, Put

if TYPE_CHECKING:
    from tests.in_process import InProcess

    from bkpy.client.client import Client


def rolls() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "roll of log orders"]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


async def gone(task: asyncio.Task[Any]) -> None:
    await asyncio.wait([task], timeout=DEADLINE_S)
    assert task.done()


async def cancelled_at(cluster: InProcess, steady: Client, at: int) -> bool:
    """Whether the roll was still under way at the store's `at`th call, and so was cancelled."""
    client, session = await faulty_client(cluster)
    log = await client.open_log("orders", create=True, roll_entries=3)
    acknowledged = [await log.append(b"0"), await log.append(b"1")]
    cancelled: list[asyncio.Task[Any]] = []

    async def cancel() -> None:
        cancelled.extend(rolls())
        for task in cancelled:
            task.cancel()
        if not cancelled:
            session.count(1, cancel)

    session.count(at, cancel)
    acknowledged.append(await log.append(b"2"))
    await eventually(lambda: bool(cancelled) or len(roller_of(log).log_list.segments) > 1)
    session.calls = -1
    for task in cancelled:
        await gone(task)
    try:
        acknowledged.append(await log.append(b"3"))
    except ClientClosedError:
        assert cancelled
    after = await steady.open_log("orders")
    assert await after.append(b"new") == len(acknowledged)
    await after.close()
    log.abandon()
    assert await contents(steady, "orders") == [*numbers(len(acknowledged)), b"new"]
    return bool(cancelled)


@pytest.mark.thorough
async def test_a_roll_that_is_cancelled_at_any_step_leaves_a_log_that_can_be_opened(cluster: InProcess) -> None:
    """As all tasks are when a program is interrupted: what the list names then has to be there."""
    steady = await cluster.client(**FAST)
    at = 1
    while await cancelled_at(cluster, steady, at):
        await steady.delete_log("orders")
        at += 1
    assert at > 3


@pytest.mark.parametrize("late", [False, True])
async def test_a_writer_whose_close_is_cancelled_and_repeated_was_overtaken_by_nobody(
    cluster: InProcess, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """At each wait. Else the client's next opening of the log would make room for another client."""
    client = await cluster.client(**FAST)
    with caplog.at_level(logging.INFO, "bkpy.client"):
        for at in itertools.count():
            log = await client.open_log("orders", create=True)
            await log.append(b"x")
            with naming("close", at, late):
                reached = await run_to(log.close(), at, late, None)
                await log.close()
                await (await client.open_log("orders")).close()
                assert [said for said in caplog.messages if "overtaken" in said or "taken it over" in said] == []
            if not reached:
                break
    assert at > 3


@pytest.mark.parametrize("how", ["abandoned", "fenced"])
async def test_the_ledger_of_a_roll_whose_writer_ends_before_the_list_is_written_goes(
    cluster: InProcess, how: str
) -> None:
    """It stays open, and unnamed, for as long as an orphan may: nobody recovers it."""
    client, _ = await faulty_client(cluster)
    other = await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    catalog = cluster_of(client).catalog

    async def create_and_end(*args: Any) -> Any:
        created = await create(*args)
        if how == "abandoned":
            log.abandon()
        else:
            await (await other.open_log("orders")).close()
            with pytest.raises(LogFencedError):
                await log.append(b"late")
        return created

    create = catalog.create
    with patch.object(catalog, "create", create_and_end):
        await asyncio.gather(roller_of(log).roll(), return_exceptions=True)
    await asyncio.sleep(1)
    log_list, _ = await log_parts(other).logs.read("orders", fresh=True)
    assert await ledgers_of(other) == [segment.ledger_id for segment in log_list.segments]


async def test_a_log_is_closed_though_its_roll_waits_for_the_metadata_store(cluster: InProcess) -> None:
    client, session = await faulty_client(cluster, metadata_write_attempts_max=1)
    log = await client.open_log("orders", create=True, roll_entries=2)
    await log.append(b"0")
    await roller_of(log).roll()
    session.count(1, GONE)  # the former ledger can't be closed
    await log.append(b"1")
    await log.append(b"2")
    await eventually(lambda: bool(rolls()))
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(MetadataUnavailableError):
            await log.close()
        session.calls = -1
        await log.close()
    log_list, _ = await log_parts(client).logs.read("orders", fresh=True)
    assert (log_list.writer, log_list.open_segments) == ("", ())
    assert await contents(client, "orders") == numbers(3)


async def test_a_log_that_is_closed_while_much_is_pending_rolls_no_more(cluster: InProcess) -> None:
    client = await cluster.client(**FAST)
    log = await client.open_log("orders", create=True, roll_entries=3)
    pending = [log.append_nowait(b"%d" % i) for i in range(10)]
    await log.close()
    assert [future.result() for future in pending] == list(range(10))
    assert not rolls()
    await roller_of(log).roll()  # as one that has waited for its turn meanwhile
    log_list, _ = await log_parts(client).logs.read("orders", fresh=True)
    assert (log_list.writer, log_list.open_segments) == ("", ())


async def test_a_log_that_is_closed_gives_up_its_lease_once(cluster: InProcess) -> None:
    client = await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    dropped: list[str] = []
    drop_lease = LogStore.drop_lease

    async def counted(logs: LogStore, name: str, *rest: str) -> None:
        dropped.append(name)
        await drop_lease(logs, name, *rest)

    with patch.object(LogStore, "drop_lease", counted):
        await log.close()
        log.abandon()
        await asyncio.sleep(1)
    assert dropped == ["orders"]
    with pytest.raises(ClientClosedError):
        await log.flush()


async def test_a_writer_that_has_failed_keeps_nobody_out(cluster: InProcess) -> None:
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    roller_of(log).appends.fail(QuorumTimeoutError("too slow"))
    with pytest.raises(QuorumTimeoutError):
        await log.close()
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                successor = await other.open_log("orders", wait=False)
                break
            except LogLockedError:
                await asyncio.sleep(0.005)
    await successor.close()


async def test_the_writer_of_a_deleted_log_leaves_another_of_that_name_alone(cluster: InProcess) -> None:
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    await log.append_batch(numbers(10))
    await other.delete_log("orders")
    new = await other.open_log("orders", create=True)
    await new.append(b"new")
    await new.close()
    with pytest.raises(NoSuchLogError):
        await log.truncate(8)
    reader = await other.read_log("orders")
    assert reader.first_position == 0
    assert [entry.data async for entry in reader.read()] == [b"new"]
    log.abandon()


@pytest.mark.parametrize("again", [False, True])
async def test_a_writer_whose_log_is_deleted_hears_of_it_though_it_appends_nothing(
    cluster: InProcess, again: bool
) -> None:
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    await other.delete_log("orders")
    if again:
        await (await other.open_log("orders", create=True)).close()
    await eventually(lambda: not log.usable)
    with pytest.raises(NoSuchLogError):
        await log.append(b"1")
    if again:  # and doesn't say that it writes the new one
        await (await other.open_log("orders", wait=False)).close()
    log.abandon()


async def test_a_writer_that_was_replaced_hears_of_it_though_it_appends_nothing(cluster: InProcess) -> None:
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    await (await other.open_log("orders")).close()
    await eventually(lambda: not log.usable)
    with pytest.raises(LogFencedError):
        await log.append(b"1")
    log.abandon()


async def test_nothing_is_acknowledged_to_the_writer_of_a_deleted_log_that_hears_of_nothing(cluster: InProcess) -> None:
    other = await cluster.client(**FAST)
    client, session = await faulty_client(cluster)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    await roller_of(log).roll()
    assert await log.append(b"1") == 1
    session.count(1, GONE)
    await other.delete_log("orders")
    with pytest.raises(LogFencedError, match="or has deleted it"):
        await log.append(b"2")
    assert not log.usable


async def test_a_log_whose_bookies_are_gone_can_be_deleted(
    cluster: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    for name in "ab":
        cluster.kill(name)
    await other.delete_log("orders")
    assert [ledger_id async for ledger_id in other.list_ledgers()] == []
    assert [record.args[1] for record in caplog.records if "can't be fenced" in record.msg] == ["orders"]
    await eventually(lambda: not log.usable)
    log.abandon()


# --- a list that is too long -----------------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_a_log_whose_list_is_too_long_goes_on_without_rolling(cluster: InProcess) -> None:
    """Wherever the bound lies: a client that finds no room fences nobody, and one that finds some appends."""
    steady = await cluster.client(**FAST)
    refused, opened = [], []
    for room in range(0, 600, 40):
        name = f"log-{room:03}"
        log = await steady.open_log(name, create=True)
        await log.append(b"0")
        log_list, _ = await log_parts(steady).logs.read(name)
        client = await cluster.client(**FAST, log_write_bytes_max=len(log_list.encode()) + room)
        with contextlib.suppress(ConfigError):
            log = await client.open_log(name, roll_entries=2)
            opened.append(room)
        if not opened:
            refused.append(room)
        for i in range(1, 8):
            assert await log.append(b"%d" % i) == i
            await asyncio.sleep(0.002)
        await log.close()
        assert await contents(steady, name) == numbers(8)
    assert refused
    assert opened
    assert opened == list(range(opened[0], 600, 40))


@pytest.mark.parametrize("bound", range(900, 1100, 40))
async def test_a_full_list_has_room_for_the_next_writer(cluster: InProcess, bound: int) -> None:
    """Also if the log has rolled while that one was opening it: the one that fenced the former writer can go on."""
    client = await cluster.client(**FAST, log_write_bytes_max=bound)
    log = await client.open_log("orders", create=True, roll_entries=1)
    while not log.next_position or log.next_position < 2 * len(roller_of(log).log_list.segments):
        await log.append(b"%d" % log.next_position)
        await asyncio.sleep(0.002)
    end = log.next_position
    following = await client.open_log("orders")
    assert await following.append(b"n") == end
    standby = await cluster.client(**FAST, log_write_bytes_max=500)
    with pytest.raises(ConfigError, match="no room for another ledger"):
        await standby.open_log("orders")
    assert await following.append(b"m") == end + 1
    await following.close()


async def test_a_log_whose_list_was_too_long_goes_on_when_it_is_truncated(cluster: InProcess) -> None:
    client, steady = await cluster.client(**FAST, log_write_bytes_max=1000), await cluster.client(**FAST)
    log = await client.open_log("orders", create=True, roll_entries=1)
    while not log.next_position or log.next_position < 2 * len(roller_of(log).log_list.segments):
        await log.append(b"%d" % log.next_position)
        await asyncio.sleep(0.002)
    full, end = log.ledger_id, log.next_position
    await log.truncate(end - 1)
    await eventually(lambda: log.ledger_id != full)
    assert await log.append(b"%d" % end) == end
    await log.close()
    reader = await steady.read_log("orders")
    assert [entry.data async for entry in reader.read()] == numbers(end + 1)[end - 1 :]


async def test_a_log_whose_list_is_too_long_makes_no_ledgers(
    cluster: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    client, steady = await cluster.client(**FAST, log_write_bytes_max=800), await cluster.client(**FAST)
    log = await client.open_log("orders", create=True, roll_entries=1)

    def refused() -> int:
        return sum("which is due" in record.msg for record in caplog.records)

    while not refused():
        await log.append(b"0")
        await asyncio.sleep(0.002)
    before, attempts = await steady.create_ledger(), refused()
    await eventually(lambda: refused() > attempts + 3)
    standby = await cluster.client(**FAST, log_write_bytes_max=500)
    with pytest.raises(ConfigError, match="no room for another ledger"):
        await standby.open_log("orders")
    after = await steady.create_ledger()
    assert after.ledger_id == before.ledger_id + 1
    for left in (before, after):
        await left.close()
    log.abandon()


# --- who writes, and what a failed call leaves -----------------------------------------------------------------------


async def test_a_log_that_is_open_names_its_writer(cluster: InProcess) -> None:
    billing, other = await cluster.client(**FAST, client_name="billing-1"), await cluster.client(**FAST)
    log = await billing.open_log("orders", create=True)
    process = replication_context(billing).parts.runtime.process
    with pytest.raises(
        LogLockedError, match=rf"^log orders has a writer since 2\d.*: client billing-1 on {process}$"
    ) as refused:
        await other.open_log("orders", wait=False)
    locked = refused.value.writer
    reader = await other.read_log("orders")
    assert log.writer_info == reader.writer_info
    assert log.writer_info is not None
    assert locked is not None
    assert locked[:3] == log.writer_info[:3]
    assert (log.writer_info.name, 0 < log.writer_info.since <= locked.since) == ("billing-1", True)
    assert await log.append(b"0") == 0
    await log.close()
    await reader.refresh()
    assert (log.writer_info, reader.writer_info) == (None, None)


@pytest.mark.parametrize("idle", [True, False], ids=["idle", "appending"])
async def test_a_fenced_writer_names_its_successor(cluster: InProcess, idle: bool) -> None:
    """At once if the list notifies it; if a ledger's fence came first, as soon as the list says it."""
    first, other = await cluster.client(**FAST), await cluster.client(**FAST, client_name="billing-2")
    log = await first.open_log("orders", create=True)
    await log.append(b"0")
    if not idle:
        list_is_read = asyncio.Event()

        async def append_noticed() -> None:
            await list_is_read.wait()

        async def append_until_fenced() -> None:
            while True:
                await log.append(b"x")

        async def append() -> None:
            with pytest.raises(LogFencedError) as unknown:
                await append_until_fenced()
            assert unknown.value.writer is None
            assert log.writer_info is None
            list_is_read.set()

        session: Any = cluster_of(other).store
        appending = asyncio.create_task(append())
        with before_the_list_is_written(session, append_noticed):
            following = await other.open_log("orders")
        await appending
    else:
        following = await other.open_log("orders")
    await eventually(lambda: log.writer_info is not None)
    with pytest.raises(LogFencedError, match="has become the writer of log orders: client billing-2 on") as caught:
        await log.append(b"1")
    assert caught.value.writer == log.writer_info == following.writer_info
    log.abandon()
    await eventually(lambda: not left_running(first))
    await following.close()


async def test_a_fenced_writer_waits_for_its_successor_no_longer_than_a_call_may_take(cluster: InProcess) -> None:
    first = await cluster.client(**FAST | {"add_quorum_timeout_s": 1.0})
    log = await first.open_log("orders", create=True)
    roller_of(log).appends.fail(LogFencedError("somebody has fenced its ledger"))
    await eventually(lambda: not left_running(first))
    assert log.writer_info is None


@pytest.mark.parametrize("rolls", [False, True])
async def test_a_fenced_writer_is_advised_to_open_the_log_again(cluster: InProcess, rolls: bool) -> None:
    """Not to go on in a new ledger, as the bookies advise the writer of a ledger."""
    first, other = await cluster.client(**FAST), await cluster.client(**FAST)
    log = await first.open_log("orders", create=True, roll_entries=1 if rolls else 1000)
    await log.append(b"0")
    following = await other.open_log("orders")
    with pytest.raises(LogFencedError, match="open it again") as caught:
        await log.append(b"1")
    assert "new one" not in str(caught.value)
    await following.close()


@pytest.mark.parametrize("wait", [True, False])
async def test_a_log_that_can_not_be_opened_is_not_made(cluster: InProcess, wait: bool) -> None:
    client = await cluster.client(**FAST, no_bookies_timeout_s=0.01)
    sizes = {"ensemble_size": 5, "write_quorum": 5, "ack_quorum": 3}
    with pytest.raises(NotEnoughBookiesError):
        await client.open_log("orders", create=True, wait=wait, **sizes)
    with pytest.raises(NoSuchLogError):
        await client.read_log("orders")
    async with await client.open_log("orders", create=True) as log:
        assert await log.append(b"0") == 0
    with pytest.raises(NotEnoughBookiesError):  # a log that was there stays
        await reopened_without_bookies(cluster, "orders")
    assert await contents(client, "orders") == [b"0"]


async def reopened_without_bookies(cluster: InProcess, name: str) -> None:
    """The same call of a client that sees too few bookies for the next ledger."""
    client = await cluster.client(**FAST, no_bookies_timeout_s=0.01)
    log_list, version = await log_parts(client).logs.read(name)
    larger = dataclasses.replace(log_list, ensemble_size=5, write_quorum=5, ack_quorum=3)
    assert isinstance(await log_parts(client).logs.write(name, larger, version), Done)
    await client.open_log(name, create=True)


async def test_a_log_that_another_client_uses_is_not_removed_again(cluster: InProcess) -> None:
    """The client that made it fails; meanwhile another one has registered a consumer, or has become its writer."""
    client = await cluster.client(**FAST)
    for name in ("read", "written"):
        assert await create_log(log_parts(client).logs, name, b"", NewLog(3, 3, 2, "crc32c", None, None, None))
        log_list, _ = await log_parts(client).logs.read(name)
        if name == "read":
            async with await client.read_log(name) as reader:
                await reader.consumer("billing", create=True)
        else:
            await (await client.open_log(name)).close()
        assert not await log_parts(client).logs.unmake(name, log_list.uid)
        await log_parts(client).logs.read(name)


# --- the lease of a writer that has ended ----------------------------------------------------------------------------


async def opened_alone(other: Client, name: str) -> None:
    """Nobody has the lease, or its holder gives it up now."""

    async def opened() -> bool:
        await (await other.open_log(name, wait=False)).close()
        return True

    assert await eventually(opened, "the lease is given up", meanwhile=LogLockedError)


@pytest.mark.parametrize("late", [False, True])
async def test_a_close_that_is_cancelled_at_any_step_leaves_no_lease(cluster: InProcess, late: bool) -> None:
    """A second call has nothing more to do when the log has ended: the lease would stay as long as the session."""
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    for at in itertools.count():
        name = f"log-{at}"
        log = await client.open_log(name, create=True, ensemble_size=1, write_quorum=1, ack_quorum=1)
        await log.append(b"0")
        with naming(name, at, late):
            reached = await run_to(log.close(), at, late, None)
            await log.close()
            await opened_alone(other, name)
        if not reached:
            break
    assert at > 8


@pytest.mark.parametrize("trouble", [REQUEST_LOST, REPLY_LOST, AWAY])
async def test_a_close_with_trouble_at_any_request_leaves_no_lease(cluster: InProcess, trouble: str) -> None:
    other = await cluster.client(**FAST)
    client, session = await faulty_client(cluster)
    for at in itertools.count(1):
        name = f"log-{at}"
        log = await client.open_log(name, create=True, ensemble_size=1, write_quorum=1, ack_quorum=1)
        await log.append(b"0")
        session.count(at, trouble)
        with contextlib.suppress(MetadataUnavailableError):
            await log.close()
        reached, session.calls = session.calls >= at, -1
        await log.close()
        await opened_alone(other, name)
        if not reached:
            break
    assert at > 5


async def test_an_abandoned_writer_gives_up_its_lease_when_the_store_is_back(cluster: InProcess) -> None:
    client, session = await faulty_client(cluster)
    other = await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    session.suspend()
    log.abandon()
    await asyncio.sleep(3 * session.call_timeout_s)
    session.resume()
    await opened_alone(other, "orders")


async def test_a_lease_is_not_given_up_when_its_session_is_closed(cluster: InProcess) -> None:
    client, session = await faulty_client(cluster)
    log = await client.open_log("orders", create=True)
    session.suspend()
    log.abandon()
    await asyncio.sleep(3 * session.call_timeout_s)
    assert leases_given_up(client)
    await session.close()
    await eventually(lambda: not leases_given_up(client))


def leases_given_up(client: Client) -> list[str]:
    return [task.get_name() for task in tasks_of(client) if task.get_name().startswith("lease of")]


async def test_an_opening_that_fails_and_is_cancelled_then_leaves_neither_lease_nor_log(cluster: InProcess) -> None:
    client = await cluster.client(**FAST, no_bookies_timeout_s=0.01)
    sizes = {"ensemble_size": 5, "write_quorum": 5, "ack_quorum": 3}
    opening = asyncio.create_task(client.open_log("orders", create=True, wait=False, **sizes))
    drop_lease = LogStore.drop_lease

    async def cancelled(logs: LogStore, *lease: str) -> None:
        opening.cancel()
        await drop_lease(logs, *lease)

    with patch.object(LogStore, "drop_lease", cancelled):
        with pytest.raises(asyncio.CancelledError):
            await opening

        async def made_again() -> bool:
            return await create_log(log_parts(client).logs, "orders", b"", NewLog(3, 3, 2, "crc32c", None, None, None))

        await eventually(made_again, "the log is removed")
    await opened_alone(client, "orders")


# --- what is kept ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["retention_s", "consumer_lag_max_s", "roll_s", "retention_bytes"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "1", True, 10**400])
async def test_what_makes_no_sense_is_kept_by_no_log(cluster: InProcess, name: str, value: Any) -> None:
    client = await cluster.client(**FAST)
    if name == "retention_bytes" and value == 10**400:
        value = 0.5
    with pytest.raises(ConfigError, match=name):
        await client.open_log("orders", create=True, **{name: value})
    with pytest.raises(NoSuchLogError):
        await client.read_log("orders")


async def test_two_calls_that_make_the_same_log_at_once_make_one(cluster: InProcess) -> None:
    client, session = await faulty_client(cluster)
    other = await cluster.client(**FAST)
    multi = session.multi

    async def after_another_one(operations: Any) -> Any:
        if operations[0].path == "/ledgers/logs/orders" and isinstance(operations[0], Create):
            async with await other.open_log("orders", create=True) as log:
                assert await log.append(b"0") == 0
        return await multi(operations)

    with patch.object(session, "multi", after_another_one):
        log = await client.open_log("orders", create=True)
    assert await log.append(b"1") == 1
    await log.close()
    assert await contents(client, "orders") == numbers(2)


async def test_a_log_that_can_not_be_stored_is_not_opened(cluster: InProcess) -> None:
    client, session = await faulty_client(cluster, metadata_write_attempts_max=1)

    async def lose(operations: Any) -> Any:
        raise MetadataUnavailableError("the request was lost", outcome_unknown=True)

    with patch.object(session, "multi", lose), pytest.raises(MetadataUnavailableError) as failed:
        await client.open_log("orders", create=True)
    assert failed.value.outcome_unknown


async def test_a_log_is_opened_though_the_store_is_away_when_its_writer_is_to_be_shown(cluster: InProcess) -> None:
    """That is for people; appends need no lease."""
    client, session = await faulty_client(cluster)
    sync = session.sync

    async def without_leases(path: str) -> None:
        if path.endswith("/lease"):
            raise MetadataUnavailableError("the store is away")
        await sync(path)

    with patch.object(session, "sync", without_leases):
        log = await client.open_log("orders", create=True)
        assert await log.append(b"0") == 0
    lst, _ = await log_parts(client).logs.read("orders")
    assert await log_parts(client).logs.lease_holder("orders", lst.uid) is None
    await log.close()


async def test_a_log_that_can_be_neither_opened_nor_removed_again_stays(
    cluster: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """Its opener hears why it could not be opened."""
    caplog.set_level("INFO", "bkpy.client")
    client, session = await faulty_client(cluster, no_bookies_timeout_s=0.01, metadata_write_attempts_max=1)
    multi = session.multi

    async def without_deletes(operations: Any) -> Any:
        if isinstance(operations[0], Delete):
            raise MetadataUnavailableError("the store is away")
        return await multi(operations)

    with patch.object(session, "multi", without_deletes), pytest.raises(NotEnoughBookiesError):
        await client.open_log("orders", create=True, ensemble_size=5, write_quorum=5, ack_quorum=3)
    assert "log orders, which was made in vain, is still there" in caplog.text
    assert [name async for name in client.list_logs()] == ["orders"]


async def test_of_a_log_that_is_removed_again_nothing_stays_though_its_opener_ends_then(cluster: InProcess) -> None:
    """Its ledger does: the auditor has to know that no list of it was lost."""
    client, session = await faulty_client(cluster)
    other = await cluster.client(**FAST)
    multi = session.multi

    async def not_written(operations: Any) -> Any:
        if isinstance(operations[0], Put):
            raise MetadataUnavailableError("the list could not be sent")
        result = await multi(operations)
        if isinstance(operations[0], Delete):  # the list: the client is killed behind that
            session.count(1, GONE)
        return result

    with patch.object(session, "multi", not_written), pytest.raises(MetadataUnavailableError, match="could not be"):
        await client.open_log("orders", create=True)
    (left,) = [ledger_id async for ledger_id in other.list_ledgers()]
    assert not [name async for name in other.list_logs()]
    maintenance = LogMaintenance(log_parts(other).logs, cluster_of(other).catalog)
    assert await maintenance.sweep(await other.ledger_metadata(left), 0.0) is Swept.DELETED


async def test_a_log_that_another_one_reads_meanwhile_is_not_removed_again(cluster: InProcess) -> None:
    """And its deletion isn't noted: a later auditor would take its ledgers for those of a deleted log."""
    client, session = await faulty_client(cluster, no_bookies_timeout_s=0.01)
    other = await cluster.client(**FAST)
    multi = session.multi

    async def after_a_consumer(operations: Any) -> Any:
        if isinstance(operations[0], Delete):
            async with await other.read_log("orders") as reader:
                await reader.consumer("billing", position=0, create=True)
        return await multi(operations)

    with patch.object(session, "multi", after_a_consumer), pytest.raises(NotEnoughBookiesError):
        await client.open_log("orders", create=True, ensemble_size=5, write_quorum=5, ack_quorum=3)
    lst, _ = await log_parts(other).logs.read("orders")
    assert not await LogDeletions(log_parts(other).logs).noted(lst.uid)


# --- what a writer does now and then ----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["replaced", "deleted", "made anew"])
async def test_a_writer_that_no_watch_wakes_looks_now_and_then(cluster: InProcess, how: str) -> None:
    client, session = await faulty_client(cluster, log_retention_interval_s=60)
    other = await cluster.client(**FAST)
    log = await opened_without_news(client, session)
    if how == "replaced":
        await (await other.open_log("orders")).close()
    else:
        await other.delete_log("orders")
        if how == "made anew":
            await (await other.open_log("orders", create=True)).close()
    assert how != "replaced" or log.usable  # a deletion closes the watch with the list
    await asyncio.sleep(61)
    assert not log.usable
    wanted = {
        "replaced": "another client has become the writer",
        "deleted": "log orders has been deleted",
        "made anew": "log orders has been deleted",
    }
    with pytest.raises(LogFencedError if how == "replaced" else NoSuchLogError, match=wanted[how]):
        await log.append(b"1")
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "retention of log orders"]
    # It says no more that it writes the log.
    if how != "deleted":
        lst, _ = await log_parts(other).logs.read("orders")
        assert await log_parts(other).logs.lease_holder("orders", lst.uid) is None


async def test_a_writer_whose_store_is_away_when_it_looks_looks_again(
    cluster: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "bkpy.client")
    client, session = await faulty_client(cluster, log_retention_interval_s=60)
    other = await cluster.client(**FAST)
    log = await opened_without_news(client, session)
    await log.append(b"0")
    session.count(1, GONE)
    await asyncio.sleep(61)
    assert "failed to maintain log orders, retrying later" in caplog.text
    assert log.usable
    session.calls = -1
    await (await other.open_log("orders")).close()
    await asyncio.sleep(60)
    assert not log.usable


async def test_a_log_that_is_closed_twice_at_once_is_closed_once(cluster: InProcess) -> None:
    client = await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    _, version = await log_parts(client).logs.read("orders", fresh=True)
    await asyncio.gather(log.close(), log.close())
    lst, after = await log_parts(client).logs.read("orders", fresh=True)
    assert (lst.writer, after) == ("", version + 1)


async def test_closing_a_log_that_was_deleted_is_no_error(cluster: InProcess) -> None:
    """The write of the list comes last: all that was appended is acknowledged."""
    client, session = await faulty_client(cluster)
    other = await cluster.client(**FAST)
    log = await opened_without_news(client, session)
    await log.append(b"0")
    with before_the_list_is_written(session, lambda: other.delete_log("orders")):
        await log.close()
    assert [name async for name in other.list_logs()] == []


async def test_what_can_not_be_deleted_when_a_log_is_closed_is_left_to_others(
    cluster: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "bkpy.client")
    client, session = await faulty_client(cluster, metadata_write_attempts_max=1)
    log = await client.open_log("orders", create=True)

    async def go_away(path: str, version: int | None = None) -> None:
        raise MetadataUnavailableError("the store is away")

    with patch.object(session, "delete", go_away):
        await log.close()
    assert "failed to delete ledgers that log orders no longer has" in caplog.text
    lst, _ = await log_parts(client).logs.read("orders", fresh=True)
    assert lst.pending_delete == (log.ledger_id,)
    await (await client.open_log("orders")).close()
    assert (await log_parts(client).logs.read("orders", fresh=True))[0].pending_delete == ()


async def test_a_closing_writer_whose_list_changes_all_the_time_leaves_it(cluster: InProcess) -> None:
    client, session = await faulty_client(cluster, log_conflicts_max=3)
    other = await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    multi, changes = session.multi, 0

    async def after_a_change(operations: Any) -> Any:
        nonlocal changes
        if isinstance(operations[0], Put) and operations[0].path == "/ledgers/logs/orders":
            changes += 1
            lst, version = await log_parts(other).logs.read("orders", fresh=True)
            assert isinstance(await log_parts(other).logs.write("orders", lst, version), Done)
        return await multi(operations)

    with patch.object(session, "multi", after_a_change):
        await log.close()
    assert changes == 3
    assert (await log_parts(other).logs.read("orders", fresh=True))[0].writer
    after = await other.open_log("orders")
    assert await after.append(b"1") == 1
    await after.close()
