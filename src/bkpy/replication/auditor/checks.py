"""The auditor's periodic checks: do bookies hold the entries that metadata say they hold, and are racks apart?

    due --> all closed ledgers, one after the other --> under-replicated? look again later, and record it --> ended
                  '--now and then, the check stores its progress--> the next auditor goes on from there

A writer may close a ledger before the slowest bookie has all of it, so the check asks twice for missing entries.

Invariants: a ledger is recorded only while fresh metadata name the bookie for entries that it missed both times; a
bookie that doesn't answer, or has said that it lost data, misses nothing here: other parts decide whether it is lost; a
check reads no more than `check_bytes_per_s_max`; an auditor whose term is over writes nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import Counter, Gauge

from bkpy.errors import BookKeeperError, MetadataConflictError, NoSuchLedgerError
from bkpy.metadata.ledgers.all_ledgers import UNREADABLE, readable_ledgers
from bkpy.metadata.replication.check_record import CheckRecord, CheckRecords, CheckRun
from bkpy.metadata.replication.underreplication import LossReason, LostBookie, UnderreplicationQueue
from bkpy.metadata.store.outcome import Done, Missing, to_error
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.repair.checks import misplaced, missing, windows
from bkpy.protocol.repair.holdings import holdings
from bkpy.replication.auditor.held_entries import held_entries
from bkpy.runtime.pacer import Pacer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

    from prometheus_client import CollectorRegistry

    from bkpy.config.recovery import RecoverySettings
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.holdings import Share
    from bkpy.replication.auditor.held_entries import Held
    from bkpy.replication.context import ReplicationContext
    from bkpy.runtime.interfaces import Runtime

log = logging.getLogger("bkpy.recovery")

REPLICAS = "replicas"
PLACEMENT = "placement"


class CheckMetrics:
    """The Prometheus metrics of the checks with these names. Only the present auditor's values are current."""

    def __init__(self, registry: CollectorRegistry, checks: Iterable[str]) -> None:
        self._ended = Gauge(
            "bkpy_check_last_end_timestamp_seconds",
            "When the check ended last, in seconds since 1970, 0 for never; only the auditor's own values are current",
            ("check",),
            registry=registry,
        )
        self._ledgers = Counter(
            "bkpy_check_ledgers", "Ledgers that a check has looked at", ("check",), registry=registry
        )
        self._marked = Counter(
            "bkpy_check_marked", "Ledgers that a check has recorded as under-replicated", ("check",), registry=registry
        )
        self._bytes = Counter("bkpy_check_read_bytes", "Bytes that the check of replicas has read", registry=registry)
        for check in checks:  # zeros, without which nobody sees that the first one is an increase
            self._ledgers.labels(check)
            self._marked.labels(check)

    def known(self, check: str, ended_ms: int) -> None:
        self._ended.labels(check).set(ended_ms / 1000)

    def looked_at(self, check: str) -> None:
        self._ledgers.labels(check).inc()

    def marked(self, check: str, count: int) -> None:
        self._marked.labels(check).inc(count)

    def read(self, count: int) -> None:
        self._bytes.inc(count)


class _Kind(NamedTuple):
    interval_s: float
    under_replicated: Callable[[LedgerMetadata, Sequence[float]], Awaitable[Collection[str]]]
    description: str


class _Suspect(NamedTuple):
    """A ledger that seems to be under-replicated, and the windows that were looked at."""

    ledger_id: int
    bookies: Collection[str]
    chances: Sequence[float]


