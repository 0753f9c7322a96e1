"""Finds the ledgers that name a lost bookie, and marks them: all ledgers the first time, few of them the next.

A whole audit reads all ledgers, partition by partition. What it learns is remembered: then those that name a bookie are
marked without a look, and only those are read that may have changed since.

    changed by       seen by
    its writer       it was not closed when it was read, so it is read again
    its creation     its id was drawn after the last listing had begun, or was held by a client then, or the ledger was
                     not closed
    re-replication   it had a mark: when that has gone, it is read again, and now and then while it stays. Records that
                     others than this auditor have added are announced: an announcement of others makes this auditor
                     forget all
    hand             that is announced as well, and said by a node until it is over (`metadata/replication/manual.py`)

What can't be read, because it is damaged, of a newer version, or not allowed to this process, is skipped, and tried
again by the next call. It holds up no other ledger.

Invariant: when a call returns, every ledger that named one of `lost` during the whole call has a mark, or was reported
as unreadable. The mark says so; or, if it was there before, another one does, when it was worked off.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
from array import array
from typing import TYPE_CHECKING, Final

from bkpy.batching import batched, batched_async
from bkpy.errors import BookKeeperError, MetadataConflictError, NoSuchLedgerError
from bkpy.metadata.ledgers.all_ledgers import UNREADABLE
from bkpy.metadata.replication.underreplication import LossReason, missing_since_ms
from bkpy.metadata.store.outcome import Done, Gone, Missing, NotDone, Unknown, to_error
from bkpy.protocol.repair.audit import covers
from bkpy.runtime.worker_pool import for_each

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

    from bkpy.config.recovery import RecoverySettings
    from bkpy.errors import UnauthorizedError
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.metadata.replication.underreplication import LostBookie, UnderreplicationQueue
    from bkpy.replication.auditor.auditor_metrics import AuditorMetrics
    from bkpy.replication.auditor.remembered_ledgers import RememberedLedgers
    from bkpy.runtime.interfaces import Runtime

log = logging.getLogger("bkpy.recovery")

_SHOWN_MAX: Final = 10  # unreadable ledgers named in one warning


class LedgerScan:
    """Scans of one auditor, in one term. Raises `MetadataConflictError` as soon as a write shows that it is over."""

    def __init__(
        self,
        catalog: LedgerCatalog,
        marks: UnderreplicationQueue,
        remembered: RememberedLedgers,
        runtime: Runtime,
        settings: RecoverySettings,
        metrics: AuditorMetrics,
    ) -> None:
        self.named: set[str] = set()  # bookies that ledgers name which were read
        self.marked = 0  # ledgers that were marked and, as far as is known, were not before
        self.unmarked = 0  # ledgers that had marks at one scan, and none at the next
        self._listed = array("q")  # the marks at the end of the last scan
        self._catalog = catalog
        self._marks = marks
        self._remembered = remembered
        self._now = runtime.clock.monotonic
        self._settings = settings
        self._metrics = metrics
        self._unreadable: dict[int | str, str] = {}  # the first of them: ledgers, and nodes that can't be listed
        self._reported: set[int | str] = set()
        self._just_marked: set[int] = set()
        self._read_to = -1  # the last of the marked ledgers that was read for the sake of the mark
        self._due: frozenset[str] = frozenset()
        self._unannounced = False

    async def mark(self, lost: Mapping[str, LostBookie], *, due: Collection[str]) -> int | None:
        """Mark what names one of `lost`, of which the `due` have never been looked for.

        How many ledgers had marks when it began; None if marking was switched off meanwhile, and not all is done.
        """
        self._unreadable.clear()
        self._just_marked.clear()
        self._due = frozenset(due)
        marked = array("q", [ledger_id async for ledger_id in self._marks.list()])
        self.unmarked += len({*self._listed}.difference(marked))
        self._listed = marked
        if not await self._reliable():
            if not await self._whole(lost):
                return None
        elif not (
            await self._by_memory({bookie: lost[bookie] for bookie in due})
            and await self._changed(lost, marked, also=marked if due else self._some(marked))
        ):
            await self._announce()
            return None
        await self._announce()
        for what, why in self._unreadable.items():
            if what not in self._reported:
                subject = f"ledger {what} names" if isinstance(what, int) else f"the ledgers below {what} name"
                log.warning("the auditor can't tell which bookies %s: %s", subject, why)
        self._reported = set(self._unreadable)
        self._listed = array("q", sorted(self._just_marked.union(marked)))
        return len(marked)

    async def still_missed(self) -> frozenset[str] | None:
        """The bookies that the marks of the last scan name; None if these are many, or one of them can't be read."""
        if len(self._listed) > self._settings.audit_reads_at_once:
            return None
        missed: set[str] = set()
        for ledger_id in self._listed:
            try:
                mark = await self._marks.read(ledger_id)
            except UNREADABLE:
                return None
            if mark is not None and not mark.lost:
                return None  # one that is damaged may mean anybody
            missed.update(() if mark is None else mark.lost)
        return frozenset(missed)

    async def drop(self, returned: Mapping[str, str]) -> int:
        """Take the bookies that are back, with these storages, off the marks that say that they are absent; how many.

        A bookie's marks stay where they are of another storage, or of more than its absence. They also stay where the
        ledger was not CLOSED when the bookie was lost: it may have been written without it, so a worker verifies it.
        """
        dropped = 0

        async def drop(ledger_id: int) -> None:
            nonlocal dropped
            while (mark := await self._marks.read(ledger_id)) is not None:
                back = [bookie for bookie, loss in mark.lost.items() if _is_over(loss, returned.get(bookie, ""))]
                if not back:
                    return
                since_ms = missing_since_ms(mark, back, self._settings)
                closed = await self._catalog.closed_before(ledger_id, since_ms)
                act = self._marks.remove if closed else self._marks.return_bookies
                outcome = await act(mark, back)
                if self._marks.refused(outcome):
                    raise _over()
                if isinstance(outcome, NotDone | Unknown):
                    raise to_error(outcome, ledger_id=ledger_id)
                if isinstance(outcome, Done | Gone):
                    dropped += closed
                    self._unannounced |= not closed
                    return

        async for some in batched_async(self._marks.list(), self._settings.audit_reads_at_once):
            await self._each(some, drop)
        await self._marks.tidy()
        await self._announce()
        return dropped

    async def _reliable(self) -> bool:
        """Whether what is remembered can be relied on."""
        remembered = self._remembered
        fresh = self._now() - remembered.since < self._settings.audit_whole_interval_s
        return remembered.complete and fresh and await self._marks.announced() == remembered.announced

    async def _whole(self, lost: Mapping[str, LostBookie]) -> bool:
        """Read all ledgers; False if marking was switched off meanwhile."""
        began = self._now()
        # Before the marks are listed: what is announced later makes all of this be forgotten.
        announced = await self._marks.announced()
        manual = await self._marks.has_manual_moves()
        marked = [ledger_id async for ledger_id in self._marks.list()]
        given = await self._catalog.ids_given()
        self._remembered.begin(began, announced, marked, has_manual_moves=manual)
        self._remembered.given(given)
        async for ledger_ids in self._catalog.partitions(skipped=self._skipped):
            if not await self._marks.enabled():
                return False
            await self._read(ledger_ids, lost)
            await self._announce()
        self._remembered.listed(given)
        self._remembered.end()
        self._metrics.whole(self._now() - began)
        log.info("the auditor has looked at all ledgers, in %.1f s", self._now() - began)
        return True

    def _some(self, marked: array[int]) -> array[int]:
        """The next of the ledgers that have marks, round and round: one that is stuck may come to name another one."""
        begin = bisect.bisect_right(marked, self._read_to)
        some = marked[begin : begin + self._settings.audit_reads_at_once]
        self._read_to = some[-1] if some else -1
        return some

    async def _by_memory(self, lost: Mapping[str, LostBookie]) -> bool:
        """Mark the closed ledgers that are known to name one of these; False if that was switched off meanwhile."""
        of: dict[int, list[str]] = {}
        for bookie in sorted(lost):
            for ledger_id in self._remembered.of(bookie):
                of.setdefault(ledger_id, []).append(bookie)
        for some in batched(sorted(of), self._settings.audit_reads_at_once):  # between them marking may be disabled
            if not await self._marks.enabled():
                return False
            await self._mark_all({ledger_id: of[ledger_id] for ledger_id in some}, lost)
        return True

    async def _changed(self, lost: Mapping[str, LostBookie], marked: array[int], also: Iterable[int]) -> bool:
        """Read what may have changed since it was read last; False if marking was switched off meanwhile."""
        remembered = self._remembered
        given = await self._catalog.ids_given()
        remembered.given(given)
        worked_off = remembered.worked_off(marked) - self._just_marked
        remembered.mark(marked)
        for some in batched(sorted({*remembered.open, *also, *worked_off}), self._settings.audit_reads_at_once):
            if not await self._marks.enabled():
                return False
            await self._read(some, lost)
            remembered.settle(worked_off.intersection(some) - self._just_marked)
        async for ledger_ids in self._catalog.partitions(remembered.settled_to + 1, skipped=self._skipped):
            if not await self._marks.enabled():
                return False
            await self._read([ledger_id for ledger_id in ledger_ids if not remembered.is_known(ledger_id)], lost)
        remembered.listed(given)
        return True

    def _skipped(self, node: str, error: UnauthorizedError) -> None:
        """A node whose ledgers can't be listed: the next whole audit tries it again."""
        self._unreadable_now(node, error)

    def _unreadable_now(self, what: int | str, error: Exception) -> None:
        if len(self._unreadable) < _SHOWN_MAX:
            self._unreadable[what] = str(error)

    async def _read(self, ledger_ids: list[int], lost: Mapping[str, LostBookie]) -> None:
        """Learn what these ledgers name, and mark them if one of `lost` is among that."""

        of: dict[int, list[str]] = {}

        async def read(ledger_id: int) -> None:
            try:
                metadata, _ = await self._catalog.read(ledger_id)
            except NoSuchLedgerError:
                self._remembered.gone(ledger_id)
                return
            self._remembered.learn(metadata)
            needed = metadata.needed_bookies
            self._note(set(needed))
            names = sorted(needed & lost.keys())
            if names and not await self._has_mark(ledger_id, {bookie: lost[bookie] for bookie in names}):
                of[ledger_id] = names

        await self._each(ledger_ids, read)
        for some in batched(sorted(of), self._settings.audit_reads_at_once):
            await self._mark_all({ledger_id: of[ledger_id] for ledger_id in some}, lost)

    def _note(self, named: set[str]) -> None:
        if not named <= self.named and len(self.named) < self._settings.stuck_ledgers_max:
            self.named |= named

    async def _has_mark(self, ledger_id: int, lost: Mapping[str, LostBookie]) -> bool:
        """Whether the ledger's mark says all that, and nothing of it is new: then whoever works on it isn't disturbed.

        Should they remove it all the same, having looked before the ledger came to name the bookie: it is read again.
        """
        if not self._remembered.has_mark(ledger_id) or self._due & lost.keys():
            return False
        mark = await self._marks.read(ledger_id)
        return mark is not None and lost.keys() <= mark.lost.keys()

    async def _mark_all(self, of: Mapping[int, Sequence[str]], lost: Mapping[str, LostBookie]) -> None:
        """Mark these ledgers: most of them have no mark yet, and a transaction costs little more than a write."""
        alike: dict[tuple[str, ...], list[int]] = {}
        for ledger_id, names in of.items():
            alike.setdefault(tuple(names), []).append(ledger_id)
        for names, ledger_ids in alike.items():
            await self._mark_alike(ledger_ids, {bookie: lost[bookie] for bookie in names})

    async def _mark_alike(self, ledger_ids: list[int], lost: Mapping[str, LostBookie]) -> None:
        async def mark(ledger_id: int) -> None:
            await self._mark(ledger_id, lost)

        new = [ledger_id for ledger_id in ledger_ids if not self._remembered.has_mark(ledger_id)]
        if new and await self._marks.add_new(new, lost):
            for ledger_id in new:
                self._has_marked(ledger_id)
                self._metrics.looked_at()
            ledger_ids = sorted({*ledger_ids}.difference(new))
        await self._each(ledger_ids, mark)

    async def _mark(self, ledger_id: int, lost: Mapping[str, LostBookie]) -> None:
        outcome = await self._marks.add(ledger_id, lost)
        if isinstance(outcome, Missing):
            raise _over()
        if not isinstance(outcome, Done):
            raise to_error(outcome, ledger_id=ledger_id)
        self._has_marked(ledger_id)

    def _has_marked(self, ledger_id: int) -> None:
        self.marked += not self._remembered.has_mark(ledger_id)
        self._remembered.mark([ledger_id])
        self._just_marked.add(ledger_id)
        self._unannounced = True
        self._metrics.marked()

    async def _announce(self) -> None:
        """Wake the workers, and know that announcement for this auditor's own."""
        if not self._unannounced:
            return
        outcome = await self._marks.announce()
        expected = self._remembered.announced + 1
        if outcome == Done(expected):
            self._remembered.announced = expected
        self._unannounced = False

    async def _each(self, ledger_ids: list[int], act: Callable[[int], Awaitable[None]]) -> None:
        """`act` for each of them, some at once. What can't be done while the store is away is done when it is back."""
        failed: list[int] = []

        async def attempt(ledger_id: int) -> None:
            try:
                await act(ledger_id)
            except UNREADABLE as error:
                self._unreadable_now(ledger_id, error)
                self._remembered.unread(ledger_id)
            except BookKeeperError as error:
                if not error.retriable:
                    raise
                failed.append(ledger_id)
            self._metrics.looked_at()

        while ledger_ids:
            await for_each(ledger_ids, attempt, at_once=self._settings.audit_reads_at_once)
            if failed:
                await asyncio.sleep(self._settings.metadata_retry_pause_s)
            ledger_ids, failed = failed, []


def _is_over(loss: LostBookie, instance: str) -> bool:
    """Whether a bookie that is back, with the storage `instance`, has what it was marked for ("": it is not back)."""
    return bool(loss.reason == LossReason.LOST and instance and loss.instance and covers(instance, loss.instance))


def _over() -> MetadataConflictError:
    return MetadataConflictError("this auditor's term is over", retriable=False)
