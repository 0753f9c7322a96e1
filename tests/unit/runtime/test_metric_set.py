"""What is counted cheaply comes out as Prometheus' own metrics would."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from bkpy.runtime.metric_set import MetricSet

BOUNDS = (1, 2.5, 10)
VALUES = (0, 1, 1.5, 2.5, 3, 10, 10.5, 1e9)


def samples(registry: CollectorRegistry) -> set[str]:
    lines = generate_latest(registry).decode().splitlines()
    return {line for line in lines if "_created" not in line}


def test_the_page_is_that_of_prometheus_own_metrics() -> None:
    metrics = MetricSet()
    entries = metrics.counter("things", "Things counted")
    times = metrics.histogram("seconds", "Time taken", BOUNDS, "operation", ["add", "read"])
    sizes = metrics.histogram("bytes", "Sizes seen", BOUNDS).buckets()
    ours = CollectorRegistry()
    ours.register(metrics)

    theirs = CollectorRegistry()
    their_entries = Counter("things", "Things counted", registry=theirs)
    their_times = Histogram("seconds", "Time taken", ["operation"], buckets=BOUNDS, registry=theirs)
    their_times.labels("add")
    their_times.labels("read")
    their_sizes = Histogram("bytes", "Sizes seen", buckets=BOUNDS, registry=theirs)

    for value in VALUES:
        entries.value += 3
        their_entries.inc(3)
        times.buckets("add").observe(value)
        their_times.labels("add").observe(value)
        sizes.observe(value)
        their_sizes.observe(value)
    assert samples(ours) == samples(theirs)


def test_a_gauge_is_asked_at_each_scrape() -> None:
    held = {"keys": 1, "blocks": 2}
    metrics = MetricSet()
    metrics.gauge("open", "Things open").add(lambda: sum(held.values()))
    parts = metrics.gauge("parts", "Each of them", "part")
    for name in held:
        parts.add(lambda name=name: held[name], name)
    ours = CollectorRegistry()
    ours.register(metrics)

    theirs = CollectorRegistry()
    Gauge("open", "Things open", registry=theirs).set_function(lambda: sum(held.values()))
    their_parts = Gauge("parts", "Each of them", ["part"], registry=theirs)
    for name in held:
        their_parts.labels(name).set_function(lambda name=name: held[name])

    assert samples(ours) == samples(theirs)
    held["blocks"] = 7
    assert 'parts{part="blocks"} 7.0' in samples(ours)
    assert samples(ours) == samples(theirs)
