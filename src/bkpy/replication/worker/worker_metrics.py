"""The Prometheus metrics of a replication worker, read when they are scraped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry

    from bkpy.replication.worker.worker import ReplicationWorker
    from bkpy.runtime.interfaces import Clock

_ALWAYS_REPORTED = (0, 1)  # copies left, that alarms are for


class WorkerMetrics(Collector):
    """The metrics of the worker that `watch` was given; zeros before."""

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._clock = clock
        self._worker: ReplicationWorker | None = None
        registry.register(self)

    def watch(self, worker: ReplicationWorker) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        status = {} if self._worker is None else self._worker.status()
        ledgers = GaugeMetricFamily(
            "bkpy_replication_ledgers", "Under-replicated ledgers, by the copies left", labels=["copies_left"]
        )
        counts = dict.fromkeys(map(str, _ALWAYS_REPORTED), 0) | status.get("marked_by_copies_left", {})
        for left, count in counts.items():
            ledgers.add_metric([left], count)
        yield ledgers

        def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"bkpy_replication_{name}", text, value=value)

        def counter(name: str, text: str, key: str) -> CounterMetricFamily:
            return CounterMetricFamily(f"bkpy_replication_{name}", text, value=status.get(key, 0))

        oldest_ms = status.get("oldest_mark_ms")
        age_s = 0.0 if oldest_ms is None else max(0.0, self._clock.time() - oldest_ms / 1000)
        yield gauge("oldest_mark_age_seconds", "Age of the oldest under-replication record; 0 if there is none", age_s)
        yield gauge("enabled", "0 while re-replication is switched off", status.get("enabled", True))
        yield gauge("marked", "Under-replicated ledgers that this worker knows", status.get("marked", 0))
        yield gauge("working", "Ledgers that this worker repairs now", len(status.get("working_on", ())))
        yield gauge("postponed", "Ledgers that this worker tries again later", status.get("postponed", 0))
        yield gauge("stuck", "Ledgers that wait for bookies to come", status.get("stuck", 0))
        yield gauge("bytes_per_s_allowed", "How fast it copies at most now", status.get("bytes_per_s_allowed", 0))
        yield counter(
            "replaced_tasks",
            "Tasks of this worker that ended by a defect and were replaced",
            "replaced_tasks",
        )
        yield counter("done_ledgers", "Ledgers that this worker has repaired", "ledgers_done")
        yield counter("copied_fragments", "Copies that it has put in the place of others", "fragments_copied")
        yield counter("copied_entries", "Entries that it has copied and verified", "entries_copied")
        yield counter("copied_bytes", "Bytes of their records", "bytes_copied")
