"""The auditor: watches the bookies, and has the ledgers of those that are lost marked. There is one, by election.

Each round looks at the bookies and asks `protocol/repair/audit.py` what follows; drops the marks of those that came
back as they were; stores the record; marks what the lost ones had, and what draining ones have. A round begins when
bookies come, go or are to leave, when a time is up, and now and then.

Invariants: every write checks the node of this term, so a deposed auditor writes nothing; the record says that a
bookie's ledgers are marked only when they are; a bookie that came back is forgotten only when its marks are dropped; so
a later auditor, who begins with the record, does again what may not have been done.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, Final

from bkpy.errors import MetadataUnavailableError
from bkpy.metadata import paths
from bkpy.metadata.bookies.draining import Drains
from bkpy.metadata.bookies.membership import look_at_bookies
from bkpy.metadata.replication.audit_record import AuditRecords
from bkpy.metadata.replication.underreplication import LossReason, LostBookie, UnderreplicationQueue
from bkpy.protocol.repair.audit import Presence, audit, with_marked, with_worked_off
from bkpy.replication.auditor.ledger_scan import LedgerScan
from bkpy.replication.auditor.remembered_ledgers import RememberedLedgers

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.bookies.draining import Drain
    from bkpy.metadata.cluster import Cluster
    from bkpy.metadata.store.store import Watch
    from bkpy.protocol.repair.audit import Absence, AuditRecord, BookieStatus, Findings
    from bkpy.replication.auditor.auditor_metrics import AuditorMetrics
    from bkpy.runtime.interfaces import Runtime

log = logging.getLogger("bkpy.recovery")

_STALLED_AFTER_DELAYS: Final = 12  # an hour by default


class Auditor:
    """What an elected candidate does."""

    def __init__(self, cluster: Cluster, runtime: Runtime, settings: RecoverySettings, metrics: AuditorMetrics) -> None:
        self._cluster = cluster
        self._runtime = runtime
        self._settings = settings
        self._metrics = metrics
        self._term: _Term | None = None

    def named(self, bookies: Collection[str]) -> None:
        """Ledgers name these bookies. The present term finds out whether the cluster knows them; no term, nothing."""
        if self._term is not None:
            self._term.named(bookies)

    async def audit(self, node: str) -> None:
        """Lead until cancelled; `node` is that of the term. Raises `BookKeeperError` when the term can't go on."""
        term = _Term(self._cluster, self._runtime, self._settings, self._metrics, node)
        self._term = term
        self._metrics.leads(True)
        try:
            await term.run()
        finally:
            self._metrics.leads(False)
            if self._term is term:
                self._term = None


