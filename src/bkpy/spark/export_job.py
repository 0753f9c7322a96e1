"""Spark's part of an export: reads a batch through the data source, and writes its files."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bkpy.errors import CorruptDataError
from bkpy.spark.failures import translating

if TYPE_CHECKING:
    from pyspark.core.status import StatusTracker
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

    from bkpy.spark.export_plan import ExportBatch
    from bkpy.spark.lock import TargetLock
    from bkpy.spark.manifest import ExportLayout

Progress = Callable[[int, int], None]

PARTITION_COLUMN: Final = "day"

_PROGRESS_INTERVAL_S: Final = 0.2
_JOB_GROUP: Final = "spark.jobGroup.id"  # Spark's own name of the property
_OF_ONE_WRITE: Final = re.compile(r"part-\d+-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")

# Spark's defaults would trim blanks off the payloads, and escape quotes in a way that few other readers expect.
_CSV: Final = {
    "header": "true",
    "escape": '"',
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
}

_SETTINGS: Final = {
    # A task of a few days keeps a file open for each; else Spark would sort all its rows by day first.
    "spark.sql.maxConcurrentOutputFileWriters": "8",
    # Others take a time that Spark writes otherwise for one of no time zone.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


@dataclass(frozen=True)
class Job:
    """What Spark has to do: write in this layout to `target`, a URI where nothing is. `place` is for people."""

    layout: ExportLayout
    target: str
    place: str

    def run(
        self,
        spark: SparkSession,
        lock: TargetLock,
        batch: ExportBatch,
        done: int,
        total: int,
        progress: Progress | None,
    ) -> tuple[int, int]:
        """Do it; `done` of `total` tasks were others'. The rows that were written, and the bytes of their payloads."""
        with translating(self.place), _job_group(spark) as group, _settings(spark, _SETTINGS):
            rows = self._rows(spark, batch)
            # Spark stops writing if the lock is lost, and whatever then comes of it, it counts as that.
            with (
                lock.telling(lambda: spark.sparkContext.cancelJobGroup(group)),
                _reporting(spark, group, done, batch.tasks, total, progress),
            ):
                return self._write(rows)

    def check_alone(self, spark: SparkSession) -> int:
        """How many files there are. Raises `CorruptDataError` if not all are of one write."""
        with translating(self.place):
            reader = spark.read.format(self.layout.format).schema("entry_id bigint")
            there = reader.load(_literally(self.target)).inputFiles()
        if len(writes_of(there)) > 1:
            raise CorruptDataError(
                "somebody else has written there meanwhile: what is there is not this export alone", path=self.place
            )
        return len(there)

    def count_from(self, spark: SparkSession, position: int) -> int:
        """How many entries of a log at this position and behind it were written, as the files say."""
        from pyspark.sql import functions as f

        with translating(self.place):
            # All columns of CSV are text, and payloads may have line breaks.
            options = {**_CSV, "multiLine": "true"} if self.layout.format == "csv" else {}
            reader = spark.read.format(self.layout.format).options(**options)
            if self.layout.format == "json":
                reader = reader.schema("position bigint")
            return reader.load(_literally(self.target)).where(f.col("position").cast("bigint") >= position).count()

    def _rows(self, spark: SparkSession, batch: ExportBatch) -> DataFrame:
        """The table to write, with the payload as it is to be written, and the day if that is wanted."""
        rows = _with_payload(_read(spark, batch.given), self.layout.payload)
        return rows if self.layout.partition_by is None else _with_day(spark, rows, batch.days)

    def _write(self, rows: DataFrame) -> tuple[int, int]:
        """Write the rows; how many there were, and the bytes of their payloads."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        seen = Observation()
        observed = rows.observe(seen, f.count(f.lit(1)).alias("rows"), f.sum("length").alias("bytes"))
        writer: DataFrameWriter = observed.write.format(self.layout.format).mode("errorifexists")
        if self.layout.partition_by is not None:
            writer = writer.partitionBy(PARTITION_COLUMN)
        options = _CSV if self.layout.format == "csv" else {}
        writer.options(timeZone="UTC", **options).save(self.target)
        found = seen.get
        return found["rows"], found["bytes"] or 0


def _literally(target: str) -> str:
    """The target where Spark would take it for a pattern of files' names."""
    return re.sub(r"[\\{}\[\]*?]", r"\\\g<0>", target)


def writes_of(files: Iterable[str]) -> set[str]:
    """What tells the writes apart that have left these files: Spark puts an id of each write into all its names."""
    names = (file.rpartition("/")[2] for file in files)
    return {found[1] if (found := _OF_ONE_WRITE.match(name)) else name for name in names}


