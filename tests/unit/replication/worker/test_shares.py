"""Many workers share the look at under-replicated ledgers: none is left out, and few workers read each of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of
from tests.unit.replication.worker.test_ledger_repair import closed, lose
from tests.unit.replication.worker.test_worker import Healer
from tests.waiting import eventually, turns

from bkpy.client.client import replication_context
from bkpy.config.recovery import RecoverySettings
from bkpy.errors import CorruptDataError
from bkpy.metadata.replication.underreplication import LostBookie
from bkpy.metadata.replication.worker_nodes import WorkerNode
from bkpy.metadata.store.outcome import Gone
from bkpy.protocol.repair.rereplication import looks_first
from bkpy.replication.worker.fragment_copy import Failed
from bkpy.replication.worker.ledger_repair import LedgerRepair
from bkpy.replication.worker.worker import ReplicationWorker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.in_process import InProcess

    from bkpy.client.client import Client
    from bkpy.metadata.replication.underreplication import UnderreplicationQueue, UnderreplicationRecord
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.replication.worker.manual_queue import ManualQueue

LEDGERS = 24
LOOK_S = 0.2  # between two scans without news


@pytest.mark.parametrize("lookers", [1, 3, 8])
@pytest.mark.parametrize("workers", [1, 2, 7, 8, 9, 100])
def test_each_ledger_has_its_lookers_and_each_worker_about_as_many_ledgers(workers: int, lookers: int) -> None:
    ledgers = range(50 * workers)
    shares = Counter[int]()
    for ledger_id in ledgers:
        looking = [place for place in range(workers) if looks_first(ledger_id, place, workers, lookers)]
        assert len(looking) == min(lookers, workers)
        shares.update(looking)
    mean = len(ledgers) * min(lookers, workers) / workers
    assert all(0.3 * mean < shares[place] < 2 * mean for place in range(workers))


class Sharer(Healer):
    """A worker that shares its ledgers with others, and counts the records that it reads."""

    def worker_of(self, marks: UnderreplicationQueue | ManualQueue) -> ReplicationWorker:
        self.reads: list[int] = []
        read = marks.read

        async def noted(ledger_id: int) -> UnderreplicationRecord | None:
            self.reads.append(ledger_id)
            return await read(ledger_id)

        marks.read = noted  # type: ignore[method-assign]
        return ReplicationWorker(
            replication_context(self.client), marks, self.locks, self.runtime, self.settings, self.name, node=self.node
        )

    @property
    def node(self) -> WorkerNode:
        if not hasattr(self, "own_node"):
            self.own_node = node_of(self.client)
        return self.own_node


def node_of(client: Client) -> WorkerNode:
    cluster = cluster_of(client)
    return WorkerNode(cluster.store, cluster.root, RecoverySettings())


@contextlib.asynccontextmanager
async def sharers(cluster: InProcess, working: int, others: int = 0, **settings: Any) -> AsyncIterator[list[Sharer]]:
    """So many workers, and nodes of others that do nothing."""
    given = {"repair_lookers": 2, "marks_look_interval_s": LOOK_S, **settings}
    found = [Sharer(await cluster.client(), f"worker-{i}", **given) for i in range(working)]
    for one in found:
        await one.node.tell({"name": one.name})
    for number in range(others):
        await node_of(found[0].client).tell({"name": f"other-{number}"})
    try:
        yield found
    finally:
        for one in found:
            await one.stop()


async def lacking(cluster: InProcess, *, ensemble_size: int = 3, ledgers: int = LEDGERS) -> list[int]:
    """Ledgers some of which miss bookie b, which nobody has recorded."""
    client = await cluster.client()
    sizes = {"ensemble_size": ensemble_size, "write_quorum": ensemble_size}
    writers = [await closed(client, 2, **sizes) for _ in range(ledgers)]
    await lose(cluster, client, "b")
    return [writer.ledger_id for writer in writers]


async def marked(cluster: InProcess, one: Sharer, *, ensemble_size: int = 3) -> list[int]:
    """The same with their records."""
    ids = await lacking(cluster, ensemble_size=ensemble_size)
    for ledger_id in ids:
        await one.mark(ledger_id, "b")
    return ids


async def divided(cluster: InProcess, one: Sharer, ledgers: int) -> tuple[list[int], list[int]]:
    """Ledgers that miss bookie b, unrecorded: those in the share of `one`, which looks alone at each, and others'."""
    place, workers = await one.node.place()
    own, others = [], []
    for ledger_id in await lacking(cluster, ledgers=ledgers):
        if "b" in (await one.client.ledger_metadata(ledger_id)).fragments[0].bookies:
            (own if looks_first(ledger_id, place, workers, 1) else others).append(ledger_id)
    return own, others


