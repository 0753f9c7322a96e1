"""The replication worker: marked ledgers are whole again, in order of urgency, and no mark is lost or kept for ever."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of
from tests.in_process import DEADLINE_S, InProcess
from tests.unit.client.support import payload, write
from tests.unit.replication.repairing import whole
from tests.unit.replication.worker.test_ledger_repair import closed, lose
from tests.waiting import eventually

from bkpy.client.client import replication_context
from bkpy.config.recovery import RecoverySettings
from bkpy.metadata.replication.locks import LedgerLock, LedgerLocks
from bkpy.metadata.replication.underreplication import LossReason, LostBookie, UnderreplicationQueue
from bkpy.metadata.store.outcome import Done
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.replication.worker.ledger_repair import BACK, GRACE, LOCKED, LedgerRepair, Repaired, RepairOutcome
from bkpy.replication.worker.manual_queue import ManualQueue
from bkpy.replication.worker.record_repair import RecordRepair
from bkpy.replication.worker.repair_queue import RepairQueue
from bkpy.replication.worker.worker import ReplicationWorker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bkpy.client.client import Client
    from bkpy.protocol.repair.rereplication import Copy

QUICK = {
    "repair_pause_min_s": 0.02,
    "repair_pause_max_s": 0.1,
    "marks_look_interval_s": 0.2,
    "open_ledger_grace_s": 0.3,
    "copies_at_once": 2,
}


class Healer:
    """A worker with a client of its own."""

    def __init__(self, client: Client, name: str, **settings: Any) -> None:
        self.client = client
        cluster = cluster_of(client)
        runtime = cluster.store.runtime
        given = RecoverySettings(**{**QUICK, **settings})
        self.marks = UnderreplicationQueue(cluster.store, cluster.root, runtime, given)
        self.locks = LedgerLocks(cluster.store, cluster.root, name, runtime)
        self.settings, self.runtime, self.name = given, runtime, name
        self.worker = self.worker_of(self.marks)
        self.task: asyncio.Task[None] | None = None

    def worker_of(self, marks: UnderreplicationQueue | ManualQueue) -> ReplicationWorker:
        return ReplicationWorker(
            replication_context(self.client), marks, self.locks, self.runtime, self.settings, self.name
        )

    async def mark(self, ledger_id: int, *names: str, since_ms: int = 1, reason: str = LossReason.LOST) -> None:
        assert isinstance(await self.marks.add(ledger_id, {n: LostBookie(since_ms, reason) for n in names}), Done)
        await self.marks.announce()

    def start(self) -> None:
        self.task = asyncio.create_task(self.worker.run())

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.task

    def reasons(self) -> list[str]:
        """Why ledgers are tried again later."""
        return list(self.worker.status()["postponed_ledgers"].values())

    def bookies(self) -> frozenset[str]:
        """Those that its client knows of."""
        return replication_context(self.client).bookies().readable

    async def unmarked(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while [ledger_id async for ledger_id in self.marks.list()]:
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def healer(cluster: InProcess, name: str = "worker", **settings: Any) -> AsyncIterator[Healer]:
    found = Healer(await cluster.client(), name, **settings)
    try:
        yield found
    finally:
        await found.stop()


@pytest.mark.thorough
@pytest.mark.scenario(59)
async def test_marked_ledgers_are_whole_again_and_their_marks_gone_whoever_of_two_works(four: InProcess) -> None:
    client = await four.client()
    writers = [await closed(client, 20) for _ in range(12)]
    await lose(four, client, "b")
    async with healer(four, "one") as one, healer(four, "two") as two:
        named = [writer.ledger_id for writer in writers if "b" in writer.ensemble]
        for writer in writers:
            await one.mark(writer.ledger_id, "b")
        one.start()
        two.start()
        await one.unmarked()
        for writer in writers:
            metadata = await whole(client, writer.ledger_id)
            assert "b" not in metadata.fragments[0].bookies
        assert one.worker.count.fragments + two.worker.count.fragments == len(named)
        status = one.worker.status()
        assert status["queued"] == status["stuck"] == 0


async def test_a_lock_that_another_worker_has_is_not_reached_for(
    four: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that is refused costs the metadata store as much as another: a read tells that it would be."""
    client = await four.client()
    writer = await closed(client, 20)
    await lose(four, client, "b")
    taken: list[str] = []
    take = LedgerLocks.take

    async def noted(locks: LedgerLocks, ledger_id: int) -> Any:
        taken.append(locks.holder)
        return await take(locks, ledger_id)

    monkeypatch.setattr(LedgerLocks, "take", noted)
    async with healer(four, "one") as one, healer(four, "other") as other:
        lock = await other.locks.take(writer.ledger_id)
        assert isinstance(lock, LedgerLock)
        await one.mark(writer.ledger_id, "b")
        one.start()
        await eventually(lambda: one.reasons() == [LOCKED], "it has come to the ledger")
        assert taken == ["other"]
        await other.locks.release(lock)
        await one.unmarked()
        assert taken == ["other", "one"]


