"""The auditor: watches the bookies, and records the ledgers of lost ones as under-replicated. One runs, by election.

Each round looks at the bookies, and `protocol/repair/lost_bookies.py` decides what follows. The auditor drops bookies
that came back as they were from under-replication records, stores its audit record, and adds under-replication records
for the ledgers of lost and draining bookies. A round begins when bookies come, go or are drained, when a time is up,
and now and then.

Invariants: every write checks the node of this term, so a deposed auditor writes nothing; the audit record says that
records are added for a bookie before the first one is, and that all its ledgers are recorded only when they are; it
forgets a bookie that came back only after the records have dropped it; so a later auditor, which begins with the audit
record, repeats what may not have been done.
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
from bkpy.protocol.repair.lost_bookies import (
    Presence,
    audit,
    begun_since,
    with_begun,
    with_marked,
    with_stored,
    with_worked_off,
    without_gone,
)
from bkpy.replication.auditor.ledger_scan import LedgerScan
from bkpy.replication.auditor.remembered_ledgers import RememberedLedgers

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.bookies.draining import Drain
    from bkpy.metadata.cluster import Cluster
    from bkpy.metadata.store.store import Watch
    from bkpy.protocol.repair.lost_bookies import Absence, AuditRecord, BookieStatus, Findings
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
        """Ledgers name these bookies. The present term, if there is any, finds out whether the cluster knows them."""
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
        self._queue = UnderreplicationQueue(cluster.store, cluster.root, runtime, settings, guard=node)
        self._records = AuditRecords(cluster.store, cluster.root, guard=node, settings=settings)
        # Nothing of an earlier term of this process is used: another auditor may have added records meanwhile.
        remembered = RememberedLedgers(settings.audit_remembered_max)
        self._scan = LedgerScan(cluster.catalog, self._queue, remembered, runtime, settings, metrics)
        self._drains = Drains(cluster.store, cluster.root, runtime, settings)
        self._drains_recorded: frozenset[tuple[str, str]] = (
            frozenset()
        )  # bookie and token, once its ledgers are recorded
        self._named: set[str] = set()  # by ledgers, as far as that is known
        self._known: frozenset[str] = frozenset()  # with a cookie that says so, at the last look
        self._followed_at = -float("inf")
        self._progress = 0  # of adding records, and of repairing
        self._progress_ms = int(runtime.clock.time() * 1000)
        self._something = asyncio.Event()

    def named(self, bookies: Collection[str]) -> None:
        """Ledgers name these bookies. One with no cookie and no registration is lost: decommissioned, or forgotten.

        The number of unknown ones is bounded: ids that nobody knows come from metadata that anybody may have written.
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
            self._store,
            self._root,
            reads_at_once=settings.audit_reads_at_once,
            named=self._named | record.bookies,
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
        if not await self._queue.enabled():
            return await self._store_record(record, _without_returns(record, found)), found.look_at_ms
        if found.returned:
            dropped = await self._scan.drop(found.returned)
            log.warning(
                "back as they were: %s; dropped from %d under-replication records",
                ", ".join(sorted(found.returned)),
                dropped,
            )
        record = await self._store_record(record, found.record)
        if not record.suspended:
            record = await self._record_lost(record, found, seen)
        return record, found.look_at_ms

    async def _store_record(self, before: AuditRecord, record: AuditRecord) -> AuditRecord:
        if record == before:
            return record
        await self._records.write(record)
        begun = begun_since(before, record)
        dated = with_stored(record, begun, await self._records.written_ms()) if begun else record
        if dated != record:
            await self._records.write(dated)
        return dated

    async def _record_lost(self, record: AuditRecord, found: Findings, seen: Mapping[str, BookieStatus]) -> AuditRecord:
        """Record the ledgers of due bookies, and the ones that name a bookie of an earlier round only since then."""
        now = self._runtime.clock.monotonic()
        lost = {
            bookie: _loss(absence, seen.get(bookie))
            for bookie, absence in record.absences.items()
            if absence.marked or bookie in found.due
        }
        drains = await self._drains.all()
        lost.update((drain.bookie_id, _leave(drain, lost.get(drain.bookie_id), seen)) for drain in drains)
        new = (drain.bookie_id for drain in drains if (drain.bookie_id, drain.token) not in self._drains_recorded)
        due = {*new, *found.due}
        if not lost or (not due and now - self._followed_at < self._settings.audit_follow_interval_s):
            return record
        record = await self._store_record(record, with_begun(record, found.due))
        before = self._scan.added
        recorded = await self._scan.add_records(lost, due=due)
        if recorded is None:
            return record
        self._drains_recorded = frozenset((drain.bookie_id, drain.token) for drain in drains)
        self._followed_at = self._runtime.clock.monotonic()  # not before the scan: it may take longer than the interval
        self._metrics.recorded_ledgers(recorded + self._scan.added - before)
        after = with_marked(record, found.due)
        now_ms, progress = int(self._runtime.clock.time() * 1000), self._scan.added + self._scan.removed
        if progress != self._progress or now_ms < self._progress_ms:
            self._progress, self._progress_ms = progress, now_ms
        if self._scan.added == before:
            marked, after = after, await self._with_worked_off(after, seen, now_ms - self._progress_ms)
            if not recorded:
                left = {bookie for bookie, absence in after.absences.items() if not absence.worked_off}
                self._named -= marked.absences.keys() - left
                self._scan.named -= marked.absences.keys() - left
        if found.due:
            log.warning(
                "lost: %s; added %d under-replication records for their ledgers",
                ", ".join(sorted(found.due)),
                self._scan.added - before,
            )
        return await self._store_record(record, after)

    async def _with_worked_off(
        self, record: AuditRecord, seen: Mapping[str, BookieStatus], stalled_ms: int
    ) -> AuditRecord:
        """The audit record, by the ledgers that are left. Without progress for long, none of them can be repaired."""
        missed = await self._scan.still_missed()
        if stalled_ms >= _STALLED_AFTER_DELAYS * self._settings.lost_bookie_recovery_delay_s * 1000:
            record = with_worked_off(record)
        elif missed is not None:
            record = with_worked_off(record, but=missed)
        return record if missed is None else without_gone(record, seen, but=missed)

    def _tell(self, before: AuditRecord, found: Findings, seen: Mapping[str, BookieStatus]) -> None:
        """Log what is new, and set the metrics."""
        record = found.record
        absent, known = len(record.absences), len({*seen, *record.absences})
        if record.suspended and not before.suspended:
            log.error(
                "%d of %d bookies are absent, most of them: re-replication is suspended until more are back. Are they "
                "cut off from ZooKeeper?",
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
    """The bookie, for under-replication records."""
    rebuilding = absence.replaced or (seen is not None and seen.presence is Presence.LIMBO)
    reason = LossReason.REBUILDING if rebuilding else LossReason.LOST
    return LostBookie(absence.missing_since_ms, reason.value, absence.instance)


def _leave(drain: Drain, loss: LostBookie | None, seen: Mapping[str, BookieStatus]) -> LostBookie:
    """A draining bookie, for under-replication records. It is drained even when it comes back from an absence."""
    if loss is not None and loss.reason != LossReason.LOST:
        return loss
    instance = loss.instance if loss is not None else seen[drain.bookie_id].instance if drain.bookie_id in seen else ""
    return LostBookie(drain.since_ms, LossReason.DRAINING.value, instance)


def _without_returns(before: AuditRecord, found: Findings) -> AuditRecord:
    """The audit record while re-replication is disabled: bookies that are back are handled when it is enabled again."""
    kept = {bookie: before.absences[bookie] for bookie in found.returned}
    return dataclasses.replace(found.record, absences={**found.record.absences, **kept})
