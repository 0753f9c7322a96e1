"""The export of a log that grows, is rolled, taken over, truncated and deleted meanwhile."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from tests.spark.logs import TestLog, assert_exactly

from bkpy.errors import ConfigError, CorruptDataError, TruncatedError
from bkpy.protocol.log.log_opening import LEDGER_ENTRIES_MAX
from bkpy.spark.export import Exporter, ExportRequest, ExportSummary, export_log
from bkpy.spark.export_directory import look
from bkpy.spark.export_job import Job
from bkpy.spark.export_plan import ExportPlan, first_position, plan_log
from bkpy.spark.id_runs import NOTHING, Runs
from bkpy.spark.manifest import ExportLayout, ExportSource, State
from bkpy.spark.options import LOG_COLUMNS, parse_options
from bkpy.spark.schema import schema_of
from bkpy.spark.source import LedgerSourceReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.spark.conftest import Ledgers

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def log(ledgers: Ledgers) -> Iterator[TestLog]:
    with TestLog(ledgers.uri) as log:
        yield log


def export(spark: SparkSession, log: TestLog, to: Path, **arguments: Any) -> ExportSummary:
    return export_log(log.uri, log.name, to, spark=spark, **arguments)


def rows(to: Path) -> list[dict[str, Any]]:
    return pq.read_table(to).to_pylist()  # type: ignore[no-any-return]


def test_each_run_adds_what_was_appended_since(spark: SparkSession, log: TestLog, tmp_path: Path) -> None:
    """Also of the ledger that is being written, and of one whose writer has died."""
    to = tmp_path / "out"
    first = export(spark, log, to)
    assert (first.rows, first.total.rows, first.ledgers) == (0, 0, 0)
    assert pq.read_table(to).column_names == list(LOG_COLUMNS)
    log.append(1000)
    assert export(spark, log, to, batch_bytes=10_000).rows == 1000
    assert_exactly(rows(to), 0, 1000)
    assert export(spark, log, to).rows == 0
    log.append(10)
    log.die()
    log.append(700)
    last = export(spark, log, to)
    assert (last.rows, last.truncated, last.total.rows) == (710, 0, 1710)
    assert_exactly(rows(to), 0, 1710)
    assert {row["log"] for row in rows(to)} == {log.name}


@pytest.mark.exhaustive
def test_by_the_day_of_each_entry(spark: SparkSession, log: TestLog, tmp_path: Path) -> None:
    log.append(500)
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    # Where it is another day, which mustn't matter.
    elsewhere = "Etc/GMT+12" if datetime.now(UTC).hour < 12 else "Etc/GMT-14"
    spark.conf.set("spark.sql.session.timeZone", elsewhere)
    try:
        export(spark, log, tmp_path / "out", partition_by="day")
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert_exactly(rows(tmp_path / "out"), 0, 500)
    for folder in (tmp_path / "out").glob("day=*"):
        for row in rows(folder):
            assert f"day={row['time'].astimezone(UTC).date()}" == folder.name
    assert len(list((tmp_path / "out").glob("day=*"))) in (1, 2)
    assert dict(spark.read.parquet(str(tmp_path / "out")).dtypes)["day"] == "date"
    assert abs(rows(tmp_path / "out")[0]["time"].timestamp() - datetime.now().timestamp()) < 600


def test_what_was_truncated_before_it_was_exported_is_not_passed_over_in_silence(
    spark: SparkSession, ledgers: Ledgers, tmp_path: Path
) -> None:
    to = tmp_path / "out"
    with TestLog(ledgers.uri, roll_entries=100) as log:
        log.append(300, at_once=50)
        log.truncate(120)
        first = export(spark, log, to)  # begins where the log does
        assert (first.rows, first.truncated) == (180, 0)
        log.append(300, at_once=50)
        log.truncate(350)
        with pytest.raises(
            TruncatedError, match=r"positions 300 to 349 of log .* --skip-truncated goes on without them"
        ):
            export(spark, log, to)
        assert_exactly(rows(to), 120, 300)
        second = export(spark, log, to, skip_truncated=True)
        assert (second.rows, second.truncated) == (250, 50)
        assert export(spark, log, to).rows == 0  # they were dealt with
        assert sorted(row["position"] for row in rows(to)) == [*range(120, 300), *range(350, 600)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("form", "payload"),
    [
        ("parquet", None),
        ("csv", "utf8"),
        ("json", "base64"),
    ],
)
def test_truncation_while_a_batch_is_written_leaves_out_what_was_truncated_and_no_more(
    spark: SparkSession, ledgers: Ledgers, tmp_path: Path, form: str, payload: str | None
) -> None:
    to = tmp_path / "out"
    with TestLog(ledgers.uri, roll_entries=100) as log:
        log.append(600, at_once=50)

        def truncate(done: int, total: int) -> None:  # Spark has yet to plan its tasks
            if log.first == 0:
                log.truncate(250)

        arguments: dict[str, Any] = {"format": form, "payload": payload, "skip_truncated": True}
        first = export(spark, log, to, progress=truncate, **arguments)
        assert (first.rows, first.truncated, first.gaps) == (350, 250, [])
        written = spark.read.format(form).options(**({"header": "true"} if form == "csv" else {})).load(str(to))
        assert sorted(int(row["position"]) for row in written.collect()) == list(range(250, 600))
        again = export(spark, log, to, **arguments)
        assert (again.rows, again.truncated, again.total.rows) == (0, 0, 350)


def test_truncation_while_a_batch_is_written_is_an_error_that_names_what_is_gone(
    spark: SparkSession, ledgers: Ledgers, tmp_path: Path
) -> None:
    to = tmp_path / "out"
    with TestLog(ledgers.uri, roll_entries=100) as log:
        log.append(100, at_once=50)
        export(spark, log, to)
        log.append(500, at_once=50)

        def truncate(done: int, total: int) -> None:
            if log.first == 0:
                log.truncate(250)

        with pytest.raises(TruncatedError, match=r"positions 100 to 249 of log .* --skip-truncated goes on"):
            export(spark, log, to, progress=truncate)
        assert_exactly(rows(to), 0, 100)


@pytest.mark.exhaustive
def test_entries_that_are_missing_and_were_not_truncated_end_an_export_that_skips_truncated_ones(
    spark: SparkSession, ledgers: Ledgers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TestLog(ledgers.uri, roll_entries=100) as log:
        log.append(600, at_once=50)
        run = Job.run
        short = {"startingOffsets": json.dumps({"position": 10})}
        monkeypatch.setattr(
            Job,
            "run",
            lambda job, session, lock, batch, *others: run(
                job, session, lock, replace(batch, given={**batch.given, **short}), *others
            ),
        )
        with pytest.raises(CorruptDataError, match="590 entries were written, not the 600 planned ones"):
            export(spark, log, tmp_path / "out", skip_truncated=True)
        assert list((tmp_path / "out").glob("part-*")) == []


def planned(log: TestLog, done: Runs = NOTHING, **arguments: Any) -> ExportPlan:
    """What an export of the log has yet to do that holds these positions."""
    request = ExportRequest(log.uri, "out", log=log.name, **arguments)

    def state(source: ExportSource) -> State:
        return State(source, request.layout, done, next_batch=1)

    given = request.given()
    return plan_log(parse_options(given), given, state, 20_000, skip_truncated=request.skip_truncated)


def test_a_task_that_was_planned_before_the_truncation_reads_what_is_left(ledgers: Ledgers) -> None:
    with TestLog(ledgers.uri, roll_entries=100) as log:
        while len(starts := log.starts()) < 3:
            log.append(100, at_once=50)
        before = starts[1] + 50
        batch = planned(log, skip_truncated=True).batches[0]
        schema = schema_of(batch.given)
        partitions = LedgerSourceReader.of(batch.given, schema).partitions()
        log.truncate(before)
        tasks = LedgerSourceReader.of(batch.given, schema)
        found = [row for part in partitions for some in tasks.read(part) for row in some.to_pylist()]
        left = batch.read.clipped(first_position(batch.given))
        assert left.starts == (before,)
        assert {row["position"] for row in found} >= {i for first, end in left.pairs() for i in range(first, end)}
        assert min(row["position"] for row in found) == starts[1]  # its ledger has other entries as well


def test_a_newer_plan_tells_whether_entries_of_a_batch_were_deleted(ledgers: Ledgers) -> None:
    with TestLog(ledgers.uri, roll_entries=100) as log:
        log.append(600, at_once=50)
        older = planned(log, Runs.between(0, 10), skip_truncated=True)
        assert planned(log, Runs.between(0, 10), skip_truncated=True).reads_all_of(older.batches[0])
        log.truncate(250)
        newer = planned(log, Runs.between(0, 10), skip_truncated=True)
        assert not newer.reads_all_of(older.batches[0])
        assert newer.reads_all_of(older.batches[-1])
        assert (str(newer.batches[0].ids).partition("-")[0], newer.batches[0].truncated) == ("10", 240)
        assert sum(batch.rows for batch in newer.batches) == 350
        assert planned(log, Runs.between(0, 250)).batches[0].truncated == 0
        with pytest.raises(TruncatedError, match="positions 10 to 249"):
            planned(log, Runs.between(0, 10))


def test_a_log_that_is_truncated_to_its_end_is_dealt_with_once(
    spark: SparkSession, log: TestLog, tmp_path: Path
) -> None:
    log.append(10)
    export(spark, log, tmp_path / "out")
    log.append(90)
    log.truncate(100)
    second, third = (export(spark, log, tmp_path / "out", skip_truncated=True) for _ in range(2))
    assert (second.rows, second.truncated) == (0, 90)
    assert (third.rows, third.truncated) == (0, 0)


def test_what_was_truncated_behind_an_export_without_entries_is_not_passed_over_in_silence(
    spark: SparkSession, ledgers: Ledgers, tmp_path: Path
) -> None:
    """As where an export that goes on began before the log's first writer."""
    with TestLog(ledgers.uri, roll_entries=100) as log:
        for name, position in (("new", 0), ("truncated", 300)):
            to = tmp_path / name
            assert export(spark, log, to).rows == 0
            log.append(300, at_once=50)
            log.truncate(position + 120)
            with pytest.raises(TruncatedError, match=rf"positions {position} to {position + 119} of log"):
                export(spark, log, to)
            added = export(spark, log, to, skip_truncated=True)
            assert (added.rows, added.truncated) == (180, 120)
            log.truncate(position + 300)


