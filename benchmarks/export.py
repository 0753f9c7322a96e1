"""What an export costs: beside what the same Spark writes to Parquet from a generator of equal rows, in turn.

    python benchmarks/export.py [--bytes N] [--entry-bytes N] [--rounds N] [--master URL] [--kill] [--json FILE]

Prints the median of each step, so that it can be seen where the time goes: making rows, reading them from bookies,
writing Parquet, and what the export does beside (planning, counting, syncing, giving names). Then the peaks of the
memory of Spark's processes. With --kill, for a master such as 'local-cluster[2,1,1024]', an executor and a bookie are
killed in the middle of one more export, which has to have every row nevertheless.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from rich.console import Console
from rich.table import Table

import bkpy
from bkpy.bench.machine import machine, versions
from bkpy.local import LocalCluster
from bkpy.spark.export import export_ledgers
from bkpy.spark.session import own_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

BLOCK: Final = 4 << 20  # bytes of payload that repeat, more than Parquet makes a dictionary of
LEDGER_BYTES: Final = 1 << 30
SAMPLE_S: Final = 0.1
TASK_BYTES: Final = 64 << 20

SCHEMA: Final = "log string, ledger_id bigint, entry_id bigint, payload binary, length int, position bigint"


def block_of(entry_bytes: int) -> list[bytes]:
    """Payloads that no compression can make smaller, and that aren't all the same."""
    rng = random.Random(1)
    return [rng.randbytes(entry_bytes) for _ in range(max(1, BLOCK // entry_bytes))]


class Generator(DataSource):
    """Rows as the ledgers have them, from no ledger: columns made of whole buffers, which is as quick as it gets."""

    @classmethod
    def name(cls) -> str:
        return "generator"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> DataSourceReader:
        given = (int(self.options[name]) for name in ("rows", "entry_bytes", "tasks"))
        return Reader(to_arrow_schema(schema, timezone="UTC"), *given)


class Reader(DataSourceReader):
    def __init__(self, schema: pa.Schema, rows: int, entry_bytes: int, tasks: int) -> None:
        self.schema, self.rows, self.entry_bytes, self.tasks = schema, rows, entry_bytes, tasks

    def partitions(self) -> list[InputPartition]:
        edges = [self.rows * i // self.tasks for i in range(self.tasks + 1)]
        return [InputPartition(pair) for pair in pairwise(edges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        payloads = block_of(self.entry_bytes)
        values = pa.py_buffer(b"".join(payloads))
        at, end = partition.value
        while at < end:
            count = min(len(payloads), end - at)
            offsets = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * self.entry_bytes)
            yield pa.RecordBatch.from_arrays(
                [
                    pa.nulls(count, pa.string()),
                    pa.repeat(pa.scalar(0, pa.int64()), count),
                    pa.array(np.arange(at, at + count, dtype=np.int64)),
                    pa.Array.from_buffers(pa.binary(), count, [None, offsets, values]),
                    pa.repeat(pa.scalar(self.entry_bytes, pa.int32()), count),
                    pa.nulls(count, pa.int64()),
                ],
                schema=self.schema,
            )
            at += count


async def write(uri: str, size: int, entry_bytes: int) -> list[int]:
    """Ledgers of that size in all."""
    payloads = block_of(entry_bytes)
    left = size // entry_bytes
    ids = []
    async with bkpy.connect(uri) as client:
        while left > 0:
            of_this = min(left, LEDGER_BYTES // entry_bytes)
            left -= of_this
            writer = await client.create_ledger()
            while of_this > 0:
                some = payloads[: min(len(payloads), of_this)]
                await writer.append_batch(some)
                of_this -= len(some)
            await writer.close()
            ids.append(writer.ledger_id)
    return ids


class Peaks:
    """The most that each kind of Spark's processes has ever had in memory, by looking now and then."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            for pid, command in commands().items():
                kind = kind_of(command)
                if kind is not None:
                    with suppress(OSError, StopIteration):
                        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                        kilobytes = int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
                        self.bytes[kind] = max(self.bytes.get(kind, 0), kilobytes * 1024)
            time.sleep(SAMPLE_S)


def kind_of(command: str) -> str | None:
    if "CoarseGrainedExecutorBackend" in command:
        return "executor"
    if "SparkSubmit" in command:
        return "driver"
    return "Python worker" if "pyspark.daemon" in command or "pyspark/daemon" in command else None


def commands() -> dict[int, str]:
    """The processes below this one."""
    parents: dict[int, int] = {}
    texts: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            pid = int(entry.name)
            parents[pid] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            texts[pid] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    ours = {os.getpid()}
    for pid in sorted(parents):
        above, seen = pid, set()
        while above in parents and above not in ours and above not in seen:
            seen.add(above)
            above = parents[above]
        if above in ours:
            ours.add(pid)
    return {pid: texts[pid] for pid in ours if pid in texts and pid != os.getpid()}


def timed(step: Callable[[], object]) -> float:
    started = time.monotonic()
    step()
    return time.monotonic() - started


def measure(
    spark: SparkSession, uri: str, ids: list[int], directory: Path, size: int, entry_bytes: int, rounds: range
) -> dict[str, float]:
    """The median seconds of each step in these rounds. Round 0 doesn't count: Java compiles."""
    rows = size // entry_bytes
    tasks = max(1, -(-size // TASK_BYTES))
    spark.dataSource.register(Generator)
    named = ",".join(map(str, ids))

    def generated() -> Any:
        made = {"rows": str(rows), "entry_bytes": str(entry_bytes), "tasks": str(tasks)}
        return spark.read.format("generator").options(**made).load()

    def stored() -> Any:
        return spark.read.format("bkpy").option("metadataServiceUri", uri).option("ledgers", named).load()

    def parquet(table: Any) -> None:
        table.write.parquet((directory / "plain").as_uri())

    def export() -> None:
        summary = export_ledgers(uri, ids, directory / "out", spark=spark)
        assert summary.rows == rows == sum(pq.read_metadata(f).num_rows for f in (directory / "out").glob("*.parquet"))

    steps: dict[str, Callable[[], object]] = {
        "generator, rows only": lambda: generated().write.format("noop").mode("overwrite").save(),
        "bookies, rows only": lambda: stored().write.format("noop").mode("overwrite").save(),
        "generator to Parquet": lambda: parquet(generated()),
        "bookies to Parquet": lambda: parquet(stored()),
        "export": export,
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in rounds:
        for name, step in steps.items():
            took = timed(step)
            print(f"round {i}, {name}: {took:.2f} s", file=sys.stderr)
            for left in ("plain", "out"):
                shutil.rmtree(directory / left, ignore_errors=True)
            if i > 0:
                times[name].append(took)
    return {name: statistics.median(found) for name, found in times.items()}


def export_among_kills(spark: SparkSession, cluster: LocalCluster, ids: list[int], directory: Path, rows: int) -> float:
    """An export in whose middle an executor and a bookie are killed. Every row has to be there."""
    done = threading.Event()

    def kill(finished: int, total: int) -> None:
        if finished * 2 >= total and not done.is_set():
            done.set()
            executors = [pid for pid, command in commands().items() if kind_of(command) == "executor"]
            os.kill(executors[0], signal.SIGKILL)
            asyncio.run(cluster.bookies[0].kill())

    took = timed(lambda: export_ledgers(cluster.connect_string, ids, directory / "out", spark=spark, progress=kill))
    assert done.is_set()
    found = sum(pq.read_metadata(file).num_rows for file in (directory / "out").glob("*.parquet"))
    if found != rows:
        raise SystemExit(f"{found} rows are there, not {rows}")
    return took


def show(console: Console, found: list[dict[str, Any]]) -> None:
    for row in found:
        size, seconds = row["bytes"], row["seconds"]
        table = Table("step", "seconds", "MB/s", title=f"{size / 1e6:,.0f} MB, entries of {row['entry_bytes']} B")
        for name, took in seconds.items():
            table.add_row(name, f"{took:.2f}", f"{size / took / 1e6:,.0f}")
        console.print(table)
        if "export" in seconds:
            share = seconds["generator to Parquet"] / seconds["export"]
            console.print(f"an export has {share:.0%} of the speed of the generator to Parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=580_000_000)
    parser.add_argument("--entry-bytes", type=int, nargs="+", default=[116, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="where the files are kept")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="bkpy-export-", dir=given.dir))
    console = Console(highlight=False)
    cluster = LocalCluster(directory / "cluster")
    try:
        asyncio.run(cluster.start())
        uri = cluster.connect_string
        peaks = Peaks()
        found = []
        with own_session("bench", master=given.master) as spark:
            for n, entry_bytes in enumerate(given.entry_bytes):
                ids = asyncio.run(write(uri, given.bytes, entry_bytes))
                rounds = range(min(n, 1), given.rounds + 1) if given.rounds else range(0)
                seconds = measure(spark, uri, ids, directory, given.bytes, entry_bytes, rounds) if rounds else {}
                if given.kill and n == len(given.entry_bytes) - 1:
                    rows = given.bytes // entry_bytes
                    took = export_among_kills(spark, cluster, ids, directory, rows)
                    seconds["export, an executor and a bookie killed"] = took
                found.append({"bytes": given.bytes, "entry_bytes": entry_bytes, "seconds": seconds})
        show(console, found)
        for kind, peak in peaks.bytes.items():
            console.print(f"peak memory of a process, {kind}: {peak / (1 << 20):,.0f} MiB")
        if given.json is not None:
            about = {"master": given.master, "machine": machine(given.dir), "versions": versions()}
            report = {**about, "rows": found, "peak_bytes": peaks.bytes}
            given.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    finally:
        asyncio.run(cluster.stop())
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
