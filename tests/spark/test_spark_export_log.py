"""The export of a log that grows, is rolled, taken over, truncated and deleted meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from tests.spark.logs import TestLog, assert_exactly

from bkpy.errors import ConfigError, TruncatedError
from bkpy.spark.export import Exporter, ExportRequest, ExportSummary, export_log
from bkpy.spark.options import LOG_COLUMNS

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