@pytest.mark.exhaustive
def test_a_log_with_an_accepted_loss_is_exported_and_the_gap_named(
    spark: SparkSession, ledgers: Ledgers, tmp_path: Path
) -> None:
    to, gap = tmp_path / "out", (2, LEDGER_ENTRIES_MAX - 1)
    with TestLog(ledgers.uri) as log:
        log.append(5)
        log.lose_all_but(2)
        log.append(3)
        first = export(spark, log, to)
        assert (first.rows, first.truncated, first.gaps) == (5, 0, [gap])
        positions = [0, 1, *range(LEDGER_ENTRIES_MAX, LEDGER_ENTRIES_MAX + 3)]
        assert sorted(row["position"] for row in rows(to)) == positions
        state = look(to, ExportSource(log.instance_id, log.name, log.uid), ExportLayout("parquet"))
        assert str(state.gaps) == f"{gap[0]}-{gap[1]}"
        log.append(2)
        second = export(spark, log, to)
        assert (second.rows, second.gaps, second.total.rows) == (2, [], 7)
        assert look(to, state.source, state.layout).gaps == state.gaps
        small = export(spark, log, tmp_path / "small", batch_bytes=1)
        assert (small.rows, small.gaps) == (7, [gap])


@pytest.mark.parametrize("skip_truncated", [False, True])
def test_a_gap_before_which_everything_was_truncated_is_no_truncation(ledgers: Ledgers, skip_truncated: bool) -> None:
    with TestLog(ledgers.uri) as log:
        log.append(5)
        log.lose_all_but(2)
        log.append(10)
        log.truncate(LEDGER_ENTRIES_MAX)
        (batch,) = planned(log, Runs.between(0, 2), skip_truncated=skip_truncated).batches
        assert (batch.rows, batch.truncated) == (10, 0)
        assert batch.gaps == Runs.between(2, LEDGER_ENTRIES_MAX)
        assert batch.ids == Runs.between(2, LEDGER_ENTRIES_MAX + 10)
        schema = schema_of(batch.given)
        offsets = {"startingOffsets": "2"}  # as the checkpoint of a stream that has read all below the gap
        given = {"metadataServiceUri": log.uri, "log": log.name}
        partitions = LedgerSourceReader.of(given | offsets, schema).partitions()
        assert sum(part.entries for task in partitions for part in task.value) == 10
        log.truncate(LEDGER_ENTRIES_MAX + 4)
        with pytest.raises(TruncatedError):
            LedgerSourceReader.of(given | offsets, schema).partitions()


