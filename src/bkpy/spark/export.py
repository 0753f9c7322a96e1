"""Closed ledgers as Parquet, CSV or JSON files, written by the workers of a Spark session.

Invariants: everything that can be known to be wrong is refused before Spark starts and before anything is written; a
summary is returned only if every entry that was planned was also written.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bkpy import errors
from bkpy.errors import BookKeeperError, ConfigError, CorruptDataError
from bkpy.spark.options import format_ledgers, parse_options

if TYPE_CHECKING:
    from pyspark.core.status import StatusTracker
    from pyspark.sql import DataFrame, SparkSession

    from bkpy.spark.planning import EntryRange

FORMATS: Final = ("parquet", "csv", "json")
PAYLOADS: Final = ("utf8", "base64")

Progress = Callable[[int, int], None]

_PROGRESS_INTERVAL_S: Final = 0.2
_JOB_GROUP: Final = "spark.jobGroup.id"  # Spark's own name of the property

# Spark's defaults would trim blanks off the payloads, and escape quotes in a way that few other readers expect.
_CSV: Final = {
    "header": "true",
    "escape": '"',
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
}


@dataclass(frozen=True)
class ExportSummary:
    """What was exported: entries and their payload bytes, from how many ledgers, into how many files of `directory`."""

    directory: str
    format: str
    ledgers: int
    rows: int
    bytes: int
    files: int
    seconds: float


def export_ledgers(
    connect_string: str,
    ledgers: str | Sequence[int],
    to: str | Path,
    *,
    format: str = "parquet",
    payload: str | None = None,
    password_file: str | None = None,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    progress: Progress | None = None,
) -> ExportSummary:
    """Write the entries of closed ledgers to files in the directory `to`. Blocks; not for use inside an event loop.

    `ledgers` is a sequence of ids, or text as the data source takes it, "7,9-12" or "closed". `to` is a path that is
    empty or doesn't exist, or a URI that Spark can write to and where nothing exists. Payloads are bytes in Parquet and
    Base64 text elsewhere, unless `payload` is "utf8" or "base64". Without `spark`, a session on `master` is made and
    stopped. `progress` is called from another thread with the partitions that are done and all there are.

    Raises `ConfigError`, what planning and reading raise, and `CorruptDataError` if payloads are not UTF-8 or if
    Spark did not write all that was planned.
    """
    started = time.monotonic()
    _check(format, payload)
    given = {"metadataServiceUri": connect_string}
    given["ledgers"] = ledgers if isinstance(ledgers, str) else format_ledgers(ledgers)
    if password_file is not None:
        given["passwordFile"] = password_file
    directory, target, mode = _target(to)
    ids, parts = _plan(given)
    # A ledger that is closed meanwhile is no part of the plan any more.
    given["ledgers"] = format_ledgers(ids)
    session = _session(master) if spark is None else spark
    try:
        rows = _rows(session, given, payload or (None if format == "parquet" else "base64"))
        with _reporting(session, len(parts), progress), _translating():
            written, size = _write(rows, format, target, mode)
        files = len(session.read.format(format).schema("entry_id bigint").load(target).inputFiles())
    finally:
        if spark is None:
            session.stop()
    planned = sum(part.entries for part in parts)
    if written != planned:
        raise CorruptDataError(f"{written} entries were written, not the {planned} there are", path=directory)
    return ExportSummary(directory, format, len(ids), written, size, files, time.monotonic() - started)


def _check(format: str, payload: str | None) -> None:
    if format not in FORMATS:
        raise ConfigError(f"format {format!r} is not one of {', '.join(FORMATS)}")
    if payload is not None and payload not in PAYLOADS:
        raise ConfigError(f"payload {payload!r} is not one of {', '.join(PAYLOADS)}")


def _target(to: str | Path) -> tuple[str, str, str]:
    """Where to write: as people write it, as a URI, and with Spark's mode of writing that fits what was found there."""
    if "://" in str(to):
        return str(to), str(to), "errorifexists"  # only Spark can look there
    path = Path(to).absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError("the directory to export to is not empty", path=str(path))
    there = next(p for p in (path, *path.parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(
            f"nothing can be written there: {there} is no directory, or not a writable one", path=str(path)
        )
    return str(path), path.as_uri(), "append"


def _plan(given: dict[str, str]) -> tuple[list[int], list[EntryRange]]:
    """The ledgers to export and their partitions, as the data source will plan them."""
    from bkpy.spark.planning import load_ledgers, plan

    options = parse_options(given)
    metadata = load_ledgers(options)
    return [ledger.ledger_id for ledger in metadata], plan(metadata, options)


def _session(master: str) -> SparkSession:
    from bkpy.spark.session import local_session

    return local_session("bkpy export", master=master)


def _rows(spark: SparkSession, given: dict[str, str], payload: str | None) -> DataFrame:
    """The table to write, with the payload as it is to be written."""
    from pyspark.sql import functions as f

    from bkpy.spark.schema import TYPES

    if given["ledgers"]:
        rows = spark.read.format("bkpy").options(**given).load()
    else:
        from pyspark.sql.types import StructField, StructType

        rows = spark.createDataFrame([], StructType([StructField(name, kind) for name, kind in TYPES.items()]))
    if payload == "base64":
        return rows.withColumn("payload", f.base64("payload"))
    if payload == "utf8":
        text = f.col("payload").cast("string")
        message = f.format_string(
            "a payload is not UTF-8 text, export it as base64 [ledger %d, entry %d]", "ledger_id", "entry_id"
        )
        return rows.withColumn("payload", f.when(f.is_valid_utf8(text), text).otherwise(f.raise_error(message)))
    return rows


def _write(rows: DataFrame, format: str, target: str, mode: str) -> tuple[int, int]:
    """Write the rows; how many there were, and the bytes of their payloads."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    seen = Observation()
    observed = rows.observe(seen, f.count(f.lit(1)).alias("rows"), f.sum("length").alias("bytes"))
    writer = observed.write.format(format).mode(mode)
    (writer.options(**_CSV) if format == "csv" else writer).save(target)
    found = seen.get
    return found["rows"], found["bytes"] or 0


@contextmanager
def _reporting(spark: SparkSession, total: int, progress: Progress | None) -> Iterator[None]:
    """Meanwhile, tell how many of Spark's tasks are done."""
    if progress is None:
        yield
        return
    context = spark.sparkContext
    group = f"bkpy export {uuid.uuid4()}"  # jobs of an earlier export must not count
    before = context.getLocalProperty(_JOB_GROUP)
    context.setLocalProperty(_JOB_GROUP, group)
    ended = threading.Event()
    reporter = threading.Thread(target=_report, args=(context.statusTracker(), group, total, progress, ended))
    progress(0, total)
    reporter.start()
    try:
        yield
    finally:
        ended.set()
        reporter.join()
        context.setLocalProperty(_JOB_GROUP, before)  # type: ignore[arg-type]  # None removes it
    progress(total, total)


def _report(tracker: StatusTracker, group: str, total: int, progress: Progress, ended: threading.Event) -> None:
    while not ended.wait(_PROGRESS_INTERVAL_S):
        done = 0
        for job in tracker.getJobIdsForGroup(group):
            info = tracker.getJobInfo(job)
            for stage in info.stageIds if info is not None else ():
                stage_info = tracker.getStageInfo(stage)
                done += stage_info.numCompletedTasks if stage_info is not None else 0
        progress(min(done, total), total)


# What Spark tells of an error: a line of a Python traceback, the text of `raise_error`, the first of its causes.
_OURS: Final = re.compile(r"^bkpy\.errors\.(\w+): (.+)$", re.MULTILINE)
_RAISED: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
_CAUSE: Final = re.compile(r"^Caused by: (.+)$", re.MULTILINE)


@contextmanager
def _translating() -> Iterator[None]:
    """Spark wraps an error of a task into the stories of three layers; raise the one that it began with."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as e:
        raise translated(str(e)) from e


def translated(text: str) -> BookKeeperError:
    """The error that a text of Spark's is about."""
    if found := _OURS.search(text):
        kind = getattr(errors, found[1], None)
        if isinstance(kind, type) and issubclass(kind, BookKeeperError):
            return kind(found[2])
    if found := _RAISED.search(text):
        return CorruptDataError(found[1])
    if "[PATH_ALREADY_EXISTS]" in text:
        return ConfigError("there is something already where the export is to go")
    causes = _CAUSE.findall(text)
    return BookKeeperError(f"Spark failed: {causes[-1] if causes else text.partition(chr(10))[0]}")