async def test_a_lock_that_is_held_for_long_is_looked_at_less_and_less_often(
    four: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each idle worker would look once in the shortest pause, for as long as a large copy takes."""
    first_s, longest_s = 0.1, 3.0
    client = await four.client()
    writer = await closed(client, 20)
    await lose(four, client, "b")
    looks: list[float] = []
    seen = LedgerLocks.seen

    async def noted(locks: LedgerLocks, ledger_id: int) -> bool:
        looks.append(asyncio.get_running_loop().time())
        return await seen(locks, ledger_id)

    monkeypatch.setattr(LedgerLocks, "seen", noted)
    given = {"repair_pause_min_s": first_s, "repair_pause_max_s": 1e6, "marks_look_interval_s": longest_s}
    async with healer(four, "one", **given) as one, healer(four, "other") as other:
        lock = await other.locks.take(writer.ledger_id)
        assert isinstance(lock, LedgerLock)
        await one.mark(writer.ledger_id, "b")
        one.start()
        await eventually(lambda: len(looks) == 12, "it has looked a dozen times")
        for number, (before, after) in enumerate(itertools.pairwise(looks)):
            assert min(longest_s, first_s * 2**number) / 2 <= after - before < longest_s + 0.5
        await other.locks.release(lock)
        await one.unmarked()
    assert "b" not in (await whole(client, writer.ledger_id)).fragments[0].bookies


@pytest.mark.scenario(59)
async def test_a_new_mark_during_the_work_is_not_lost(four: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the copy for one lost bookie is under way, a check misses another one's."""
    client = await four.client()
    writer = await closed(client, 20, ensemble_size=2, write_quorum=2, ack_quorum=2)
    first, other = writer.ensemble
    await lose(four, client, first)
    copy = LedgerRepair.copy
    async with healer(four) as one:

        async def and_then_another(repair: LedgerRepair, metadata: Any, which: Copy, target: str) -> Any:
            copied = await copy(repair, metadata, which, target)
            if which.old == first:
                await one.mark(writer.ledger_id, other, reason=LossReason.CHECK)
            return copied

        monkeypatch.setattr(LedgerRepair, "copy", and_then_another)
        await one.mark(writer.ledger_id, first)
        one.start()
        await one.unmarked()
    metadata = await whole(client, writer.ledger_id)
    assert not {first, other} & set(metadata.fragments[0].bookies)


@pytest.mark.scenario(59)
async def test_it_waits_for_bookies_says_so_once_and_goes_on_when_there_is_one(
    cluster: InProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "bkpy.recovery")
    client = await cluster.client()
    writer = await closed(client, 20)
    await lose(cluster, client, "b")
    async with healer(cluster) as one:
        await one.mark(writer.ledger_id, "b")
        one.start()
        await eventually(lambda: one.worker.status()["stuck"] == 1)
        await asyncio.sleep(0.5)
        (why,) = one.worker.status()["stuck_ledgers"].values()
        assert "no writable bookie is outside the ensemble" in why
        await cluster.start_node("d")
        await one.unmarked()
        await eventually(lambda: one.worker.status()["stuck"] == 0)
    said = [record for record in caplog.records if "stays under-replicated" in record.message]
    assert len(said) == 1
    assert "d" in (await whole(client, writer.ledger_id)).fragments[0].bookies


@pytest.mark.scenario(59)
async def test_an_open_ledger_is_left_to_its_writer_for_the_grace_period(four: InProcess) -> None:
    client = await four.client()
    alive = await client.create_ledger()
    await alive.append(payload(0))
    dead = await write(client, 3, ensemble_size=2, write_quorum=2, ack_quorum=2)
    victim = next(name for name in alive.ensemble if name in dead.ensemble)
    await lose(four, client, victim)
    async with healer(four, open_ledger_grace_s=2.0) as one:
        for writer in (alive, dead):
            await one.mark(writer.ledger_id, victim)
        one.start()
        await eventually(lambda: one.worker.status()["postponed"] == 2)
        await alive.append(payload(1))  # and so it leaves the bookie
        await alive.append(payload(2))
        assert (await client.ledger_metadata(dead.ledger_id)).state is LedgerState.OPEN
        await one.unmarked()
    assert (await whole(client, dead.ledger_id)).last_entry == 2
    assert (await client.ledger_metadata(alive.ledger_id)).state is LedgerState.OPEN
    await alive.append(payload(3))
    await alive.close()
    assert (await whole(client, alive.ledger_id)).last_entry == 3


async def test_a_ledger_that_is_postponed_while_nothing_else_is_due_is_tried_in_time(
    four: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker waits already, and no news of marks or bookies comes that would wake it."""
    run = RecordRepair.run

    async def run_later(*args: Any, **options: Any) -> Repaired:
        await asyncio.sleep(0.3)  # until it waits
        return await run(*args, **options)

    monkeypatch.setattr(RecordRepair, "run", run_later)
    client = await four.client()
    dead = await write(client, 3, ensemble_size=2, write_quorum=2, ack_quorum=2)
    await lose(four, client, dead.ensemble[0])
    async with healer(four, marks_look_interval_s=1000.0) as one:
        await eventually(lambda: dead.ensemble[0] not in one.bookies())
        await one.mark(dead.ledger_id, dead.ensemble[0])
        one.start()
        await one.unmarked()
    assert (await whole(client, dead.ledger_id)).last_entry == 2


async def test_what_is_gone_loses_its_mark_and_a_mark_that_names_nobody_goes_as_well(four: InProcess) -> None:
    client = await four.client()
    gone, fine = await closed(client, 3), await closed(client, 3)
    await client.delete_ledger(gone.ledger_id)
    async with healer(four) as one:
        await one.mark(gone.ledger_id, "b")
        await one.mark(fine.ledger_id)
        one.start()
        await one.unmarked()
    assert (await client.ledger_metadata(fine.ledger_id)).fragments[0].bookies == fine.ensemble


async def test_nothing_is_done_while_it_is_switched_off(four: InProcess) -> None:
    client = await four.client()
    writer = await closed(client, 3)
    async with healer(four) as one:
        await one.marks.set_enabled(False)
        await one.mark(writer.ledger_id, writer.ensemble[0], reason=LossReason.CHECK)
        one.start()
        await eventually(lambda: not one.worker.status()["enabled"])
        await asyncio.sleep(0.3)
        assert (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies == writer.ensemble
        await one.marks.set_enabled(True)
        await one.unmarked()
    assert writer.ensemble[0] not in (await whole(client, writer.ledger_id)).fragments[0].bookies


@pytest.mark.scenario(59)
async def test_failures_are_tried_again_less_and_less_often_and_then_only_now_and_then(
    four: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await four.client()
    writer = await closed(client, 3)
    tried: list[float] = []

    async def fail(*_: Any) -> None:
        tried.append(asyncio.get_running_loop().time())

    monkeypatch.setattr(LedgerRepair, "choose", fail)
    async with healer(four, repair_attempts_max=5, repair_pause_min_s=0.05, repair_pause_max_s=60.0) as one:
        await one.mark(writer.ledger_id, writer.ensemble[0], reason=LossReason.CHECK)
        one.start()
        await eventually(lambda: one.worker.status()["stuck"] == 1)
        await asyncio.sleep(0.6)
        assert len(tried) == 5
        # Each pause is twice the one before, or half as much less.
        for number, (before, after) in enumerate(itertools.pairwise(tried)):
            assert after - before >= 0.05 * 2**number / 2
        monkeypatch.undo()
        await one.mark(writer.ledger_id, writer.ensemble[0], since_ms=0, reason=LossReason.CHECK)  # news
        await one.unmarked()
    await whole(client, writer.ledger_id)


# --- the order --------------------------------------------------------------------------------------------------------


def taken(queue: RepairQueue, readable: frozenset[str], failed_in_hand: int = 0) -> int | None:
    """The ledger that comes next."""
    found = queue.pop(readable, failed_in_hand=failed_in_hand)
    return None if found is None else found.ledger_id


def test_the_fewest_copies_left_come_first_and_then_the_oldest() -> None:
    queue = RepairQueue("w", 2)
    queue.put(1, 10, frozenset({("a", "b", "c")}))
    queue.put(2, 20, frozenset({("b", "c", "d"), ("a", "b", "c")}))
    queue.put(3, 5, frozenset({("b", "c", "d")}))
    queue.put(4, 1, frozenset())
    everybody = frozenset("abcd")
    assert [taken(queue, everybody) for _ in range(5)] == [3, 1, 2, 4, None]
    for ledger_id, sets in ((1, {("a", "b")}), (2, {("b", "c")}), (3, {("c", "d")})):
        queue.put(ledger_id, 10 - ledger_id, frozenset(sets))
    assert taken(queue, everybody) == 3
    assert taken(queue, everybody - {"a"}) == 1  # it has become the most endangered one
    queue.put(2, 0, frozenset())
    assert len(queue) == 1
    assert [taken(queue, everybody), taken(queue, everybody)] == [2, None]


@pytest.mark.parametrize("hands", [1, 2, 3, 8])
def test_ledgers_that_have_failed_take_at_most_half_of_the_hands_while_others_wait(hands: int) -> None:
    queue = RepairQueue("w", hands)
    readable = frozenset("bc")
    for ledger_id in range(40):  # on one bookie each: these are more endangered than the others
        queue.put(ledger_id, 1, frozenset({("a", "b")}), failed=True)
    for ledger_id in range(100, 120):
        queue.put(ledger_id, 2, frozenset({("a", "b", "c")}))
    in_hand = 0
    order = []
    for _ in range(hands):  # none of which ends
        found = queue.pop(readable, failed_in_hand=in_hand)
        assert found is not None
        assert found.failed == (found.ledger_id < 100)
        in_hand += found.failed
        order.append(found.failed)
    assert sum(order) == max(hands // 2, 1)
    # One hand alone, or hands that end at once: every second place.
    places = [queue.pop(readable) for _ in range(10)]
    assert abs(sum(one is not None and one.failed for one in places) - 5) <= 1
    while queue.length(failed=False):
        queue.pop(readable, failed_in_hand=hands)
    left = queue.length(failed=True)
    assert left == len(queue) > 0
    for _ in range(left):  # nothing else waits: all hands may
        found = queue.pop(readable, failed_in_hand=hands)
        assert found is not None
        assert found.failed
    assert queue.pop(readable) is None


def test_a_ledger_has_one_place_whether_it_has_failed_or_not() -> None:
    queue = RepairQueue("w", 2)
    for failed in (False, True, False, True):
        queue.put(7, 1, frozenset({("a", "b")}), failed=failed)
        assert (len(queue), queue.length(failed=failed), 7 in queue) == (1, 1, True)
    assert queue.pop(frozenset("a")) == (7, True)
    assert queue.pop(frozenset("a")) is None


@pytest.mark.parametrize("room", [1, 100])
async def test_an_ordinary_ledger_is_copied_beside_more_endangered_ones_that_fail(
    four: InProcess, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """Each of these costs the time-outs of its bookies, and there are always some that are due."""
    client = await four.client()
    alone = {"ensemble_size": 2, "write_quorum": 2, "ack_quorum": 2}
    hopeless = [await closed(client, 1, **alone) for _ in range(20)]
    ordinary = await closed(client, 3)
    run = RecordRepair.run
    going_on, going = asyncio.Semaphore(0), 0

    async def time_out(repair: RecordRepair, ledger_id: int, *given: Any, **more: Any) -> Repaired:
        nonlocal going
        if ledger_id == ordinary.ledger_id:
            return await run(repair, ledger_id, *given, **more)
        going += 1
        if going > len(hopeless):  # each has failed once, and more of them than there are hands is due
            await going_on.acquire()
        return Repaired(RepairOutcome.LATER, "no bookie answers")

    monkeypatch.setattr(RecordRepair, "run", time_out)
    async with healer(
        four, repair_queue_max=room, repair_pause_max_s=0.02, repair_attempts_max=1000, copies_at_once=2
    ) as one:
        for writer in hopeless:
            await one.mark(writer.ledger_id, writer.ensemble[0], reason=LossReason.CHECK)
        one.start()
        await eventually(lambda: going > len(hopeless))
        await one.mark(ordinary.ledger_id, ordinary.ensemble[0], since_ms=2, reason=LossReason.CHECK)
        await eventually(lambda: one.worker.status()["marked"] == len(hopeless) + 1)
        for _ in range(4):  # no more attempts than that end before it has its turn
            going_on.release()
        await eventually(lambda: one.worker.ledgers_done == 1)
    assert ordinary.ensemble[0] not in (await whole(client, ordinary.ledger_id)).fragments[0].bookies


def test_workers_begin_with_different_ledgers() -> None:
    orders = []
    for holder in "abc":
        queue = RepairQueue(holder, 2)
        for ledger_id in range(20):
            queue.put(ledger_id, 7, frozenset({("x", "y")}))
        orders.append(tuple(taken(queue, frozenset("x")) for _ in range(20)))
    assert len(set(orders)) == 3
    assert all(sorted(order) == list(range(20)) for order in orders)


# --- writers that go on -----------------------------------------------------------------------------------------------


async def test_no_writer_is_ended_where_no_bookie_could_take_the_place_of_the_lost_one(cluster: InProcess) -> None:
    """Three bookies, all of them in the ensemble: what an end would gain needs a fourth one."""
    client = await cluster.client()
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await writer.append(payload(0))
    await lose(cluster, client, "b")
    await writer.append(payload(1))  # by the two that are left
    async with healer(cluster) as one:
        await eventually(lambda: "b" not in one.bookies())
        await one.mark(writer.ledger_id, "b")
        one.start()
        await eventually(lambda: one.worker.status()["stuck"] == 1)
        (why,) = one.worker.status()["stuck_ledgers"].values()
        assert "no writable bookie is outside the ensemble" in why
        await writer.append(payload(2))
        assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.OPEN
        await cluster.start_node("d")
        await eventually(lambda: "d" in client.bookies)
        await writer.append(payload(3))
        await one.unmarked()
    await writer.close()
    assert (await whole(client, writer.ledger_id)).last_entry == 3


def count_attempts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ledgers of all attempts from now on."""
    attempts: list[int] = []
    run = RecordRepair.run

    async def counted(repair: RecordRepair, ledger_id: int, *given: Any, **more: Any) -> Repaired:
        attempts.append(ledger_id)
        return await run(repair, ledger_id, *given, **more)

    monkeypatch.setattr(RecordRepair, "run", counted)
    return attempts


async def marks_of(one: Healer, ledger_id: int, name: str, *, manual: bool) -> UnderreplicationQueue | ManualQueue:
    if manual:
        return ManualQueue(name, [ledger_id])
    await one.mark(ledger_id, name)
    return one.marks


@pytest.mark.parametrize("manual", [False, True])
async def test_a_bookie_that_comes_back_in_time_ends_no_writer(
    four: InProcess, monkeypatch: pytest.MonkeyPatch, manual: bool
) -> None:
    """Whether it was marked, or somebody recovers it manually: each recovery looks for it first."""
    client = await four.client()  # stays with a bookie that is away for less than half a minute
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await writer.append(payload(0))
    name = writer.ensemble[0]
    async with healer(four, open_ledger_grace_s=1.0) as one:
        await lose(four, client, name)
        await eventually(lambda: name not in one.bookies())
        one.worker = one.worker_of(await marks_of(one, writer.ledger_id, name, manual=manual))
        attempts = count_attempts(monkeypatch)
        one.start()
        await eventually(lambda: one.reasons() == [GRACE])
        await four.start_node(name)
        await eventually(lambda: one.reasons() == [BACK])
        await writer.append(payload(1))
        before = len(attempts)
        await eventually(lambda: len(attempts) > before + 2)
        assert one.reasons() == [BACK]
        assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.OPEN
        await writer.append(payload(2))
        await writer.close()


async def test_a_copy_that_a_returned_bookie_has_stays_where_it_is_at_first(four: InProcess) -> None:
    """The auditor is about to take the bookie off the mark."""
    client = await four.client()
    writer = await closed(client, 3)
    async with healer(four, repair_pause_min_s=60.0, repair_pause_max_s=60.0) as one:
        await eventually(lambda: one.bookies() == set("abcd"))
        await one.mark(writer.ledger_id, writer.ensemble[0])
        one.start()
        await eventually(lambda: one.reasons() == [BACK])
        assert (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies == writer.ensemble


async def test_a_lock_that_somebody_else_had_is_no_attempt_to_move_a_returned_bookies_copy(four: InProcess) -> None:
    client = await four.client()
    writer = await closed(client, 3)
    async with healer(four, "one") as one, healer(four, "other") as other:
        await eventually(lambda: one.bookies() == set("abcd"))
        lock = await other.locks.take(writer.ledger_id)
        assert isinstance(lock, LedgerLock)
        await one.mark(writer.ledger_id, writer.ensemble[0])
        one.start()
        await eventually(lambda: one.reasons() == [LOCKED], "it has come to the ledger")
        await other.locks.release(lock)
        await eventually(lambda: one.reasons() == [BACK], "it leaves that to the auditor, once")
        assert (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies == writer.ensemble
        await one.unmarked()


@pytest.mark.parametrize("returned", [False, True])
async def test_a_writer_has_the_whole_time_for_each_bookie_that_is_lost(
    four: InProcess, monkeypatch: pytest.MonkeyPatch, returned: bool
) -> None:
    """A second one is lost when the time for the first one is over; or the first one was back meanwhile."""
    grace_s = 0.4
    waits = [{"a"}, {"a"}, {"a"} if returned else {"b"}]
    called: list[tuple[float, frozenset[str]]] = []
    time = asyncio.get_running_loop().time

    async def wait(*_: Any, waited_for: frozenset[str], **__: Any) -> Repaired:
        called.append((time(), waited_for))
        if returned and len(called) == 2:
            return Repaired(RepairOutcome.LATER, BACK)
        return Repaired(RepairOutcome.WAITING, GRACE, waiting_for=frozenset(waits[min(len(called), len(waits)) - 1]))

    monkeypatch.setattr(RecordRepair, "run", wait)
    async with healer(four, open_ledger_grace_s=grace_s) as one:
        await one.mark(0, "a", "b")
        one.start()
        await eventually(lambda: len(called) == 4)
    assert [set(waited_for) for _, waited_for in called] == [set(), {"a"}, set() if returned else {"a"}, waits[2]]
    assert called[3][0] - called[2][0] >= grace_s
