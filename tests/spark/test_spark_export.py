"""The export: files that other programs read, and what is refused before anything is written."""

from __future__ import annotations

import asyncio
import base64
import csv
import errno
import json
import os
import subprocess
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

import bkpy
from bkpy.cli.export import export as command
from bkpy.errors import (
    BookKeeperError,
    ConfigError,
    CorruptDataError,
    DiskError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from bkpy.spark.export import Exporter, ExportRequest, ExportSummary, export_ledgers
from bkpy.spark.export_directory import look
from bkpy.spark.export_job import Job, writes_of
from bkpy.spark.export_plan import ExportBatch
from bkpy.spark.failures import translated, translating
from bkpy.spark.id_runs import Runs
from bkpy.spark.lock import TargetLock
from bkpy.spark.manifest import ExportLayout, ExportSource, Moves, first_line
from bkpy.spark.options import COLUMNS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.spark.conftest import Ledgers

# Seconds, the start of a cluster and of Spark included. An interrupted call would also break all that follow.
pytestmark = pytest.mark.timeout(900)


def export(spark: SparkSession, ledgers: Ledgers, ids: str | list[int], to: Path, **arguments: Any) -> ExportSummary:
    return export_ledgers(ledgers.uri, ids, to, spark=spark, **arguments)


def test_the_command(spark: SparkSession, ledgers: Ledgers, tmp_path: Path) -> None:
    """In this process, whose session it uses; `apart/test_spark_command.py` starts it as users do."""
    to = tmp_path / "out ü"
    both = f"{ledgers.striped},{ledgers.awkward}"
    chosen = ["--connect", ledgers.uri, "--ledgers", both, "--to", str(to), "--format", "csv"]
    first = CliRunner().invoke(command, [*chosen, "--json"])
    assert first.exit_code == 0, first.output
    summary = json.loads(first.stdout)
    assert summary["rows"] == len(ledgers.payloads[ledgers.striped]) + len(ledgers.payloads[ledgers.awkward])
    assert (summary["ledgers"], summary["files"], summary["format"]) == (2, 2, "csv")
    assert (summary["directory"], summary["skipped"]) == (str(to), [])
    again = CliRunner().invoke(command, chosen)
    assert (again.stdout, again.stderr) == (f"{to}\n", f"nothing new; {summary['rows']:,} entries in 2 files\n")


def test_parquet(spark: SparkSession, ledgers: Ledgers, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    summary = export(
        spark, ledgers, ledgers.closed, tmp_path / "out", progress=lambda done, total: steps.append((done, total))
    )
    table = pq.read_table(tmp_path / "out")
    assert table.column_names == list(COLUMNS)
    rows = table.sort_by([("ledger_id", "ascending"), ("entry_id", "ascending")]).to_pylist()
    assert [(row["ledger_id"], row["entry_id"], row["payload"]) for row in rows] == [
        (ledger_id, entry_id, payload)
        for ledger_id in sorted(ledgers.payloads)
        for entry_id, payload in enumerate(ledgers.payloads[ledger_id])
    ]
    written = [payload for payloads in ledgers.payloads.values() for payload in payloads]
    assert (summary.ledgers, summary.rows, summary.bytes) == (4, len(written), sum(map(len, written)))
    assert summary.files == len(list((tmp_path / "out").glob("*.parquet"))) == 3
    assert steps[0] == (0, 3)
    assert steps[-1] == (3, 3)


def test_a_directory_may_have_any_name(spark: SparkSession, ledgers: Ledgers, tmp_path: Path) -> None:
    name = "a b ü 漢 %20 [x]{y}*?#&"
    summary = export(spark, ledgers, [ledgers.awkward], tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert len(list((tmp_path / name).glob("*.parquet"))) == summary.files == 1
    again = export(spark, ledgers, [ledgers.awkward], tmp_path / name)
    assert (again.rows, again.files, again.total) == (0, 0, summary.total)


@pytest.mark.exhaustive
def test_csv_and_json_as_text(spark: SparkSession, ledgers: Ledgers, tmp_path: Path) -> None:
    texts = [payload.decode() for payload in ledgers.payloads[ledgers.awkward]]
    export(spark, ledgers, [ledgers.awkward], tmp_path / "csv", format="csv", payload="utf8")
    (file,) = (tmp_path / "csv").glob("*.csv")
    with file.open(newline="", encoding="utf-8") as lines:
        assert [row["payload"] for row in csv.DictReader(lines)] == texts
    export(spark, ledgers, str(ledgers.awkward), tmp_path / "json", format="json", payload="utf8")
    (file,) = (tmp_path / "json").glob("*.json")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["payload"] for row in rows] == texts
    assert [row["entry_id"] for row in rows] == list(range(len(texts)))


def test_text_formats_hold_bytes_as_base64(spark: SparkSession, ledgers: Ledgers, tmp_path: Path) -> None:
    export(spark, ledgers, [ledgers.plain], tmp_path / "out", format="json")
    rows = [json.loads(line) for file in (tmp_path / "out").glob("*.json") for line in file.read_text().splitlines()]
    payloads = {row["entry_id"]: base64.b64decode(row["payload"]) for row in rows}
    assert payloads == dict(enumerate(ledgers.payloads[ledgers.plain]))


@pytest.mark.exhaustive
def test_bytes_that_are_no_text_are_refused_as_text(spark: SparkSession, ledgers: Ledgers, tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match=rf"not UTF-8 text, .* \[ledger {ledgers.plain}, entry \d+\]"):
        export(spark, ledgers, [ledgers.plain], tmp_path / "out", payload="utf8")


def test_nothing_closed_is_an_empty_export(spark: SparkSession, ledgers: Ledgers, tmp_path: Path) -> None:
    summary = export(spark, ledgers, [ledgers.empty], tmp_path / "out")
    assert (summary.ledgers, summary.rows, summary.bytes) == (1, 0, 0)


def test_of_two_exports_into_one_directory_one_is_refused(
    spark: SparkSession, ledgers: Ledgers, tmp_path: Path
) -> None:
    """The second begins when the first has seen that the directory is empty, and has written nothing."""
    refused: list[str] = []

    def progress(done: int, total: int) -> None:
        if not refused:
            with pytest.raises(ConfigError, match="another export is writing there: process") as caught:
                export(spark, ledgers, [ledgers.awkward], tmp_path / "x" / ".." / "out")
            refused.append(str(caught.value))

    summary = export(spark, ledgers, [ledgers.awkward], tmp_path / "out", progress=progress)
    assert refused[0].endswith(f"[file {tmp_path / 'x' / '..' / 'out'}]")
    count = len(ledgers.payloads[ledgers.awkward])
    assert summary.rows == pq.read_table(tmp_path / "out").num_rows == count


@pytest.mark.exhaustive
def test_a_uri_is_exported_to_once(spark: SparkSession, ledgers: Ledgers, tmp_path: Path) -> None:
    """What only Spark can write to: Hadoop's view of file systems, with this one in it."""
    spark.conf.set("fs.viewfs.mounttable.cluster.link./data", tmp_path.as_uri())

    def exported(name: str, **arguments: Any) -> ExportSummary:
        to = f"viewfs://cluster/data/{name}"
        return export_ledgers(ledgers.uri, [ledgers.awkward], to, spark=spark, **arguments)

    summary = exported("out")
    assert (summary.files, summary.rows) == (1, len(ledgers.payloads[ledgers.awkward]))
    assert pq.read_table(tmp_path / "out").num_rows == summary.rows
    with pytest.raises(ConfigError, match="the target of the export exists already"):
        exported("out")
    service = Exporter(ExportRequest(ledgers.uri, "viewfs://cluster/data/x", "closed"), spark=spark)
    with pytest.raises(ConfigError, match="to a URI can't be continued"):
        service.follow(1.0, print, print)

    def progress(done: int, total: int) -> None:
        (other,) = (tmp_path / "out").glob("*.parquet")
        if done == total:
            (tmp_path / "both" / other.name).write_bytes(other.read_bytes())

    with pytest.raises(CorruptDataError, match="somebody else has written there meanwhile"):
        exported("both", progress=progress)


def seen(to: Path) -> list[tuple[int, int, bytes]]:
    """The rows that are there, by ledger and entry."""
    table = pq.read_table(to).sort_by([("ledger_id", "ascending"), ("entry_id", "ascending")])
    return list(zip(*(table.column(name).to_pylist() for name in ("ledger_id", "entry_id", "payload")), strict=True))


def written(ledgers: Ledgers, *ids: int) -> list[tuple[int, int, bytes]]:
    return [(i, n, payload) for i in sorted(ids) for n, payload in enumerate(ledgers.payloads[i])]


@pytest.mark.exhaustive
def test_each_run_adds_what_has_been_closed_since(spark: SparkSession, ledgers: Ledgers, tmp_path: Path) -> None:
    """Ledgers close out of order, one goes, batches are small, and files are by day."""
    asked = f"{ledgers.plain},{ledgers.awkward}"
    first = export(spark, ledgers, asked, tmp_path / "out", partition_by="day", batch_bytes=1)
    assert seen(tmp_path / "out") == written(ledgers, ledgers.plain, ledgers.awkward)
    gone = ledgers.write([b"soon gone"])
    second = export(spark, ledgers, "closed", tmp_path / "out", partition_by="day")
    rows = [*written(ledgers, ledgers.plain, ledgers.awkward, ledgers.striped), (gone, 0, b"soon gone")]
    assert seen(tmp_path / "out") == sorted(rows)
    ledgers.delete(gone)
    third = export(spark, ledgers, f"{asked},{ledgers.empty}", tmp_path / "out", partition_by="day")
    assert seen(tmp_path / "out") == sorted(rows)
    assert [summary.ledgers for summary in (first, second, third)] == [2, 3, 0]
    assert (third.rows, third.files, third.total.rows, third.total.ledgers) == (0, 0, len(rows), 5)
    assert third.total.files == len(list((tmp_path / "out").glob("day=*/part-*.parquet")))
    today = datetime.now(UTC).date()
    days = {folder.name for folder in (tmp_path / "out").glob("day=*")}
    assert days <= {f"day={today}", f"day={today - timedelta(days=1)}"}
    assert spark.read.parquet(str(tmp_path / "out")).count() == len(rows)


@pytest.mark.exhaustive
def test_ledgers_of_several_days_go_to_several_folders(spark: SparkSession, ledgers: Ledgers, tmp_path: Path) -> None:
    ids = [ledgers.plain, ledgers.striped, ledgers.awkward]
    given = {"metadataServiceUri": ledgers.uri, "ledgers": ",".join(map(str, ids))}
    days = dict(zip(ids, ["2026-11-20", "2026-11-21", "2026-11-20"], strict=True))
    rows = sum(len(ledgers.payloads[i]) for i in ids)
    lock = TargetLock(ledgers.uri, tmp_path / "out", session_timeout_s=10.0, connect_timeout_s=10.0)
    job = Job(ExportLayout("parquet", None, "day"), (tmp_path / "out").as_uri(), "out")
    with lock.held():
        assert job.run(spark, lock, ExportBatch(Runs.of(ids), given, rows, 3, 3, days), 0, 3, None)[0] == rows
    table = pq.read_table(tmp_path / "out")
    assert set(zip(table["ledger_id"].to_pylist(), map(str, table["day"].to_pylist()), strict=True)) == set(
        days.items()
    )
    assert seen(tmp_path / "out") == written(ledgers, *ids)
    assert len(list((tmp_path / "out").glob("day=2026-11-2?/*.parquet"))) == 3
    assert dict(spark.read.parquet(str(tmp_path / "out")).dtypes)["day"] == "date"


@pytest.mark.exhaustive
def test_a_ledger_is_deleted_while_closed_ones_are_exported(
    spark: SparkSession, ledgers: Ledgers, tmp_path: Path
) -> None:
    gone = ledgers.write([b"x"])

    def progress(done: int, total: int) -> None:
        with suppress(NoSuchLedgerError):
            ledgers.delete(gone)

    summary = export(spark, ledgers, "closed", tmp_path / "out", progress=progress)
    assert summary.skipped == []
    rows = seen(tmp_path / "out")
    assert [row for row in rows if row[0] != gone] == written(ledgers, *ledgers.closed)
    named = ledgers.write([b"x"])

    def remove(done: int, total: int) -> None:
        with suppress(NoSuchLedgerError):
            ledgers.delete(named)

    with pytest.raises(NoSuchLedgerError):
        export(spark, ledgers, [named], tmp_path / "named", progress=remove)


@pytest.mark.exhaustive
def test_what_was_committed_gets_its_names_also_when_nothing_is_new(
    spark: SparkSession, ledgers: Ledgers, tmp_path: Path
) -> None:
    export(spark, ledgers, [ledgers.awkward], tmp_path / "out")
    (file,) = (tmp_path / "out").glob("*.parquet")
    state = look(tmp_path / "out", *there(ledgers))
    moves = Moves(0, "staging-0/0", (("staged", file.name),))
    staging = tmp_path / "out" / "_bkpy" / "staging-0" / "0"
    staging.mkdir(parents=True)
    file.rename(staging / "staged")
    (manifest,) = (tmp_path / "out" / "_bkpy").glob("manifest-*")
    manifest.write_bytes(first_line(replace(state, moves=moves)))
    summary = export(spark, ledgers, [ledgers.awkward], tmp_path / "out")
    assert (summary.rows, summary.files, summary.total.files) == (0, 0, 1)
    assert seen(tmp_path / "out") == written(ledgers, ledgers.awkward)


def there(ledgers: Ledgers) -> tuple[ExportSource, ExportLayout]:
    async def instance_id() -> str:
        async with bkpy.connect(ledgers.uri) as client:
            return client.instance_id

    return ExportSource(asyncio.run(instance_id())), ExportLayout("parquet")


def test_a_service_tells_of_each_round(spark: SparkSession, ledgers: Ledgers, tmp_path: Path) -> None:
    """A round fails that finds a ledger with another password, and the next ones go on."""
    made: list[int] = []
    rounds: list[tuple[int, int]] = []
    errors: list[str] = []

    class EnoughError(Exception):
        pass

    def on_round(summary: ExportSummary) -> None:
        rounds.append((summary.ledgers, summary.total.ledgers))
        if len(rounds) == 1:
            made.append(ledgers.write([b"1"]))
            with pytest.raises(ConfigError, match="another export is writing there"):
                export(spark, ledgers, "closed", tmp_path / "out")
        elif len(rounds) == 2:
            made.append(ledgers.write([b"2"], password=b"sesame"))
        elif len(rounds) == 3:
            raise EnoughError

    def on_error(error: BookKeeperError) -> None:
        errors.append(str(error))
        ledgers.delete(made.pop())
        made.append(ledgers.write([b"3"]))

    request = ExportRequest(ledgers.uri, tmp_path / "out", "closed")
    with pytest.raises(EnoughError), Exporter(request, spark=spark) as exporter:
        exporter.follow(0.05, on_round, on_error)
    for ledger_id in made:
        ledgers.delete(ledger_id)
    (told,) = errors
    assert "password" in told
    assert rounds == [(4, 4), (1, 5), (1, 6)]


def test_files_of_several_writes_are_told_apart() -> None:
    ids = ["2c2e3fcf-11b1-4b02-bc0e-5177e8a6acf3", "6845d9df-ba5c-4025-88c1-cc9ac4b19e79"]
    names = [f"file:/tmp/x/part-0000{i}-{ids[0]}-c000.snappy.parquet" for i in range(3)]
    assert writes_of(names) == {ids[0]}
    assert writes_of([*names, f"s3a://b/part-00000-{ids[1]}-c000.json"]) == set(ids)
    assert writes_of([*names, "/tmp/x/mine.csv"]) == {ids[0], "mine.csv"}
    assert writes_of([]) == set()


@pytest.mark.exhaustive
def test_ledgers_with_a_password_are_named_or_left_out(spark: SparkSession, ledgers: Ledgers, tmp_path: Path) -> None:
    secret = [ledgers.write([b"x"], password=b"sesame") for _ in range(2)]
    try:
        with pytest.raises(UnauthorizedError, match=rf"2 of the 6 closed .* none was given \[ledgers {secret[0]}"):
            export(spark, ledgers, "closed", tmp_path / "out")
        assert list(tmp_path.iterdir()) == []
        chosen = f"{ledgers.awkward},{secret[0]},{secret[1]}"
        summary = export(spark, ledgers, chosen, tmp_path / "out", skip_unauthorized=True)
        assert (summary.skipped, summary.ledgers) == (secret, 1)
        assert summary.rows == len(ledgers.payloads[ledgers.awkward])
        (tmp_path / "password").write_text("sesame")
        summary = export(spark, ledgers, secret, tmp_path / "both", password_file=str(tmp_path / "password"))
        assert (summary.skipped, summary.rows) == ([], 2)
    finally:
        for ledger_id in secret:
            ledgers.delete(ledger_id)


@pytest.mark.exhaustive
def test_options_of_the_source(spark: SparkSession, ledgers: Ledgers, tmp_path: Path) -> None:
    least = dict.fromkeys(
        ("maxBytesPerPartition", "fetchBytes", "prefetchDepth", "maxBytesPerBatch", "metadataRequests"), "1"
    )
    summary = export(spark, ledgers, [ledgers.awkward], tmp_path / "out", options=least)
    assert summary.files == summary.rows == len(ledgers.payloads[ledgers.awkward])
    with pytest.raises(ConfigError, match="unknown option partition; the nearest"):
        export(spark, ledgers, "closed", tmp_path / "new", options={"partition": "1"})
    with pytest.raises(ConfigError, match="option Columns is not allowed: an export sets it itself"):
        export(spark, ledgers, "closed", tmp_path / "new", options={"Columns": "length"})


@pytest.mark.exhaustive
@pytest.mark.privileged
def test_a_full_disk_is_told_in_a_line(spark: SparkSession, ledgers: Ledgers, tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20k", "tmpfs", str(tmp_path)], check=True)
    try:
        with pytest.raises(DiskError, match=r"^a disk is full: .* \[file .*out\]$"):
            export(spark, ledgers, [ledgers.plain], tmp_path / "out")
    finally:
        # Lazily: Java leaves files open that it could not write to the end.
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_refusals_write_nothing(spark: SparkSession, ledgers: Ledgers, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("precious")
    with pytest.raises(ConfigError, match=r"not empty, and holds no export .*full"):
        export(spark, ledgers, "closed", tmp_path / "full")
    with pytest.raises(ConfigError, match="no directory"):
        export(spark, ledgers, "closed", tmp_path / "full" / "mine")
    with pytest.raises(ConfigError, match=r"the export can't write there: .*mine"):
        export(spark, ledgers, "closed", tmp_path / "full" / "mine" / "below")
    with pytest.raises(NoSuchLedgerError, match="999999"):
        export(spark, ledgers, [ledgers.plain, 999_999], tmp_path / "out")
    with pytest.raises(ConfigError, match="only closed ones"):
        export(spark, ledgers, [ledgers.unfinished], tmp_path / "out")
    with pytest.raises(ConfigError, match="'avro' is not one of parquet, csv, json"):
        export(spark, ledgers, "closed", tmp_path / "out", format="avro")
    with pytest.raises(ConfigError, match="can't be partitioned by 'year', only by day"):
        export(spark, ledgers, "closed", tmp_path / "out", partition_by="year")
    with pytest.raises(ConfigError, match="a batch of 0 bytes"):
        export(spark, ledgers, "closed", tmp_path / "out", batch_bytes=0)
    with pytest.raises(ConfigError, match="option startingOffsets is not allowed"):
        export(spark, ledgers, "closed", tmp_path / "out", options={"startingOffsets": '{"0": 1}'})
    with pytest.raises(ConfigError, match="'hex' is not one of utf8, base64"):
        export(spark, ledgers, "closed", tmp_path / "out", payload="hex")
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "mine"]


class AskingTheDead(PySparkException):
    """As Spark's errors do, it asks the Java process for its text."""

    def __str__(self) -> str:
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


@pytest.mark.parametrize(
    "error",
    [AskingTheDead("x"), Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(), EOFError()],
)
def test_a_java_process_that_has_ended_is_told_in_words(error: Exception) -> None:
    said = r"Java process has ended.* no part of an export: try again.* \[file /out\]"
    with pytest.raises(BookKeeperError, match=said), translating("/out"):
        raise error


def test_the_text_of_an_unknown_error_is_its_cause() -> None:
    text = "An error occurred\nCaused by: a.B: outer\n\tat c.D\nCaused by: java.io.IOException: No space left\n\tat e.F"
    assert str(translated(text, "/out")) == "Spark failed: java.io.IOException: No space left [file /out]"
    assert type(translated("bkpy.errors.NoSuchThing: x")) is BookKeeperError
    full = translated("x\nCaused by: java.io.IOException: No space left on device\n\tat e.F", "/out")
    assert isinstance(full, DiskError)
    assert str(full).startswith("a disk is full")
    assert "file /out" in str(full)
