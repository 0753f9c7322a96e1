"""The cost of checkpoints, collection and compaction for writers: the same load on two clusters, in turn.

    python benchmarks/housekeeping.py [--seconds S] [--rounds N] [--size BYTES] [--json FILE]

The load replaces its ledgers all the time and deletes most of the former ones. One cluster checkpoints, collects
and compacts every second, in small logs; the other one does none of it. Prints both rates, the share that remains, and
how much was done meanwhile. Fails if the busy cluster had nothing to do.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import gc
import json
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

import uvloop
from rich.console import Console
from rich.table import Table

import bkpy
from bkpy.bench.machine import machine, versions
from bkpy.local import LocalCluster

LEDGERS: Final = 16  # written at a time
REPLACED_S: Final = 1.0  # how long each is written to
KEPT: Final = 4  # of how many ledgers one is not deleted, so that logs are neither dead nor full of life
WARM_UP_S: Final = 3.0
BUSY: Final = {
    "checkpoint_interval_s": 1,
    "entry_log_max_size_mb": 16,
    "gc_interval_s": 1,
    "reclaim_interval_s": 1,
    "compaction_minor_interval_s": 1,
    "compaction_minor_living_ratio": 0.8,
    "journal_as_entry_log": False,  # so that all of it is in logs
}
IDLE: Final = {
    "checkpoint_interval_s": 3600,
    "gc_interval_s": 0,
    "reclaim_interval_s": 3600,
    "compaction_minor_living_ratio": 0,
    "compaction_major_living_ratio": 0,
    "journal_as_entry_log": False,
}
DONE: Final = ("checkpoint_bytes", "gc_ledgers", "compacted_bytes", "reclaimed_bytes")


class Load:
    """Appends to ledgers that come and go."""

    def __init__(self, client: bkpy.Client, size: int, outstanding: int) -> None:
        self.entries = 0
        self._client = client
        self._payload = bytes(size)
        self._each = max(1, outstanding // LEDGERS)
        self._left = 0

    async def run(self) -> None:
        await asyncio.gather(*(self._ledger(i) for i in range(LEDGERS)))

    async def _ledger(self, number: int) -> None:
        await asyncio.sleep(number / LEDGERS * REPLACED_S)  # not all at once
        while True:
            writer = await self._client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
            end = time.monotonic() + REPLACED_S
            await asyncio.gather(*(self._append(writer, end) for _ in range(self._each)))
            await writer.close()
            self._left += 1
            if self._left % KEPT:
                await self._client.delete_ledger(writer.ledger_id)

    async def _append(self, writer: bkpy.LedgerWriter, end: float) -> None:
        while time.monotonic() < end:
            await writer.append(self._payload)
            self.entries += 1


async def measure(cluster: LocalCluster, size: int, outstanding: int, seconds: float) -> float:
    """Entries acknowledged per second."""
    async with bkpy.connect(cluster.connect_string) as client:
        load = Load(client, size, outstanding)
        task = asyncio.create_task(load.run())
        try:
            await asyncio.wait([task], timeout=WARM_UP_S)
            before, began = load.entries, time.monotonic()
            await asyncio.wait([task], timeout=seconds)
            if task.done():
                task.result()
            return (load.entries - before) / (time.monotonic() - began)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def done(cluster: LocalCluster) -> dict[str, float]:
    """What the bookies' metrics say was done so far, of all of them together."""
    found = dict.fromkeys(DONE, 0.0)
    async with bkpy.connect(cluster.connect_string) as client:
        ports = [info.metrics_port for info in client.bookies.values()]
    for port in ports:
        page = await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/metrics")
        for line in page.read().decode().splitlines():
            name, _, value = line.rpartition(" ")
            for what in DONE:
                if name.partition("{")[0] == f"bkpy_bookie_{what}_total":
                    found[what] += float(value)
    return found


async def compare(options: argparse.Namespace, directory: str) -> dict[str, Any]:
    rates: dict[str, list[float]] = {"busy": [], "idle": []}
    async with (
        LocalCluster(f"{directory}/busy", config={**BUSY, "metrics_port": 0}) as busy,
        LocalCluster(f"{directory}/idle", config=IDLE) as idle,
    ):
        for number in range(options.rounds):
            pair = [("busy", busy), ("idle", idle)]
            for name, cluster in pair if number % 2 else reversed(pair):
                print(f"round {number + 1}, {name} ...", file=sys.stderr)
                rates[name].append(await measure(cluster, options.size, options.outstanding, options.seconds))
        work = await done(busy)
    if not all(work.values()):
        raise SystemExit(f"housekeeping: the busy cluster had nothing to do: {work}")
    medians = {name: statistics.median(found) for name, found in rates.items()}
    return {
        "size": options.size,
        "outstanding": options.outstanding,
        "entries_per_s": rates,
        "share": round(medians["busy"] / medians["idle"], 3),
        "done": work,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="counted seconds of each round")
    parser.add_argument("--rounds", type=int, default=3, help="of each cluster")
    parser.add_argument("--size", type=int, default=1000, help="bytes of an entry")
    parser.add_argument("--outstanding", type=int, default=1000, help="appends in flight")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write all figures to FILE")
    parser.add_argument("--dir", metavar="DIRECTORY", default=tempfile.gettempdir(), help="where the files are kept")
    options = parser.parse_args()
    scratch = tempfile.mkdtemp(dir=options.dir, prefix="bkpy-housekeeping-")
    gc.set_threshold(100_000, 20, 100)  # as `bkpy bench`
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result = runner.run(compare(options, scratch))
    finally:
        shutil.rmtree(scratch)
    table = Table("cluster", "appends/s", "rounds")
    for name, rates in result["entries_per_s"].items():
        table.add_row(name, f"{statistics.median(rates):,.0f}", ", ".join(f"{rate:,.0f}" for rate in rates))
    Console(highlight=False).print(table)
    work = ", ".join(f"{name} {value:,.0f}" for name, value in result["done"].items())
    print(f"{result['share']:.0%} remain with all of it busy: {work}")
    if options.json is not None:
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        found = {"date": date, "machine": machine(options.dir), "versions": versions(), **result}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
