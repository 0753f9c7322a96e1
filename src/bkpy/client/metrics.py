"""A client's Prometheus metrics: what it appends, the requests to each bookie, changes of ensembles.

Made when `Client.metrics` is first asked for. Latencies are observed once a request; all else is counted anyway and
added up at a scrape. Invariant: a scrape may come from another thread; it waits for nothing and changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from bkpy.protocol.wire.messages import Op
from bkpy.runtime.metric_set import Buckets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bkpy.client.bookies.channel import BookieChannel
    from bkpy.client.bookies.pool import BookiePool
    from bkpy.client.write.dispatcher import AddDispatcher
    from bkpy.runtime.interfaces import Clock

T = TypeVar("T")

_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class ClientMetrics(Collector):
    """A collector for a `CollectorRegistry` of `prometheus_client`. Two clients need a registry each."""

    def __init__(
        self, pool: BookiePool, dispatcher: AddDispatcher, clock: Clock, others: Callable[[], Iterable[Metric]]
    ) -> None:
        """`others` are those of the client's writers and logs."""
        self._pool = pool
        self._now = clock.monotonic
        self._others = others
        self._acknowledged = Buckets(_SECONDS)
        self._seconds: dict[tuple[str, int], Buckets] = {}
        self._bytes: dict[tuple[str, int], int] = {}
        pool.observe(self._observe)
        dispatcher.observe = self._sent

    def _sent(self) -> Callable[[], None]:
        began = self._now()
        return lambda: self._acknowledged.observe(self._now() - began)

    def _observe(self, channel: BookieChannel) -> None:
        bookie_id, seconds_of, bytes_of = channel.bookie_id, self._seconds, self._bytes

        def observed(op: int, seconds: float, bytes_: int) -> None:
            key = (bookie_id, op)
            buckets = seconds_of.get(key)
            if buckets is None:
                buckets, bytes_of[key] = Buckets(_SECONDS), 0
                seconds_of[key] = buckets
            buckets.observe(seconds)
            bytes_of[key] += bytes_

        channel.observe(observed)

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        yield from self._others()
        acknowledged = HistogramMetricFamily(
            "bkpy_client_append_seconds", "Time from sending a request with appends to its ack quorum's answers"
        )
        self._acknowledged.add_to(acknowledged, ())
        yield acknowledged
        seconds = HistogramMetricFamily(
            "bkpy_client_request_seconds",
            "Time from sending a request to the bookie's answer; the count is the number of answers",
            labels=("bookie", "operation"),
        )
        bytes_ = CounterMetricFamily(
            "bkpy_client_request_bytes",
            "Bytes of entry records in these requests and answers",
            labels=("bookie", "operation"),
        )
        for (bookie_id, op), buckets in steady(self._seconds.items):
            labels = (bookie_id, Op(op).name.lower())
            buckets.add_to(seconds, labels)
            bytes_.add_metric(labels, self._bytes[bookie_id, op])
        yield seconds
        yield bytes_
        yield from self._of_bookies()
        latency = self._pool.latency
        yield CounterMetricFamily(
            "bkpy_client_speculative_reads", "Reads of another replica because one was late", value=latency.speculative
        )
        yield CounterMetricFamily(
            "bkpy_client_speculative_reads_won", "Speculative reads that were answered first", value=latency.won
        )

    def _of_bookies(self) -> Iterator[Metric]:
        channels = steady(lambda: self._pool.channels)

        def counter(name: str, text: str, value: Callable[[BookieChannel], int]) -> Metric:
            family = CounterMetricFamily(f"bkpy_client_{name}", text, labels=("bookie",))
            for channel in channels:
                family.add_metric((channel.bookie_id,), value(channel))
            return family

        def gauge(name: str, text: str, value: Callable[[BookieChannel], int]) -> Metric:
            family = GaugeMetricFamily(f"bkpy_client_{name}", text, labels=("bookie",))
            for channel in channels:
                family.add_metric((channel.bookie_id,), value(channel))
            return family

        yield gauge("bookie_up", "1 while there is a connection to the bookie", lambda channel: channel.up)
        yield gauge(
            "in_flight_bytes",
            "Bytes of appends that the bookie has yet to answer",
            lambda channel: channel.in_flight_bytes,
        )
        yield counter("connections", "Connections to the bookie so far", lambda channel: channel.generation)
        yield counter(
            "failed_requests", "Requests that got no answer from the bookie", lambda channel: channel.failed_requests
        )
        yield counter(
            "resent_batches",
            "Batches of appends sent to the bookie once more, or in another one's place",
            lambda channel: channel.resent_batches,
        )
        yield counter(
            "ensemble_changes",
            "Changes of an ensemble that put another bookie in the place of this one",
            lambda channel: channel.replaced,
        )


def steady(values: Callable[[], Iterable[T]]) -> list[T]:
    """A copy of values that the event loop's thread may change meanwhile."""
    while True:
        try:
            return list(values())
        except RuntimeError:  # changed while it was copied
            continue
