"""Prometheus metrics of the writers and the named logs of one client, and of consumers' lags.

A lag takes reads of the log. The client measures it every `metrics_lag_interval_s`, once there are metrics: of each
consumer that it has, and as a log's writer of all consumers of the log, so that one that nobody runs is seen.

Invariants: at most `metrics_consumers_max` consumers of a log are named, those furthest behind; a lag that can't be
measured is left out.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from bkpy.client.metrics import steady
from bkpy.errors import BookKeeperError
from bkpy.log.traffic import appended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from bkpy.client.write.writer import LedgerWriter
    from bkpy.config.client import ClientSettings
    from bkpy.log.traffic import Lag, OpenLogs

log = logging.getLogger("bkpy.client")


class WriterMetrics:
    """`writers` are the client's open ones."""

    def __init__(self, writers: Callable[[], Iterable[LedgerWriter]], logs: OpenLogs, settings: ClientSettings) -> None:
        self._writers = writers
        self._logs = logs
        self._settings = settings
        self._lags: Mapping[tuple[str, str], Lag] = {}

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now; the lags as they were measured last."""
        logs, writers = self._logs, steady(self._writers)
        entries, bytes_, failed = logs.ended.appended_entries, logs.ended.appended_bytes, logs.failed_appends
        by_log = {
            name: (one.appended_entries, one.appended_bytes, one.read_entries, one.read_bytes)
            for name, one in steady(logs.traffic.items)
        }
        for writer in writers:
            done = appended(writer)
            entries, bytes_, failed = entries + done.entries, bytes_ + done.bytes, failed + done.failed
            if done.log:
                name = logs.name_of(done.log)
                before = by_log.get(name, (0, 0, 0, 0))
                by_log[name] = (before[0] + done.entries, before[1] + done.bytes, *before[2:])
        yield CounterMetricFamily("bkpy_client_appends", "Entries acknowledged", value=entries)
        yield CounterMetricFamily("bkpy_client_append_bytes", "Bytes of payload of these", value=bytes_)
        yield CounterMetricFamily(
            "bkpy_client_failed_appends", "Entries whose append has failed with its writer", value=failed
        )
        yield GaugeMetricFamily("bkpy_client_writers", "Writers of ledgers that are open", value=len(writers))
        for place, (what, text) in enumerate(
            (
                ("appended_entries", "Entries of the log that this client has had acknowledged"),
                ("appended_bytes", "Bytes of payload of these"),
                ("read_entries", "Entries of the log that this client has read"),
                ("read_bytes", "Bytes of payload of these"),
            )
        ):
            family = CounterMetricFamily(f"bkpy_client_log_{what}", text, labels=("log",))
            for name, counts in by_log.items():
                family.add_metric((name,), counts[place])
            yield family
        yield from self._of_consumers()

    def _of_consumers(self) -> Iterator[Metric]:
        for place, (what, text) in enumerate(
            (
                ("entries", "Entries that the consumer has yet to read"),
                ("bytes", "About how many bytes they have"),
                ("seconds", "How old the first of them is"),
            )
        ):
            family = GaugeMetricFamily(f"bkpy_client_consumer_lag_{what}", text, labels=("log", "consumer"))
            for labels, lag in self._lags.items():
                family.add_metric(labels, lag[place])
            yield family

    async def measure_forever(self) -> None:
        """Measure the lags again and again."""
        try:
            while True:
                await self.measure()
                await asyncio.sleep(self._settings.metrics_lag_interval_s)
        finally:
            self._lags = {}

    async def measure(self) -> None:
        """Measure all lags now."""
        lags: dict[str, dict[str, Lag]] = {}
        for consumer, lag_at in list(self._logs.consumers.items()):
            try:
                lags.setdefault(consumer.log, {})[consumer.name] = await lag_at(consumer.position)
            except BookKeeperError as e:
                log.debug("log %s: failed to measure the lag of consumer %s: %s", consumer.log, consumer.name, e)
        for writer, lags_of in list(self._logs.writers.items()):
            if not writer.usable:
                continue
            try:
                found = await lags_of()
            except BookKeeperError as e:
                log.debug("log %s: failed to measure the lags of its consumers: %s", writer.name, e)
                continue
            lags.setdefault(writer.name, {}).update(found)
        most = self._settings.metrics_consumers_max
        self._lags = {
            (name, consumer): lag
            for name, of_log in list(lags.items())[: self._settings.metrics_logs_max]
            for consumer, lag in sorted(of_log.items(), key=lambda one: -one[1][-1])[:most]
        }
