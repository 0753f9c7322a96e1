"""Closed ledgers as Parquet, CSV or JSON files, written by the workers of a Spark session.

Invariants: everything that can be known to be wrong is refused before Spark starts and before anything is written; a
summary is returned only if every entry that was planned was also written, and nothing else was.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bkpy.config.client import ClientSettings, client_settings
from bkpy.errors import ConfigError, CorruptDataError
from bkpy.spark.failures import translating
from bkpy.spark.lock import TargetLock, is_uri
from bkpy.spark.options import SourceOptions, format_ledgers, parse_options

if TYPE_CHECKING:
    from pyspark.core.status import StatusTracker
    from pyspark.sql import DataFrame, SparkSession

    from bkpy.spark.planning import EntryRange, Selection

FORMATS: Final = ("parquet", "csv", "json")
PAYLOADS: Final = ("utf8", "base64")

Progress = Callable[[int, int], None]

_PROGRESS_INTERVAL_S: Final = 0.2
_JOB_GROUP: Final = "spark.jobGroup.id"  # Spark's own name of the property
_OF_ONE_WRITE: Final = re.compile(r"part-\d+-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")

# Options of the data source that an export has arguments for, or that would change what an export is.
_NOT_OPTIONS: Final = frozenset(
    ("metadataserviceuri", "ledgers", "passwordfile", "skipunauthorized", "columns", "failondataloss", "pushdown")
)

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
    skipped: list[int]  # ledgers with another password, left out on request
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
    skip_unauthorized: bool = False,
    options: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    output: int | None = None,
    progress: Progress | None = None,
) -> ExportSummary:
    """Write the entries of closed ledgers to files in the directory `to`. Blocks; not for use inside an event loop.

    `ledgers` is a sequence of ids, or text as the data source takes it, "7,9-12" or "closed". `to` is a path that is
    empty or doesn't exist, or a URI that Spark can write to and where nothing exists; one export at a time of a
    cluster writes there. Payloads are bytes in Parquet and Base64 text elsewhere, unless `payload` is "utf8" or
    "base64". With `skip_unauthorized`, ledgers with another password are left out. `options` are the data source's,
    for what has no argument here. Without `spark`, a session on `master` is made and ended, whose output goes to the
    file descriptor `output`. `progress` is called from another thread with the partitions that are done and all there
    are.

    Raises `ConfigError`, also if another export is writing there, what planning and reading raise, and
    `CorruptDataError` if payloads are not UTF-8 or if something else is in `to` in the end than all that was planned.
    """
    started = time.monotonic()
    _check(format, payload, options or {})
    given = {**(options or {}), "metadataServiceUri": connect_string, "skipUnauthorized": str(skip_unauthorized)}
    given["ledgers"] = ledgers if isinstance(ledgers, str) else format_ledgers(ledgers)
    if password_file is not None:
        given["passwordFile"] = password_file
    directory, target, mode = _target(to)
    checked = parse_options(given)
    selection, parts = _plan(checked)
    # A ledger that is closed meanwhile is no part of the plan any more.
    given["ledgers"] = format_ledgers(metadata.ledger_id for metadata in selection.ledgers)
    job = _Job(given, payload or (None if format == "parquet" else "base64"), format, target, mode, directory)
    with _locked(checked, to) as lock:
        _target(to)  # again: another export may have ended since
        with _session(spark, master, output) as session:
            written, size, files = job.run(session, lock, len(parts), progress)
    planned = sum(part.entries for part in parts)
    if written != planned:
        raise CorruptDataError(f"{written} entries were written, not the {planned} there are", path=directory)
    count = len(selection.ledgers)
    return ExportSummary(
        directory, format, count, selection.unauthorized, written, size, files, time.monotonic() - started
    )


def _check(format: str, payload: str | None, options: Mapping[str, str]) -> None:
    if format not in FORMATS:
        raise ConfigError(f"format {format!r} is not one of {', '.join(FORMATS)}")
    if payload is not None and payload not in PAYLOADS:
        raise ConfigError(f"payload {payload!r} is not one of {', '.join(PAYLOADS)}")
    for name in options:
        if name.lower() in _NOT_OPTIONS:
            raise ConfigError(f"option {name} can't be given to an export, which decides on it itself")


def _target(to: str | Path) -> tuple[str, str, str]:
    """Where to write: as people write it, as a URI, and with Spark's mode of writing that fits what was found there."""
    if is_uri(to):
        return str(to), str(to), "errorifexists"  # only Spark can look there
    path = Path(to).absolute()
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError("the directory to export to is not empty", path=str(path))
    there = next(p for p in (path, *path.parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(
            f"nothing can be written there: {there} is no directory, or not a writable one", path=str(path)
        )
    return str(path), f"file://{path}", "append"  # Spark undoes no escapes, so there must be none


def _plan(options: SourceOptions) -> tuple[Selection, list[EntryRange]]:
    """The ledgers to export and their partitions, as the data source will plan them."""
    from bkpy.spark.planning import load_ledgers, plan

    # Nothing was done yet, and an address where no ZooKeeper runs is told soon.
    selection = load_ledgers(options, metadata_refused_timeout_s=ClientSettings().metadata_refused_timeout_s)
    return selection, plan(selection.ledgers, options)


def _locked(options: SourceOptions, to: str | Path) -> AbstractContextManager[TargetLock]:
    lock = TargetLock(
        options.metadata_uri,
        to,
        client_settings(**options.security),
        session_timeout_s=options.session_timeout_s,
        connect_timeout_s=options.timeout_s,
    )
    return lock.held()


@contextmanager
def _session(spark: SparkSession | None, master: str, output: int | None) -> Iterator[SparkSession]:
    """The caller's session, or one for a while."""
    from bkpy.spark.session import own_session

    if spark is not None:
        yield spark
        return
    with own_session("bkpy export", master=master, output=output) as session:
        yield session


@dataclass(frozen=True)
class _Job:
    """What Spark has to do: read with the options `given`, write in `format` to `target`."""

    given: dict[str, str]
    payload: str | None
    format: str
    target: str
    mode: str
    directory: str

    def run(self, spark: SparkSession, lock: TargetLock, total: int, progress: Progress | None) -> tuple[int, int, int]:
        """Do it. The rows that were written, the bytes of their payloads, and the files that there are now."""
        with translating(self.directory), _job_group(spark) as group:
            rows = _rows(spark, self.given, self.payload)
            # Spark stops writing if the lock is lost, and whatever then comes of it, it counts as that.
            with (
                lock.telling(lambda: spark.sparkContext.cancelJobGroup(group)),
                _reporting(spark, group, total, progress),
            ):
                written, size = _write(rows, self.format, self.target, self.mode)
            there = spark.read.format(self.format).schema("entry_id bigint").load(_literally(self.target)).inputFiles()
        if len(writes_of(there)) > 1:
            raise CorruptDataError(
                "somebody else has written into the directory meanwhile: what is there is not this export alone",
                path=self.directory,
            )
        return written, size, len(there)


def _literally(target: str) -> str:
    """The target where Spark would take it for a pattern of files' names."""
    return re.sub(r"[\\{}\[\]*?]", r"\\\g<0>", target)


def writes_of(files: Iterable[str]) -> set[str]:
    """What tells the writes apart that have left these files: Spark puts an id of each write into all its names."""
    names = (file.rpartition("/")[2] for file in files)
    return {found[1] if (found := _OF_ONE_WRITE.match(name)) else name for name in names}


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
def _job_group(spark: SparkSession) -> Iterator[str]:
    """Meanwhile, this thread's jobs are a group of their own."""
    context = spark.sparkContext
    group = f"bkpy export {uuid.uuid4()}"
    before = context.getLocalProperty(_JOB_GROUP)
    context.setLocalProperty(_JOB_GROUP, group)
    # Not after Ctrl-C: a call that was interrupted still has this thread's connection.
    interrupted = True
    try:
        yield group
        interrupted = False
    except Exception:
        interrupted = False
        raise
    finally:
        if not interrupted:
            with suppress(Exception):  # the Java process may have died
                context.setLocalProperty(_JOB_GROUP, before)  # type: ignore[arg-type]  # None removes it


@contextmanager
def _reporting(spark: SparkSession, group: str, total: int, progress: Progress | None) -> Iterator[None]:
    """Meanwhile, tell how many of Spark's tasks are done."""
    if progress is None:
        yield
        return
    ended = threading.Event()
    tracker = spark.sparkContext.statusTracker()
    reporter = threading.Thread(target=_report, args=(tracker, group, total, progress, ended), daemon=True)
    progress(0, total)
    reporter.start()
    try:
        yield
    finally:
        ended.set()
        reporter.join()
    progress(total, total)


def _report(tracker: StatusTracker, group: str, total: int, progress: Progress, ended: threading.Event) -> None:
    from py4j.protocol import Py4JError

    with suppress(Py4JError, ConnectionError):  # the Java process has died, and who waits for it says so
        while not ended.wait(_PROGRESS_INTERVAL_S):
            progress(min(_tasks_done(tracker, group), total), total)


def _tasks_done(tracker: StatusTracker, group: str) -> int:
    done = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            stage_info = tracker.getStageInfo(stage)
            done += stage_info.numCompletedTasks if stage_info is not None else 0
    return done
