"""The part of the demonstration that streams: one log, written, tailed and aggregated all at the same time.

A service appends the flights as their time comes, and is killed; another one goes on. A consumer tails the log, in two
sessions under one name. A Spark query aggregates in micro-batches, is stopped in the middle, and restarts from its
checkpoint.

Invariants: every flight that counts as found was compared with the source; no process is left behind.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import bkpy
from bkpy.demo.delays import delays_by_origin, stored_windows
from bkpy.demo.events import LOG
from bkpy.demo.flights import said, unfinished
from bkpy.errors import BookKeeperError
from bkpy.local.process import ManagedProcess, poll

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from bkpy.demo.delays import DelayWindow
    from bkpy.demo.events import FlightEvent

CONSUMER = "demo"

_BATCHES_MIN = 8  # however late Spark begins: it has something to do before it is stopped, and after
_COMMIT_INTERVAL_S = 1.0
_LOOK_INTERVAL_S = 0.1
_PATIENCE_S = 120.0  # for whatever is waited for; all of it together takes a fraction of that

Tell = Callable[[str, int], None]  # who has got how far: one of `PARTS`
PARTS = ("service", "consumer", "Spark")


@dataclass(frozen=True)
class Takeover:
    """The service that was killed, and the one that went on."""

    acknowledged: int  # events, by what the first one said
    position: int  # where the second one went on
    seconds: float  # from the kill until the second one could append


@dataclass(frozen=True)
class Tailed:
    """What the consumer has got, in the order in which it came."""

    payloads: list[bytes]
    resumed_at: int  # the position that it went on from


@dataclass(frozen=True)
class Aggregated:
    """What the Spark query did."""

    batches: int
    stopped_at: int  # the position up to which it had noted that batches were done
    resumed_at: int  # where the first batch began after that
    windows: list[DelayWindow]


@dataclass(frozen=True)
class Streamed:
    """All of that, and what the log holds in the end."""

    takeover: Takeover
    tailed: Tailed
    aggregated: Aggregated
    payloads: list[bytes]  # of the log, by position
    ledgers: int
    seconds: float


@dataclass(frozen=True)
class Pipeline:
    """Where everything is. The log is to get `events`, of so many flights of each month if that is a number."""

    uri: str
    spark: SparkSession
    directory: Path
    events: Sequence[FlightEvent]
    days_per_second: float
    of_each_month: int | None = None

    @property
    def parquet(self) -> Path:
        """What the query writes."""
        return self.directory / "delays.parquet"


class _LogState:
    """What the readers of the log wait for."""

    def __init__(self) -> None:
        self.there = asyncio.Event()
        self.complete = asyncio.Event()


async def stream(pipeline: Pipeline, tell: Tell) -> Streamed:
    """Run everything until each of the parts has seen all events. `tell` is called with their progress."""
    started = time.monotonic()
    log = _LogState()
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(_serve(pipeline, tell, log))
        tailing = group.create_task(_tail(pipeline, tell, log))
        aggregating = group.create_task(_aggregate(pipeline, tell, log))
    seconds = time.monotonic() - started
    payloads, ledgers = await _read(pipeline.uri)
    return Streamed(serving.result(), tailing.result(), aggregating.result(), payloads, ledgers, seconds)


# --- results ----------------------------------------------------------------------------------------------------------


class DeliveryCount(NamedTuple):
    """The source's flights in one place. `displaced` are out of the source's order; None where there is no order."""

    flights: int
    missing: int
    surplus: int  # flights that come twice, and flights that are not in the source
    displaced: int | None

    @property
    def exact(self) -> bool:
        return self.missing == self.surplus == 0 == (self.displaced or 0)


def events_in(found: Sequence[bytes], events: Sequence[FlightEvent]) -> DeliveryCount:
    """Compare payloads, in their order, with the events. The one that ends the year is no flight."""
    there, wanted = Counter(found), Counter(event.payload for event in events)
    displaced = sum(one != event.payload for one, event in zip(found, events, strict=False))
    flights = len(found) - there[events[-1].payload]
    return DeliveryCount(flights, (wanted - there).total(), (there - wanted).total(), displaced)


def flights_in(found: Sequence[DelayWindow], expected: Sequence[DelayWindow]) -> DeliveryCount:
    """Compare the flights that windows have counted. A window that has two rows has counted all of both."""
    there, wanted = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for windows, counts in ((found, there), (expected, wanted)):
        for window in windows:
            counts[window.begins, window.origin] += window.flights
    return DeliveryCount(there.total(), (wanted - there).total(), (there - wanted).total(), None)


# --- the service ------------------------------------------------------------------------------------------------------


async def _serve(pipeline: Pipeline, tell: Tell, log: _LogState) -> Takeover:
    """Have two services write the log, the first of which is killed when a third of the events is acknowledged."""
    total = len(pipeline.events)
    first = _Service(pipeline, "service-1.log", tell)
    try:
        await first.until("from", 0)
        log.there.set()
        await first.until("acknowledged", total // 3)
    finally:
        await first.kill()
    killed_at = time.monotonic()
    acknowledged = first.said("acknowledged")
    if first.exit_status != -signal.SIGKILL or not total // 3 <= acknowledged < total:
        raise BookKeeperError(f"the service had ended before it could be killed; its last words:\n{first.last_words()}")
    second = _Service(pipeline, "service-2.log", tell)
    try:
        await second.until("from", 0)
        seconds = time.monotonic() - killed_at
        await second.until("acknowledged", total)
        await second.end()
        log.complete.set()
    finally:
        await second.kill()
    return Takeover(acknowledged, second.said("from"), seconds)


class _Service:
    """A process that runs `bkpy.demo.service`."""

    def __init__(self, pipeline: Pipeline, log_name: str, tell: Tell) -> None:
        self._process = ManagedProcess(pipeline.directory / log_name)
        self._tell = tell
        arguments = [pipeline.uri, str(pipeline.days_per_second)]
        if pipeline.of_each_month is not None:
            arguments.append(str(pipeline.of_each_month))
        self._process.spawn([sys.executable, "-P", "-m", "bkpy.demo.service", *arguments])

    @property
    def exit_status(self) -> int | None:
        return self._process.exit_status

    def said(self, what: str) -> int:
        """The last number that it has printed after this word, or -1."""
        return said(self._process.log_path).get(what, -1)

    def last_words(self) -> str:
        return self._process.log_tail()

    async def until(self, what: str, number: int) -> None:
        """Return when it has printed this number after the word, or a higher one."""

        async def far_enough() -> bool:
            self._tell("service", max(0, self.said("acknowledged")))
            return not self._process.running or self.said(what) >= number

        there = await poll(far_enough, _PATIENCE_S)
        if not there or self.said(what) < number:
            raise unfinished("the service", self._process)

    async def end(self) -> None:
        """Return when it has ended by itself."""

        async def ended() -> bool:
            return not self._process.running

        if not await poll(ended, _PATIENCE_S) or self.exit_status != 0:
            raise unfinished("the service", self._process)

    async def kill(self) -> None:
        await self._process.kill()


# --- the consumer -----------------------------------------------------------------------------------------------------


async def _tail(pipeline: Pipeline, tell: Tell, log: _LogState) -> Tailed:
    """Tail the log as a consumer: half of it in one session, and the rest in another one."""
    await log.there.wait()
    total = len(pipeline.events)
    payloads: list[bytes] = []
    resumed_at = 0
    for until in (total // 2, total):
        async with bkpy.connect(pipeline.uri) as client, await client.read_log(LOG) as reader:
            consumer = await reader.consumer(CONSUMER, create=True)
            resumed_at = consumer.position
            commit_at = time.monotonic() + _COMMIT_INTERVAL_S
            async with aclosing(reader.tail_blocks(first=consumer.position)) as blocks:
                async for block in blocks:
                    payloads += block.payloads()
                    position = block.positions.stop
                    tell("consumer", position)
                    if position >= until or time.monotonic() >= commit_at:
                        await consumer.commit(position)
                        commit_at = time.monotonic() + _COMMIT_INTERVAL_S
                    if position >= until:
                        break
    return Tailed(payloads, resumed_at)


# --- the query --------------------------------------------------------------------------------------------------------


async def _aggregate(pipeline: Pipeline, tell: Tell, log: _LogState) -> Aggregated:
    """Aggregate the log as it grows, with a query that is stopped when it has read half of it, and started again."""
    await log.there.wait()
    half = len(pipeline.events) // 2
    query = await asyncio.to_thread(_start_query, pipeline)

    async def half_read() -> bool:
        return await _progress(query, tell) >= half

    if not await poll(half_read, _PATIENCE_S):
        raise BookKeeperError(f"the query makes no progress: {query.status}")
    await asyncio.to_thread(query.stop)
    before = await asyncio.to_thread(_batches, query)
    query = await asyncio.to_thread(_start_query, pipeline)

    async def all_written() -> bool:
        await _progress(query, tell)
        return log.complete.is_set()

    await poll(all_written, None)
    await asyncio.to_thread(query.processAllAvailable)
    await _progress(query, tell)
    await asyncio.to_thread(query.stop)
    after = await asyncio.to_thread(_batches, query)
    windows = await asyncio.to_thread(stored_windows, pipeline.spark, pipeline.parquet)
    stopped_at = _position(before[-1], "endOffset")
    resumed_at = _position(after[0], "startOffset") if after else stopped_at
    return Aggregated(len(before) + len(after), stopped_at, resumed_at, windows)


async def _progress(query: StreamingQuery, tell: Tell) -> int:
    """The position up to which the query's batches are done; 0 before the first."""
    await asyncio.sleep(_LOOK_INTERVAL_S)
    batches = await asyncio.to_thread(_batches, query)
    position = _position(batches[-1], "endOffset") if batches else 0
    tell("Spark", position)
    return position


