"""What the periodic checks tell of themselves, as Prometheus metrics: by whoever is the auditor now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client import CollectorRegistry


class CheckMetrics:
    """Counters and gauges in the registry of the process. `checks` are the names of those that there are."""

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
        self._marked = Counter("bkpy_check_marked", "Ledgers that fell short", ("check",), registry=registry)
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
