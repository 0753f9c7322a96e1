"""What others do, or what fails, between two steps of a log's writer: while it opens, rolls, closes and is idle."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from tests.hooks import ATTEMPT_TO_OPEN, cluster_of, former_of, present_of, roller_of
from tests.in_process import DEADLINE_S, stored
from tests.unit.log.support import contents, positions_of
from tests.unit.log.test_takeovers import FAST, faulty_client
from tests.waiting import eventually

from bkpy.client.client import log_parts, replication_context
from bkpy.errors import (
    ConfigError,
    CorruptDataError,
    LogFencedError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLogError,
)
from bkpy.log.appends import LogAppends
from bkpy.metadata.logs.maintenance import LogMaintenance
from bkpy.metadata.store.outcome import Gone
from bkpy.metadata.store.store import Put

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.in_process import InProcess
    from tests.unit.log.test_takeovers import Faulty

    from bkpy.client.client import Client
    from bkpy.client.write.batcher import AppendBatcher
    from bkpy.log.writer import LogWriter
    from bkpy.protocol.log.log_list import LogList

LIST = "/ledgers/logs/orders"


def before_the_list_is_written(session: Faulty, act: Callable[[], Awaitable[None]]) -> Any:
    """While this is open, `act` comes before the first write of the list."""
    multi, acted = session.multi, False

    async def after_act(operations: Any) -> Any:
        nonlocal acted
        if not acted and isinstance(operations[0], Put) and operations[0].path == LIST:
            acted = True
            await act()
        return await multi(operations)

    return patch.object(session, "multi", after_act)


async def swept(client: Client) -> None:
    """What the auditor does with all ledgers."""
    context = LogMaintenance(log_parts(client).logs, cluster_of(client).catalog)
    for ledger_id in [ledger_id async for ledger_id in client.list_ledgers()]:
        metadata, _ = await cluster_of(client).catalog.read(ledger_id)
        await context.sweep(metadata, 0.0)


async def list_of(client: Client) -> LogList:
    return (await log_parts(client).logs.read("orders", fresh=True))[0]


async def test_a_ledger_that_was_made_for_a_deleted_log_gets_into_no_other(cluster: InProcess) -> None:
    """It would say that it belongs to the deleted one, and so be deleted by whoever looks for such ledgers."""
    client, session = await faulty_client(cluster)
    other = await cluster.client(**FAST)
    await (await other.open_log("orders", create=True)).close()

    async def make_anew() -> None:
        await other.delete_log("orders")
        log = await other.open_log("orders", create=True, ensemble_size=1, write_quorum=1, ack_quorum=1)
        await log.append(b"0")
        await log.close()

    with before_the_list_is_written(session, make_anew), pytest.raises(NoSuchLogError, match="there is another one"):
        await client.open_log("orders")
    log = await client.open_log("orders")
    assert present_of(log).metadata.ensemble_size == 1
    assert await log.append(b"1") == 1
    await swept(other)
    await log.close()
    assert await contents(other, "orders") == [b"0", b"1"]


async def test_a_next_ledger_that_has_failed_before_it_is_used_ends_the_writer(cluster: InProcess) -> None:
    """As one does that could not leave a bookie that is to go, while the list was written."""
    client = await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    assert await log.append(b"0") == 0
    switch = LogAppends.switch
    waiting: list[asyncio.Task[int]] = []

    def fail_and_switch(appends: LogAppends, following: AppendBatcher, *due: int) -> None:
        following.replication.failed(MetadataUnavailableError("the ensemble could not be stored"))
        switch(appends, following, *due)

    stop = LogAppends.stop

    async def stop_and_append(appends: LogAppends) -> None:
        await stop(appends)
        waiting.append(asyncio.create_task(log.append(b"1")))
        await asyncio.sleep(0)

    with patch.object(LogAppends, "switch", fail_and_switch), patch.object(LogAppends, "stop", stop_and_append):
        await roller_of(log).roll()
    for appending in (waiting[0], asyncio.create_task(log.append(b"2"))):
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(MetadataUnavailableError) as failed:
                await appending
        assert not failed.value.outcome_unknown
    assert not log.usable
    after = await client.open_log("orders")
    assert await after.append(b"1") == 1
    await after.close()
    assert await contents(client, "orders") == [b"0", b"1"]


async def test_times_do_not_go_back_though_nothing_is_left_of_what_had_them(cluster: InProcess) -> None:
    """All but an empty ledger is truncated, and the next writer's clock is behind."""
    client = await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    await roller_of(log).roll()
    await eventually(lambda: former_of(log) is None)
    reader = await client.read_log("orders")
    (first,) = [entry async for entry in reader.read()]
    await eventually(lambda: roller_of(log).log_list.segments[0].sealed)
    await log.truncate(1)
    for how in ("closed", "abandoned"):
        if how == "closed":
            await log.close()
        else:
            log.abandon()
        clock = replication_context(client).parts.runtime.clock
        with patch.object(type(clock), "time", lambda clock: first.time - 1000):
            log = await client.open_log("orders")
    with patch.object(type(clock), "time", lambda clock: first.time - 1000):
        assert await log.append(b"1") == 1
        await log.close()
    await reader.refresh()
    (second,) = [entry async for entry in reader.read()]
    assert second.time >= first.time
    assert await reader.position_at(first.time) == 1