async def test_each_record_is_read_by_its_lookers_and_by_no_other_worker(four: InProcess) -> None:
    async with sharers(four, 6) as all_of_them:
        ids = await marked(four, all_of_them[0])
        await all_of_them[0].marks.set_enabled(False)  # then there is nothing else to do for a hand
        for one in all_of_them:
            one.start()

        def readers() -> list[int]:
            return [sum(ledger_id in one.reads for one in all_of_them) for ledger_id in ids]

        await eventually(lambda: min(readers()) == 2, "all of them are looked at")
        await asyncio.sleep(3 * LOOK_S)
        assert readers() == [2] * LEDGERS
        assert sum(one.worker.status()["queued"] for one in all_of_them) == 2 * LEDGERS


@pytest.mark.thorough
async def test_a_worker_with_nothing_left_looks_at_what_others_do_not_repair(four: InProcess) -> None:
    async with sharers(four, 1, others=30, repair_lookers=1, marks_look_interval_s=1e6) as (one,):
        await marked(four, one)
        one.start()
        await one.unmarked()
        assert one.worker.ledgers_done == LEDGERS


async def test_workers_count_a_repaired_ledger_once(four: InProcess) -> None:
    """The speed of all of them together is shown, and how long the rest takes at that."""
    async with sharers(four, 4, repair_lookers=4) as all_of_them:
        ids = await marked(four, all_of_them[0])
        named = [i for i in ids if "b" in (await all_of_them[0].client.ledger_metadata(i)).fragments[0].bookies]
        for one in all_of_them:
            one.start()
        await all_of_them[0].unmarked()
        await eventually(lambda: not any(one.worker.status()["queued"] for one in all_of_them), "nobody has any left")
        await asyncio.sleep(3 * LOOK_S)
        assert sum(one.worker.count.fragments for one in all_of_them) == len(named) > 10
        assert sum(one.worker.ledgers_done for one in all_of_them) == len(ids)


async def test_a_worker_with_nothing_left_waits_a_moment_before_it_looks_further(four: InProcess) -> None:
    """When a bookie is lost all workers are idle: at once, they would all reach for the first records."""
    pause_s = 5.0
    given = {"repair_lookers": 1, "repair_pause_min_s": pause_s, "marks_look_interval_s": 1e6}
    async with sharers(four, 1, others=30, **given) as (one,):
        ids = await marked(four, one)
        place, workers = await one.node.place()
        share = {ledger_id for ledger_id in ids if looks_first(ledger_id, place, workers, 1)}
        assert share != set(ids)
        began = asyncio.get_running_loop().time()
        one.start()
        while set(one.reads) <= share:
            await asyncio.sleep(0.01)
        assert asyncio.get_running_loop().time() - began >= pause_s
        await one.unmarked()


