"""The programs of examples/flights do what its README says: killed and started again, they miss and double nothing."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.waiting import eventually_here

import bkpy
from bkpy.demo.delays import SPARK_CONFIG, stored_windows, windows_of
from bkpy.demo.events import LOG, all_events
from bkpy.demo.flights import load_flights
from bkpy.local import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1200)]

EXAMPLES = Path(__file__).parents[2] / "examples" / "flights"
PATIENCE_S = 600.0


class Example:
    """One run of a program, whose output is kept."""

    def __init__(self, cluster: LocalCluster, log: Path, name: str, *arguments: object) -> None:
        self._log = log
        with open(log, "wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-u", EXAMPLES / name, *map(str, arguments)],
                env=os.environ | {"BKPY_CONNECT": cluster.connect_string},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def printed(self) -> str:
        return self._log.read_text()

    def wait_for(self, pattern: str) -> re.Match[str]:
        def found() -> re.Match[str] | None:
            ended, printed = self._process.poll() is not None, self.printed()
            match = re.search(pattern, printed)
            assert match or not ended, printed
            return match

        match = eventually_here(found, f"it prints {pattern}", deadline_s=PATIENCE_S)
        assert match is not None
        return match

    def end(self, number: signal.Signals | None = None) -> str:
        """All that it has printed when it has ended, by a signal to it and its children if one is given."""
        if number is not None:
            os.killpg(self._process.pid, number)
        self._process.wait(PATIENCE_S)
        return self.printed()

    @property
    def status(self) -> int | None:
        """None while it runs."""
        return self._process.poll()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path / "cluster", bookies=4)
    try:
        asyncio.run(cluster.start())
        yield cluster
    finally:
        asyncio.run(cluster.stop())


async def payloads(uri: str) -> list[bytes]:
    async with bkpy.connect(uri) as client, await client.read_log(LOG) as reader:
        return [payload async for block in reader.read_blocks() for payload in block.payloads()]


async def committed(uri: str) -> int:
    async with bkpy.connect(uri) as client, await client.read_log(LOG) as reader:
        return (await reader.consumer("delays")).position


def test_the_pipeline_as_its_readme_says(cluster: LocalCluster, spark: SparkSession, tmp_path: Path) -> None:
    def start(name: str, *arguments: object) -> Example:
        started.append(Example(cluster, tmp_path / f"output-{len(started)}", name, *arguments))
        return started[-1]

    started: list[Example] = []
    target = tmp_path / "delays"
    try:
        service = start("service.py", 20)
        service.wait_for("writing from position 0 on")
        consumer = start("consumer.py", 600)
        query = start("aggregate.py", target)
        service.wait_for(r"\b[5-9]\d,\d\d\d of 336,777 events")
        service.end(signal.SIGKILL)
        service = start("service.py", 20)
        first = int(service.wait_for(r"writing from position ([\d,]+) on")[1].replace(",", ""))
        assert 50_000 <= first < 336_777
        consumer.wait_for(" minutes late")
        told = consumer.end(signal.SIGINT)
        assert (consumer.status, told.splitlines()[-1]) == (0, "Stopped; start it again, and it goes on.")
        consumer = start("consumer.py", 600)
        consumer.wait_for(r"reading from position [1-9]")
        query.wait_for(r"batch [2-9]: ")
        query.end(signal.SIGINT)
        assert query.status == 0
        assert query.printed().endswith("Stopped; start it again, and it goes on.\n")
        assert "Traceback" not in query.printed()
        assert service.end().endswith("The year is over.\n")
        assert service.status == 0
        expected = [event.payload for event in all_events()]
        assert asyncio.run(payloads(cluster.connect_string)) == expected
        late = sum(int(minutes) >= 600 for minutes in re.findall(r'"delay": (\d+)', b"\n".join(expected).decode()))
        eventually_here(lambda: (told + consumer.printed()).count(" minutes late") >= late, deadline_s=PATIENCE_S)
        # It commits also while no more entries come.
        eventually_here(lambda: asyncio.run(committed(cluster.connect_string)) == len(expected), deadline_s=PATIENCE_S)
        told += consumer.end(signal.SIGINT)
        lines = [line for line in told.splitlines() if line.endswith(" minutes late")]
        assert len(lines) == len(set(lines)) == late > 0
        assert lines == sorted(lines, key=lambda line: line[:16])

        query = start("aggregate.py", target, "--once")
        query.end()
        assert query.status == 0, query.printed()
        chart = start("chart.py", target)
        assert "336,776 flights in 1,095 windows" in chart.end()
        assert (target / "delays.png").read_bytes().startswith(b"\x89PNG")
        session = spark.newSession()
        for name, value in SPARK_CONFIG.items():
            session.conf.set(name, value)
        lines_of_csv = [line for month in load_flights().values() for line in month]
        assert stored_windows(session, target / "delays.parquet") == windows_of(lines_of_csv)
    finally:
        for example in started:
            if example.status is None:
                example.end(signal.SIGKILL)
