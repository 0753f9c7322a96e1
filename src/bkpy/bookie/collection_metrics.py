"""What garbage collection tells of itself, as Prometheus metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class CollectionMetrics:
    """Counters and gauges in a bookie's registry. These are counted once a ledger, so Prometheus' own will do."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ledgers = Counter(
            "bkpy_bookie_gc_ledgers",
            "Ledgers deleted here: those that are gone from the metadata, and spare copies",
            ("kind",),
            registry=registry,
        )
        self._kept = Counter(
            "bkpy_bookie_gc_kept", "Ledgers that were to be collected and had to stay", ("reason",), registry=registry
        )
        self._runs = Counter(
            "bkpy_bookie_gc_runs", "Runs of garbage collection, by what ended them", ("outcome",), registry=registry
        )
        self._last_end = Gauge(
            "bkpy_bookie_gc_last_run_end_seconds",
            "When the last run has ended, in seconds since 1970",
            registry=registry,
        )
        self._last_seconds = Gauge("bkpy_bookie_gc_last_run_seconds", "How long the last run took", registry=registry)
        self._last_done = Gauge(
            "bkpy_bookie_gc_last_run_done", "1 if the last run came to its end, 0 if it failed", registry=registry
        )

    def collected(self, *, spare: bool) -> None:
        self._ledgers.labels("spare" if spare else "gone").inc()

    def kept(self, reason: str) -> None:
        self._kept.labels(reason).inc()

    def ended(self, outcome: str, at: float, seconds: float) -> None:
        """A run has ended at `at`, in seconds since 1970; the outcome is `done` or the kind of failure."""
        self._runs.labels(outcome).inc()
        self._last_end.set(at)
        self._last_seconds.set(seconds)
        self._last_done.set(outcome == "done")
