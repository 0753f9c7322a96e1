"""Ledgers and logs as Parquet, CSV or JSON files, written by the workers of a Spark session, each entry once.

Invariants: an export refuses every mistake that it can detect before Spark starts and before it writes anything; a
batch becomes part of an export only if exactly the planned entries were written.
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, TypedDict
from urllib.parse import unquote, urlsplit

from bkpy.client.arguments import format_ledger_ids
from bkpy.config.client import client_settings
from bkpy.errors import (
    BookKeeperError,
    ConfigError,
    CorruptDataError,
    DiskError,
    NoSuchLedgerError,
    TruncatedError,
)
from bkpy.spark.export_directory import ExportDirectory, look
from bkpy.spark.export_job import Job, Progress
from bkpy.spark.id_runs import NOTHING, Runs
from bkpy.spark.lock import TargetLock, is_uri
from bkpy.spark.manifest import NO_TOTALS, ExportLayout, ExportSource, State, Totals
from bkpy.spark.options import SourceOptions, parse_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Unpack

    from pyspark.sql import SparkSession

    from bkpy.spark.export_plan import ExportBatch, ExportPlan

FORMATS: Final = ("parquet", "csv", "json")
PAYLOADS: Final = ("utf8", "base64")
PARTITIONINGS: Final = ("day",)

# Options of the data source that an export has arguments for, or that would change what an export is.
_NOT_OPTIONS: Final = frozenset(
    (
        "columns", "endingoffsets", "failondataloss", "ledgers", "log", "maxbytespertrigger", "maxentriespertrigger",
        "metadataserviceuri", "passwordfile", "pushdown", "skipunauthorized", "startingoffsets",
    )
)  # fmt: skip


@dataclass(frozen=True)
class ExportSummary:
    """The entries that were added and their payload bytes, from how many ledgers, in how many files of `directory`.

    Of a log, ledgers aren't counted, `truncated` is how many of its entries were skipped, and `gaps` are the positions
    among the new ones that have no entries because a loss was accepted, each gap with its first and last position.
    """

    directory: str
    format: str
    ledgers: int
    skipped: list[int]  # ledgers with another password, left out on request
    truncated: int
    rows: int
    bytes: int
    files: int
    seconds: float
    total: Totals  # in the export now
    gaps: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class _Added:
    """The sum of what batches have added. `truncated` entries were deleted before the export read them."""

    totals: Totals = NO_TOTALS
    truncated: int = 0
    gaps: Runs = NOTHING

    def __add__(self, other: _Added) -> _Added:
        return _Added(self.totals + other.totals, self.truncated + other.truncated, self.gaps | other.gaps)


@dataclass(frozen=True)
class ExportRequest:
    """What to export, to where and how: either `ledgers` or a `log`. See `export_ledgers` and `export_log`."""

    connect_string: str
    to: str | Path
    ledgers: str | Sequence[int] | None = None
    log: str | None = None
    format: str = "parquet"
    payload: str | None = None
    partition_by: str | None = None
    password_file: str | None = None
    skip_unauthorized: bool = False
    skip_truncated: bool = False
    options: Mapping[str, str] | None = None
    batch_bytes: int | None = None

    def check(self) -> None:
        """Raises `ConfigError`."""
        if (self.ledgers is None) == (self.log is None):
            raise ConfigError("export either ledgers or a log")
        if self.skip_unauthorized and self.log is not None:
            raise ConfigError("a log has one password: --skip-unauthorized is for ledgers")
        if self.skip_truncated and self.log is None:
            raise ConfigError("ledgers are not truncated: --skip-truncated is for a log")
        if self.format not in FORMATS:
            raise ConfigError(f"format {self.format!r} is not one of {', '.join(FORMATS)}")
        if self.payload is not None and self.payload not in PAYLOADS:
            raise ConfigError(f"payload {self.payload!r} is not one of {', '.join(PAYLOADS)}")
        if self.partition_by is not None and self.partition_by not in PARTITIONINGS:
            raise ConfigError(f"an export can't be partitioned by {self.partition_by!r}, only by day")
        if self.batch_bytes is not None and self.batch_bytes < 1:
            raise ConfigError(f"a batch of {self.batch_bytes} bytes can hold no entry")
        for name in self.options or ():
            if name.lower() in _NOT_OPTIONS:
                raise ConfigError(f"option {name} is not allowed: an export sets it itself")

    @property
    def layout(self) -> ExportLayout:
        payload = self.payload or (None if self.format == "parquet" else "base64")
        return ExportLayout(self.format, payload, self.partition_by)

    def given(self) -> dict[str, str]:
        """The data source's options."""
        given = {**(self.options or {}), "metadataServiceUri": self.connect_string}
        if self.log is not None:
            given["log"] = self.log
        elif self.ledgers is not None:
            given["skipUnauthorized"] = str(self.skip_unauthorized)
            given["ledgers"] = self.ledgers if isinstance(self.ledgers, str) else format_ledger_ids(self.ledgers)
        if self.password_file is not None:
            given["passwordFile"] = self.password_file
        return given


