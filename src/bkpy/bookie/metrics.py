"""A bookie's Prometheus metrics: requests, bytes and latencies of each operation, journal groups, memory and space.

The bookie counts once per frame, group or checkpoint, never per entry. Latencies are in seconds.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import prometheus_client
from prometheus_client import CollectorRegistry, generate_latest

from bkpy._version import VERSION
from bkpy.protocol.wire.messages import AddColumns, Flags, Op, Status
from bkpy.runtime.metric_set import Buckets, Counter, MetricSet
from bkpy.runtime.tls import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.runtime.interfaces import Clock
    from bkpy.storage.engine import LedgerStorage
    from bkpy.storage.memory_budget import MemoryBudget

log = logging.getLogger("bkpy.bookie")

_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_KEY_OUTCOMES: Final = {
    Status.OK: "accepted",  # the key here was wrong, and has given way
    Status.UNAUTHORIZED: "refused",
    Status.UNAVAILABLE: "undecided",
    Status.UNKNOWN: "entries",  # are stored here under the wrong key
}
_FRAMES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_RECOVERY: Final = int(Flags.RECOVERY)  # an `IntFlag` takes a microsecond to be tested
_BYTES: Final = tuple(1 << k for k in range(8, 25, 2))


class BookieMetrics:
    """One registry per bookie, so that bookies in one process don't mix. It is the storage's observer, too."""

    def __init__(self, clock: Clock) -> None:
        self.appended = 0  # frames of clients, not those of recoveries and copies
        self.packets = self.messages = 0  # requests of BookKeeper's protocols v2 and v3
        self._now = clock.monotonic
        self._time = clock.time
        self._session_lost_s = 0.0
        self.registry = CollectorRegistry()
        self._metrics = metrics = MetricSet()

        def counter(name: str, text: str) -> Counter:
            return metrics.counter(f"bkpy_bookie_{name}", text)

        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> Buckets:
            return metrics.histogram(f"bkpy_bookie_{name}", text, bounds).buckets()

        self._add_entries = counter("add_entries", "Entries accepted for storing")
        self._add_batches = counter("add_batches", "Batches accepted for storing")
        self._add_bytes = counter("add_bytes", "Bytes of entry records accepted for storing")
        self._read_bytes = counter("read_bytes", "Bytes of entry records sent to readers")
        self._refused = counter("refused_frames", "Frames that broke the protocol; each closed its connection")
        self._bad_requests = counter("bad_requests", "Frames that were no requests; each was answered so")
        self._refused_connections = counter("refused_connections", "Connections closed because there were too many")
        self._handshakes = counter("tls_handshakes", "TLS handshakes that have succeeded")
        self._damage = counter("damage", "Stored bytes found damaged or unreadable")
        operations = {int(op): op.name.lower() for op in Op if op not in (Op.HELLO, Op.PRESENT)}
        latency = metrics.histogram(
            "bkpy_bookie_request_seconds",
            "Time from the arrival of a request to its reply; the count is the number of requests",
            _SECONDS,
            "operation",
            list(operations.values()),
        )
        self._latency = {op: latency.buckets(name) for op, name in operations.items()}
        self._group_frames = histogram("journal_group_frames", "Requests that one sync made durable", _FRAMES)
        self._group_bytes = histogram("journal_group_bytes", "Bytes that one sync made durable", _BYTES)
        self._sync_seconds = histogram("journal_sync_seconds", "Time of one write and sync of the journal", _SECONDS)
        self._checkpoint_bytes = counter("checkpoint_bytes", "Bytes flushed from memory to the entry log")
        self._checkpoint_seconds = histogram("checkpoint_seconds", "Time of one checkpoint", _SECONDS)
        self._reclaimed_bytes = counter("reclaimed_bytes", "Bytes of entry logs that were removed")
        self._compacted_bytes = counter("compacted_bytes", "Bytes of blocks copied by compaction")
        self._reclaim_failures = counter(
            "reclaim_failures", "Rounds of giving space back that an error of a file ended"
        )
        self._scrubbed_bytes = counter("scrubbed_bytes", "Bytes of blocks that the scrub has read and verified")
        self.registry.register(metrics)
        failures = prometheus_client.Counter(
            "bkpy_bookie_tls_failures", "TLS handshakes that have failed", ["reason"], registry=self.registry
        )
        self._failed_handshakes = {failure: failures.labels(failure.value) for failure in Failure}
        disputes = prometheus_client.Counter(
            "bkpy_bookie_key_disputes",
            "Requests whose key was not the one that this bookie had for the ledger, by what the metadata decided",
            ["outcome"],
            registry=self.registry,
        )
        self._key_disputes = {status: disputes.labels(outcome) for status, outcome in _KEY_OUTCOMES.items()}
        self._metrics.gauge("bkpy_build_info", "1; the label says which version this bookie runs", "version").add(
            lambda: 1, VERSION
        )

        metrics.gauge(
            "bkpy_bookie_session_lost_seconds",
            "When the bookie last lost its session with the metadata store, in seconds since 1970; 0 if it never has",
        ).add(lambda: self._session_lost_s)
        self._connections = metrics.gauge("bkpy_bookie_connections", "Open client connections")
        self._read_only = metrics.gauge("bkpy_bookie_read_only", "1 while no new entries are taken")
        for gauge in (self._connections, self._read_only):
            gauge.add(lambda: 0)  # until there is a storage

    def watch(self, storage: LedgerStorage, connections: Callable[[], int], read_only: Callable[[], bool]) -> None:
        """Add gauges that are read at each scrape."""

        def gauge(name: str, text: str, value: Callable[[], float]) -> None:
            self._metrics.gauge(f"bkpy_bookie_{name}", text).add(value)

        self._connections.add(connections)
        self._read_only.add(read_only)
        gauge("memtable_bytes", "Bytes of entries held in memory", lambda: storage.memory_bytes)
        gauge("entry_logs", "Entry logs that are full", lambda: storage.space.logs)
        gauge("entry_log_bytes", "Bytes of entry logs that are full", lambda: storage.space.bytes)
        gauge("living_bytes", "Bytes in them that are still needed", lambda: storage.space.living)
        gauge("compaction_bytes", "Bytes that compaction has yet to copy", lambda: storage.space.compacting)
        gauge("deleted_ledgers", "Deleted ledgers still in the index", lambda: storage.space.deleted_ledgers)
        scrub = storage.scrub
        gauge("scrub_damages", "Damages that the scrub knows of", lambda: scrub.damage_count)
        gauge("scrub_progress", "Share of the bytes that the round of the scrub has done", lambda: scrub.progress)
        gauge(
            "scrub_last_round_end_seconds",
            "When the last full round of the scrub ended, in seconds since 1970; 0 before it",
            lambda: scrub.last_round_ended_s or 0.0,
        )
        budget = storage.memory
        parts = self._metrics.gauge("bkpy_bookie_memory_bytes", "Bytes of each part of the budget", "part")
        for name in budget.by_name():
            parts.add(partial(_bytes_of, budget, name), name)
        gauge("memory_bytes_max", "Bytes that all parts may hold together", lambda: budget.bytes_max)
        gauge("memory_full", "1 while nothing is read from clients that write", lambda: storage.full)
        blocks = self._metrics.gauge(
            "bkpy_bookie_blocks",
            "Blocks so far that were found in memory, that were not, and that were loaded ahead",
            "what",
        )
        shards = storage.shards
        blocks.add(lambda: sum(shard.cache.hits for shard in shards), "found")
        blocks.add(lambda: sum(shard.cache.misses for shard in shards), "missed")
        blocks.add(lambda: sum(shard.ahead.blocks for shard in shards), "loaded ahead")

    def watch_protocols(self) -> None:
        """Add gauges of what came by each of BookKeeper's protocols."""
        requests = self._metrics.gauge(
            "bkpy_bookie_bookkeeper_requests", "Requests of Apache BookKeeper's clients so far, by protocol", "protocol"
        )
        requests.add(lambda: self.packets, "v2")
        requests.add(lambda: self.messages, "v3")

    def watch_certificate(self, ends_s: Callable[[], float]) -> None:
        """Add a gauge of when the bookie's certificate ends."""
        self._metrics.gauge(
            "bkpy_bookie_certificate_end_seconds",
            "When the bookie's certificate ends, in seconds since 1970; 0 if others don't take it now",
        ).add(ends_s)

    def added(self) -> tuple[float, float]:
        """How many entries have been accepted for storing, and their bytes."""
        return self._add_entries.value, self._add_bytes.value

    def session_lost(self) -> None:
        """The session with the metadata store has expired."""
        self._session_lost_s = self._time()

    def render(self) -> bytes:
        """The page in Prometheus' text format."""
        return generate_latest(self.registry)

    # --- requests ---------------------------------------------------------------------------------------------------

    def add_started(self, columns: AddColumns, body_bytes: int) -> float:
        """Count a frame of accepted batches; give the result to `add_done` when it is durable."""
        if not columns.flags & _RECOVERY:
            self.appended += 1
        self._add_entries.value += sum(columns.counts)
        self._add_batches.value += len(columns.counts)
        self._add_bytes.value += body_bytes
        return self._now()

    def add_done(self, began: float) -> float:
        """When it is durable."""
        now = self._now()
        self._latency[Op.ADD].observe(now - began)
        return now

    def request_started(self, op: int) -> Callable[[], float]:
        """Call the result when the request ends, for how many seconds it took."""
        observe, now, began = self._latency[op].observe, self._now, self._now()

        def done() -> float:
            seconds = now() - began
            observe(seconds)
            return seconds

        return done

    def read_done(self, sent_bytes: int) -> None:
        self._read_bytes.value += sent_bytes

    def frame_refused(self) -> None:
        self._refused.value += 1

    def request_refused(self) -> None:
        self._bad_requests.value += 1

    def connection_refused(self) -> None:
        self._refused_connections.value += 1

    def handshake_done(self) -> None:
        self._handshakes.value += 1

    def handshake_failed(self, failure: Failure) -> None:
        self._failed_handshakes[failure].inc()

    def key_decided(self, status: Status) -> None:
        self._key_disputes[status].inc()

    # --- the storage's observer -------------------------------------------------------------------------------------

    def journal_group(self, frames: int, bytes_: int, sync_seconds: float) -> None:
        self._group_frames.observe(frames)
        self._group_bytes.observe(bytes_)
        self._sync_seconds.observe(sync_seconds)

    def checkpoint(self, bytes_: int, seconds: float) -> None:
        self._checkpoint_bytes.value += bytes_
        self._checkpoint_seconds.observe(seconds)

    def replayed(self, frames: int, bytes_: int) -> None:
        log.info("replayed %d frames, %d bytes of journal", frames, bytes_)

    def reclaim_failed(self) -> None:
        self._reclaim_failures.value += 1

    def compacted(self, bytes_: int) -> None:
        self._compacted_bytes.value += bytes_

    def log_removed(self, bytes_: int) -> None:
        self._reclaimed_bytes.value += bytes_

    def scrubbed(self, bytes_: int) -> None:
        self._scrubbed_bytes.value += bytes_

    def cut(self, what: str, path: str) -> None:
        log.warning("%s: %s", path, what)

    def damage(self, what: str, path: str) -> None:
        self._damage.value += 1
        log.error("damage in %s: %s", path, what)


def _bytes_of(budget: MemoryBudget, part: str) -> int:
    return budget.by_name()[part]
