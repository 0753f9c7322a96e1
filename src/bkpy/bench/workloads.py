"""The workloads: appends and reads of a running cluster, timed per call.

Each of `outstanding` tasks makes one call after the other. The first part of a run is a warm-up that isn't counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import bkpy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence

T = TypeVar("T")

WARM_UP_SHARE: Final = 0.25
WARM_UP_MIN_S: Final = 1.0
WARM_UP_MAX_S: Final = 10.0
BATCH_ENTRIES: Final = 1000  # of one append_batch
READ_LEDGER_BYTES: Final = (
    32 << 20
)  # what is written before it is read, over and over; less than a memtable is flushed at
GAP_RESOLUTION_S: Final = 0.01
LEDGERS_AT_ONCE: Final = 64  # made, closed or deleted

# Latencies are counted by classes of 5 us, so that a run of any length takes the same memory; the few above a second
# are kept as they are.
LATENCY_CLASSES_PER_S: Final = 200_000

APPEND_APIS: Final = ("append", "append_batch")
READ_APIS: Final = ("read", "read_blocks")


@dataclass(frozen=True)
class Options:
    """What to run. `size` is payload bytes of an entry; `outstanding` is calls in flight over all ledgers.

    With `log`, appends go to named logs, as many as `ledgers` says, which roll each `roll_s` seconds, if that is given.
    """

    workload: str
    size: int
    outstanding: int
    ledgers: int
    ensemble: tuple[int, int, int]
    seconds: float
    api: str
    log: bool = False
    roll_s: float | None = None


Writer = bkpy.LedgerWriter | bkpy.LogWriter


class Meter:
    """Counts entries and times calls between `start` and `stop`."""

    def __init__(self) -> None:
        self.entries = 0
        self.errors = 0
        self.seconds = 0.0
        self.longest_gap_s = 0.0
        self._seen = 0
        self._seen_at = 0.0
        self._counts = [0] * LATENCY_CLASSES_PER_S
        self._slow: list[float] = []
        self._began = 0.0
        self.counting = False
        self.running = True

    def start(self) -> None:
        self.counting = True
        self._began = self._seen_at = time.perf_counter()

    def stop(self) -> None:
        self.look()
        self.seconds = time.perf_counter() - self._began
        self.counting = False
        self.running = False

    def count(self, entries: int, began: float) -> None:
        if self.counting:
            self.entries += entries
            waited = time.perf_counter() - began
            try:
                self._counts[int(waited * LATENCY_CLASSES_PER_S)] += 1
            except IndexError:
                self._slow.append(waited)

    def look(self) -> None:
        """Note the time since the last look that found new entries: in all of it, maybe, no call came back.

        Looking now and then costs the calls nothing. A loop that is too busy to look is a gap, too.
        """
        now = time.perf_counter()
        self.longest_gap_s = max(self.longest_gap_s, now - self._seen_at)
        if self.entries != self._seen:
            self._seen, self._seen_at = self.entries, now

    def percentiles_ms(self, *shares: float) -> list[float | None]:
        """For each share the latency that this share of the calls didn't exceed, in ms; None if there were no calls."""
        total = sum(self._counts) + len(self._slow)
        if not total:
            return [None] * len(shares)
        ranks = [min(total - 1, int(total * share)) for share in shares]
        found: dict[int, float] = {}
        below = 0
        for i, count in enumerate(self._counts):
            if count:
                for rank in ranks:
                    if below <= rank < below + count:
                        found[rank] = (i + 0.5) / LATENCY_CLASSES_PER_S
                below += count
        slow = sorted(self._slow)
        return [round((found[rank] if rank in found else slow[rank - below]) * 1000, 3) for rank in ranks]

    def result(self, options: Options) -> dict[str, Any]:
        p50, p99, p999 = self.percentiles_ms(0.5, 0.99, 0.999)
        rate = self.entries / self.seconds if self.seconds else 0.0
        return {
            "workload": options.workload,
            "api": options.api,
            "size": options.size,
            "outstanding": options.outstanding,
            "ledgers": options.ledgers,
            "log": options.log,
            "roll_s": options.roll_s,
            "ensemble": list(options.ensemble),
            "seconds": round(self.seconds, 3),
            "entries_per_s": round(rate, 1),
            "mb_per_s": round(rate * options.size / 1e6, 2),
            "p50_ms": p50,
            "p99_ms": p99,
            "p999_ms": p999,
            "longest_gap_ms": round(self.longest_gap_s * 1000, 1),
            "errors": self.errors,
        }


async def run(
    client: bkpy.Client,
    options: Options,
    progress: Callable[[float], None],
    before_reads: Callable[[], Awaitable[None]] | None = None,
    after_load: Callable[[], Awaitable[None]] | None = None,
    counted: AbstractContextManager[object] | None = None,
) -> dict[str, Any]:
    """Run the workload, and delete its ledgers at the end. `progress` is called with the share done, 0 to 1.

    `before_reads` is awaited when the ledgers to read are closed and not yet opened, `after_load` when no call is made
    any more and all ledgers are still open. `counted` is entered for the seconds that are counted. A run goes on until
    a call has come back: it never ends in a row of zeros.
    """
    meter = Meter()
    made: list[int] = []
    logs: list[str] = []
    try:
        if options.workload == "append":
            writers: Sequence[Writer] = (
                await _open_logs(client, options, logs) if options.log else await _create(client, options, made)
            )
            calls = [_append_calls(_share(writers, i, options), options, meter) for i in range(options.outstanding)]
            await _timed(calls, options, meter, progress, counted)
            if after_load is not None:
                await after_load()
            await _for_all(writers, lambda writer: writer.close())
            _warn_of_missing_copies([writer for writer in writers if isinstance(writer, bkpy.LedgerWriter)])
        else:
            await _fill(client, options, made)
            if before_reads is not None:
                await before_reads()
            readers = [await client.open_ledger(ledger_id) for ledger_id in made]
            calls = [_read_calls(readers[i % len(readers)], options, meter) for i in range(options.outstanding)]
            await _timed(calls, options, meter, progress, counted)
            if after_load is not None:
                await after_load()
    finally:
        with contextlib.suppress(bkpy.BookKeeperError):
            await _for_all(made, client.delete_ledger)
            await _for_all(logs, client.delete_log)
    return meter.result(options)