class ExportArguments(TypedDict, total=False):
    """What `export_ledgers` and `export_log` both take: fields of `ExportRequest`, with its defaults."""

    format: str
    payload: str | None
    partition_by: str | None
    password_file: str | None
    options: Mapping[str, str] | None
    batch_bytes: int | None


def export_ledgers(
    connect_string: str,
    ledgers: str | Sequence[int],
    to: str | Path,
    *,
    skip_unauthorized: bool = False,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    output: int | None = None,
    progress: Progress | None = None,
    **arguments: Unpack[ExportArguments],
) -> ExportSummary:
    """Add the entries of closed ledgers that aren't there yet to the directory `to`. Blocks; not for an event loop.

    `ledgers` is a sequence of ids, or text as the data source takes it, "7,9-12" or "closed". `to` is a directory that
    is empty, doesn't exist or holds an export of this cluster with the same `format`, `payload` and `partition_by`; or
    a URI that Spark can write to and where nothing exists, since an export there can't go on. One export at a time of
    a cluster writes there.

    * `format` is "parquet" (the default), "csv" or "json".
    * `payload`: payloads are bytes in Parquet and Base64 text elsewhere, unless it is "utf8" or "base64".
    * `partition_by="day"` puts files into folders by the day, in UTC, when their ledgers were created.
    * `skip_unauthorized` leaves out ledgers with another password than that of `password_file`.
    * `options` are the data source's, for what has no argument here.
    * `batch_bytes` (16 GiB) is about how much becomes part of the export at once.
    * `spark` is the session to use. Without it, the call makes one on `master` and ends it, with its output going to
      the file descriptor `output`; it makes none if nothing is new.
    * `progress` is called from another thread with the partitions that are done and all there are.

    Whenever this process dies, the visible files are whole, no entry is in two of them, and another call adds what is
    missing. Raises `ConfigError`, also if another export is writing there, what planning and reading raise,
    `DiskError`, and `CorruptDataError` if payloads are not UTF-8 or anything else was written than was planned.
    """
    request = ExportRequest(connect_string, to, ledgers, skip_unauthorized=skip_unauthorized, **arguments)
    with Exporter(request, spark=spark, master=master, output=output, progress=progress) as exporter:
        return exporter.round()


def export_log(
    connect_string: str,
    log: str,
    to: str | Path,
    *,
    skip_truncated: bool = False,
    spark: SparkSession | None = None,
    master: str = "local[*]",
    output: int | None = None,
    progress: Progress | None = None,
    **arguments: Unpack[ExportArguments],
) -> ExportSummary:
    """Add the entries of a log that aren't there yet, up to the last one that can be read, to the directory `to`.

    As `export_ledgers` does; the first time from the log's first entry on. With `partition_by="day"`, files are in
    folders by the day, in UTC, of each entry's time. Entries that were truncated after the last export and before this
    one has read them are a `TruncatedError`; with `skip_truncated` they are left out, and counted in `truncated`.
    Another log of the same name is refused. The export passes over positions without entries, where a loss was
    accepted, and names them in `gaps`.
    """
    request = ExportRequest(connect_string, to, log=log, skip_truncated=skip_truncated, **arguments)
    with Exporter(request, spark=spark, master=master, output=output, progress=progress) as exporter:
        return exporter.round()


