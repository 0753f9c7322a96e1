"""The replication worker: repairs under-replicated ledgers in order of urgency, by their records in the metadata.

    records --scan--> queue, by copies left --hands--> repair under the lock --> DONE: the record is removed
                        ^                                 |--------------------> WAITING, LATER: back in a while
                        '-------------------------------- '--------------------> STUCK: when bookies or record change

Any number of workers may run: the holder of a ledger's lock repairs it (`record_repair.py`). Each ledger is in the
shares of `repair_lookers` of them, which look at it first: if every worker looked at every ledger, the reads would grow
with the square of the cluster. A worker with nothing left for a while looks further, at more and more of the others'
ledgers, until a scan of all of them finds nothing to do; then it keeps to its share until new records are announced, or
listed. Not at once: all workers are idle when the first records appear, and would reach for the same few locks. But at
last: neither a trickle of its own ledgers nor failing ones hold it up for longer than `marks_look_interval_s`.

The scan of records, the hands and the watch of the switch are tasks of their own. The worker logs, counts and replaces
a task that ends by an error.

Invariants: a worker has all of its hands until it ends; it logs a stuck ledger once, and tries it again only when its
bookies, its record or its metadata differ from those by which it was stuck; its memory of ledgers is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import math
from array import array
from bisect import bisect_left
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bkpy.batching import batched, batched_async
from bkpy.client.iteration import raised_where_awaited
from bkpy.errors import BookKeeperError, ClientClosedError, NoSuchLedgerError
from bkpy.metadata.bookies.draining import Drains
from bkpy.metadata.ledgers.all_ledgers import UNREADABLE
from bkpy.protocol.repair.rereplication import backoff_s, endangered, looks_first
from bkpy.replication.worker.backlog import Backlog
from bkpy.replication.worker.fragment_copy import CopyCount
from bkpy.replication.worker.ledger_repair import BACK, LOCKED, LedgerRepair, Repaired, RepairOutcome
from bkpy.replication.worker.pacing import CopyRate, CopyTurns, no_clients
from bkpy.replication.worker.record_repair import AWAY, NEWER_RECORD, RecordRepair, leaving_bookies, named_bookies
from bkpy.replication.worker.repair_queue import QueuedLedger, RepairQueue

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Coroutine

    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.replication.locks import LedgerLocks
    from bkpy.metadata.replication.underreplication import UnderreplicationQueue, UnderreplicationRecord
    from bkpy.metadata.replication.worker_nodes import WorkerNode
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.rereplication import Bookies
    from bkpy.replication.context import ReplicationContext
    from bkpy.replication.worker.manual_queue import ManualQueue
    from bkpy.runtime.interfaces import Runtime

log = logging.getLogger("bkpy.recovery")

_SHOWN_MAX = 100
_FURTHER: Final = 8  # times as many lookers of each ledger, when a worker has nothing left to do


class _Signature(NamedTuple):
    """What has to change before a stuck ledger is tried again."""

    record: tuple[str, int]  # its token and version
    metadata_version: int
    readable: frozenset[str]  # of its own bookies
    in_limbo: frozenset[str]  # likewise
    writable: frozenset[str]  # likewise: one of them may take a place in a fragment that doesn't name it
    targets: bool  # whether any bookie takes entries that no ensemble of it names


@dataclass(slots=True)
class _Postponed:
    """A ledger that is not to be tried before `due`, unless it is `stuck` and its signature changes.

    Times are the clock's monotonic ones.
    """

    due: float
    why: str
    attempts: int = 0
    locked: int = 0  # attempts in a row at which somebody else had its lock
    failed: bool = False  # the last attempt, and not by a lock, a new record or a bookie's return
    stuck: bool = False
    signature: _Signature | None = None
    waiting_since: float = 0.0
    waiting_for: frozenset[str] = frozenset()


class ReplicationWorker:
    """Works until it is cancelled. `holder` names its locks; `target`: copy to this bookie alone.

    `node`: that of its reports, by which it shares the ledgers with other workers; without one it looks at all of them.
    `appended` counts what clients have appended to the bookie that it runs in.
    """

    def __init__(
        self,
        context: ReplicationContext,
        records: UnderreplicationQueue | ManualQueue,
        locks: LedgerLocks,
        runtime: Runtime,
        settings: RecoverySettings,
        holder: str,
        *,
        target: str | None = None,
        node: WorkerNode | None = None,
        appended: Callable[[], int] = no_clients,
    ) -> None:
        self.count = CopyCount()
        self.ledgers_done = 0
        self.replaced_tasks = 0  # parts of this worker that ended by a defect
        self.looked = False  # at all records, once
        self._context = context
        self._records = records
        self._runtime = runtime
        self._settings = settings
        self._holder = holder
        self._now = runtime.clock.monotonic
        self._rate = CopyRate(settings, runtime)
        self._turns = CopyTurns(settings, runtime, appended)
        self._node = node
        self._lookers = settings.repair_lookers  # of each ledger, at the next scan
        self._nothing_in: array[int] | None = None  # the ledgers in which a scan of all found nothing, before any news
        self._leaves_some = False  # whether the last scan left ledgers to others that it may look at as well
        self._further_at: float | None = None  # when to look at them; None unless nothing else is left
        self._further_since: float | None = None  # when there was first nothing else left, since it looked further
        self._idle = asyncio.Event()  # that was None before
        self._looked_again_at = -math.inf  # at queued ledgers, which may have lost more copies
        self._repair = LedgerRepair(self._context, locks, settings, self._rate, self.count, target=target)
        drains = Drains(context.cluster.store, context.cluster.root, runtime, settings)
        self._record_repair = RecordRepair(self._context, self._repair, records, drains, settings)
        self._queue = RepairQueue(holder, settings.copies_at_once)
        self._queued = 0  # ledgers that were ever put into it, but for failed ones
        self._backlog = Backlog()
        self._working: dict[int, float] = {}  # since when
        self._failed_in_hand = 0  # of these, how many had failed when they were tried before
        self._postponed: dict[int, _Postponed] = {}  # the oldest first
        self._enabled = False  # until that was read
        self._bookies = self._context.bookies()  # when stuck ledgers were last looked at
        self._filled = asyncio.Event()  # there is something in the queue
        self._emptied = asyncio.Event()  # something was taken out
        self._wakes_at = float("inf")
        self._due_sooner = asyncio.Event()  # a ledger is due before that

    async def run(self) -> None:
        """Repair recorded ledgers until cancelled, or until the client is closed."""
        parts: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            f"replication worker {self._holder}, {number}": self._work
            for number in range(self._settings.copies_at_once)
        }
        parts[f"the switch, for {self._holder}"] = self._follow_switch
        looking = f"the scan of under-replication records, for {self._holder}"
        parts[looking] = self._look_forever
        await self._repair.release_abandoned()  # of an earlier run in this session
        tasks = {self._begin(name, act): name for name, act in parts.items()}
        try:
            while True:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if any(_returned(task) for task in done):
                    # As they do when the client is closed. So does the look, which may pause behind a failure first.
                    done, _ = await asyncio.wait(tasks, timeout=2 * self._settings.repair_pause_min_s)
                ended = [(task, tasks.pop(task)) for task in done]
                if any(name == looking and _returned(task) for task, name in ended):
                    return
                for task, name in ended:
                    self._report_end(task, name)
                    tasks[self._begin(name, parts[name], self._settings.repair_pause_min_s)] = name
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    def _begin(
        self, name: str, act: Callable[[], Coroutine[Any, Any, None]], pause_s: float = 0.0
    ) -> asyncio.Task[None]:
        async def begin() -> None:
            if pause_s:
                await asyncio.sleep(pause_s)
                await self._repair.release_abandoned()  # what its predecessor held
            await act()

        return self._runtime.spawn(begin(), name=name, on_death=raised_where_awaited)

    def _report_end(self, task: asyncio.Task[None], name: str) -> None:
        """Log and count a part of the worker that has ended, and is about to be replaced."""
        self.replaced_tasks += 1
        error = None if task.cancelled() else task.exception()
        log.error(
            "%s ended though the worker runs (%s); restarting it in %.1f s: please report this defect",
            name,
            "cancelled" if task.cancelled() else "it returned" if error is None else repr(error),
            self._settings.repair_pause_min_s,
            exc_info=error,
        )

    async def _follow_switch(self) -> None:
        """Not part of the scan, which may wait for the hands. Returns when the client is closed."""
        while True:
            try:
                async with aclosing(self._records.switched()) as switched:
                    async for self._enabled in switched:
                        self._filled.set()
                return
            except ClientClosedError:
                return
            except BookKeeperError as error:
                level = logging.INFO if error.retriable else logging.WARNING  # somebody must allow it
                log.log(level, "failed to read whether re-replication is enabled, retrying: %s", error)
                await asyncio.sleep(self._settings.repair_pause_min_s)

    # --- the scan of records ----------------------------------------------------------------------------------------

    async def _look_forever(self) -> None:
        news = self._listen()
        everything = True
        self._nothing_in = None  # there may have been news beside what ended before
        try:
            while True:
                try:
                    await (self._look_at_all() if everything else self._look_at_due())
                    self.looked = True
                    self._filled.set()
                    await self._wait(news)
                    further = self._further_at is not None and self._now() >= self._further_at
                    everything = news.done() or further
                    if news.done():
                        said, news = news, self._listen()
                        if said.result():
                            self._nothing_in = None
                            if self._further_at is None:
                                self._lookers = self._settings.repair_lookers
                    if further:
                        self._lookers *= _FURTHER
                        self._further_at = self._further_since = None
                except ClientClosedError:
                    return
                except BookKeeperError as error:
                    log.info("failed to read under-replication records, retrying: %s", error)
                    everything = True
                    await asyncio.sleep(self._settings.repair_pause_min_s)
        finally:
            news.cancel()

    def _listen(self) -> asyncio.Task[bool]:
        return self._runtime.spawn(
            self._records.changed(), name="news of under-replication records", on_death=raised_where_awaited
        )

    async def _wait(self, news: asyncio.Future[bool]) -> None:
        """Until there is news of records or of bookies, a ledger is due, or there is cause to look further."""
        due = min((one.due for i, one in self._postponed.items() if not self._in_hand(i)), default=float("inf"))
        if self._further_at is not None:
            due = min(due, self._further_at)
        timeout_s = min(max(0.0, due - self._now()), self._settings.marks_look_interval_s)
        self._wakes_at = self._now() + timeout_s
        self._due_sooner.clear()
        self._idle.clear()
        others = [
            self._runtime.spawn(self._context.directory.changed(), name="news of bookies"),
            self._runtime.spawn(_set(self._due_sooner), name="news of postponed ledgers"),
            self._runtime.spawn(_set(self._idle), name="news of an empty queue"),
        ]
        try:
            await asyncio.wait((news, *others), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for other in others:
                other.cancel()

    async def _look_at_all(self) -> None:
        """Look at all ledgers of this worker's share: at queued ones again once in an interval.

        While an auditor records ledgers there is news again and again, of thousands that wait as before.
        """
        self._leaves_some = False
        now = self._now()
        again = now - self._looked_again_at >= self._settings.marks_look_interval_s
        place, workers = (0, 1) if self._node is None else await self._node.place()
        left, queued, listed = 0, self._queued, array("q")

        async def own() -> AsyncGenerator[int, None]:
            nonlocal left
            async for ledger_id in self._records.list():
                listed.append(ledger_id)
                self._backlog.saw(ledger_id)
                if looks_first(ledger_id, place, workers, self._lookers) or self._is_due(ledger_id):
                    yield ledger_id
                    continue
                left += 1
                if self._nothing_in is not None and not _is_among(self._nothing_in, ledger_id):
                    self._nothing_in = None  # a record that nobody has announced

        self._backlog.begin_look()
        async with aclosing(own()) as ledger_ids:
            async for some in batched_async(ledger_ids, self._settings.repair_looks_at_once):
                await self._look_at(some if again else [one for one in some if one not in self._queue])
        if again:
            self._looked_again_at = now
        if not left and queued == self._queued and not self._queue.length(failed=False):
            self._lookers, self._nothing_in = self._settings.repair_lookers, listed
        self._leaves_some = bool(left) and self._nothing_in is None
        if not self._leaves_some:
            self._further_at = self._further_since = None
        for ledger_id in self._backlog.end_look():
            if (postponed := self._postponed.get(ledger_id)) is not None and postponed.stuck:
                del self._postponed[ledger_id]  # others could do it, or it was deleted

    def _is_due(self, ledger_id: int) -> bool:
        """Whether this worker tries it again now, in its share or not."""
        postponed = self._postponed.get(ledger_id)
        return postponed is not None and postponed.due <= self._now()

    async def _look_at_due(self) -> None:
        """Look at ledgers that are due, and at stuck ones if bookies have come or gone."""
        now = self._now()
        bookies, self._bookies = self._bookies, self._context.bookies()
        others = bookies != self._bookies
        if others:
            for one in self._postponed.values():
                if one.why == AWAY:
                    one.due = now  # the bookie that has yet to be verified may be among them
        due = [
            i
            for i, one in self._postponed.items()
            if not self._in_hand(i) and (one.due <= now or (others and one.stuck))
        ]
        for some in batched(due, self._settings.repair_looks_at_once):
            await self._look_at(some)

    def _in_hand(self, ledger_id: int) -> bool:
        """Whether it is worked on, or has its place in the queue."""
        return ledger_id in self._working or ledger_id in self._queue

    async def _look_at(self, ledger_ids: Collection[int]) -> None:
        await asyncio.gather(*(self._look(ledger_id) for ledger_id in ledger_ids))

    async def _look(self, ledger_id: int) -> None:
        """Queue the ledger, unless it is to be tried later."""
        postponed = self._postponed.get(ledger_id)
        if ledger_id in self._working or (
            postponed is not None and not postponed.stuck and postponed.due > self._now()
        ):
            return
        try:
            record = await self._records.read(ledger_id)
        except UNREADABLE as error:
            self._postpone(ledger_id, Repaired(RepairOutcome.LATER, str(error)))
            return
        if record is None:
            self._postponed.pop(ledger_id, None)
            self._backlog.drop(ledger_id)
            return
        since_ms = min((loss.since_ms for loss in record.lost.values()), default=0)
        try:
            metadata, version = await self._context.cluster.catalog.read(ledger_id)
        except NoSuchLedgerError:
            sets = frozenset[tuple[str, ...]]()
        except BookKeeperError as error:
            self._backlog.put(ledger_id, since_ms, frozenset())
            self._postpone(ledger_id, Repaired(RepairOutcome.LATER, str(error)))
            return
        else:
            sets = endangered(metadata, leaving_bookies(record, metadata, self._context.bookies().readable))
            self._backlog.put(ledger_id, since_ms, sets)
            now_so = _signature(record, metadata, version, self._context.bookies())
            if postponed is not None and postponed.due > self._now() and postponed.signature in (None, now_so):
                return
        failed = postponed is not None and postponed.failed
        while ledger_id not in self._queue and self._queue.length(failed=failed) >= self._settings.repair_queue_max:
            if postponed is not None and failed:  # ledgers that have not failed, listed behind it, don't wait for it
                postponed.due = self._now() + self._settings.repair_pause_min_s
                return
            self._emptied.clear()
            await self._emptied.wait()
        if ledger_id in self._working or self._postponed.get(ledger_id) is not postponed:
            return  # a hand has tried it meanwhile
        self._queue.put(ledger_id, since_ms, sets, failed=failed)
        if postponed is None:  # what is tried again and again must not keep a worker from others' ledgers
            self._further_at = None
        self._queued += not failed
        self._filled.set()

    # --- the hands --------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Repair one ledger after the other, each chosen when it is the hand's turn, not before."""
        while True:
            if not self._queue.length(failed=False):
                self._look_further_soon()
            if not (self._enabled and self._queue):
                self._filled.clear()
                await self._records.tidy()
                await self._filled.wait()
                continue
            try:
                async with self._turns.turn():
                    taken = self._take() if self._enabled else None
                    if taken is not None:
                        await self._work_on(*taken)
            except ClientClosedError:
                return

    def _look_further_soon(self) -> None:
        """Nothing is queued but what has failed: if that stays so for a moment, others' ledgers are next.

        Or if it has been so now and then for an interval, between ledgers of one's own that come one by one.
        """
        if not (self._enabled and self._leaves_some) or self._further_at is not None:
            return
        now, settings = self._now(), self._settings
        if self._further_since is None:
            self._further_since = now
        at_last = self._further_since + settings.marks_look_interval_s
        self._further_at = min(now + settings.repair_pause_min_s, max(now, at_last))
        self._idle.set()

    async def _work_on(self, ledger_id: int, failed: bool) -> None:
        self._emptied.set()
        self._working[ledger_id] = self._now()
        self._failed_in_hand += failed
        try:
            self._settle(ledger_id, *await self._worked_off(ledger_id))
        finally:
            del self._working[ledger_id]
            self._failed_in_hand -= failed

    def _take(self) -> QueuedLedger | None:
        return self._queue.pop(self._context.bookies().readable, failed_in_hand=self._failed_in_hand)

    async def _worked_off(self, ledger_id: int) -> tuple[Repaired, _Signature | None]:
        """A defect costs no more than the one ledger."""
        try:
            return await self._work_off(ledger_id)
        except ClientClosedError:
            raise
        except BookKeeperError as error:
            return Repaired(RepairOutcome.LATER, str(error)), None
        except Exception as error:
            log.exception("the repair of ledger %d failed", ledger_id)
            return Repaired(RepairOutcome.LATER, repr(error)), None

    async def _work_off(self, ledger_id: int) -> tuple[Repaired, _Signature | None]:
        """How the attempt ended, and by what state of the ledger: any change since then is a reason to try again."""
        postponed, bookies = self._postponed.get(ledger_id), self._context.bookies()
        first_attempt = postponed is None or (postponed.why == LOCKED and not postponed.attempts)
        ended = await self._record_repair.run(
            ledger_id, first_attempt=first_attempt, waited_for=self._waited_for(postponed)
        )
        if ended.how is RepairOutcome.STUCK and ended.bookies != bookies:
            # One came or went meanwhile. It may be back by now: nothing would tell that, and the ledger stay as it is.
            return ended._replace(how=RepairOutcome.LATER), None
        if ended.record is None or ended.judged is None:
            return ended, None
        return ended, _signature(ended.record, *ended.judged, bookies)

    def _waited_for(self, postponed: _Postponed | None) -> frozenset[str]:
        if postponed is None or self._now() - postponed.waiting_since < self._settings.open_ledger_grace_s:
            return frozenset()
        return postponed.waiting_for

    def _settle(self, ledger_id: int, ended: Repaired, signature: _Signature | None) -> None:
        if ended.how is RepairOutcome.DONE:
            self._postponed.pop(ledger_id, None)
            self._backlog.drop(ledger_id)
            self.ledgers_done += ended.record is not None  # else another worker has repaired it, and counts it
            return
        self._postpone(ledger_id, ended, signature)

    def _postpone(self, ledger_id: int, ended: Repaired, signature: _Signature | None = None) -> None:
        """Remember why, and when to try again."""
        before = self._postponed.pop(ledger_id, None)
        now, settings = self._now(), self._settings
        failed = ended.how is not RepairOutcome.WAITING and ended.why not in (LOCKED, AWAY, BACK, NEWER_RECORD)
        attempts = (before.attempts if before is not None else 0) + (failed or ended.why in (AWAY, BACK))
        locked = (before.locked if before is not None else 0) + 1 if ended.why == LOCKED else 0
        # A writer that is kept may take its bookie in, or close the ledger, at any time: that is a look, and no copy.
        # So is what finds a lock held. A worker that waits for its end waits at most about as long again.
        longest_s = settings.marks_look_interval_s if ended.why in (BACK, LOCKED) else settings.repair_pause_max_s
        longest_s = min(longest_s, settings.repair_pause_max_s)
        pause_s = backoff_s(max(attempts, locked) - 1, settings.repair_pause_min_s, longest_s)
        pause_s *= (1 + self._runtime.rng.random()) / 2
        one = _Postponed(now + pause_s, ended.why, attempts, locked, failed)
        if before is not None and ended.why != BACK:  # a writer had the time to leave, whatever failed since
            one.waiting_since, one.waiting_for = before.waiting_since, before.waiting_for
        if ended.how is RepairOutcome.WAITING:
            if one.waiting_for != ended.waiting_for:
                one.waiting_since, one.waiting_for = now, ended.waiting_for
            one.due = max(one.due, one.waiting_since + settings.open_ledger_grace_s)
        if ended.how is RepairOutcome.STUCK:
            one.stuck, one.due = True, float("inf")
        elif (
            failed and attempts >= settings.repair_attempts_max
        ):  # nothing that can be watched may tell when it can be done
            one.stuck, one.due = True, max(one.due, now + settings.repair_pause_max_s)
        one.signature = signature
        if one.stuck and (before is None or before.why != one.why):
            log.warning("ledger %d stays under-replicated: %s", ledger_id, one.why)
        self._postponed[ledger_id] = one
        if not one.stuck and one.due < self._wakes_at:
            self._due_sooner.set()
        while len(self._postponed) > settings.stuck_ledgers_max:
            forgotten = self._least_needed()
            del self._postponed[forgotten]
            self._backlog.drop(forgotten)

    def _least_needed(self) -> int:
        """The ledger to forget: a stuck one if there is any, since others would lose the time that they have waited."""
        stuck = (ledger_id for ledger_id, one in self._postponed.items() if one.stuck)
        return next(stuck, next(reversed(self._postponed)))

    @property
    def idle(self) -> bool:
        """Whether there are no ledgers to repair now, but stuck ones."""
        return not (self._queue or self._working or any(not one.stuck for one in self._postponed.values()))

    def stuck(self) -> dict[int, str]:
        """The stuck ledgers that it remembers, and why."""
        return {ledger_id: one.why for ledger_id, one in self._postponed.items() if one.stuck}

    # --- the report -------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """The worker's progress, for JSON. Counts begin with its start."""
        now, readable = self._now(), self._context.bookies().readable
        stuck = self.stuck()
        later = {ledger_id: one.why for ledger_id, one in self._postponed.items() if not one.stuck}
        return {
            "holder": self._holder,
            "enabled": self._enabled,
            "working_on": {str(ledger_id): round(now - since, 3) for ledger_id, since in self._working.items()},
            "queued": len(self._queue),
            "marked": len(self._backlog),
            "marked_by_copies_left": {str(k): n for k, n in self._backlog.by_copies_left(readable).items()},
            "oldest_mark_ms": self._backlog.oldest_ms,
            "postponed": len(later),
            "postponed_ledgers": _some(later),
            "stuck": len(stuck),
            "stuck_ledgers": _some(stuck),
            "ledgers_done": self.ledgers_done,
            "replaced_tasks": self.replaced_tasks,
            "fragments_copied": self.count.fragments,
            "entries_copied": self.count.entries,
            "bytes_copied": self.count.bytes,
            "bytes_per_s_allowed": round(self._rate.bytes_per_s),
        }


def _signature(record: UnderreplicationRecord, metadata: LedgerMetadata, version: int, bookies: Bookies) -> _Signature:
    named = named_bookies(metadata)
    return _Signature(
        (record.token, record.node_version),
        version,
        named & bookies.readable,
        named & bookies.in_limbo,
        named & bookies.writable,
        bool(bookies.writable - named),
    )


def _returned(task: asyncio.Task[None]) -> bool:
    """Whether it ended by itself, and without an error."""
    return not task.cancelled() and task.exception() is None


def _is_among(ascending: array[int], ledger_id: int) -> bool:
    place = bisect_left(ascending, ledger_id)
    return place < len(ascending) and ascending[place] == ledger_id


async def _set(event: asyncio.Event) -> None:
    await event.wait()


def _some(reasons: dict[int, str]) -> dict[str, str]:
    return {str(ledger_id): reasons[ledger_id] for ledger_id in list(reasons)[:_SHOWN_MAX]}
