"""The workloads: appends and reads of a running cluster, timed per call.

Each of `outstanding` tasks makes one call after the other. The first part of a run is a warm-up that isn't counted.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import bkpy

WARM_UP_SHARE: Final = 0.25
WARM_UP_MIN_S: Final = 1.0
BATCH_ENTRIES: Final = 1000  # of one append_batch
READ_LEDGER_BYTES: Final = 64 << 20  # what is written before it is read, over and over

APPEND_APIS: Final = ("append", "append_batch")
READ_APIS: Final = ("read", "read_blocks")


@dataclass(frozen=True)
class Options:
    """What to run. `size` is payload bytes of an entry; `outstanding` is calls in flight over all ledgers."""

    workload: str
    size: int
    outstanding: int
    ledgers: int
    ensemble: tuple[int, int, int]
    seconds: float
    api: str


class Meter:
    """Counts entries and times calls between `start` and `stop`."""

    def __init__(self) -> None:
        self.entries = 0
        self.errors = 0
        self.latencies = array("d")
        self.seconds = 0.0
        self._began = 0.0
        self.counting = False
        self.running = True

    def start(self) -> None:
        self.counting = True
        self._began = time.perf_counter()

    def stop(self) -> None:
        self.seconds = time.perf_counter() - self._began
        self.counting = False
        self.running = False

    def count(self, entries: int, began: float) -> None:
        if self.counting:
            self.entries += entries
            self.latencies.append(time.perf_counter() - began)

    def result(self, options: Options) -> dict[str, Any]:
        ordered = sorted(self.latencies)

        def percentile(share: float) -> float | None:
            return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 3) if ordered else None

        rate = self.entries / self.seconds if self.seconds else 0.0
        return {
            "workload": options.workload,
            "api": options.api,
            "size": options.size,
            "outstanding": options.outstanding,
            "ledgers": options.ledgers,
            "ensemble": list(options.ensemble),
            "seconds": round(self.seconds, 3),
            "entries_per_s": round(rate, 1),
            "mb_per_s": round(rate * options.size / 1e6, 2),
            "p50_ms": percentile(0.5),
            "p99_ms": percentile(0.99),
            "p999_ms": percentile(0.999),
            "errors": self.errors,
        }


async def run(client: bkpy.Client, options: Options, progress: Callable[[float], None]) -> dict[str, Any]:
    """Run the workload; `progress` is told the share done, 0 to 1. The ledgers are deleted at the end."""
    meter = Meter()
    made: list[int] = []
    try:
        if options.workload == "append":
            writers = await _create(client, options, made)
            calls = [_append_calls(writers[i % len(writers)], options, meter) for i in range(options.outstanding)]
            await _timed(calls, options, meter, progress)
            for writer in writers:
                await writer.close()
        else:
            readers = await _filled(client, options, made)
            calls = [_read_calls(readers[i % len(readers)], options, meter) for i in range(options.outstanding)]
            await _timed(calls, options, meter, progress)
    finally:
        await asyncio.gather(*(client.delete_ledger(ledger_id) for ledger_id in made), return_exceptions=True)
    return meter.result(options)


async def _create(client: bkpy.Client, options: Options, made: list[int]) -> list[bkpy.LedgerWriter]:
    size, write_quorum, ack_quorum = options.ensemble
    bound = asyncio.Semaphore(64)

    async def create() -> bkpy.LedgerWriter:
        async with bound:
            writer = await client.create_ledger(ensemble_size=size, write_quorum=write_quorum, ack_quorum=ack_quorum)
        made.append(writer.ledger_id)
        return writer

    return await asyncio.gather(*(create() for _ in range(options.ledgers)))


async def _filled(client: bkpy.Client, options: Options, made: list[int]) -> list[bkpy.LedgerReader]:
    """Closed ledgers, together of about READ_LEDGER_BYTES."""
    writers = await _create(client, options, made)
    count = max(1, READ_LEDGER_BYTES // options.ledgers // options.size)
    payload = bytes(options.size)
    readers = []
    for writer in writers:
        for start in range(0, count, BATCH_ENTRIES):
            await writer.append_batch([payload] * min(BATCH_ENTRIES, count - start))
        await writer.close()
        readers.append(await client.open_ledger(writer.ledger_id))
    return readers


async def _append_calls(writer: bkpy.LedgerWriter, options: Options, meter: Meter) -> None:
    payload = bytes(options.size)
    now = time.perf_counter
    if options.api == "append":
        while meter.running:
            began = now()
            await writer.append(payload)
            meter.count(1, began)
    else:
        batch = [payload] * BATCH_ENTRIES
        while meter.running:
            began = now()
            await writer.append_batch(batch)
            meter.count(BATCH_ENTRIES, began)


async def _read_calls(reader: bkpy.LedgerReader, options: Options, meter: Meter) -> None:
    """Read the ledger from end to end, again and again. One call is what yields BATCH_ENTRIES entries, or one block."""
    now = time.perf_counter
    while meter.running:
        began = now()
        pending = 0
        if options.api == "read":
            async for _ in reader.read():
                pending += 1
                if pending == BATCH_ENTRIES:
                    meter.count(pending, began)
                    began, pending = now(), 0
                    if not meter.running:
                        break
        else:
            async for block in reader.read_blocks():
                meter.count(len(block), began)
                began = now()
                if not meter.running:
                    break
        if pending:
            meter.count(pending, began)


async def _timed(
    calls: list[Coroutine[Any, Any, None]], options: Options, meter: Meter, progress: Callable[[float], None]
) -> None:
    """Run the calls for the given time; the first error ends the run and is raised."""
    warm_up = max(WARM_UP_MIN_S, options.seconds * WARM_UP_SHARE)
    async with asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(call)
        await _wait(warm_up, lambda share: progress(share * 0.2))
        meter.start()
        await _wait(options.seconds, lambda share: progress(0.2 + share * 0.8))
        meter.stop()


async def _wait(seconds: float, progress: Callable[[float], None]) -> None:
    steps = max(1, round(seconds / 0.5))
    for step in range(steps):
        await asyncio.sleep(seconds / steps)
        progress((step + 1) / steps)