class _Term:
    """One term of the auditor."""

    def __init__(
        self, cluster: Cluster, runtime: Runtime, settings: RecoverySettings, metrics: AuditorMetrics, node: str
    ) -> None:
        self._store = cluster.store
        self._root = cluster.root
        self._runtime = runtime
        self._settings = settings
        self._metrics = metrics
        self._marks = UnderreplicationQueue(cluster.store, cluster.root, runtime, settings, guard=node)
        self._records = AuditRecords(cluster.store, cluster.root, guard=node, settings=settings)
        # What was learnt in an earlier term of this process is not used: others may have marked meanwhile.
        remembered = RememberedLedgers(settings.audit_remembered_max)
        self._scan = LedgerScan(cluster.catalog, self._marks, remembered, runtime, settings, metrics)
        self._drains = Drains(cluster.store, cluster.root, runtime, settings)
        self._drains_marked: frozenset[tuple[str, str]] = frozenset()  # bookie and token, once its ledgers are marked
        self._named: set[str] = set()  # by ledgers, as far as that is known
        self._known: frozenset[str] = frozenset()  # with a cookie that says so, at the last look
        self._followed_at = -float("inf")
        self._progress = 0  # of marking and repairing
        self._progress_ms = int(runtime.clock.time() * 1000)
        self._something = asyncio.Event()

    def named(self, bookies: Collection[str]) -> None:
        """Ledgers name these. One that has no cookie and isn't registered is lost: it was decommissioned, or forgotten.

        The number is bounded: ids that nobody knows come from metadata that anybody may have written.
        """
        new = set(bookies) - self._named - self._known
        room = self._settings.stuck_ledgers_max - len(self._named)
        if new and room > 0:
            self._named.update(sorted(new)[:room])
            self._something.set()

    async def run(self) -> None:
        """Rounds, until the term ends."""
        watches = [
            self._store.watch(f"{self._root}/{name}", children=True)
            for name in (paths.AVAILABLE, paths.READ_ONLY, paths.DRAINING)
        ]
        followers = [self._runtime.spawn(self._follow(watch), name="bookies, for the auditor") for watch in watches]
        try:
            record = await self._records.read()
            while True:
                self._something.clear()
                try:
                    record, look_at_ms = await self._round(record)
                except MetadataUnavailableError as error:
                    if not error.retriable:
                        raise
                    log.debug("the audit goes on later: %s", error)
                    await asyncio.sleep(self._settings.metadata_retry_pause_s)
                    record = await self._read_again(record)
                    continue
                await self._wait(look_at_ms)
        finally:
            for watch in watches:
                watch.close()
            for follower in followers:
                follower.cancel()
            await asyncio.wait(followers)

    async def _follow(self, watch: Watch) -> None:
        async for _ in watch:
            self._something.set()

    async def _read_again(self, record: AuditRecord) -> AuditRecord:
        """The record after a write that may have been done or not."""
        try:
            return await self._records.read()
        except MetadataUnavailableError:
            return record  # then nothing can be written either, until it was read

    async def _wait(self, look_at_ms: int | None) -> None:
        timeout_s = self._settings.audit_look_interval_s
        if look_at_ms is not None:
            timeout_s = min(timeout_s, max(0.0, look_at_ms / 1000 - self._runtime.clock.time()))
        try:
            async with asyncio.timeout(timeout_s):
                await self._something.wait()
        except TimeoutError:
            return

    # --- one round ------------------------------------------------------------------------------------------------

    async def _round(self, record: AuditRecord) -> tuple[AuditRecord, int | None]:
        """One look and what follows; the record as it is stored then, and when something will be due."""
        settings = self._settings
        self.named(self._scan.named)
        self._something.clear()
        seen = await look_at_bookies(
            self._store, self._root, reads_at_once=settings.audit_reads_at_once, named=self._named
        )
        self._known = frozenset(bookie for bookie, is_ in seen.items() if is_.instance)  # only a cookie says that
        self._named -= self._known
        found = audit(
            record,
            seen,
            int(self._runtime.clock.time() * 1000),
            settle_ms=int(settings.lost_bookie_settle_s * 1000),
            delay_ms=int(settings.lost_bookie_recovery_delay_s * 1000),
        )
        self._tell(record, found, seen)
        if not await self._marks.enabled():
            return await self._store_record(record, _without_returns(record, found)), found.look_at_ms
        if found.returned:
            dropped = await self._scan.drop(found.returned)
            log.warning("back as they were: %s; %d marks were dropped", ", ".join(sorted(found.returned)), dropped)
        record = await self._store_record(record, found.record)
        if not record.suspended:
            record = await self._mark(record, found, seen)
        return record, found.look_at_ms

    async def _store_record(self, before: AuditRecord, record: AuditRecord) -> AuditRecord:
        if record != before:
            await self._records.write(record)
        return record

    async def _mark(self, record: AuditRecord, found: Findings, seen: Mapping[str, BookieStatus]) -> AuditRecord:
        """Mark what the due bookies had, and see to it that nothing of those that were marked before is missed."""
        now = self._runtime.clock.monotonic()
        lost = {
            bookie: _loss(absence, seen.get(bookie))
            for bookie, absence in record.absences.items()
            if absence.marked or bookie in found.due
        }
        drains = await self._drains.all()
        lost.update((drain.bookie_id, _leave(drain, lost.get(drain.bookie_id), seen)) for drain in drains)
        new = (drain.bookie_id for drain in drains if (drain.bookie_id, drain.token) not in self._drains_marked)
        due = {*new, *found.due}
        if not lost or (not due and now - self._followed_at < self._settings.audit_follow_interval_s):
            return record
        before = self._scan.marked
        marked = await self._scan.mark(lost, due=due)
        if marked is None:
            return record
        self._drains_marked = frozenset((drain.bookie_id, drain.token) for drain in drains)
        self._followed_at = now
        self._metrics.marked_ledgers(marked + self._scan.marked - before)
        after = with_marked(record, found.due)
        now_ms, progress = int(self._runtime.clock.time() * 1000), self._scan.marked + self._scan.unmarked
        if progress != self._progress or now_ms < self._progress_ms:
            self._progress, self._progress_ms = progress, now_ms
        if self._scan.marked == before:
            after = await self._with_worked_off(after, now_ms - self._progress_ms)
        if not marked and self._scan.marked == before:
            worked_off = {bookie for bookie, absence in after.absences.items() if absence.worked_off}
            self._named -= worked_off
            self._scan.named -= worked_off
        if found.due:
            log.warning(
                "lost: %s; %d marks were added to ledgers that name them",
                ", ".join(sorted(found.due)),
                self._scan.marked - before,
            )
        return await self._store_record(record, after)

    async def _with_worked_off(self, record: AuditRecord, stalled_ms: int) -> AuditRecord:
        """The record, by the marks that are left. After a long time without progress, none of these can be repaired."""
        if stalled_ms >= _STALLED_AFTER_DELAYS * self._settings.lost_bookie_recovery_delay_s * 1000:
            return with_worked_off(record)
        missed = await self._scan.still_missed()
        return record if missed is None else with_worked_off(record, but=missed)

    def _tell(self, before: AuditRecord, found: Findings, seen: Mapping[str, BookieStatus]) -> None:
        """Log what is new, and set the metrics."""
        record = found.record
        absent, known = len(record.absences), len({*seen, *record.absences})
        if record.suspended and not before.suspended:
            log.error(
                "%d of %d bookies are absent, most of them: no ledger is marked until more are back. Are they cut off "
                "from ZooKeeper?",
                absent,
                known,
            )
        elif before.suspended and not record.suspended:
            log.warning("%d of %d bookies are absent, not most of them any more", absent, known)
        for bookie in sorted(record.absences.keys() - before.absences.keys()):
            absence = record.absences[bookie]
            log.warning("bookie %s %s", bookie, "has another storage now" if absence.replaced else "is absent")
        for bookie in sorted(before.absences.keys() - record.absences.keys()):
            log.info("bookie %s is %s", bookie, "back" if bookie in seen else "not known any more")
        lost = sum(absence.marked or bookie in found.due for bookie, absence in record.absences.items())
        self._metrics.bookies(here=known - absent, absent=absent - lost, lost=lost, suspended=record.suspended)


def _loss(absence: Absence, seen: BookieStatus | None) -> LostBookie:
    """What a mark says of the bookie."""
    rebuilding = absence.replaced or (seen is not None and seen.presence is Presence.LIMBO)
    reason = LossReason.REBUILDING if rebuilding else LossReason.LOST
    return LostBookie(absence.since_ms, reason.value, absence.instance)


def _leave(drain: Drain, loss: LostBookie | None, seen: Mapping[str, BookieStatus]) -> LostBookie:
    """The same of one that is to leave. When it comes back from an absence, it is to leave all the same."""
    if loss is not None and loss.reason != LossReason.LOST:
        return loss
    instance = loss.instance if loss is not None else seen[drain.bookie_id].instance if drain.bookie_id in seen else ""
    return LostBookie(drain.since_ms, LossReason.DRAINING.value, instance)


def _without_returns(before: AuditRecord, found: Findings) -> AuditRecord:
    """The record while nothing may be written of marks: who is back is dealt with when that is switched on again."""
    kept = {bookie: before.absences[bookie] for bookie in found.returned}
    return dataclasses.replace(found.record, absences={**found.record.absences, **kept})
