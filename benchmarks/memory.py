"""Memory of bookies and client under the heaviest load, minute by minute: it should be flat. And after it.

What should be flat is anonymous memory. Beside it are pages of mapped files (of a bookie's index, mostly), which grow
with what is stored, and which the kernel takes back when it needs them.

    python benchmarks/memory.py [--minutes M] [--size BYTES] [--outstanding N] [--ledgers L] [--json FILE]

Bookies keep what isn't deleted, and this writes a gigabyte a second: logs that are full are removed while it runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import gc
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

import bkpy
from bkpy.bench import workloads
from bkpy.bench.machine import machine, versions
from bkpy.bench.memory import REST_S, rss_anon_mb, rss_file_mb
from bkpy.local import LocalCluster

SAMPLE_INTERVAL_S = 0.5
RESTS_S = (REST_S, 60.0)  # looked at so long after the load: what is in memtables by then is flushed first
LOGS_KEPT = 2  # the one that is being filled, and the one before
LOG_MB = 256
FILES = ", files"  # behind the name of whose pages of files these are


async def measure(minutes: float, size: int, outstanding: int, ledgers: int, directory: str) -> dict[str, Any]:
    """The load's figures, for each minute the least and most MB of each process, and those some time `after` it."""
    samples: list[dict[str, float]] = []
    after: dict[str, dict[str, float]] = {}
    options = workloads.Options("append", size, outstanding, ledgers, (3, 3, 2), minutes * 60, "append")
    async with (
        LocalCluster(directory, config={"entry_log_max_size_mb": LOG_MB}) as cluster,
        bkpy.connect(cluster.connect_string) as client,
    ):

        def look() -> dict[str, float]:
            pids = {"client": os.getpid(), **{b.id: b.pid for b in cluster.bookies if b.pid is not None}}
            found = {name: rss_anon_mb(pid) for name, pid in pids.items()}
            found |= {f"{name}{FILES}": rss_file_mb(pid) for name, pid in pids.items()}
            return {name: mb for name, mb in found.items() if mb is not None}

        async def rest() -> None:
            task.cancel()
            done = 0.0
            for rest_s in RESTS_S:
                await asyncio.sleep(rest_s - done)
                done = rest_s
                after[f"{rest_s:.0f} s after"] = look()

        async def watch() -> None:
            while True:
                samples.append(look())
                for bookie in cluster.bookies:
                    for path in sorted((bookie.directory / "ledgers").rglob("*.log"))[:-LOGS_KEPT]:
                        path.unlink()
                await asyncio.sleep(SAMPLE_INTERVAL_S)

        def progress(share: float) -> None:
            if sys.stderr.isatty():
                print(f"\r{share:.0%}", end="", file=sys.stderr, flush=True)

        task = asyncio.create_task(watch())
        try:
            result = await workloads.run(client, options, progress, after_load=rest)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    return {**result, "minutes": by_minute(samples), "after": after}


def by_minute(samples: list[dict[str, float]]) -> list[dict[str, list[float]]]:
    """[least, most] of each process for each minute."""
    many = round(60 / SAMPLE_INTERVAL_S)
    parts = [samples[i : i + many] for i in range(0, len(samples), many)]
    return [
        {name: [min(s[name] for s in part), max(s[name] for s in part)] for name in part[0]}
        for part in parts
        if len(part) >= many // 2 or len(parts) == 1
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--size", type=int, default=10240, help="bytes of an entry")
    parser.add_argument("--outstanding", type=int, default=200, help="appends in flight")
    parser.add_argument("--ledgers", type=int, default=1)
    parser.add_argument(
        "--json", metavar="FILE", type=Path, help="also write all figures, machine and versions to FILE"
    )
    parser.add_argument("--dir", metavar="DIRECTORY", default=tempfile.gettempdir(), help="where the files are kept")
    options = parser.parse_args()
    scratch = tempfile.mkdtemp(dir=options.dir, prefix="bkpy-memory-")
    gc.set_threshold(100_000, 20, 100)  # as `bkpy bench`
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result = runner.run(measure(options.minutes, options.size, options.outstanding, options.ledgers, scratch))
    finally:
        shutil.rmtree(scratch)
    table = Table("minute", *(f"{name}, MB" for name in result["minutes"][0]))
    for i, minute in enumerate(result["minutes"]):
        table.add_row(str(i + 1), *(f"{low:.0f} - {high:.0f}" for low, high in minute.values()))
    for when, found in result["after"].items():
        table.add_row(when, *(f"{mb:.0f}" for mb in found.values()))
    Console(highlight=False).print(table)
    print(f"{result['entries_per_s']:,.0f} appends/s of {options.size} B, p99 {result['p99_ms']} ms")
    if options.json is not None:
        report = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": machine(options.dir),
            "versions": versions(),
            **result,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
