"""Finds the ledgers that name a lost bookie, and records them as under-replicated: reads all of them only once.

A whole audit reads all ledgers, partition by partition, and remembers what they name. A later scan records the ledgers
that name a bookie without a read, and reads only ledgers that may have changed since.

    changed by       seen by
    its writer       it was not closed when it was read, so it is read again
    its creation     its id was drawn after the last listing had begun, or was held by a client then, or the ledger was
                     not closed
    re-replication   it had a record: when that is removed, it is read again, and now and then while it stays. Other
                     processes announce the records that they add: then this auditor forgets all
    manual moves     they are announced as well, and a node shows them until they end (`metadata/replication/manual.py`)

A ledger that is damaged, of a newer version, or not allowed to this process is skipped, and tried again by the next
call. It holds up no other ledger.

Invariant: when a call returns, every ledger that named one of `lost` during the whole call has a record, or was
reported as unreadable. The record names the bookie; or, if it was there before, the one that follows its repair does.
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
from bkpy.protocol.repair.lost_bookies import covers
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
        queue: UnderreplicationQueue,
        remembered: RememberedLedgers,
        runtime: Runtime,
        settings: RecoverySettings,
        metrics: AuditorMetrics,
    ) -> None:
        self.named: set[str] = set()  # bookies that ledgers name which were read
        self.added = 0  # records, of ledgers that had none as far as is known
        self.removed = 0  # ledgers that had a record at one scan, and none at the next
        self._listed = array("q")  # ledgers with records at the end of the last scan, or the beginning of this one
        self._catalog = catalog
        self._queue = queue
        self._remembered = remembered
        self._now = runtime.clock.monotonic
        self._settings = settings
        self._metrics = metrics
        self._unreadable: dict[int | str, str] = {}  # the first of them: ledgers, and nodes that can't be listed
        self._reported: set[int | str] = set()
        self._just_added: set[int] = set()
        self._read_to = -1  # the last of the recorded ledgers that was read because of its record
        self._due: frozenset[str] = frozenset()
        self._unannounced = False

    async def add_records(self, lost: Mapping[str, LostBookie], *, due: Collection[str]) -> int | None:
        """Record the ledgers that name one of `lost`. No earlier call has looked for those of `due`.

        The number of ledgers with a record before the call; None if re-replication was disabled before it was done.
        """
        self._unreadable.clear()
        self._just_added.clear()
        self._due = frozenset(due)
        recorded = array("q", [ledger_id async for ledger_id in self._queue.list()])
        self.removed += len({*self._listed}.difference(recorded))
        self._listed = recorded
        if not await self._reliable():
            if not await self._whole(lost):
                return None
        elif not (
            await self._by_memory({bookie: lost[bookie] for bookie in due})
            and await self._changed(lost, recorded, also=recorded if due else self._some(recorded))
        ):
            await self._announce()
            return None
        await self._announce()
        for what, why in self._unreadable.items():
            if what not in self._reported:
                subject = f"ledger {what} names" if isinstance(what, int) else f"the ledgers below {what} name"
                log.warning("the auditor can't tell which bookies %s: %s", subject, why)
        self._reported = set(self._unreadable)
        self._listed = array("q", sorted(self._just_added.union(recorded)))
        return len(recorded)

    async def still_missed(self) -> frozenset[str] | None:
        """The bookies that the records of the last scan name; None if these are many, or one of them is unreadable."""
        if len(self._listed) > self._settings.audit_reads_at_once:
            return None
        missed: set[str] = set()
        for ledger_id in self._listed:
            try:
                record = await self._queue.read(ledger_id)
            except UNREADABLE:
                return None
            if record is not None and not record.lost:
                return None  # a damaged one may mean any bookie
            missed.update(() if record is None else record.lost)
        return frozenset(missed)

    async def drop(self, returned: Mapping[str, str]) -> int:
        """Drop bookies that are back, with these storages, from the records of their absence; from how many.

        A bookie stays in records of more than its absence, and where it was absent at the ledger's creation. It also
        stays, for a worker to verify it, where the ledger was not CLOSED when the bookie was lost: the ledger may have
        been written without it. So it does if the metadata can't be read: nobody drops it later. And in records of
        another storage: it came back in limbo, and has copied back what it had lost; but if it ended before it had
        dropped all of these records, nobody else would.
        """
        dropped = 0

        async def drop(ledger_id: int) -> None:
            nonlocal dropped
            while (record := await self._queue.read(ledger_id)) is not None:
                back = {b: loss for b, loss in record.lost.items() if b in returned and loss.reason == LossReason.LOST}
                if not back:
                    return
                as_it_was = [bookie for bookie, loss in back.items() if _is_same(loss, returned[bookie])]
                some = as_it_was or list(back)
                since_ms = missing_since_ms(record, some, self._settings)
                closed = bool(as_it_was) and await self._closed_before(ledger_id, since_ms)
                act = self._queue.end_absence if closed else self._queue.return_bookies
                outcome = await act(record, some)
                if self._queue.refused(outcome):
                    raise _over()
                if isinstance(outcome, NotDone | Unknown):
                    raise to_error(outcome, ledger_id=ledger_id)
                if isinstance(outcome, Done | Gone):
                    dropped += closed
                    self._unannounced |= not closed
                    if len(some) == len(back):
                        return

        async for some in batched_async(self._queue.list(), self._settings.audit_reads_at_once):
            await self._each(some, drop)
        await self._queue.tidy()
        await self._announce()
        return dropped

    async def _closed_before(self, ledger_id: int, since_ms: int) -> bool:
        """Whether it is certain that the ledger was CLOSED then."""
        try:
            return await self._catalog.closed_before(ledger_id, since_ms)
        except UNREADABLE as error:
            log.warning(
                "ledger %d: bookies that are back are verified there, since it can't be read: %s", ledger_id, error
            )
            return False

    async def _reliable(self) -> bool:
        """Whether this auditor may rely on what it remembers."""
        remembered = self._remembered
        fresh = self._now() - remembered.since < self._settings.audit_whole_interval_s
        return remembered.complete and fresh and await self._queue.announced() == remembered.announced

    async def _whole(self, lost: Mapping[str, LostBookie]) -> bool:
        """Read all ledgers; False if re-replication was disabled meanwhile."""
        began = self._now()
        # Before the records are listed: a later announcement makes the auditor forget all of this.
        announced = await self._queue.announced()
        manual = await self._queue.has_manual_moves()
        recorded = [ledger_id async for ledger_id in self._queue.list()]
        given = await self._catalog.ids_given()
        self._remembered.begin(began, announced, recorded, has_manual_moves=manual)
        self._remembered.given(given)
        async for ledger_ids in self._catalog.partitions(skipped=self._skipped):
            if not await self._queue.enabled():
                return False
            await self._read(ledger_ids, lost)
            await self._announce()
        self._remembered.listed(given)
        self._remembered.end()
        self._metrics.whole(self._now() - began)
        if self._remembered.full:
            log.warning(
                "the auditor has looked at all ledgers, in %.1f s, and remembers none of them: that takes more than "
                "the %d places of audit_remembered_max, one for each copy of a closed ledger, and eight for one that "
                "is open or has a record. Each further look takes as long",
                self._now() - began,
                self._settings.audit_remembered_max,
            )
        else:
            log.info("the auditor has looked at all ledgers, in %.1f s", self._now() - began)
        return True

    def _some(self, recorded: array[int]) -> array[int]:
        """The next of the ledgers with records, round and round: a stuck one may come to name another lost bookie."""
        begin = bisect.bisect_right(recorded, self._read_to)
        some = recorded[begin : begin + self._settings.audit_reads_at_once]
        self._read_to = some[-1] if some else -1
        return some

    async def _by_memory(self, lost: Mapping[str, LostBookie]) -> bool:
        """Record closed ledgers that are known to name one of these; False if re-replication was disabled meanwhile."""
        for of in self._remembered.on(sorted(lost), self._settings.audit_reads_at_once):
            if not await self._queue.enabled():  # between two parts marking may be disabled
                return False
            await self._add_all(of, lost)
        return True

    async def _changed(self, lost: Mapping[str, LostBookie], recorded: array[int], also: Iterable[int]) -> bool:
        """Read ledgers that may have changed since their last read; False if re-replication was disabled meanwhile."""
        remembered = self._remembered
        given = await self._catalog.ids_given()
        remembered.given(given)
        worked_off = remembered.worked_off(recorded) - self._just_added
        remembered.add_recorded(recorded)
        for some in batched(sorted({*remembered.open, *also, *worked_off}), self._settings.audit_reads_at_once):
            if not await self._queue.enabled():
                return False
            await self._read(some, lost)
            remembered.settle(worked_off.intersection(some) - self._just_added)
        async for ledger_ids in self._catalog.partitions(remembered.settled_to + 1, skipped=self._skipped):
            if not await self._queue.enabled():
                return False
            await self._read([ledger_id for ledger_id in ledger_ids if not remembered.is_known(ledger_id)], lost)
        remembered.listed(given)
        return True

    def _skipped(self, node: str, error: UnauthorizedError) -> None:
        """Note a node whose ledgers can't be listed: the next whole audit tries it again."""
        self._unreadable_now(node, error)

    def _unreadable_now(self, what: int | str, error: Exception) -> None:
        if len(self._unreadable) < _SHOWN_MAX:
            self._unreadable[what] = str(error)

    async def _read(self, ledger_ids: list[int], lost: Mapping[str, LostBookie]) -> None:
        """Learn which bookies these ledgers name, and record the ledgers that name one of `lost`."""

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
            if names and not await self._has_record(ledger_id, {bookie: lost[bookie] for bookie in names}):
                of[ledger_id] = names

        await self._each(ledger_ids, read)
        for some in batched(sorted(of), self._settings.audit_reads_at_once):
            await self._add_all({ledger_id: of[ledger_id] for ledger_id in some}, lost)

    def _note(self, named: set[str]) -> None:
        if not named <= self.named and len(self.named) < self._settings.stuck_ledgers_max:
            self.named |= named

    async def _has_record(self, ledger_id: int, lost: Mapping[str, LostBookie]) -> bool:
        """Whether the ledger's record names all these bookies, none of which is new: a write would disturb its worker.

        A worker may still remove that record, if it looked before the ledger came to name a bookie: then the auditor
        reads the ledger again.
        """
        if not self._is_recorded(ledger_id) or self._due & lost.keys():
            return False
        record = await self._queue.read(ledger_id)
        return record is not None and lost.keys() <= record.lost.keys()

    def _is_recorded(self, ledger_id: int) -> bool:
        """Whether the ledger had a record at this scan's beginning, or was given one by it."""
        at = bisect.bisect_left(self._listed, ledger_id)
        return self._listed[at : at + 1].count(ledger_id) > 0 or ledger_id in self._just_added

    async def _add_all(self, of: Mapping[int, Sequence[str]], lost: Mapping[str, LostBookie]) -> None:
        """Add records: most ledgers have none yet, and a transaction costs little more than a write."""
        alike: dict[tuple[str, ...], list[int]] = {}
        for ledger_id, names in of.items():
            alike.setdefault(tuple(names), []).append(ledger_id)
        for names, ledger_ids in alike.items():
            await self._add_alike(ledger_ids, {bookie: lost[bookie] for bookie in names})

    async def _add_alike(self, ledger_ids: list[int], lost: Mapping[str, LostBookie]) -> None:
        async def add(ledger_id: int) -> None:
            await self._add(ledger_id, lost)

        new = [ledger_id for ledger_id in ledger_ids if not self._is_recorded(ledger_id)]
        if new and await self._queue.add_new(new, lost):
            for ledger_id in new:
                self._count_added(ledger_id)
                self._metrics.looked_at()
            ledger_ids = sorted({*ledger_ids}.difference(new))
        await self._each(ledger_ids, add)

    async def _add(self, ledger_id: int, lost: Mapping[str, LostBookie]) -> None:
        outcome = await self._queue.add(ledger_id, lost)
        if isinstance(outcome, Missing):
            raise _over()
        if not isinstance(outcome, Done):
            raise to_error(outcome, ledger_id=ledger_id)
        self._count_added(ledger_id)

    def _count_added(self, ledger_id: int) -> None:
        self.added += not self._is_recorded(ledger_id)
        self._remembered.add_recorded([ledger_id])
        self._just_added.add(ledger_id)
        self._unannounced = True
        self._metrics.record_added()

    async def _announce(self) -> None:
        """Wake the workers, and remember that this announcement is this auditor's own."""
        if not self._unannounced:
            return
        outcome = await self._queue.announce()
        expected = self._remembered.announced + 1
        if outcome == Done(expected):
            self._remembered.announced = expected
        self._unannounced = False

    async def _each(self, ledger_ids: list[int], act: Callable[[int], Awaitable[None]]) -> None:
        """`act` for each of them, some at once. Failures while the store is away are retried when it is back."""
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


def _is_same(loss: LostBookie, instance: str) -> bool:
    """Whether a bookie that is back with the storage `instance` certainly has the one that it was lost with."""
    return bool(instance and loss.instance and covers(instance, loss.instance))


def _over() -> MetadataConflictError:
    return MetadataConflictError("this auditor's term is over", retriable=False)