class PeriodicChecks:
    """The checks of one term of the auditor, whose node is `node`. `named` gets the bookies that ledgers name."""

    def __init__(
        self,
        context: ReplicationContext,
        node: str,
        runtime: Runtime,
        settings: RecoverySettings,
        metrics: CheckMetrics,
        named: Callable[[Collection[str]], None] = lambda bookies: None,
    ) -> None:
        cluster = context.cluster
        self._context = context
        self._catalog = cluster.catalog
        self._runtime = runtime
        self._settings = settings
        self._metrics = metrics
        self._named = named
        self._records = CheckRecords(cluster.store, cluster.root, guard=node, settings=settings)
        self._queue = UnderreplicationQueue(cluster.store, cluster.root, runtime, settings, guard=node)
        self._record = CheckRecord()
        self._reads = Pacer(runtime.clock, settings.check_bytes_per_s_max)
        self._kinds = {
            REPLICAS: _Kind(
                settings.replicas_check_interval_s, self._incomplete, "misses entries, or has them damaged"
            ),
            PLACEMENT: _Kind(settings.placement_check_interval_s, self._misplaced, "is too near to others of its rack"),
        }

    async def run(self) -> None:
        """Check what is due, until cancelled. Raises `BookKeeperError` when the term is over."""
        while True:
            try:
                self._record = await self._records.read()
                for name, kind in self._kinds.items():
                    run = self._record.runs.get(name, CheckRun())
                    self._metrics.known(name, run.ended_ms)
                    if self._is_due(run, kind):
                        await self._check(name, kind, run)
            except BookKeeperError as error:
                if not error.retriable:
                    raise
                log.debug("the checks failed, retrying: %s", error)
            await asyncio.sleep(self._settings.audit_look_interval_s)

    def _now_ms(self) -> int:
        return int(self._runtime.clock.time() * 1000)

    def _is_due(self, run: CheckRun, kind: _Kind) -> bool:
        if run.began_ms > run.ended_ms:
            return True  # one that an earlier auditor has begun
        # By the clock of this machine: that of an earlier auditor may have been far ahead.
        return abs(self._now_ms() - run.began_ms) >= kind.interval_s * 1000

    async def _check(self, name: str, kind: _Kind, run: CheckRun) -> None:
        """Look at all ledgers, or at the ones that an earlier auditor has left."""
        if not await self._queue.enabled():
            return
        if run.began_ms <= run.ended_ms:
            now_ms = self._now_ms()
            # By this clock from now on: if both times stayed ahead of it, the next run would be due at once.
            run = CheckRun(now_ms, min(run.ended_ms, now_ms - 1))
            run = await self._store(name, run)
        stored_at = self._runtime.clock.monotonic()
        suspects: list[_Suspect] = []
        async for metadata in readable_ledgers(
            self._catalog, reads_at_once=self._settings.audit_reads_at_once, after=run.after
        ):
            chances = [self._runtime.rng.random() for _ in range(self._settings.check_windows - 2)]
            if found := await kind.under_replicated(metadata, chances):
                suspects.append(_Suspect(metadata.ledger_id, found, chances))
            self._named({bookie for fragment in metadata.fragments for bookie in fragment.bookies})
            self._metrics.looked_at(name)
            run = dataclasses.replace(run, after=metadata.ledger_id, ledgers=run.ledgers + 1)
            now = self._runtime.clock.monotonic()
            late = now - stored_at >= self._settings.check_progress_interval_s
            if late or len(suspects) == self._settings.audit_reads_at_once:
                run = await self._settle(name, kind, run, suspects)
                suspects, stored_at = [], now
                if not await self._queue.enabled():
                    return
        run = await self._settle(name, kind, run, suspects)
        run = await self._store(name, dataclasses.replace(run, ended_ms=max(self._now_ms(), run.began_ms), after=-1))
        self._metrics.known(name, run.ended_ms)
        log.info("the check of %s has looked at %d ledgers, %d are under-replicated", name, run.ledgers, run.marked)

    async def _settle(self, name: str, kind: _Kind, run: CheckRun, suspects: list[_Suspect]) -> CheckRun:
        """Look again at the suspects, and store the progress of the check."""
        if suspects:
            await asyncio.sleep(self._settings.audit_look_interval_s)
        marked = 0
        for suspect in suspects:
            marked += await self._look_again(kind, suspect)
        if marked:
            self._metrics.marked(name, marked)
            await self._queue.announce()
        return await self._store(name, dataclasses.replace(run, marked=run.marked + marked))

    async def _store(self, name: str, run: CheckRun) -> CheckRun:
        record = dataclasses.replace(self._record, runs={**self._record.runs, name: run})
        await self._records.write(record)
        self._record = record
        return run

    async def _look_again(self, kind: _Kind, suspect: _Suspect) -> bool:
        """Whether the ledger is still under-replicated, and now has a record."""
        try:
            metadata, _ = await self._catalog.read(suspect.ledger_id, fresh=True)
        except NoSuchLedgerError:
            return False
        except UNREADABLE as error:
            log.warning("ledger %d is skipped: %s", suspect.ledger_id, error)
            return False
        found = set(suspect.bookies).intersection(await kind.under_replicated(metadata, suspect.chances))
        if not found:
            return False
        now_ms = self._now_ms()
        losses = {bookie: LostBookie(now_ms, LossReason.CHECK.value) for bookie in sorted(found)}
        try:
            outcome = await self._queue.add(metadata.ledger_id, losses)
            if isinstance(outcome, Missing):
                raise MetadataConflictError("this auditor's term is over", retriable=False)
            if not isinstance(outcome, Done):
                raise to_error(outcome, ledger_id=metadata.ledger_id)
        except UNREADABLE as error:
            log.warning("failed to record that ledger %d is under-replicated: %s", metadata.ledger_id, error)
            return False
        log.warning(
            "ledger %d is under-replicated: %s %s", metadata.ledger_id, ", ".join(sorted(found)), kind.description
        )
        return True

    # --- placement ------------------------------------------------------------------------------------------------

    async def _misplaced(self, metadata: LedgerMetadata, chances: Sequence[float]) -> Collection[str]:
        directory = self._context.directory
        infos = {**directory.read_only, **directory.bookies}
        racks = {name: (info.region, info.rack) for name, info in infos.items()}
        name = misplaced(metadata, racks, self._context.bookies().writable)
        return () if name is None else (name,)

    # --- replicas -------------------------------------------------------------------------------------------------

    async def _incomplete(self, metadata: LedgerMetadata, chances: Sequence[float]) -> Collection[str]:
        """The bookies that miss entries of a closed ledger, in the windows of this check."""
        if metadata.state is not LedgerState.CLOSED:
            return ()
        directory = self._context.directory
        infos = {**directory.read_only, **directory.bookies}
        found: set[str] = set()
        for held in holdings(metadata):
            if held.last_entry is None or held.last_entry < held.first_entry:
                continue
            for share in held.shares:
                info = infos.get(share.bookie_id)
                if info is None or info.in_limbo or share.bookie_id in found or not share.starts:
                    continue
                if await self._is_incomplete(metadata, share, held.first_entry, held.last_entry, chances):
                    found.add(share.bookie_id)
        return found

    async def _is_incomplete(
        self, metadata: LedgerMetadata, share: Share, first: int, last: int, chances: Sequence[float]
    ) -> bool:
        settings = self._settings
        for window in windows(first, last, settings.check_window_entries, settings.check_windows, chances):
            if await self._is_incomplete_in(metadata, share, *window):
                return True
        return False

    async def _is_incomplete_in(self, metadata: LedgerMetadata, share: Share, first: int, last: int) -> bool:
        """Whether an entry of the share in first..last isn't there. A bookie that doesn't answer decides nothing."""
        following = first
        while following <= last:
            try:
                held = await self._ask(metadata, share.bookie_id, following, last)
            except BookKeeperError:
                return False
            if missing(share, following, held.examined_to, held.intact):
                return True
            following = held.examined_to + 1
        return False

    async def _ask(self, metadata: LedgerMetadata, bookie_id: str, first: int, last: int) -> Held:
        held = await held_entries(self._context, metadata, bookie_id, first, last, self._settings.check_read_bytes)
        self._metrics.read(held.size)
        await asyncio.sleep(self._reads.charge(held.size))
        return held
