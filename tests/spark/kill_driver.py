"""A Spark driver for tests that kill it: copies a log to files, or to another log, until it has read all that is there.

Run as `python -m tests.spark.kill_driver JSON`: see `Job`. Prints one line when its first batch is done.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bkpy.spark.session import own_session
from bkpy.spark.sink import LogStreamWriter
from pyspark_bkpy import DefaultSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Job:
    """What is copied where. With `flaky` or `gate`, directories, the sink is a `FlakyWriter` or a `GatedWriter`."""

    source: dict[str, str]
    checkpoint: str
    files: str | None = None
    sink: dict[str, str] = field(default_factory=dict)
    flaky: str | None = None
    gate: str | None = None
    master: str = "local[2,3]"


class FlakyWriter(LogStreamWriter):
    """Every first attempt of a task fails behind its last row; the driver is killed before and after some commits."""

    def __init__(self, writer: LogStreamWriter, marks: str) -> None:
        self.__dict__.update(writer.__dict__)
        self._marks = marks

    def _first_time(self, what: str) -> bool:
        try:
            (Path(self._marks) / what).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        message = super().write(iterator)
        if context is not None and context.attemptNumber() == 0 and context.partitionId() == 0:
            raise OSError("the first attempt fails, and leaves a ledger that nobody commits")
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if self._first_time(f"before-{batchId}"):
            _kill_driver()
        super().commit(messages, batchId)
        if self._first_time(f"after-{batchId}"):
            _kill_driver()


class GatedWriter(LogStreamWriter):
    """A driver whose tasks have ended says so, and commits when it may."""

    def __init__(self, writer: LogStreamWriter, gate: str) -> None:
        self.__dict__.update(writer.__dict__)
        self._gate = Path(gate)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        (self._gate / f"waits-{batchId}-{os.getpid()}").touch()
        while not (self._gate / "open").exists():
            time.sleep(0.01)
        super().commit(messages, batchId)


class FlakySource(DefaultSource):
    """The data source, with one of these writers."""

    @classmethod
    def name(cls) -> str:
        return "flaky"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        given = dict(self.options.items())
        marks, gate = given.pop("marks", None), given.pop("gate", None)
        writer = LogStreamWriter.of(given, schema, overwrite)
        if marks is not None:
            return FlakyWriter(writer, marks)
        assert gate is not None
        return GatedWriter(writer, gate)


def _kill_driver() -> None:
    """The Java process, which is above this one, and with it all of Spark; this process, too, does nothing more."""
    pid = os.getpid()
    while "java" not in Path(f"/proc/{pid}/comm").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    with own_session("killed", master=job.master) as spark:
        rows = spark.readStream.format("bkpy").options(**job.source).load()
        if job.files is not None:
            writing = rows.writeStream.format("parquet").option("path", job.files)
        else:
            own = {name: where for name, where in (("marks", job.flaky), ("gate", job.gate)) if where is not None}
            payloads = rows.select("payload").repartition(2) if own else rows.select("payload")
            writing = payloads.writeStream.format("flaky" if own else "bkpy").options(**job.sink, **own)
            if own:
                spark.dataSource.register(FlakySource)
        query = writing.option("checkpointLocation", job.checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
    print("done", flush=True)


if __name__ == "__main__":
    main()
