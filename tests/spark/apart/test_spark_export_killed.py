"""Exports whose processes are killed, and whose bookies are: in the end everything is there, and once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pyspark
import pytest
from tests.spark.apart.test_spark_interrupts import Program
from tests.spark.apart.test_spark_lock import can_be_taken, lock
from tests.spark.conftest import write
from tests.waiting import eventually_here

from bkpy.local import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.spark.conftest import Ledgers

pytestmark = [pytest.mark.timeout(900), pytest.mark.exhaustive]

LATEST_S = 15.0  # when a kill comes, at the latest: about as long as a whole export takes


def keys(to: Path) -> list[tuple[int, int]]:
    """What a reader finds there at this moment; each file is whole, and no row is there twice."""
    found = []
    for file in to.rglob("part-*.parquet"):
        if "_bkpy" not in file.parts:
            table = pq.read_table(file, columns=["ledger_id", "entry_id"])
            found += list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    assert len(set(found)) == len(found)
    return sorted(found)


@pytest.mark.parametrize("kills", [4, pytest.param(8, marks=pytest.mark.long)])
def test_killed_at_random_an_export_goes_on(ledgers: Ledgers, tmp_path: Path, kills: int) -> None:
    """Of the command or of its Java process. Small batches, so that there is much to interrupt."""
    rng = random.Random(int(time.time()))
    everything = sorted((i, n) for i, payloads in ledgers.payloads.items() for n in range(len(payloads)))
    arguments = ["--connect", ledgers.uri, "--ledgers", "closed", "--to", tmp_path / "out", "--batch-bytes", "1"]
    arguments += ["-o", "sessionTimeoutSeconds=4", "-o", "maxBytesPerPartition=50000"]
    seen: list[tuple[int, int]] = []
    for _ in range(kills):
        program = Program("export", *arguments)
        java_too = rng.random() < 0.3
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.process.wait(rng.uniform(1.0, LATEST_S))
        victims = [pid for pid, command in program.commands().items() if java_too and "SparkSubmit" in command]
        for pid in victims or [program.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        program.end()
        now = keys(tmp_path / "out")
        assert set(seen) <= set(now) <= set(everything), "what was seen once has gone"
        seen = now
    eventually_here(lambda: can_be_taken(lock(ledgers.uri, tmp_path / "out")), "the lock of the dead is forgotten")
    program = Program("export", *arguments)
    assert program.end()[0] == 0
    assert keys(tmp_path / "out") == everything


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_ends_when_it_is_told_to(ledgers: Ledgers, tmp_path: Path, number: signal.Signals) -> None:
    arguments = ["--connect", ledgers.uri, "--ledgers", "closed", "--to", tmp_path / "out"]
    program = Program("export", *arguments, "--follow", "--interval", "0.2", stdout=subprocess.PIPE)
    assert program.process.stdout is not None
    everything = sum(map(len, ledgers.payloads.values()))
    assert f" {everything:,} entries, ".encode() in program.process.stdout.readline()
    assert b" nothing new; " in program.process.stdout.readline()
    added = ledgers.write([b"one more"])
    try:
        while b" 1 entries, 8 B, of 1 ledgers " not in program.process.stdout.readline():
            assert program.process.poll() is None
    finally:
        ledgers.delete(added)
    os.killpg(program.process.pid, number)
    assert program.end()[0] == (0 if number == signal.SIGTERM else 130)
    assert len(keys(tmp_path / "out")) == everything + 1


@pytest.fixture
def workers_directories() -> Iterator[None]:
    """Spark leaves the directories of a local cluster's workers beside its own code."""
    work = Path(pyspark.__file__).parent / "work"
    before = set(work.glob("*"))
    yield
    for directory in set(work.glob("*")) - before:
        shutil.rmtree(directory)
    if not before and work.exists():
        work.rmdir()


@pytest.mark.usefixtures("workers_directories")
def test_a_killed_executor_and_a_killed_bookie_cost_nothing_but_time(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "cluster")
    asyncio.run(cluster.start())
    try:
        payloads = [bytes([i % 251]) * 1000 for i in range(64_000)]
        ledger_id = asyncio.run(write(cluster.connect_string, payloads))
        program = Program(
            *("export", "--connect", cluster.connect_string, "--ledgers", ledger_id, "--to", tmp_path / "out"),
            *("--master", "local-cluster[2,1,1024]", "-o", "maxBytesPerPartition=2000000"),
        )
        try:
            written = tmp_path / "out" / "_bkpy"
            program.wait_for(lambda: len(list(written.rglob("task_*"))) > 2)
            asyncio.run(cluster.bookies[0].kill())
            executors = [pid for pid, command in program.commands().items() if "CoarseGrainedExecutor" in command]
            os.kill(executors[0], signal.SIGKILL)
            status, stderr = program.end()
        finally:
            for pid in program.commands():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        assert (status, len(executors)) == (0, 2), stderr
        assert keys(tmp_path / "out") == [(ledger_id, n) for n in range(len(payloads))]
        assert sorted(pq.read_table(tmp_path / "out", columns=["payload"])[0].to_pylist()) == sorted(payloads)
    finally:
        asyncio.run(cluster.stop())