async def test_a_roll_that_was_in_doubt_goes_back_when_the_doubt_is_over(cluster: InProcess) -> None:
    """A request is lost, somebody else changes the list, so that it can't arrive any more, and then the store is away.

    Nothing can be appended while the writer is in doubt, and in the end it has to give up.
    """
    client, session = await faulty_client(cluster, metadata_write_attempts_max=1)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    other = await cluster.client(**FAST)
    multi, writes = session.multi, 0

    async def troubled(operations: Any) -> Any:
        nonlocal writes
        if isinstance(operations[0], Put) and operations[0].path == LIST:
            writes += 1
            if writes == 1:
                log_list, version = await log_parts(other).logs.read("orders", fresh=True)
                await log_parts(other).logs.write_anyway("orders", log_list, version)
                raise MetadataUnavailableError("the request was lost", outcome_unknown=True)
            if writes > 2:
                raise MetadataUnavailableError("the store is away")
        return await multi(operations)

    with patch.object(session, "multi", troubled), pytest.raises(MetadataUnavailableError):
        await roller_of(log).roll()
    assert writes == 3
    assert await log.append(b"1") == 1
    await roller_of(log).roll()
    assert await log.append(b"2") == 2
    await log.close()
    assert positions_of(await list_of(client)) == [(0, 2), (2, 1)]


async def test_who_flushes_too_late_hears_that_the_outcome_is_unknown(cluster: InProcess) -> None:
    """As who flushed before did. Nobody looks at the futures of appends that are flushed."""
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    await log.flush()
    await log.append(b"0")
    log.append_nowait(b"1")
    await asyncio.sleep(0)  # it is sent
    present_of(log).pending.replication.acks.freeze()
    flushing = asyncio.create_task(log.flush())
    await asyncio.sleep(0)
    after = await other.open_log("orders")
    roller_of(log).appends.fail(LogFencedError("somebody else has become the writer"))
    for end in (flushing, log.flush(), log.close()):
        with pytest.raises(LogFencedError) as failed:
            await end
        assert failed.value.outcome_unknown
    await after.close()
    told = await client.open_log("orders")
    await told.append(b"2")
    roller_of(told).appends.fail(LogFencedError("somebody else has become the writer"))
    with pytest.raises(LogFencedError) as failed:
        await told.flush()
    assert not failed.value.outcome_unknown


