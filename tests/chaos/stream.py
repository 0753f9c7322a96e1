"""A Spark stream of a run of chaos, which copies a log to files, is killed, and goes on from its checkpoint."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from bkpy.local.process import ended_with_parent
from tests.spark.kill_driver import Job
from tests.spark.test_spark_kills import kill_all

from .oracle import Read

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
_ENTRIES_PER_TRIGGER = 2000


class Stream:
    """Drivers one after the other, each until it has read what is there or is killed."""

    def __init__(self, uri: str, log: str, directory: Path) -> None:
        options = {"metadataServiceUri": uri, "log": log, "maxEntriesPerTrigger": str(_ENTRIES_PER_TRIGGER)}
        self._job = Job(options, str(directory / "stream-checkpoint"), str(directory / "stream"))
        self._log = directory / "stream.log"
        self._driver: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.spark.kill_driver", json.dumps(self._job.__dict__)]
        with self._log.open("ab") as log:
            self._driver = subprocess.Popen(
                ended_with_parent(command), cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )

    async def run(self) -> None:
        """One driver after the other, until this is cancelled."""
        while True:
            await self.finish()

    async def finish(self) -> int:
        """Let one driver, the present one if there is one, come to its end. Returns its exit status."""
        if self._driver is None:
            self.start()
        driver = self._driver
        assert driver is not None
        await asyncio.to_thread(driver.wait)
        if self._driver is driver:
            self._driver = None
        return driver.returncode

    def kill(self) -> None:
        """SIGKILL to the driver, its Java process and its workers, if there are any."""
        if self._driver is not None:
            kill_all(self._driver)
            self._driver = None

    def rows(self) -> list[Read]:
        """What all batches that were committed have written, by position."""
        return sorted(
            Read(row["position"], row["payload"])
            for path in self._committed()
            for row in pq.read_table(path, columns=["position", "payload"]).to_pylist()
        )

    def _committed(self) -> Iterator[Path]:
        """The files that the sink's own log names: those of an attempt that was killed are not among them."""
        assert self._job.files is not None
        records = Path(self._job.files) / "_spark_metadata"
        compacted = sorted((int(path.stem) for path in records.glob("*.compact")), reverse=True)
        for path in records.iterdir():
            if path.name.startswith(".") or not path.stem.isdigit():
                continue
            if compacted and (int(path.stem) < compacted[0] or path.name == str(compacted[0])):
                continue
            for line in path.read_text().splitlines()[1:]:
                yield Path(json.loads(line)["path"].removeprefix("file://"))