async def test_queued_ledgers_are_not_read_again_at_each_news_of_others(four: InProcess) -> None:
    """An auditor announces the records of a lost bookie little by little."""
    async with sharers(four, 1, marks_look_interval_s=1e6) as (one,):
        *ids, last = await marked(four, one)
        await one.marks.set_enabled(False)
        record = await one.marks.read(last)
        assert record is not None
        assert isinstance(await one.marks.remove(record, ["b"]), Gone)
        one.start()
        await eventually(lambda: one.worker.status()["queued"] == len(ids), "all are queued")
        one.reads.clear()
        for _ in range(10):
            await one.marks.announce()
            await asyncio.sleep(LOOK_S)
        assert one.reads == []
        await one.mark(last, "b")
        await eventually(lambda: one.worker.status()["queued"] == LEDGERS, "so is the new one")
        assert one.reads == [last]


async def test_queued_ledgers_are_looked_at_again_once_in_an_interval(four: InProcess) -> None:
    """They may have lost more copies since."""
    async with sharers(four, 1) as (one,):
        ids = await marked(four, one, ensemble_size=4)
        await one.marks.set_enabled(False)
        one.start()
        await eventually(lambda: one.worker.status()["marked_by_copies_left"] == {"3": LEDGERS}, "all are queued")
        await lose(four, one.client, "c")
        await one.mark(ids[0], "c")
        await eventually(lambda: one.worker.status()["marked_by_copies_left"] == {"2": LEDGERS}, "it has seen that")
        one.reads.clear()
        await asyncio.sleep(5 * LOOK_S)  # of virtual time
        looks = [one.reads.count(ledger_id) for ledger_id in ids]
        assert 4 <= min(looks) <= max(looks) <= 6


@pytest.mark.thorough
async def test_a_worker_with_nothing_left_looks_further_whatever_news_there_is(four: InProcess) -> None:
    async def keep_announcing(one: Sharer) -> None:
        while True:
            await one.marks.announce()
            await asyncio.sleep(0.02)

    given = {"repair_lookers": 1, "repair_pause_min_s": 0.1, "marks_look_interval_s": 1e6}
    async with sharers(four, 1, others=300, **given) as (one,):
        await marked(four, one)
        one.start()
        announcing = asyncio.create_task(keep_announcing(one))
        async with asyncio.timeout(5.0):  # of virtual time
            await one.unmarked()
        announcing.cancel()
        assert one.worker.ledgers_done == LEDGERS


async def test_others_ledgers_are_found_though_nobody_has_announced_them(four: InProcess) -> None:
    """A ledger that is made while a bookie is away has a record from the start, and no auditor tells of it."""
    async with sharers(four, 1, others=2, repair_lookers=1, repair_pause_min_s=0.1) as (one,):
        _, (first, second, *_) = await divided(four, one, LEDGERS)
        one.start()
        for ledger_id in (first, second):
            await asyncio.sleep(10 * LOOK_S)  # it has found nothing
            await one.marks.add(ledger_id, {"b": LostBookie(1)})
            async with asyncio.timeout(10 * LOOK_S):  # of virtual time
                await one.unmarked()
        assert one.worker.ledgers_done == 2


async def test_a_trickle_of_own_ledgers_does_not_keep_a_worker_from_others(four: InProcess) -> None:
    given = {"repair_lookers": 1, "repair_pause_min_s": 1.0, "marks_look_interval_s": 5.0}
    async with sharers(four, 1, others=2, **given) as (one,):
        own, others = await divided(four, one, 4 * LEDGERS)
        one.start()
        await one.mark(others[0], "b")
        assert len(own) > 10
        for ledger_id in own[:10]:
            await one.mark(ledger_id, "b")
            await asyncio.sleep(0.9)
        assert await one.marks.read(others[0]) is None