async def test_a_held_ledger_whose_entries_are_all_on_their_quorums_does_not_stall(cluster: InProcess) -> None:
    """It waits for the one before it, which gets on: slowly, an entry at a time."""
    client = await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    slow = present_of(log).pending
    for i in range(1, 9):
        log.append_nowait(b"%d" % i)
        await asyncio.sleep(0)  # each leaves alone
    replication = slow.replication
    completed = type(replication).completed
    arrived: list[Any] = []

    def hold(self: Any, batch: Any) -> None:
        if self is replication:
            arrived.append(batch)
        else:
            completed(self, batch)

    with patch.object(type(replication), "completed", hold):
        await roller_of(log).roll()
        held = log.append_nowait(b"9")
        following = present_of(log).pending
        await eventually(lambda: following.replication.confirmed == 0 and len(arrived) == 8)
        assert slow.has_pending
        assert not following.has_pending
        flushing = asyncio.create_task(following.flush())
        await asyncio.sleep(0)
        assert not following.replication.busy()
        for batch in arrived:
            completed(replication, batch)
            await asyncio.sleep(0)
            assert held.done() == flushing.done() == (batch is arrived[-1])
    assert roller_of(log).appends.error is None
    assert await held == 9
    await flushing
    await log.close()


async def test_an_empty_ledger_is_not_rolled(cluster: InProcess) -> None:
    client = await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    ledger_id = log.ledger_id
    await roller_of(log).roll()
    assert log.ledger_id == ledger_id
    await log.append(b"0")
    for _ in range(2):
        await roller_of(log).roll()
    assert positions_of(await list_of(client))[-1] == (1, -1)
    await log.close()


async def test_a_writer_that_fails_while_the_list_is_written_begins_no_ledger(cluster: InProcess) -> None:
    client, session = await faulty_client(cluster)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    before = present_of(log)

    async def fail() -> None:
        roller_of(log).appends.fail(LogFencedError("somebody else has become the writer"))

    with before_the_list_is_written(session, fail), pytest.raises(LogFencedError):
        await roller_of(log).roll()
    assert present_of(log) is before
    after = await client.open_log("orders")
    assert await after.append(b"1") == 1
    await after.close()
    assert await contents(client, "orders") == [b"0", b"1"]


async def test_a_truncation_that_comes_too_late_moves_nothing_back(cluster: InProcess) -> None:
    client = await cluster.client(**FAST)
    async with await client.open_log("orders", create=True) as log:
        await log.append_batch([b"0", b"1", b"2"])
        await log.truncate(2)
        await log.truncate(1)
        assert log.first_position == 2


async def test_one_who_closes_leaves_the_list_of_the_next_writer_alone(cluster: InProcess) -> None:
    """Who has come in between, when the last ledger was closed already."""
    client, session = await faulty_client(cluster)
    other = await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    after: list[LogWriter] = []
    written: list[int] = []

    async def take_over() -> None:
        after.append(await other.open_log("orders"))
        written.append((await log_parts(other).logs.read("orders", fresh=True))[1])

    with before_the_list_is_written(session, take_over):
        await log.close()
    assert (await log_parts(other).logs.read("orders", fresh=True))[1] == written[0]
    assert await after[0].append(b"1") == 1
    await after[0].close()
    assert await contents(other, "orders") == [b"0", b"1"]


async def test_who_was_overtaken_gives_the_other_one_some_time(cluster: InProcess) -> None:
    """Half a pause at least, before it takes the log from it in turn."""
    pause_s = 0.2
    client, session = await faulty_client(cluster, log_open_pause_min_s=pause_s, log_open_pause_max_s=pause_s)
    other = await cluster.client(**FAST)
    await (await other.open_log("orders", create=True)).close()
    began: list[float] = []
    after: list[LogWriter] = []
    loop = asyncio.get_running_loop()

    async def take_over() -> None:
        after.append(await other.open_log("orders"))
        began.append(loop.time())

    with before_the_list_is_written(session, take_over):
        log = await client.open_log("orders")
    assert loop.time() - began[0] >= pause_s / 2
    await log.close()
    after[0].abandon()


