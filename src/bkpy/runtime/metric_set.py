"""Counters, histograms and gauges that cost little, and become Prometheus metrics when they are scraped.

Prometheus' own take a lock for each update, which costs several microseconds for each frame of a bookie. These need
none: only the event loop updates them.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Counter:
    """A count that only grows: callers add to `value`."""

    __slots__ = ("name", "text", "value")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.value = 0


class Buckets:
    """How many of the observed values lie between each bound and the one before, the bound itself included."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        bounds = [*map(float, self._bounds), float("inf")]
        buckets = [(_bound(bound), total) for bound, total in zip(bounds, accumulate(self._counts), strict=True)]
        family.add_metric(labels, buckets, self._sum)


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(bound)


class Histogram:
    """A metric with buckets for each value of a label, or only one set of them if it has no label."""

    def __init__(
        self, name: str, text: str, bounds: Sequence[float], label: str | None = None, values: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.text = text
        self._labels = [] if label is None else [label]
        keys: list[tuple[str, ...]] = [()] if label is None else [(value,) for value in values]
        self._buckets = {key: Buckets(bounds) for key in keys}

    def buckets(self, *value: str) -> Buckets:
        """The buckets of that value of the label."""
        return self._buckets[value]

    def collect(self) -> HistogramMetricFamily:
        family = HistogramMetricFamily(self.name, self.text, labels=self._labels)
        for value, buckets in self._buckets.items():
            buckets.add_to(family, value)
        return family


class Gauge:
    """A value, or one for each value of a label, that is asked for at each scrape."""

    def __init__(self, name: str, text: str, label: str | None = None) -> None:
        self.name = name
        self.text = text
        self._labels = [] if label is None else [label]
        self._values: dict[tuple[str, ...], Callable[[], float]] = {}

    def add(self, value: Callable[[], float], *label: str) -> None:
        """Ask `value` for the gauge, or for that value of its label."""
        self._values[label] = value

    def collect(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily(self.name, self.text, labels=self._labels)
        for label, value in self._values.items():
            family.add_metric(label, value())
        return family


class MetricSet(Collector):
    """All counters, histograms and gauges of one registry."""

    def __init__(self) -> None:
        self._counters: list[Counter] = []
        self._histograms: list[Histogram] = []
        self._gauges: list[Gauge] = []

    def counter(self, name: str, text: str) -> Counter:
        self._counters.append(Counter(name, text))
        return self._counters[-1]

    def histogram(
        self, name: str, text: str, bounds: Sequence[float], label: str | None = None, values: Sequence[str] = ()
    ) -> Histogram:
        self._histograms.append(Histogram(name, text, bounds, label, values))
        return self._histograms[-1]

    def gauge(self, name: str, text: str, label: str | None = None) -> Gauge:
        self._gauges.append(Gauge(name, text, label))
        return self._gauges[-1]

    def collect(self) -> Iterator[Metric]:
        for counter in self._counters:
            yield CounterMetricFamily(counter.name, counter.text, value=counter.value)
        for histogram in self._histograms:
            yield histogram.collect()
        for gauge in self._gauges:
            yield gauge.collect()