@pytest.mark.exhaustive
def test_another_log_of_the_name_is_not_exported_in_place_of_the_planned_one(
    spark: SparkSession, ledgers: Ledgers, tmp_path: Path
) -> None:
    with TestLog(ledgers.uri) as log:
        log.append(100)
        deleted: list[int] = []

        def replace_log(done: int, total: int) -> None:
            if not deleted:
                deleted.append(done)
                log.replace(100)

        with pytest.raises(ConfigError, match="an offset belongs to a deleted log of the name"):
            export(spark, log, tmp_path / "out", progress=replace_log)
        assert list((tmp_path / "out").glob("part-*")) == []


def test_what_does_not_fit_is_refused(spark: SparkSession, log: TestLog, ledgers: Ledgers, tmp_path: Path) -> None:
    log.append(5)
    export(spark, log, tmp_path / "out")
    with (
        TestLog(ledgers.uri) as other,
        pytest.raises(ConfigError, match=r"holds an export of the log .*, not of the log"),
    ):
        export(spark, other, tmp_path / "out")
    with pytest.raises(ConfigError, match="--skip-truncated is for a log"):
        Exporter(ExportRequest(ledgers.uri, tmp_path / "x", "closed", skip_truncated=True))
    with pytest.raises(ConfigError, match="either ledgers or a log"):
        Exporter(ExportRequest(ledgers.uri, tmp_path / "x", "closed", "orders"))
    with pytest.raises(ConfigError, match="--skip-unauthorized is for ledgers"):
        Exporter(ExportRequest(ledgers.uri, tmp_path / "x", log="orders", skip_unauthorized=True))
