"""What others do, or what fails, between two steps of a log's writer: while it opens, rolls, closes and is idle."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from tests.hooks import appends_of, cluster_of, former_of, present_of, roller_of, runtime_of
from tests.in_process import DEADLINE_S
from tests.unit.log.support import contents, positions_of
from tests.unit.log.test_takeovers import FAST, faulty_client
from tests.waiting import eventually

from bkpy.errors import LogFencedError, MetadataUnavailableError, NoSuchLogError
from bkpy.log.appends import LogAppends
from bkpy.metadata.log_upkeep import LogUpkeep
from bkpy.metadata.store import Put

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.in_process import InProcess
    from tests.unit.log.test_takeovers import Faulty

    from bkpy.client.client import Client
    from bkpy.client.write.pending import PendingAppends
    from bkpy.log.writer import LogWriter
    from bkpy.protocol.log_list import LogList

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
    upkeep = LogUpkeep(client.logs, cluster_of(client).catalog)
    for ledger_id in [ledger_id async for ledger_id in client.list_ledgers()]:
        metadata, _ = await cluster_of(client).catalog.read(ledger_id)
        await upkeep.sweep(metadata, 0.0)


async def list_of(client: Client) -> LogList:
    return (await client.logs.read("orders", fresh=True))[0]


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

    def fail_and_switch(appends: LogAppends, following: PendingAppends, *due: int) -> None:
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
    await eventually(lambda: roller_of(log).lst.segments[0].sealed)
    await log.truncate(1)
    for how in ("closed", "abandoned"):
        if how == "closed":
            await log.close()
        else:
            log.abandon()
        clock = runtime_of(client).clock
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
                lst, version = await other.logs.read("orders", fresh=True)
                await other.logs.write_anyway("orders", lst, version)
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
    appends_of(log).fail(LogFencedError("somebody else has become the writer"))
    for end in (flushing, log.flush(), log.close()):
        with pytest.raises(LogFencedError) as failed:
            await end
        assert failed.value.outcome_unknown
    await after.close()
    told = await client.open_log("orders")
    await told.append(b"2")
    appends_of(told).fail(LogFencedError("somebody else has become the writer"))
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
    assert appends_of(log).error is None
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
        appends_of(log).fail(LogFencedError("somebody else has become the writer"))

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
        written.append((await other.logs.read("orders", fresh=True))[1])

    with before_the_list_is_written(session, take_over):
        await log.close()
    assert (await other.logs.read("orders", fresh=True))[1] == written[0]
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
