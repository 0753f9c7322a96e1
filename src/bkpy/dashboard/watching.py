"""A look at the cluster every few seconds: its health, rates of its bookies, and what has changed between two looks.

Invariants: however many browsers ask, the cluster is looked at once in an interval; what is remembered is bounded; a
look that fails changes nothing but the error.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bkpy.admin.cluster_health import ClusterHealth, ClusterView, assess, seen
from bkpy.admin.metadata_sweep import MetadataSweep
from bkpy.dashboard.following import LedgerFollower
from bkpy.dashboard.models import BookieState, Busiest, EventReport, HealthReport, Overview, Rates
from bkpy.errors import BookKeeperError
from bkpy.metadata.audit_trail import AuditTrail

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bkpy.admin.bookie_pages import ClusterPages, PageReport
    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.audit_trail import RecordedAct
    from bkpy.metadata.cluster import Cluster
    from bkpy.runtime.interfaces import Clock

log = logging.getLogger("bkpy.dashboard")

INTERVAL_S = 2.0
RATES_MAX = 150  # five minutes
EVENTS_MAX = 1000
SWEPT_MAX = 200  # logs and cookies that one look reads
_UNKNOWN = HealthReport(status="unknown", bookies=0, bookies_writable=0, ledgers_missing_copies=0, findings=[])
_ADDED, _ADDED_BYTES = "bkpy_bookie_add_entries_total", "bkpy_bookie_add_bytes_total"
_READ_BYTES = "bkpy_bookie_read_bytes_total"
_LATENCY = "bkpy_bookie_request_seconds_bucket"
_HEALED = "bkpy_replication_done_ledgers_total"
_CHECKPOINTS = "bkpy_bookie_checkpoint_seconds_count"


@dataclass(frozen=True)
class _Look:
    """One look: what was seen, when, and whether that is well."""

    view: ClusterView
    at_s: float  # monotonic
    health: ClusterHealth


class ClusterWatch:
    """`run` looks until it is cancelled. Everything else returns what the last look found."""

    def __init__(
        self, cluster: Cluster, settings: RecoverySettings, pages: ClusterPages, *, interval_s: float = INTERVAL_S
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._pages = pages
        self._interval_s = interval_s
        self._clock: Clock = cluster.store.runtime.clock
        self._last: _Look | None = None
        self._before: _Look | None = None
        self._looked_s = 0.0
        self._error = "the first look at the cluster has not ended"
        self._health = _UNKNOWN
        self._rates: deque[Rates] = deque(maxlen=RATES_MAX)
        self._events: deque[EventReport] = deque(maxlen=EVENTS_MAX)
        self._numbered = 0
        self.trail = AuditTrail(cluster.store, cluster.root, cluster.store.runtime, settings)
        self._acts: set[str] = set()  # names that events have
        self._sweep = MetadataSweep(cluster, settings)
        self.following = LedgerFollower(cluster.catalog)

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(self._interval_s)

    async def look(self) -> None:
        """Look once. An error is remembered, and raised to nobody: else the page would show the last look for ever."""
        try:
            await self._sweep.step(SWEPT_MAX)
            view = await seen(self._cluster, self._settings, self._pages, activity=True, sweep=self._sweep)
            # Tell each at once: the next read may fail, and no later look finds the same event.
            for kind, text in await self.following.look(view.pages):
                self.tell(kind, text)
            for act in await self._new_acts():
                self.tell("audit", str(act), act.time_ms / 1000)
        except BookKeeperError as error:
            self._fail(str(error))
            return
        except Exception as error:
            log.exception("failed to look at the cluster, retrying in %g s", self._interval_s)
            self._fail(repr(error))
            return
        if self._error and self._looked_s:
            self.tell("health", "the cluster can be seen again")
        self._error = ""
        look = _Look(view, self._clock.monotonic(), assess(view))
        self._compare(look)
        self._before, self._last = self._last, look
        self._looked_s = self._clock.time()
        self._health = HealthReport.model_validate(look.health.to_json())
        if self._before is not None:
            self._rates.append(self._rates_between(self._before, look))

    def _fail(self, why: str) -> None:
        if not self._error:
            self.tell("health", f"the cluster can't be seen: {why}")
        self._error = why
        self._health = _UNKNOWN

    # --- what was found -----------------------------------------------------------------------------------------------

    def overview(self) -> Overview:
        return Overview(
            cluster=self._cluster.instance_id,
            error=self._error,
            looked=self._looked_s,
            health=self._health,
            rates=list(self._rates),
        )

    def health(self) -> HealthReport:
        return self._health

    def replication(self) -> Mapping[str, Any]:
        """What `replication_status` returns; empty before the first look."""
        return {} if self._last is None else self._last.view.replication

    def busiest(self) -> Busiest:
        """The busiest ledgers and logs."""
        return Busiest(ledgers=self.following.ledgers, logs=self.following.logs)

    def events(self) -> list[EventReport]:
        """The newest first."""
        return list(reversed(self._events))

    def bookies(self) -> list[BookieState]:
        """All bookies with a cookie or a registration, by id."""
        if self._last is None:
            return []
        view = self._last.view
        return [self._state_of(bookie_id, view) for bookie_id in sorted(view.known | view.bookies.keys())]

    def _state_of(self, bookie_id: str, view: ClusterView) -> BookieState:
        info = view.bookies.get(bookie_id)
        page = view.pages.get(bookie_id)
        before = None if self._before is None else self._before.view.pages.get(bookie_id)
        seconds = 0.0 if self._before is None or self._last is None else self._last.at_s - self._before.at_s
        state, why = "absent", "it isn't registered"
        if info is not None:
            state, why = "writable", ""
            if info.in_limbo:
                state, why = "limbo", "it has lost data, and copies it back"
            elif bookie_id in view.draining:
                state, why = "draining", "it is to leave"
            elif info.read_only:
                state, why = "read-only", info.read_only_reason
        return BookieState(
            bookie_id=bookie_id,
            address="" if info is None else info.address,
            rack="" if info is None else info.rack,
            region="" if info is None else info.region,
            version="" if info is None else info.version,
            state=state,
            why=why,
            free_bytes=0 if info is None else info.free_bytes,
            seen=page is not None,
            entries_stored=_rate(_ADDED, before, page, seconds),
            bytes_stored=_rate(_ADDED_BYTES, before, page, seconds),
            bytes_read=_rate(_READ_BYTES, before, page, seconds),
            add_p99_ms=_p99_ms([(before, page)]),
            memory_bytes=0 if page is None else int(sum(page.metrics.get("bkpy_bookie_memory_bytes", {}).values())),
            memory_bytes_max=0 if page is None else int(page.value("bkpy_bookie_memory_bytes_max")),
            journal_queue_bytes=0 if page is None else int(page.value("bkpy_bookie_memory_bytes", "journal queues")),
            connections=0 if page is None else int(page.value("bkpy_bookie_connections")),
            doing=list(_doing(before, page)),
            damages=0 if page is None else int(page.value("bkpy_bookie_scrub_damages")),
        )

    def _rates_between(self, before: _Look, look: _Look) -> Rates:
        both = [(before.view.pages.get(name), page) for name, page in look.view.pages.items()]
        seconds = look.at_s - before.at_s
        return Rates(
            time=round(self._looked_s, 3),
            entries_stored=sum(_rate(_ADDED, *pair, seconds) for pair in both),
            bytes_stored=sum(_rate(_ADDED_BYTES, *pair, seconds) for pair in both),
            bytes_read=sum(_rate(_READ_BYTES, *pair, seconds) for pair in both),
            add_p99_ms=_p99_ms(both),
        )

    # --- events -------------------------------------------------------------------------------------------------------

    def tell(self, kind: str, text: str, time: float | None = None) -> None:
        """Add an event, of now or of that time."""
        self._numbered += 1
        at = round(self._clock.time() if time is None else time, 3)
        self._events.append(EventReport(number=self._numbered, time=at, kind=kind, text=text))

    async def _new_acts(self) -> list[RecordedAct]:
        """The acts of the audit trail that no look has seen; at first, its newest."""
        names = await self.trail.names()
        new = [name for name in names if name not in self._acts][-EVENTS_MAX // 10 :]
        acts = await self.trail.read(new)
        self._acts = set(names)
        return acts

    def _compare(self, look: _Look) -> None:
        if self._last is None:
            self.tell("bookie", f"{len(look.view.bookies)} bookies are registered")
            return
        for kind, text in _changes(self._last, look):
            self.tell(kind, text)


def _changes(last: _Look, look: _Look) -> Iterator[tuple[str, str]]:
    before, now = last.view, look.view
    for bookie_id in sorted(before.bookies.keys() - now.bookies.keys()):
        yield "bookie", f"bookie {bookie_id} has gone"
    for bookie_id in sorted(now.bookies.keys() - before.bookies.keys()):
        yield "bookie", f"bookie {bookie_id} has come"
    for bookie_id in sorted(now.bookies.keys() & before.bookies.keys()):
        was, info = before.bookies[bookie_id], now.bookies[bookie_id]
        if info.read_only and not was.read_only:
            yield "bookie", f"bookie {bookie_id} takes no entries: {info.read_only_reason or 'it says no reason'}"
        elif was.read_only and not info.read_only:
            yield "bookie", f"bookie {bookie_id} takes entries again"
        if info.address != was.address:
            yield "bookie", f"bookie {bookie_id} has moved from {was.address} to {info.address}"
        if info.version != was.version:
            yield "bookie", f"bookie {bookie_id} runs version {info.version}, before {was.version}"
    for bookie_id in sorted(now.draining - before.draining):
        yield "bookie", f"bookie {bookie_id} drains"
    for bookie_id in sorted(before.draining - now.draining):
        yield "bookie", f"bookie {bookie_id} drains no more"
    for bookie_id in sorted(before.known - now.known):
        yield "bookie", f"bookie {bookie_id} was decommissioned"
    was_left, left = before.replication["ledgers"], now.replication["ledgers"]
    if left and not was_left:
        yield "healing", "1 ledger misses copies" if left == 1 else f"{left:,} ledgers miss copies"
    elif was_left and not left:
        yield "healing", "all ledgers have all of their copies"
    if done := sum(_done(before.pages.get(name), page) for name, page in now.pages.items()):
        yield "healing", f"workers have done {done:.0f} under-replicated ledgers"
    codes = {(f.code, f.subject): f for f in look.health.findings}
    known = {(f.code, f.subject): f for f in last.health.findings}
    for key in sorted(codes.keys() - known.keys()):
        finding = codes[key]
        yield (
            "health",
            f"{finding.severity.name.lower()}: {finding.subject and finding.subject + ': '}{finding.message}",
        )
    for key in sorted(known.keys() - codes.keys()):
        yield "health", f"over: {known[key].subject and known[key].subject + ': '}{known[key].message}"
    holders = {work["ledger_id"] for work in before.replication["working"]}
    for work in now.replication["working"]:
        if work["ledger_id"] not in holders:
            yield "healing", f"{work['holder']} works on ledger {work['ledger_id']}"


def _rate(name: str, before: PageReport | None, page: PageReport | None, seconds: float) -> float:
    """A second; 0 for a bookie that was restarted, or not seen, between the two looks."""
    if before is None or page is None or seconds <= 0:
        return 0.0
    return max(0.0, page.value(name) - before.value(name)) / seconds


def _done(before: PageReport | None, page: PageReport | None) -> float:
    return 0.0 if before is None or page is None else max(0.0, page.value(_HEALED) - before.value(_HEALED))


def _p99_ms(pairs: list[tuple[PageReport | None, PageReport | None]]) -> float | None:
    """The upper bound of the histogram's bucket in which the 99th percentile of what was stored meanwhile lies."""
    counts: dict[float, float] = {}
    for before, page in pairs:
        if before is None or page is None:
            continue
        for (le, operation), value in page.metrics.get(_LATENCY, {}).items():
            if operation == "add":
                bound = float(le)
                counts[bound] = counts.get(bound, 0.0) + max(0.0, value - before.value(_LATENCY, le, operation))
    bounds = sorted(counts)
    if not bounds or not counts[bounds[-1]]:
        return None
    wanted = 0.99 * counts[bounds[-1]]
    found = next(bound for bound in bounds if counts[bound] >= wanted)
    finite = [bound for bound in bounds if bound != float("inf")]
    return round(min(found, finite[-1]) * 1000, 3)


def _doing(before: PageReport | None, page: PageReport | None) -> Iterator[str]:
    if page is None:
        return
    if before is not None and page.value(_CHECKPOINTS) > before.value(_CHECKPOINTS):
        yield "checkpoint"
    if page.value("bkpy_bookie_compaction_bytes"):
        yield "compaction"
    if "bkpy_bookie_scrub_progress" in page.metrics and page.value("bkpy_bookie_scrub_progress") < 1:
        yield "scrub"
    if page.value("bkpy_integrity_to_rebuild"):
        yield "rebuild"
