"""Counters and histograms that cost next to nothing to update, and become Prometheus metrics when somebody asks.

Prometheus' own take a lock for each update: several microseconds for each frame of a bookie. These belong to the event
loop, as everything does that is counted here.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Count:
    """Something that only grows; whoever counts adds to `value`."""

    __slots__ = ("name", "text", "value")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.value = 0


class Spread:
    """How observed values are spread over classes, each up to and including its bound."""

    __slots__ = ("_bounds", "_classes", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._classes = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._classes[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        bounds = [*map(float, self._bounds), float("inf")]
        buckets = [(_bound(bound), total) for bound, total in zip(bounds, accumulate(self._classes), strict=True)]
        family.add_metric(labels, buckets, self._sum)


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(bound)


class Histogram:
    """A metric with one spread for each value of a label, or a single one if it has no label."""

    def __init__(
        self, name: str, text: str, bounds: Sequence[float], label: str | None = None, values: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.text = text
        self._labels = [] if label is None else [label]
        keys: list[tuple[str, ...]] = [()] if label is None else [(value,) for value in values]
        self._spreads = {key: Spread(bounds) for key in keys}

    def spread(self, *value: str) -> Spread:
        """The spread for that value of the label."""
        return self._spreads[value]

    def collect(self) -> HistogramMetricFamily:
        family = HistogramMetricFamily(self.name, self.text, labels=self._labels)
        for value, spread in self._spreads.items():
            spread.add_to(family, value)
        return family


class Tally(Collector):
    """All counts and histograms of one registry."""

    def __init__(self) -> None:
        self._counts: list[Count] = []
        self._histograms: list[Histogram] = []

    def count(self, name: str, text: str) -> Count:
        self._counts.append(Count(name, text))
        return self._counts[-1]

    def histogram(
        self, name: str, text: str, bounds: Sequence[float], label: str | None = None, values: Sequence[str] = ()
    ) -> Histogram:
        self._histograms.append(Histogram(name, text, bounds, label, values))
        return self._histograms[-1]

    def collect(self) -> Iterator[Metric]:
        for count in self._counts:
            yield CounterMetricFamily(count.name, count.text, value=count.value)
        for histogram in self._histograms:
            yield histogram.collect()