async def test_a_flush_waits_for_the_former_ledger_though_nothing_follows(cluster: InProcess) -> None:
    client = await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    replication = present_of(log).pending.replication
    completed = type(replication).completed
    arrived: list[Any] = []

    def hold(self: Any, batch: Any) -> None:
        if self is replication:
            arrived.append(batch)
        else:
            completed(self, batch)

    with patch.object(type(replication), "completed", hold):
        pending = log.append_nowait(b"1")
        await roller_of(log).roll()
        await eventually(lambda: len(arrived) == 1)
        flushing = asyncio.create_task(log.flush())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not flushing.done()
        completed(replication, arrived[0])
        await flushing
        assert await pending == 1
    await log.close()


# --- the outcomes of the write that names the new ledger --------------------------------------------------------------


@contextlib.contextmanager
def the_reply_is_lost(
    session: Faulty, act: Callable[[], Awaitable[None]], then: Callable[[], Awaitable[None]] | None = None
) -> Iterator[None]:
    """The first write of the list is done, its reply is lost, and `act` comes; `then` before the second look at it."""
    multi, sync = session.multi, session.sync
    looks = -1

    async def lose_the_reply(operations: Any) -> Any:
        nonlocal looks
        result = await multi(operations)
        if looks < 0 and isinstance(operations[0], Put) and operations[0].path == LIST:
            looks = 0
            await act()
            raise MetadataUnavailableError("the reply was lost", outcome_unknown=True)
        return result

    async def look(path: str) -> None:
        nonlocal looks
        if path == LIST and looks >= 0:
            looks += 1
            if looks == 2 and then is not None:
                await then()
        await sync(path)

    with patch.object(session, "multi", lose_the_reply), patch.object(session, "sync", look):
        yield
    assert looks > 0


class NoNews:
    """A watch that wakes nobody."""

    def __aiter__(self) -> NoNews:
        return self

    async def __anext__(self) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        """Nothing was begun."""


async def opened_without_news(client: Client, session: Faulty, **options: Any) -> LogWriter:
    """A writer that hears of what others do to its log only when it looks."""
    with patch.object(session, "watch", lambda path: NoNews()):
        return await client.open_log("orders", create=True, **options)


async def ledgers_of(client: Client) -> list[int]:
    return [ledger_id async for ledger_id in client.list_ledgers()]


async def delete_the_newest_ledger(client: Client) -> None:
    assert isinstance(await cluster_of(client).catalog.delete((await ledgers_of(client))[-1]), Gone)


async def write_the_list_again(client: Client) -> None:
    lst, version = await log_parts(client).logs.read("orders", fresh=True)
    stored(await log_parts(client).logs.write_anyway("orders", lst, version))


async def test_an_opener_whose_new_ledger_was_deleted_makes_another_one(cluster: InProcess) -> None:
    client, session = await faulty_client(cluster)
    other = await cluster.client(**FAST)
    await (await other.open_log("orders", create=True)).close()
    newest: list[int] = []

    async def delete_it() -> None:
        newest.append((await ledgers_of(other))[-1])
        await delete_the_newest_ledger(other)

    with before_the_list_is_written(session, delete_it):
        log = await client.open_log("orders")
    assert log.ledger_id > newest[0]
    assert await log.append(b"0") == 0
    await log.close()
    assert await contents(other, "orders") == [b"0"]


async def test_a_log_that_is_deleted_while_it_is_opened_is_not_there(cluster: InProcess) -> None:
    client, session = await faulty_client(cluster)
    other = await cluster.client(**FAST)
    await (await other.open_log("orders", create=True)).close()
    deleting = before_the_list_is_written(session, lambda: other.delete_log("orders"))
    with deleting, pytest.raises(NoSuchLogError, match="was deleted while it was opened"):
        await client.open_log("orders")


