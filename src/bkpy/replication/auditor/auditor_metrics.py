"""The Prometheus metrics of the auditor. Only the present auditor's values are current."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class AuditorMetrics:
    """Counters and gauges in the registry of the process. All of them are of rare things."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._leading = Gauge("bkpy_auditor_leading", "1 if this is the auditor now", registry=registry)
        self._absent = Gauge(
            "bkpy_auditor_bookies",
            "Bookies by what the auditor holds of them; only the auditor's own values are current",
            ("state",),
            registry=registry,
        )
        self._suspended = Gauge(
            "bkpy_auditor_suspended",
            "1 while most bookies are absent, so that no ledger is recorded as under-replicated",
            registry=registry,
        )
        self._former_suspended = Gauge(  # for one version, for the alarms of users
            "bkpy_auditor_most_absent", "The former name of bkpy_auditor_suspended", registry=registry
        )
        self._recorded_ledgers = Gauge(
            "bkpy_auditor_marked_ledgers", "Under-replicated ledgers, when the auditor looked last", registry=registry
        )
        self._records_added = Counter(
            "bkpy_auditor_marks", "Under-replication records that were added", registry=registry
        )
        self._looks = Counter(
            "bkpy_auditor_looks", "Ledgers that were read or recorded as under-replicated", registry=registry
        )
        self._whole_seconds = Gauge(
            "bkpy_auditor_last_whole_audit_seconds", "How long the last look at all ledgers took", registry=registry
        )

    def leads(self, leading: bool) -> None:
        self._leading.set(leading)

    def bookies(self, *, here: int, absent: int, lost: int, suspended: bool) -> None:
        for state, count in (("here", here), ("absent", absent), ("lost", lost)):
            self._absent.labels(state).set(count)
        self._suspended.set(suspended)
        self._former_suspended.set(suspended)

    def recorded_ledgers(self, count: int) -> None:
        self._recorded_ledgers.set(count)

    def record_added(self) -> None:
        self._records_added.inc()

    def looked_at(self) -> None:
        self._looks.inc()

    def whole(self, seconds: float) -> None:
        self._whole_seconds.set(seconds)
