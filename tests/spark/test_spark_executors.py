"""Executors are killed under a stream, and two drivers run the same one: what comes out is exactly the log."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from tests.spark.kill_driver import Job
from tests.spark.logs import PATIENCE_S, TestLog, assert_exactly, entry
from tests.spark.test_spark_kills import descendants, kill_all, options, payloads_of, run, start
from tests.spark.test_spark_sink import Written
from tests.waiting import eventually_here

import bkpy
from bkpy.client.client import log_parts, replication_context
from bkpy.errors import NoSuchLedgerError
from bkpy.metadata.logs.maintenance import LogMaintenance, Swept

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from tests.spark.conftest import Ledgers

pytestmark = [pytest.mark.timeout(900), pytest.mark.exhaustive]

Begin = Callable[[Job], "subprocess.Popen[bytes]"]
Copying = tuple[Job, Written, TestLog, Path]

MASTER = "local-cluster[2,1,1024]"
# How often executors of one run are killed, and how many entries are enough to do meanwhile.
OFTEN = pytest.mark.parametrize(("kills", "entries"), [(1, 800), (3, 3000)])


@pytest.fixture
def workers_directories() -> Iterator[None]:
    """Spark leaves the directories of a local cluster's workers beside its own code."""
    work = Path(pyspark.__file__).parent / "work"
    before = set(work.glob("*"))
    yield
    for directory in set(work.glob("*")) - before:
        shutil.rmtree(directory)


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Starts drivers, none of which outlives the test."""
    drivers: list[subprocess.Popen[bytes]] = []

    def begin(job: Job) -> subprocess.Popen[bytes]:
        drivers.append(start(job))
        return drivers[-1]

    yield begin
    for driver in drivers:
        if driver.poll() is None:
            kill_all(driver)


def wait_until(condition: Callable[[], object], driver: subprocess.Popen[bytes] | None = None) -> None:
    def holds() -> object:
        ended, held = driver is not None and driver.poll() is not None, condition()
        assert held or not ended, "the driver has ended"
        return held

    eventually_here(holds, deadline_s=PATIENCE_S)


def executors_of(driver: subprocess.Popen[bytes]) -> list[int]:
    return [pid for pid, command in descendants(driver.pid).items() if "CoarseGrainedExecutor" in command]


def kill_an_executor(driver: subprocess.Popen[bytes], rng: random.Random) -> None:
    """One of the two, when both are there, at some moment of its work."""
    wait_until(lambda: len(executors_of(driver)) == 2, driver)
    time.sleep(rng.uniform(1.0, 5.0))
    for pid in executors_of(driver)[:1]:
        os.kill(pid, signal.SIGKILL)


def batches_done(job: Job) -> int:
    return len(list((Path(job.checkpoint) / "commits").glob("[0-9]*")))


def kill_executors(begin: Begin, job: Job, seed: int, kills: int) -> None:
    """So many in one run, whose driver is then killed as well, and one in another one that comes to its end."""
    rng = random.Random(seed)
    driver = begin(job)
    wait_until(lambda: batches_done(job) > 0, driver)
    for _ in range(kills):
        kill_an_executor(driver, rng)
    assert driver.poll() is None, "the killed executors cost more than time, or there was too little to do"
    kill_all(driver)
    before = batches_done(job)
    driver = begin(job)
    wait_until(lambda: batches_done(job) > before, driver)
    kill_an_executor(driver, rng)
    out, _ = driver.communicate(timeout=600)
    assert b"done" in out


@OFTEN
@pytest.mark.long  # kills of drivers and workers, in `test_spark_kills.py`, take less
@pytest.mark.usefixtures("workers_directories")
def test_what_is_read_is_exactly_the_log(
    spark: SparkSession, begin: Begin, ledgers: Ledgers, tmp_path: Path, kills: int, entries: int
) -> None:
    with TestLog(ledgers.uri, roll_entries=100) as log:
        log.append(entries, 50)
        given = options(log, maxEntriesPerTrigger=20, minPartitions=4)
        job = Job(given, str(tmp_path / "checkpoint"), str(tmp_path / "out"), master=MASTER)
        kill_executors(begin, job, seed=1, kills=kills)
    assert_exactly(spark.read.parquet(str(job.files)).collect(), 0, entries)


@OFTEN
@pytest.mark.long  # kills of drivers and workers, in `test_spark_kills.py`, take less
@pytest.mark.usefixtures("workers_directories")
def test_what_is_written_is_exactly_what_was_read(
    begin: Begin, ledgers: Ledgers, tmp_path: Path, kills: int, entries: int
) -> None:
    target = TestLog(ledgers.uri)
    target.close()
    written = Written(target)
    with TestLog(ledgers.uri, roll_entries=100) as source:
        source.append(entries, 50)
        given = options(source, maxEntriesPerTrigger=20, minPartitions=4)
        job = Job(given, str(tmp_path / "checkpoint"), sink=options(target, writerId="copy"), master=MASTER)
        kill_executors(begin, job, seed=2, kills=kills)
    assert_copied(target, entries)
    swept(written)
    assert_copied(target, entries)


def assert_copied(target: TestLog, count: int) -> None:
    found = payloads_of(target.uri, target.name)
    assert sorted(found) == sorted(entry(position) for position in range(count))


def swept(written: Written) -> int:
    """How many ledgers that no list names the auditor deletes, once they are old enough; then there are no more."""
    orphans = written.unlisted()

    async def sweep() -> int:
        async with bkpy.connect(written.uri) as client:
            context = LogMaintenance(log_parts(client).logs, replication_context(client).cluster.catalog)
            ids = [ledger_id async for ledger_id in client.list_ledgers()]
            deleted = len(orphans.difference(ids))  # by tasks that were ended, just now
            for ledger_id in ids:
                try:
                    metadata = await client.ledger_metadata(ledger_id)
                except NoSuchLedgerError:  # a task that was ended has still deleted it itself
                    deleted += 1
                else:
                    deleted += await context.sweep(metadata, grace_s=0.0) is Swept.DELETED
            return deleted

    assert asyncio.run(sweep()) >= len(orphans)
    assert written.unlisted() == set()
    return len(orphans)


@pytest.fixture
def copying(ledgers: Ledgers, tmp_path: Path) -> Iterator[Copying]:
    """A job that copies 300 entries to another log in three batches, and a gate that keeps it from committing."""
    gate = tmp_path / "gate"
    gate.mkdir()
    target = TestLog(ledgers.uri)
    target.close()
    with TestLog(ledgers.uri) as source:
        source.append(300)
        given = options(source, maxEntriesPerTrigger=100)
        job = Job(given, str(tmp_path / "checkpoint"), sink=options(target, writerId="copy"), gate=str(gate))
        yield job, Written(target), target, gate


def test_of_two_drivers_that_commit_the_same_batch_one_does(begin: Begin, copying: Copying) -> None:
    """Spark lets one of them go on at most: the other one finds its next batch planned already."""
    job, written, target, gate = copying
    first = begin(job)
    wait_until(lambda: len(list(gate.glob("waits-0-*"))) == 1, first)
    second = begin(job)
    wait_until(lambda: len(list(gate.glob("waits-0-*"))) == 2, second)
    assert payloads_of(target.uri, target.name) == []
    assert len(written.unlisted()) >= 2
    (gate / "open").touch()
    done = [b"done" in driver.communicate(timeout=300)[0] for driver in (first, second)]
    assert any(done) or run(job)
    assert_copied(target, 300)
    assert written.list().producers.batches == {"copy": 2}
    swept(written)
    assert_copied(target, 300)


def test_a_driver_that_stood_still_while_another_one_went_on_adds_nothing(begin: Begin, copying: Copying) -> None:
    job, written, target, gate = copying
    first = begin(job)
    wait_until(lambda: list(gate.glob("waits-0-*")), first)
    assert run(Job(job.source, job.checkpoint, sink=job.sink))
    assert_copied(target, 300)
    late = written.unlisted()
    assert late
    (gate / "open").touch()
    out, _ = first.communicate(timeout=300)
    assert b"done" not in out
    assert_copied(target, 300)
    assert written.unlisted() == set(), "what came too late is deleted"