async def test_an_opener_in_doubt_serves_if_the_list_names_its_ledger(cluster: InProcess) -> None:
    """The list has changed since, so that the store alone can't say who has written it."""
    client, session = await faulty_client(cluster)
    other = await cluster.client(**FAST)
    await (await other.open_log("orders", create=True)).close()
    with the_reply_is_lost(session, lambda: write_the_list_again(other)):
        log = await client.open_log("orders")
    assert [segment.ledger_id for segment in (await list_of(other)).segments] == [log.ledger_id]
    assert await log.append(b"0") == 0
    await log.close()


async def test_an_opener_in_doubt_begins_anew_if_another_one_writes_the_log(cluster: InProcess) -> None:
    client, session = await faulty_client(cluster)
    other = await cluster.client(**FAST)
    await (await other.open_log("orders", create=True)).close()
    between: list[LogWriter] = []

    async def take_over() -> None:
        between.append(await other.open_log("orders"))
        assert await between[0].append(b"0") == 0

    with the_reply_is_lost(session, take_over):
        log = await client.open_log("orders")
    assert await log.append(b"1") == 1
    await log.close()
    between[0].abandon()
    assert await contents(other, "orders") == [b"0", b"1"]


async def test_an_opener_in_doubt_hears_that_the_log_was_deleted(cluster: InProcess) -> None:
    client, session = await faulty_client(cluster)
    other = await cluster.client(**FAST)
    await (await other.open_log("orders", create=True)).close()

    losing = the_reply_is_lost(session, lambda: write_the_list_again(other), then=lambda: other.delete_log("orders"))
    with losing, pytest.raises(NoSuchLogError, match="was deleted while it was opened"):
        await client.open_log("orders")


@pytest.mark.parametrize("unknown", [False, True])
async def test_an_opener_without_the_store_deletes_its_ledger_only_if_no_list_can_name_it(
    cluster: InProcess, unknown: bool
) -> None:
    client, session = await faulty_client(cluster, metadata_write_attempts_max=1)
    other = await cluster.client(**FAST)
    await (await other.open_log("orders", create=True)).close()
    before = await ledgers_of(other)

    async def go_away() -> None:
        raise MetadataUnavailableError("the store is away", outcome_unknown=unknown)

    with before_the_list_is_written(session, go_away), pytest.raises(MetadataUnavailableError) as failed:
        await client.open_log("orders")
    assert failed.value.outcome_unknown == unknown
    await asyncio.sleep(1)
    assert len(await ledgers_of(other)) == len(before) + unknown


async def test_an_unused_ledger_that_can_not_be_deleted_is_logged(
    cluster: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "bkpy.client")
    client, session = await faulty_client(cluster, metadata_write_attempts_max=1)
    other = await cluster.client(**FAST)
    await (await other.open_log("orders", create=True)).close()

    async def go_away(*_: Any) -> None:
        raise MetadataUnavailableError("the store is away")

    with patch.object(session, "delete", go_away):
        with before_the_list_is_written(session, go_away), pytest.raises(MetadataUnavailableError):
            await client.open_log("orders")
        await asyncio.sleep(1)
    newest = (await ledgers_of(other))[-1]
    assert f"ledger {newest}, made for log orders and not used, is still there" in caplog.text


async def test_an_opener_that_is_overtaken_each_time_gives_up(cluster: InProcess) -> None:
    client, session = await faulty_client(cluster, log_conflicts_max=3)
    other = await cluster.client(**FAST)
    await (await other.open_log("orders", create=True)).close()
    multi, others = session.multi, 0

    async def after_another_one(operations: Any) -> Any:
        nonlocal others
        if isinstance(operations[0], Put) and operations[0].path == LIST:
            others += 1
            await (await other.open_log("orders")).close()
        return await multi(operations)

    giving_up = pytest.raises(MetadataConflictError, match="the writers of log orders take its place from each other")
    with patch.object(session, "multi", after_another_one), giving_up:
        await client.open_log("orders")
    assert others == 3


