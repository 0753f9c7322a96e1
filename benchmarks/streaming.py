"""Whether a Spark stream keeps up with a log that is written beside it, on the same machine.

    python benchmarks/streaming.py [--seconds S] [--rate N] [--size BYTES] [--trigger S] [--master M] [--json FILE]

A process appends so many entries a second to a log on a cluster of this machine; a query reads it in micro-batches, and
writes them to Spark's sink that keeps nothing. Each second, the lag is how many of the acknowledged entries no finished
batch has. Prints the rates, the batches' durations and the lag in both halves of the run; fails if the stream has read
less than was appended while it ran, by more than three triggers' worth.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import uvloop
from rich.console import Console
from rich.table import Table

import bkpy
from bkpy.bench.machine import machine, versions
from bkpy.local import LocalCluster
from bkpy.spark.session import own_session

LOG: Final = "stream"
TICK_S: Final = 0.01  # between two batches of appends
IN_FLIGHT: Final = 100  # batches of appends, before the writer waits
BEHIND_TRIGGERS: Final = 3  # one that is being read, one that waits, one of slack


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300, help="how long the stream is watched")
    parser.add_argument("--rate", type=int, default=100_000, help="entries appended a second")
    parser.add_argument("--size", type=int, default=100, help="bytes of an entry")
    parser.add_argument("--trigger", type=float, default=1, help="seconds between micro-batches")
    parser.add_argument("--master", default="local[2]", help="where Spark's tasks run")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--writer", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


async def write(uri: str, rate: int, size: int) -> None:
    """Append at that rate until standard input ends, and print each second how much is acknowledged."""
    payloads = [bytes(size)] * round(rate * TICK_S)
    pending: set[asyncio.Task[range]] = set()
    async with bkpy.connect(uri) as client, await client.open_log(LOG, create=True) as log:
        print(0, flush=True)
        stopped = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        begun = reported = time.monotonic()
        acknowledged = sent = 0
        while not stopped.done():
            now = time.monotonic()
            if now < begun + sent * TICK_S:
                await asyncio.sleep(begun + sent * TICK_S - now)
            while len(pending) >= IN_FLIGHT:
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                pending = {task for task in pending if not task.done()}
            task = asyncio.ensure_future(log.append_batch(payloads))
            pending.add(task)
            sent += 1
            pending = {task for task in pending if not task.done()}
            acknowledged = (sent - len(pending)) * len(payloads)
            if time.monotonic() >= reported + 1:
                reported += 1
                print(acknowledged, flush=True)
        await asyncio.gather(*pending)


def watch(uri: str, options: argparse.Namespace, directory: Path) -> list[dict[str, float]]:
    """What is acknowledged, and what the stream has read of it, each second."""
    command = [sys.executable, __file__, "--writer", uri, "--rate", str(options.rate), "--size", str(options.size)]
    samples: list[dict[str, float]] = []
    with own_session("streaming", master=options.master) as spark:
        spark.sparkContext.setLogLevel("ERROR")
        writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        try:
            writer.stdout.readline()  # the log is there
            rows = spark.readStream.format("bkpy").option("metadataServiceUri", uri).option("log", LOG).load()
            query = (
                rows.writeStream.format("noop")
                .option("checkpointLocation", str(directory / "checkpoint"))
                .trigger(processingTime=f"{options.trigger} seconds")
                .start()
            )
            begun = time.monotonic()
            while time.monotonic() < begun + options.seconds:
                acknowledged = int(writer.stdout.readline())
                done = [progress for progress in query.recentProgress if progress["numInputRows"]]
                if query.exception() is not None:
                    raise RuntimeError("the query has failed") from query.exception()
                if done:
                    read = json.loads(done[-1]["sources"][0]["endOffset"])["position"]
                    seconds = done[-1]["durationMs"]["triggerExecution"] / 1000
                    samples.append(
                        {"s": time.monotonic() - begun, "appended": acknowledged, "read": read, "batch_s": seconds}
                    )
            spark.sparkContext.setLogLevel("OFF")  # a batch is interrupted, which Spark calls an error
            query.stop()
        finally:
            writer.communicate()  # it ends with its standard input
    return samples


def result_of(samples: list[dict[str, float]], options: argparse.Namespace) -> dict[str, Any]:
    half = len(samples) // 2
    first, last = samples[0], samples[-1]
    seconds = last["s"] - first["s"]
    lags = [sample["appended"] - sample["read"] for sample in samples]
    return {
        "seconds": round(seconds, 1),
        "appended_per_s": round((last["appended"] - first["appended"]) / seconds),
        "read_per_s": round((last["read"] - first["read"]) / seconds),
        "batch_s_median": round(statistics.median(sample["batch_s"] for sample in samples), 2),
        "lag_max_first_half": max(lags[:half], default=0),
        "lag_max_second_half": max(lags[half:], default=0),
        "lag_last": lags[-1],
        "keeps_up": lags[-1] <= BEHIND_TRIGGERS * options.trigger * options.rate,
    }


def main() -> int:
    options = options_of()
    if options.writer:
        uvloop.run(write(options.writer, options.rate, options.size))
        return 0
    with tempfile.TemporaryDirectory(prefix="bkpy-streaming-") as directory:
        cluster = LocalCluster(Path(directory) / "cluster")
        try:
            asyncio.run(cluster.start())
            samples = watch(cluster.connect_string, options, Path(directory))
        finally:
            asyncio.run(cluster.stop())
    if len(samples) < 4:
        print("the stream has hardly begun: let it run longer", file=sys.stderr)
        return 1
    result = result_of(samples, options)
    table = Table(title=f"{options.rate} entries/s of {options.size} B, micro-batches of {options.trigger:g} s")
    table.add_column("")
    table.add_column("", justify="right")
    for name, value in result.items():
        table.add_row(name, str(value))
    Console().print(table)
    if options.json is not None:
        about = {
            "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
            "machine": machine(tempfile.gettempdir()),
        }
        settings = {name: getattr(options, name) for name in ("seconds", "rate", "size", "trigger", "master")}
        kept = {**about, "versions": versions(), "options": settings, "result": result, "samples": samples}
        options.json.write_text(json.dumps(kept, indent=1) + "\n")
    return 0 if result["keeps_up"] else 1


if __name__ == "__main__":
    sys.exit(main())
