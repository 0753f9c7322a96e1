"""Spark's processes are killed in the middle of batches and started again: what comes out is exactly the log.

Each start of a driver takes seconds, so most of this is for the full run.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.kill_driver import Job
from tests.spark.logs import TestLog, assert_exactly, entry

import bkpy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.spark.conftest import Ledgers

pytestmark = [pytest.mark.timeout(900), pytest.mark.exhaustive]

ROOT = Path(__file__).parents[2]


def start(job: Job) -> subprocess.Popen[bytes]:
    """A driver in a process group of its own, whose errors are beside its checkpoint."""
    command = [sys.executable, "-m", "tests.spark.kill_driver", json.dumps(job.__dict__)]
    with Path(f"{job.checkpoint}.errors").open("wb") as errors:
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)


def descendants(pid: int) -> dict[int, str]:
    """The command lines of the processes below this one, by id."""
    parents: dict[int, int] = {}
    for child in all_pids():
        with suppress(OSError):
            parents[child] = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
    found: dict[int, str] = {}
    for child in parents:
        above = child
        while above in parents and above != pid:
            above = parents[above]
        if above == pid and child != pid:
            try:
                found[child] = (Path("/proc") / str(child) / "cmdline").read_bytes().decode()
            except OSError:
                continue
    return found


def kill_all(driver: subprocess.Popen[bytes]) -> None:
    """The driver's Python and Java processes at once, the workers, and what any of them was just starting.

    A Java process that loses the driver and its guard, which has a session of its own, before it waits for them would
    stay for ever. One that is started between the list of processes and the look at what starts it, which has ended by
    then, is in the next list.
    """
    sessions = {driver.pid, *map(session_of, descendants(driver.pid))} - {None}

    def members() -> list[int]:
        return [pid for pid in all_pids() if session_of(pid) in sessions]

    while found := members() or members():
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    driver.wait()


def all_pids() -> list[int]:
    return [int(entry_.name) for entry_ in Path("/proc").iterdir() if entry_.name.isdigit()]


def session_of(pid: int) -> int | None:
    """None of a process that has ended."""
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return None
    return None if state in "ZX" else int(session)


def kill_a_worker(driver: subprocess.Popen[bytes], rng: random.Random) -> None:
    workers = [
        pid for pid, command in descendants(driver.pid).items() if "pyspark" in command and "java" not in command
    ]
    if workers:
        try:
            os.kill(rng.choice(workers), signal.SIGKILL)
        except ProcessLookupError:
            return


def run(job: Job) -> bool:
    """Whether the driver has come to its end."""
    driver = start(job)
    out, _ = driver.communicate(timeout=300)
    return b"done" in out


def options(log: TestLog, **more: object) -> dict[str, str]:
    return {"metadataServiceUri": log.uri, "log": log.name} | {name: str(value) for name, value in more.items()}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
@pytest.mark.parametrize("victim", ["driver", "worker"])
def test_what_is_read_is_exactly_the_log(
    spark: SparkSession, ledgers: Ledgers, tmp_path: Path, seed: int, victim: str
) -> None:
    rng = random.Random(seed)
    with TestLog(ledgers.uri, roll_entries=500) as log:
        log.append_for(60)
        job = Job(options(log, maxEntriesPerTrigger=50), str(tmp_path / "checkpoint"), str(tmp_path / "out"))
        for _ in range(3):
            driver = start(job)
            time.sleep(rng.uniform(6, 14))
            if victim == "driver":
                kill_all(driver)
            else:
                kill_a_worker(driver, rng)
                time.sleep(1)
                kill_all(driver)
        end = log.appended()
        assert run(Job(options(log), job.checkpoint, job.files)), Path(f"{job.checkpoint}.errors").read_text()[-5000:]
    assert_exactly(spark.read.parquet(job.files).collect(), 0, end)


def payloads_of(uri: str, name: str) -> list[bytes]:
    async def read() -> list[bytes]:
        async with bkpy.connect(uri) as client:
            reader = await client.read_log(name)
            return [entry_.data async for entry_ in reader.read()]

    return asyncio.run(read())


@pytest.mark.parametrize("batches", [1, pytest.param(2, marks=pytest.mark.long)])
def test_what_is_written_is_exactly_what_was_read(ledgers: Ledgers, tmp_path: Path, batches: int) -> None:
    """First attempts of tasks fail; the driver is killed before each commit, and once more behind it."""
    entries = 150 * batches
    (tmp_path / "marks").mkdir()
    target = TestLog(ledgers.uri)
    target.close()
    with TestLog(ledgers.uri) as source:
        source.append(entries)
        job: Any = Job(
            options(source, maxEntriesPerTrigger=160),
            str(tmp_path / "checkpoint"),
            sink=options(target, writerId="copy"),
            flaky=str(tmp_path / "marks"),
        )
        runs = 0
        while not run(job):
            runs += 1
            assert runs <= 2 * batches
        assert runs == 2 * batches
    assert sorted(payloads_of(target.uri, target.name)) == sorted(entry(position) for position in range(entries))