@pytest.mark.thorough
async def test_ledgers_that_fail_again_and_again_do_not_keep_a_worker_from_others(
    four: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing: set[int] = set()
    copy = LedgerRepair.copy

    async def slowly(repair: LedgerRepair, metadata: LedgerMetadata, *args: Any) -> Any:
        if metadata.ledger_id in failing:
            await asyncio.sleep(30)
            return Failed("timed out")
        return await copy(repair, metadata, *args)

    monkeypatch.setattr(LedgerRepair, "copy", slowly)
    given = {"repair_lookers": 1, "repair_pause_max_s": 60.0, "copies_at_once": 2}
    async with sharers(four, 1, others=2, **given) as (one,):
        own, others = await divided(four, one, 3 * LEDGERS)
        failing |= set(own[:10])
        assert len(failing) == 10
        for ledger_id in (*failing, others[0]):
            await one.mark(ledger_id, "b")
        one.start()
        async with asyncio.timeout(10 * 60):  # of virtual time
            while await one.marks.read(others[0]) is not None:
                await asyncio.sleep(1.0)
        assert one.worker.ledgers_done == 1


@pytest.mark.thorough
async def test_a_failed_ledger_is_tried_again_whatever_news_there_is(
    four: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = True
    copy = LedgerRepair.copy

    async def at_times(repair: LedgerRepair, *args: Any) -> Any:
        return Failed("not yet") if failing else await copy(repair, *args)

    async def keep_announcing(one: Sharer) -> None:
        while True:
            await one.marks.announce()
            await asyncio.sleep(0)

    monkeypatch.setattr(LedgerRepair, "copy", at_times)
    given = {"repair_lookers": 1, "repair_pause_min_s": 0.1, "repair_pause_max_s": 0.1, "marks_look_interval_s": 1e6}
    async with sharers(four, 1, others=300, **given) as (one,):
        await marked(four, one)
        one.start()
        await eventually(
            lambda: one.worker.status()["postponed"] + one.worker.ledgers_done == LEDGERS,
            "all that name b have failed",
        )
        announcing = asyncio.create_task(keep_announcing(one))
        failing = False
        async with asyncio.timeout(0.25):  # of virtual time: to look at all others' ledgers takes three pauses
            await one.unmarked()
        announcing.cancel()
        assert one.worker.ledgers_done == LEDGERS


async def test_what_nobody_can_repair_is_read_again_by_its_lookers_alone(four: InProcess) -> None:
    """All bookies but the lost one are in each ensemble: there is none to copy to."""
    async with sharers(four, 1, others=30, repair_lookers=1) as (one,):
        await marked(four, one, ensemble_size=4)
        one.start()
        await eventually(lambda: one.worker.status()["stuck"] == LEDGERS, "it has looked at all of them")
        await asyncio.sleep(2 * LOOK_S)
        await turns()
        one.reads.clear()
        await asyncio.sleep(10 * LOOK_S)
        assert len(one.reads) < 10 * LEDGERS / 4
        one.reads.clear()
        await one.marks.announce()
        await eventually(lambda: len(set(one.reads)) == LEDGERS, "news of records is a reason to look at all of them")


async def test_news_that_came_beside_a_scan_that_failed_are_a_reason_to_look_at_all_of_them(
    four: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sharers(four, 1, others=30, repair_lookers=1) as (one,):
        unreadable, *_ = await marked(four, one, ensemble_size=4)
        read, fails, failed = one.marks.read, asyncio.Event(), asyncio.Event()

        async def at_times(ledger_id: int) -> UnderreplicationRecord | None:
            if ledger_id != unreadable or failed.is_set():
                return await read(ledger_id)
            if not fails.is_set():
                raise CorruptDataError("unreadable")
            await one.marks.announce()
            await asyncio.sleep(LOOK_S)
            one.reads.clear()
            failed.set()
            raise RuntimeError("a defect")

        monkeypatch.setattr(one.marks, "read", at_times)
        one.start()
        await eventually(lambda: one.worker.status()["stuck"] >= LEDGERS - 1, "it has looked at all of them")
        await asyncio.sleep(100 * LOOK_S)
        fails.set()
        await failed.wait()
        await eventually(lambda: len(set(one.reads)) == LEDGERS, "it has looked at all of them again")
        assert one.worker.status()["replaced_tasks"] == 1