async def test_an_opener_whose_lease_can_not_be_taken_fences_nobody(cluster: InProcess) -> None:
    client, session = await faulty_client(cluster, metadata_write_attempts_max=1)
    other = await cluster.client(**FAST)
    log = await other.open_log("orders", create=True)
    uid = (await list_of(other)).uid
    await log_parts(other).logs.drop_lease("orders", uid, (await list_of(other)).writer)
    multi = session.multi

    async def without_leases(operations: Any) -> Any:
        if operations[0].path.endswith("/lease"):
            raise MetadataUnavailableError("the store is away")
        return await multi(operations)

    with patch.object(session, "multi", without_leases), pytest.raises(MetadataUnavailableError):
        await client.open_log("orders", wait=False)
    assert await log.append(b"0") == 0
    await log.close()


async def test_a_log_that_has_lost_its_last_ledger_can_not_be_opened(cluster: InProcess) -> None:
    client = await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    log.abandon()
    assert isinstance(await cluster_of(client).catalog.delete(log.ledger_id), Gone)
    with pytest.raises(CorruptDataError, match="the list of log orders names it") as failed:
        await client.open_log("orders")
    assert failed.value.ledger_id == log.ledger_id


async def test_an_opener_goes_on_when_another_one_has_dropped_a_ledger(cluster: InProcess) -> None:
    """After it has read the list that names the ledger, and before it looks at that."""
    client, other = await cluster.client(**FAST), await cluster.client(**FAST)
    (await other.open_log("orders", create=True)).abandon()  # with an empty ledger
    attempt = getattr(*ATTEMPT_TO_OPEN)
    attempts = 0

    async def too_late(opening: Any, *read: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            await (await other.open_log("orders")).close()
        return await attempt(opening, *read)

    with patch.object(*ATTEMPT_TO_OPEN, too_late):
        log = await client.open_log("orders")
    assert attempts == 3  # one of them is the other one's
    assert await log.append(b"0") == 0
    await log.close()


async def test_a_roll_whose_next_ledger_was_deleted_goes_back(cluster: InProcess) -> None:
    client, session = await faulty_client(cluster)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    before = log.ledger_id
    deleting = before_the_list_is_written(session, lambda: delete_the_newest_ledger(client))
    with deleting, pytest.raises(MetadataConflictError, match="somebody has changed the next ledger of the log"):
        await roller_of(log).roll()
    assert log.ledger_id == before
    assert await log.append(b"1") == 1
    await roller_of(log).roll()
    assert await log.append(b"2") == 2
    await log.close()
    assert positions_of(await list_of(client)) == [(0, 2), (2, 1)]


async def test_a_roll_of_a_deleted_log_ends_the_writer(cluster: InProcess) -> None:
    client, session = await faulty_client(cluster)
    other = await cluster.client(**FAST)
    log = await opened_without_news(client, session)
    await log.append(b"0")
    deleting = before_the_list_is_written(session, lambda: other.delete_log("orders"))
    with deleting, pytest.raises(NoSuchLogError, match="log orders was deleted"):
        await roller_of(log).roll()
    assert not log.usable
    log.abandon()


@pytest.mark.parametrize("how", ["away for a while", "deleted", "unreadable"])
async def test_a_roll_that_was_refused_looks_at_the_list(cluster: InProcess, how: str) -> None:
    """Somebody else has written the list; then something happens before the writer has read it."""
    client, session = await faulty_client(cluster)
    other = await cluster.client(**FAST)
    log = await opened_without_news(client, session)
    await log.append(b"0")
    refused, failures = False, 0

    async def write_first() -> None:
        nonlocal refused
        await write_the_list_again(other)
        refused = True

    sync = session.sync

    async def look(path: str) -> None:
        nonlocal failures
        if refused and path == LIST and failures < 3:
            failures += 1
            if how == "away for a while":
                raise MetadataUnavailableError("the store is away")
            if how == "deleted" and failures == 1:
                await other.delete_log("orders")
            if how == "unreadable" and failures == 1:
                _, version = await log_parts(other).logs.store.get(LIST)
                await log_parts(other).logs.store.put(LIST, b"garbage", version)
        await sync(path)

    with before_the_list_is_written(session, write_first), patch.object(session, "sync", look):
        rolling = asyncio.create_task(roller_of(log).roll())
        await asyncio.wait([rolling])
    assert failures
    if how == "away for a while":
        assert rolling.exception() is None
        assert failures == 3
        assert await log.append(b"1") == 1
        assert positions_of(await list_of(client)) == [(0, 1), (1, -1)]
        await log.close()
    else:
        assert isinstance(rolling.exception(), NoSuchLogError if how == "deleted" else CorruptDataError)
        assert not log.usable
        log.abandon()


@pytest.mark.parametrize("shortened", [False, True])
async def test_a_roll_that_meets_a_list_without_room_goes_back_unless_that_was_shortened(
    cluster: InProcess, shortened: bool
) -> None:
    """Somebody has made the list longer after the writer had seen that there was room."""
    client, session = await faulty_client(cluster, log_write_bytes_max=2000)
    other = await cluster.client(**FAST)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")
    before = log.ledger_id
    lengthened = 0

    async def rewrite(unknown: dict[str, Any]) -> None:
        lst, version = await log_parts(other).logs.read("orders", fresh=True)
        stored(await log_parts(other).logs.write("orders", dataclasses.replace(lst, unknown=unknown), version))

    async def lengthen() -> None:
        nonlocal lengthened
        await rewrite({"of a later version": "x" * 1800})
        lengthened = 1

    sync = session.sync

    async def look(path: str) -> None:
        nonlocal lengthened
        if lengthened and path == LIST:
            lengthened += 1
            if lengthened == 3 and shortened:  # the writer has found the long list, and looks again
                await rewrite({})
        await sync(path)

    with before_the_list_is_written(session, lengthen), patch.object(session, "sync", look):
        rolling = asyncio.create_task(roller_of(log).roll())
        await asyncio.wait([rolling])
    assert lengthened >= 3
    if shortened:
        assert rolling.exception() is None
        assert log.ledger_id != before
    else:
        assert isinstance(rolling.exception(), ConfigError)
        assert log.ledger_id == before
    assert await log.append(b"1") == 1
    await log.close()
    assert await contents(other, "orders") == [b"0", b"1"]


@pytest.mark.thorough
@pytest.mark.parametrize("fenced", [False, True])
async def test_a_roll_in_doubt_ends_with_its_time_or_with_its_writer(cluster: InProcess, fenced: bool) -> None:
    """While the store can't say whether the list names the next ledger, nothing may be appended."""
    client, session = await faulty_client(cluster, metadata_write_attempts_max=1, add_quorum_timeout_s=5)
    log = await client.open_log("orders", create=True)
    await log.append(b"0")

    async def lose(operations: Any) -> Any:
        raise MetadataUnavailableError("the request was lost", outcome_unknown=True)

    loop = asyncio.get_running_loop()
    began = loop.time()
    with patch.object(session, "multi", write_to_the_list(session, lose)):
        rolling = asyncio.create_task(roller_of(log).roll())
        await asyncio.sleep(1)
        assert not rolling.done()
        if fenced:
            roller_of(log).appends.fail(LogFencedError("somebody else has become the writer"))
        await asyncio.wait([rolling])
    error = rolling.exception()
    assert isinstance(error, LogFencedError if fenced else MetadataUnavailableError)
    assert fenced or "not known after 5 s whether the list of log orders names" in str(error)
    assert (loop.time() - began < 2) == fenced
    with pytest.raises(type(error)):
        await log.append(b"1")
    log.abandon()


def write_to_the_list(session: Faulty, write: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """`multi`, but for transactions that write the list."""
    multi = session.multi

    async def called(operations: Any) -> Any:
        if isinstance(operations[0], Put) and operations[0].path == LIST:
            return await write(operations)
        return await multi(operations)

    return called