def _start_query(pipeline: Pipeline) -> StreamingQuery:
    entries = (
        pipeline.spark.readStream.format("bkpy")
        .option("metadataServiceUri", pipeline.uri)
        .option("log", LOG)
        .option("maxEntriesPerTrigger", max(1, len(pipeline.events) // _BATCHES_MIN))
        .load()
    )
    return (
        delays_by_origin(entries)
        .writeStream.format("parquet")
        .option("path", str(pipeline.parquet))
        .option("checkpointLocation", str(pipeline.directory / "delays.checkpoint"))
        .start()
    )


def _batches(query: StreamingQuery) -> list[Any]:
    """The progress of finished batches, by their ids. Raises the query's error if it has failed."""
    if (failure := query.exception()) is not None:
        raise failure
    done = {progress["batchId"]: progress for progress in query.recentProgress if "addBatch" in progress["durationMs"]}
    return [done[batch_id] for batch_id in sorted(done)]


def _position(progress: Any, which: str) -> int:
    offset = progress["sources"][0][which]
    return 0 if offset in (None, "null") else int(json.loads(offset)["position"])


# --- the log ----------------------------------------------------------------------------------------------------------


async def _read(uri: str) -> tuple[list[bytes], int]:
    """All payloads of the log, and the number of its ledgers."""
    payloads: list[bytes] = []
    ledgers = set()
    async with bkpy.connect(uri) as client, await client.read_log(LOG) as reader:
        async for block in reader.read_blocks():
            payloads += block.payloads()
            ledgers.add(block.ledger_id)
    return payloads, len(ledgers)
