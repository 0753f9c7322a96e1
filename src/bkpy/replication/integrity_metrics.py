"""What the integrity check of a bookie tells of itself, as Prometheus metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class IntegrityMetrics:
    """Counters and gauges in the registry of the process. All of them are of rare things."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._in_doubt = Gauge(
            "bkpy_integrity_in_doubt", "1 while any ledger may be among what this bookie has lost", registry=registry
        )
        self._left = Gauge(
            "bkpy_integrity_left",
            "Ledgers that could not be made whole here yet, as of the last look",
            registry=registry,
        )
        self._to_rebuild = Gauge(
            "bkpy_integrity_to_rebuild",
            "Ledgers of which this bookie may miss entries that it had; at least 1 while nobody has counted them",
            registry=registry,
        )
        self._looks = Counter("bkpy_integrity_looks", "Ledgers that were looked at", registry=registry)
        self._repaired = Counter("bkpy_integrity_mended", "Ledgers that were made whole again", registry=registry)
        self._copied = Counter(
            "bkpy_integrity_copied_entries", "Entries that were copied here from other bookies", registry=registry
        )

    def update(self, *, left: int, in_doubt: bool) -> None:
        self._left.set(left)
        self._in_doubt.set(in_doubt)

    def to_rebuild(self, ledgers: int | None, *, in_doubt: bool) -> None:
        self._to_rebuild.set(1 if ledgers is None else ledgers)
        self._in_doubt.set(in_doubt)

    def looked_at(self) -> None:
        self._looks.inc()

    def repaired(self) -> None:
        self._repaired.inc()

    def copied(self, entries: int) -> None:
        self._copied.inc(entries)