class Exporter:
    """Adds new entries to a target, round by round. Locks it, and makes a session, once there is something to add.

    After an error it is as new, and you can try another round.
    """

    def __init__(
        self,
        request: ExportRequest,
        *,
        spark: SparkSession | None = None,
        master: str = "local[*]",
        output: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        request.check()
        self._request = request
        self._given = request.given()
        self._options = parse_options(self._given)
        self._spark = spark
        self._master = master
        self._output = output
        self._progress = progress
        self._path = _path(request.to)
        self._held = ExitStack()
        self._lock: TargetLock | None = None
        self._directory: ExportDirectory | None = None
        self._session: SparkSession | None = None

    def __enter__(self) -> Exporter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the session and the lock on the target."""
        self._lock = self._directory = self._session = None
        self._held.pop_all().close()

    def round(self) -> ExportSummary:
        """Add the entries that are new by now; see `export_ledgers`."""
        try:
            with _telling_of_disks(self._request.to):
                return self._round()
        except BaseException as e:
            self._lock = self._directory = self._session = None
            self._held.pop_all().__exit__(type(e), e, e.__traceback__)  # a session ends otherwise after Ctrl-C
            raise

    def take(self) -> None:
        """Lock the target against other exports. Raises `ConfigError` if another one has it."""
        if self._lock is None:
            self._lock = self._held.enter_context(_locked(self._options, self._request.to))

    def _round(self) -> ExportSummary:
        started = time.monotonic()
        if self._lock is not None:
            self._lock.check()
        if self._path is None:
            added, plan = self._export_to_uri()
            total = added.totals
        else:
            _check_writable(self._path)
            plan = self._plan()
            added, total = _Added(), plan.state.totals
            if plan.batches or not plan.state.next_batch or plan.state.moves is not None:
                directory, plan = self._opened(plan)
                added, plan = self._add_all(directory, plan)
                total = directory.state.totals
        new = added.totals
        return ExportSummary(
            str(self._path or self._request.to), self._request.format, new.ledgers, plan.skipped, added.truncated,
            new.rows, new.bytes, new.files, time.monotonic() - started, total,
            [(first, end - 1) for first, end in added.gaps.pairs()],
        )  # fmt: skip

    def _plan(self) -> ExportPlan:
        from bkpy.spark.export_plan import BATCH_BYTES, plan_ledgers, plan_log

        batch_bytes = None if self._path is None else self._request.batch_bytes or BATCH_BYTES
        if self._request.log is None:
            return plan_ledgers(self._options, self._given, self._state, batch_bytes)
        skip_truncated = self._request.skip_truncated
        return plan_log(self._options, self._given, self._state, batch_bytes, skip_truncated=skip_truncated)

    def _state(self, source: ExportSource) -> State:
        """What the export has already."""
        if self._directory is not None:
            return self._directory.state
        layout = self._request.layout
        return State(source, layout) if self._path is None else look(self._path, source, layout)

    def _add_all(self, directory: ExportDirectory, plan: ExportPlan) -> tuple[_Added, ExportPlan]:
        """Add all batches of the plan, or of a newer one if ledgers are deleted meanwhile. Returns the plan as well."""
        todo = list(plan.batches)
        if not todo and directory.state.next_batch == 0:
            todo = [plan.nothing]  # an empty file, so that programs find the columns
        added, done, tasks = _Added(), 0, sum(batch.tasks for batch in todo)
        while todo:
            batch, *todo = todo
            try:
                added += self._add(directory, batch, done, tasks)
            except (NoSuchLedgerError, TruncatedError):
                plan = self._plan()
                if plan.reads_all_of(batch):
                    raise
                todo = list(plan.batches)  # without what was deleted since
                tasks = done + sum(batch.tasks for batch in todo)
            else:
                done += batch.tasks
        return added, plan

    def _opened(self, plan: ExportPlan) -> tuple[ExportDirectory, ExportPlan]:
        """The directory, locked, and the plan of what it is missing."""
        assert self._path is not None
        if self._directory is None:
            self.take()
            self._directory = ExportDirectory.open(self._path, plan.state.source, self._request.layout)
            self._held.callback(self._directory.close)
            if self._directory.state.done != plan.state.done:  # another export has ended since
                plan = self._plan()
        return self._directory, plan

    def _add(self, directory: ExportDirectory, batch: ExportBatch, done: int, tasks: int) -> _Added:
        assert self._lock is not None
        staging = directory.begin(batch.ids)
        written = size = truncated = 0
        if batch.rows or directory.state.next_batch == 0:
            # Spark undoes no escapes in a URI, so there must be none.
            job = Job(self._request.layout, f"file://{staging}", str(directory.path))
            written, size = job.run(self._spark_session(), self._lock, batch, done, tasks, self._progress)
            truncated = self._truncated_meanwhile(job, batch, written)
            if self._request.format == "parquet":
                _check_count(_rows_in(directory.staged(staging)), batch.rows - truncated, directory.path)
        self._lock.check()
        totals = directory.commit(staging, batch.ids, rows=written, bytes=size, ledgers=batch.ledgers, gaps=batch.gaps)
        return _Added(totals, batch.truncated + truncated, batch.gaps)

    def _truncated_meanwhile(self, job: Job, batch: ExportBatch, written: int) -> int:
        """How many entries of the batch the job has not written, all of them truncated before it could read them.

        Raises `CorruptDataError` if it has not written what it should have.
        """
        if written != batch.rows and self._request.skip_truncated:
            from bkpy.spark.export_plan import first_position

            first = first_position(batch.given)
            _check_count(job.count_from(self._spark_session(), first), len(batch.read.clipped(first)), job.place)
            return batch.rows - written
        _check_count(written, batch.rows, job.place)
        return 0

    def _spark_session(self) -> SparkSession:
        """The caller's session, or one that ends with the exporter."""
        from bkpy.spark.session import own_session

        if self._session is None:
            self._session = self._spark or self._held.enter_context(
                own_session("bkpy export", master=self._master, output=self._output)
            )
        return self._session

    def _export_to_uri(self) -> tuple[_Added, ExportPlan]:
        """Write everything at once to a URI where nothing exists: renames fail there, so an export can't grow."""
        plan = self._plan()
        (batch,) = plan.batches or [plan.nothing]
        self.take()
        assert self._lock is not None
        to = str(self._request.to)
        job = Job(self._request.layout, to, to)
        session = self._spark_session()
        written, size = job.run(session, self._lock, batch, 0, batch.tasks, self._progress)
        truncated = self._truncated_meanwhile(job, batch, written)
        totals = Totals(written, size, batch.ledgers, job.check_alone(session))
        return _Added(totals, batch.truncated + truncated, batch.gaps), plan

    def follow(
        self, interval_s: float, on_round: Callable[[ExportSummary], None], on_error: Callable[[BookKeeperError], None]
    ) -> NoReturn:
        """Keep the lock, and add new entries every `interval_s` seconds, until an exception ends it.

        Raises the first round's errors. Later ones go to `on_error`, and the next round adds what they left out.
        """
        if self._path is None:
            raise ConfigError(
                "an export to a URI can't be continued: files there can't be renamed", path=str(self._request.to)
            )
        self.take()
        on_round(self.round())
        while True:
            time.sleep(interval_s)
            try:
                self.take()
                on_round(self.round())
            except BookKeeperError as e:
                on_error(e)


def _path(to: str | Path) -> Path | None:
    """The directory; None if only Spark can look there."""
    if not is_uri(to):
        return Path(to).absolute()
    parts = urlsplit(str(to))
    return Path(unquote(parts.path)) if parts.scheme.lower() == "file" else None


def _check_writable(path: Path) -> None:
    there = next(p for p in (path, *path.parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(
            f"the export can't write there: {there} is no directory, or not a writable one", path=str(path)
        )


def _check_count(written: int, expected: int, where: str | Path) -> None:
    if written != expected:
        raise CorruptDataError(f"{written} entries were written, not the {expected} planned ones", path=str(where))


def _rows_in(files: Sequence[Path]) -> int:
    """The rows by the files themselves, which another machine may have written."""
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(file).num_rows for file in files)


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
def _telling_of_disks(to: str | Path) -> Iterator[None]:
    """Raise errors of the directory's file system as errors of bkpy."""
    try:
        yield
    except OSError as e:
        where = str(e.filename or to)
        if e.errno == errno.ENOSPC:
            raise DiskError("the disk of the export is full; run it again when there is room", path=where) from e
        raise DiskError(f"failed to write to the export's directory: {e.strerror or e}", path=where) from e