async def _create(client: bkpy.Client, options: Options, made: list[int]) -> list[bkpy.LedgerWriter]:
    size, write_quorum, ack_quorum = options.ensemble
    writers: list[bkpy.LedgerWriter] = []

    async def create(_: int) -> None:
        writer = await client.create_ledger(ensemble_size=size, write_quorum=write_quorum, ack_quorum=ack_quorum)
        made.append(writer.ledger_id)
        writers.append(writer)

    await _for_all(range(options.ledgers), create)
    return writers


async def _open_logs(client: bkpy.Client, options: Options, made: list[str]) -> list[bkpy.LogWriter]:
    size, write_quorum, ack_quorum = options.ensemble
    writers: list[bkpy.LogWriter] = []
    run_id = time.time_ns()
    for number in range(options.ledgers):
        name = f"bench-{run_id}-{number}"
        writers.append(
            await client.open_log(
                name,
                create=True,
                ensemble_size=size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                roll_s=options.roll_s,
            )
        )
        made.append(name)
    return writers


async def _for_all(things: Iterable[T], call: Callable[[T], Awaitable[object]]) -> None:
    """Make the call for each, LEDGERS_AT_ONCE at a time."""
    left = iter(things)

    async def some() -> None:
        for thing in left:
            await call(thing)

    await asyncio.gather(*(some() for _ in range(LEDGERS_AT_ONCE)))


def _share(writers: Sequence[Writer], number: int, options: Options) -> Sequence[Writer]:
    """The ledgers that one of the tasks uses in turn: each is used, by one task if there are more than tasks."""
    return writers[number :: options.outstanding] or [writers[number % len(writers)]]


def _warn_of_missing_copies(writers: list[bkpy.LedgerWriter]) -> None:
    """The figures are those of fewer copies than were asked for."""
    incomplete = [writer.under_replicated for writer in writers if writer.under_replicated]
    if incomplete:
        bookies = ", ".join(sorted({bookie_id for missing in incomplete for bookie_id in missing}))
        warnings.warn(f"{len(incomplete)} ledgers have fewer copies than their write quorum: {bookies}", stacklevel=2)


async def _fill(client: bkpy.Client, options: Options, made: list[int]) -> None:
    """Closed ledgers, together of about READ_LEDGER_BYTES."""
    writers = await _create(client, options, made)
    count = max(1, READ_LEDGER_BYTES // options.ledgers // options.size)
    payload = bytes(options.size)
    for writer in writers:
        for start in range(0, count, BATCH_ENTRIES):
            await writer.append_batch([payload] * min(BATCH_ENTRIES, count - start))
        await writer.close()


async def _append_calls(writers: Sequence[Writer], options: Options, meter: Meter) -> None:
    payload = bytes(options.size)
    now = time.perf_counter
    if options.api == "append":
        for writer in itertools.cycle(writers):
            if not meter.running:
                return
            began = now()
            await writer.append(payload)
            meter.count(1, began)
    else:
        batch = [payload] * BATCH_ENTRIES
        for writer in itertools.cycle(writers):
            if not meter.running:
                return
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


def warm_up_s(seconds: float) -> float:
    """How long the load goes on before the seconds that are counted; of a short run no longer than these."""
    return min(max(min(WARM_UP_MIN_S, seconds), seconds * WARM_UP_SHARE), WARM_UP_MAX_S)


async def _timed(
    calls: list[Coroutine[Any, Any, None]],
    options: Options,
    meter: Meter,
    progress: Callable[[float], None],
    counted: AbstractContextManager[object] | None,
) -> None:
    """Run the calls for the given time; the first error ends the run and is raised."""
    warm_up = warm_up_s(options.seconds)
    async with asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(call)
        await _wait(warm_up, lambda share: progress(share * 0.2))
        with counted or nullcontext():
            meter.start()
            watch = group.create_task(_watch_gaps(meter))
            await _wait(options.seconds, lambda share: progress(0.2 + share * 0.8))
            await _first_call(meter)
            meter.stop()
        watch.cancel()


async def _first_call(meter: Meter) -> None:
    """Count on until a call has come back: one may take longer than a short run. One that fails ends the run."""
    while True:
        if meter.entries:
            return
        await asyncio.sleep(GAP_RESOLUTION_S)


async def _watch_gaps(meter: Meter) -> None:
    while True:
        await asyncio.sleep(GAP_RESOLUTION_S)
        meter.look()


async def _wait(seconds: float, progress: Callable[[float], None]) -> None:
    steps = max(1, round(seconds / 0.5))
    for step in range(steps):
        await asyncio.sleep(seconds / steps)
        progress((step + 1) / steps)