def _read(spark: SparkSession, given: Mapping[str, str]) -> DataFrame:
    if given.get("ledgers") != "":
        return spark.read.format("bkpy").options(**given).load()
    from pyspark.sql.types import StructField, StructType

    from bkpy.spark.options import COLUMNS
    from bkpy.spark.schema import TYPES

    return spark.createDataFrame([], StructType([StructField(name, TYPES[name]) for name in COLUMNS]))


def _with_payload(rows: DataFrame, payload: str | None) -> DataFrame:
    from pyspark.sql import functions as f

    if payload == "base64":
        return rows.withColumn("payload", f.base64("payload"))
    if payload == "utf8":
        text = f.col("payload").cast("string")
        message = f.format_string(
            "a payload is not UTF-8 text, export it as base64 [ledger %d, entry %d]", "ledger_id", "entry_id"
        )
        return rows.withColumn("payload", f.when(f.is_valid_utf8(text), text).otherwise(f.raise_error(message)))
    return rows


def _with_day(spark: SparkSession, rows: DataFrame, days: Mapping[int, str] | None) -> DataFrame:
    """A further column, a date: each ledger's day, or without `days` that of each entry's time. In UTC."""
    from pyspark.sql import functions as f

    if days is None:  # whatever time zone the session has
        day = f.date_from_unix_date(f.floor(f.unix_micros("time") / f.lit(86_400_000_000)).cast("int"))
        return rows.withColumn(PARTITION_COLUMN, day)
    if len(set(days.values())) <= 1:
        return rows.withColumn(PARTITION_COLUMN, f.lit(next(iter(days.values()), None)).cast("date"))
    table = spark.createDataFrame(list(days.items()), f"ledger_id bigint, {PARTITION_COLUMN} string")
    table = table.withColumn(PARTITION_COLUMN, f.col(PARTITION_COLUMN).cast("date"))
    return rows.join(f.broadcast(table), "ledger_id").select(*rows.columns, PARTITION_COLUMN)


@contextmanager
def _settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Meanwhile, settings of the session have these values."""
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    with _after_all_but_interrupts(lambda: _set_again(spark, before)):
        yield


def _set_again(spark: SparkSession, values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)


@contextmanager
def _after_all_but_interrupts(step: Callable[[], None]) -> Iterator[None]:
    """Then do this, but not after Ctrl-C: a call that was interrupted still has this thread's connection to Java."""
    interrupted = True
    try:
        yield
        interrupted = False
    except Exception:
        interrupted = False
        raise
    finally:
        if not interrupted:
            with suppress(Exception):  # the Java process may have died
                step()


@contextmanager
def _job_group(spark: SparkSession) -> Iterator[str]:
    """Meanwhile, this thread's jobs are a group of their own."""
    context = spark.sparkContext
    group = f"bkpy export {uuid.uuid4()}"
    before = context.getLocalProperty(_JOB_GROUP)
    context.setLocalProperty(_JOB_GROUP, group)
    # None removes it.
    with _after_all_but_interrupts(lambda: context.setLocalProperty(_JOB_GROUP, before)):  # type: ignore[arg-type]
        yield group


@contextmanager
def _reporting(
    spark: SparkSession, group: str, before: int, tasks: int, total: int, progress: Progress | None
) -> Iterator[None]:
    """Meanwhile, tell how many of all tasks are done: those `before`, and of the `tasks` of this group."""
    if progress is None:
        yield
        return

    def tell(done: int) -> None:
        progress(before + min(done, tasks), total)

    ended = threading.Event()
    tracker = spark.sparkContext.statusTracker()
    reporter = threading.Thread(target=_report, args=(tracker, group, tell, ended), daemon=True)
    tell(0)
    reporter.start()
    try:
        yield
    finally:
        ended.set()
        reporter.join()
    tell(tasks)


def _report(tracker: StatusTracker, group: str, tell: Callable[[int], None], ended: threading.Event) -> None:
    from py4j.protocol import Py4JError

    with suppress(Py4JError, ConnectionError):  # the Java process has died, and who waits for it says so
        while not ended.wait(_PROGRESS_INTERVAL_S):
            tell(_tasks_done(tracker, group))


def _tasks_done(tracker: StatusTracker, group: str) -> int:
    done = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            stage_info = tracker.getStageInfo(stage)
            done += stage_info.numCompletedTasks if stage_info is not None else 0
    return done
