"""`spark.read.format("bkpy").option("log", ...)`: a log as a table."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructField, StructType
from tests.spark.logs import TestLog, assert_exactly, entry

import bkpy
from bkpy.spark.failures import translated
from bkpy.spark.options import LOG_COLUMNS
from bkpy.spark.schema import TYPES
from bkpy.spark.source import LedgerSourceReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from tests.spark.conftest import Ledgers

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def log(ledgers: Ledgers) -> Iterator[TestLog]:
    """Of several ledgers, the last one of them open."""
    with TestLog(ledgers.uri) as log:
        for entries in (1000, 1, 1900):
            log.append(entries)
            log.die()
        log.append(399)
        yield log


def read(spark: SparkSession, of: TestLog, /, **options: object) -> DataFrame:
    reader = spark.read.format("bkpy").option("metadataServiceUri", of.uri).option("log", of.name)
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


def rows_without_spark(log: TestLog, **options: object) -> list[list[dict[str, object]]]:
    """By task: what Spark would do is ask for the partitions and read each."""
    given = {name: str(value) for name, value in options.items()} | {"metadataServiceUri": log.uri, "log": log.name}
    reader = LedgerSourceReader.of(given, StructType([StructField(name, TYPES[name]) for name in LOG_COLUMNS]))
    return [[row for batch in reader.read(partition) for row in batch.to_pylist()] for partition in reader.partitions()]


def test_a_log_comes_back_as_it_was_written(spark: SparkSession, log: TestLog) -> None:
    rows = read(spark, log).orderBy("position").collect()
    assert_exactly(rows, 0, 3300)
    assert {row["log"] for row in rows} == {log.name}
    assert len({row["ledger_id"] for row in rows}) == 4
    assert len({(row["ledger_id"], row["entry_id"]) for row in rows}) == 3300
    assert all(row["length"] == len(row["payload"]) for row in rows)
    times = [row["time"] for row in rows]
    assert times == sorted(times)
    assert abs(times[-1].timestamp() - datetime.now().timestamp()) < 600


def test_entries_with_numbers_have_them_and_their_producer_as_columns(log: TestLog) -> None:
    async def write() -> None:
        async with bkpy.connect(log.uri) as client:
            async with await client.open_log("numbered", create=True) as plain:
                await plain.append(b"plain")
            async with await client.open_log("numbered", producer="shop", roll_entries=100) as numbered:
                for first in range(0, 300, 50):
                    payloads = [b"%d" % n for n in range(first, first + 50)]
                    await numbered.append_batch(payloads, first_sequence=first)

    asyncio.run(write())
    given = {"metadataServiceUri": log.uri, "log": "numbered", "columns": "payload,producer,sequence"}
    columns = StructType([StructField(name, TYPES[name]) for name in ("payload", "producer", "sequence")])
    reader = LedgerSourceReader.of(given, columns)
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    rows = [(row["payload"], row["producer"], row["sequence"]) for batch in batches for row in batch.to_pylist()]
    assert rows == [(b"plain", None, None), *((b"%d" % n, "shop", n) for n in range(300))]


def test_short_ledgers_share_a_task(log: TestLog) -> None:
    (task,) = rows_without_spark(log)
    assert_exactly(task, 0, 3300)
    tasks = rows_without_spark(log, minPartitions=7)
    assert len(tasks) == 7
    assert_exactly([row for task in tasks for row in task], 0, 3300)
    tasks = rows_without_spark(log, maxBytesPerPartition=20_000)
    assert len(tasks) > 10
    assert_exactly([row for task in tasks for row in task], 0, 3300)


@pytest.mark.parametrize(
    ("options", "first", "end"),
    [
        ({"startingOffsets": 990, "endingOffsets": 1010}, 990, 1010),
        ({"startingOffsets": '{"position": 3299}'}, 3299, 3300),
        ({"startingOffsets": 7, "endingOffsets": 7}, 7, 7),
        ({"startingOffsets": "latest"}, 0, 0),
        ({"startingOffsets": "2020-01-01T00:00:00Z", "endingOffsets": 3}, 0, 3),
        ({"startingOffsets": "2999-01-01T00:00:00Z"}, 0, 0),
    ],
)
def test_positions_choose_entries(log: TestLog, options: dict[str, object], first: int, end: int) -> None:
    assert_exactly([row for task in rows_without_spark(log, **options) for row in task], first, end)


def test_a_time_chooses_entries(log: TestLog) -> None:
    (task,) = rows_without_spark(log)
    middle = task[1700]["time"]
    assert isinstance(middle, datetime)
    first = next(row["position"] for row in task if row["time"] >= middle)  # type: ignore[operator]
    found = rows_without_spark(log, startingOffsets=middle.astimezone(UTC).isoformat())
    assert_exactly([row for task in found for row in task], first, 3300)  # type: ignore[arg-type]


def test_what_a_log_has_not_is_an_error_that_says_so(spark: SparkSession, ledgers: Ledgers, log: TestLog) -> None:
    def error_of(**options: object) -> str:
        with pytest.raises(PySparkException) as caught:
            read(spark, log, **options).collect()
        return f"{type(translated(str(caught.value))).__name__}: {translated(str(caught.value))}"

    assert error_of(endingOffsets=3301).startswith("NoSuchEntryError: position 3300 is past the last entry of log")
    assert error_of(log="nobody").startswith("NoSuchLogError: there is no log nobody")
    with pytest.raises(PySparkException, match="not both"):
        read(spark, log, ledgers=ledgers.plain).collect()
    ledger = rows_without_spark(log, endingOffsets=1)[0][0]["ledger_id"]
    with pytest.raises(PySparkException, match=f"belongs to the log {log.name}: read that with option log"):
        spark.read.format("bkpy").option("metadataServiceUri", log.uri).option("ledgers", ledger).load().collect()


@pytest.mark.exhaustive
def test_conditions_on_positions_narrow_the_plan(spark: SparkSession, log: TestLog) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    rows = read(spark, log, pushdown="true").where("position >= 1990 AND position < 2010 AND length > 0")
    assert_exactly(rows.collect(), 1990, 2010)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def test_sql(spark: SparkSession, log: TestLog) -> None:
    spark.sql(f"CREATE TABLE a_log USING bkpy OPTIONS (metadataServiceUri '{log.uri}', log '{log.name}')")
    try:
        assert spark.table("a_log").columns == list(LOG_COLUMNS)
        found = spark.sql("SELECT payload FROM a_log WHERE position = 1234").collect()
        assert [bytes(row["payload"]) for row in found] == [entry(1234)]
    finally:
        spark.sql("DROP TABLE a_log")


def test_a_password(ledgers: Ledgers, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("sesame\n")
    with TestLog(ledgers.uri, roll_entries=50, password=b"sesame", digest="hmac-sha256") as secret:
        secret.append(120, 20)
        (task,) = rows_without_spark(secret, passwordFile=tmp_path / "password")
        assert_exactly(task, 0, 120)
        with pytest.raises(Exception, match="password"):
            rows_without_spark(secret)


def test_what_was_truncated_is_not_read(ledgers: Ledgers) -> None:
    with TestLog(ledgers.uri, roll_entries=100) as log:
        log.append(350, 50)
        log.truncate(230)
        (task,) = rows_without_spark(log)
        assert_exactly(task, 230, 350)
        with pytest.raises(Exception, match=r"positions 200 to 229 of log .* were truncated before they were read"):
            rows_without_spark(log, startingOffsets=200)
        (task,) = rows_without_spark(log, startingOffsets=200, failOnDataLoss="false")
        assert_exactly(task, 230, 350)


def test_a_plan_outlives_the_writer_and_the_ledger_it_was_made_in(ledgers: Ledgers) -> None:
    with TestLog(ledgers.uri) as log:
        log.append(100)
        given = {"metadataServiceUri": log.uri, "log": log.name}
        reader = LedgerSourceReader.of(given, StructType([StructField(name, TYPES[name]) for name in LOG_COLUMNS]))
        (partition,) = reader.partitions()
        log.die()
        log.append(100)
        assert_exactly([row for batch in reader.read(partition) for row in batch.to_pylist()], 0, 100)
