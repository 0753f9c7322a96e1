"""Rows and ways to write that are odd: what a log takes of them is there, and the rest is an error that says why."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.types import BinaryType, StructField, StructType
from tests.spark.logs import TestLog
from tests.spark.test_spark_executors import swept
from tests.spark.test_spark_kills import payloads_of
from tests.spark.test_spark_sink import Written, attempt, exists, ledger_of
from tests.spark.test_spark_stream import stream

import bkpy
from bkpy.client.client import log_parts
from bkpy.config.client import ClientSettings
from bkpy.errors import ConfigError, FrameTooLargeError
from bkpy.log.client import create_segment
from bkpy.metadata.logs.maintenance import LogMaintenance
from bkpy.protocol.log.log_sinks import BatchPart
from bkpy.protocol.wire.records import STAMP_BYTES
from bkpy.spark.sink import LogStreamWriter
from bkpy.spark.sink_commit import commit_batch
from bkpy.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from tests.spark.conftest import Ledgers

pytestmark = pytest.mark.timeout(900)

LARGEST = ClientSettings().entry_bytes_max - STAMP_BYTES


@pytest.fixture
def log(ledgers: Ledgers) -> Written:
    log = TestLog(ledgers.uri)
    log.close()
    return Written(log)


def test_the_largest_payload_is_written_and_a_larger_one_is_an_error_that_names_both(log: Written) -> None:
    writer = log.stream()
    with pytest.raises(FrameTooLargeError, match=rf"payload of {LARGEST + 1} bytes .* limit of {LARGEST + 8} bytes, 8"):
        attempt(writer, b"a", bytes(LARGEST + 1), b"b")
    assert log.unlisted() == set()
    writer.commit([attempt(writer, b"", bytes(LARGEST), b"")], 0)
    assert list(map(len, log.payloads())) == [0, LARGEST, 0]


def test_an_empty_batch_leaves_no_trace(log: Written) -> None:
    writer = log.stream()
    before = log.list()
    for messages in ([], [attempt(writer)], [attempt(writer), None]):
        writer.commit(messages, 0)
    assert log.list() == before
    assert log.unlisted() == set()


def test_the_columns_name_may_be_in_capitals_and_its_type_one_of_large_values(log: Written) -> None:
    schema = StructType([StructField("PayLoad", BinaryType())])
    writer = LogStreamWriter.of(log.options("w"), schema, overwrite=False)
    rows = pa.record_batch([pa.array([b"a", b""], pa.large_binary())], names=["PayLoad"])
    writer.commit([writer.write(iter([rows]))], 0)
    assert log.payloads() == [b"a", b""]


@pytest.mark.filterwarnings("ignore:.*log_write_bytes_max:DeprecationWarning")  # no list here is a megabyte long
def test_a_list_that_is_full_takes_nothing_of_a_batch_until_the_log_is_truncated(log: Written) -> None:
    writer = log.stream()
    writer.commit([attempt(writer, b"%d" % i) for i in range(10)], 0)
    bound = {"log_write_bytes_max": len(log.list().encode()) + 550}
    writer = LogStreamWriter(SinkOptions(log.uri, log.name, "w", security=bound))  # type: ignore[arg-type]
    many = [attempt(writer, b"too many") for _ in range(10)]
    with pytest.raises(ConfigError, match="more than the limit of"):
        writer.commit(many, 1)
    assert len(log.payloads()) == 10
    assert log.list().producers.batches == {"w": 0}

    async def truncate() -> None:
        async with bkpy.connect(log.uri) as client:
            parts = log_parts(client)
            await LogMaintenance(parts.logs, parts.catalog).truncate(log.name, 10)

    asyncio.run(truncate())
    writer.commit(many, 1)
    assert payloads_of(log.uri, log.name) == [b"too many"] * 10
    assert all(exists(log, ledger_of(message)) for message in many)


@pytest.mark.filterwarnings("ignore:.*log_write_bytes_max:DeprecationWarning")  # no list here is a megabyte long
def test_a_sink_that_finds_no_room_leaves_the_logs_writer_alone(log: Written) -> None:
    bound = {"log_write_bytes_max": 560}
    sink = LogStreamWriter(SinkOptions(log.uri, log.name, "w", security=bound))  # type: ignore[arg-type]
    parts = [attempt(sink, b"%d" % i) for i in range(3)]

    async def write_beside() -> None:
        async with bkpy.connect(log.uri) as client, await client.open_log(log.name) as writer:
            await writer.append(b"before")
            with pytest.raises(ConfigError, match="no room for another ledger"):
                await asyncio.to_thread(sink.commit, parts, 0)
            await writer.append(b"after")

    asyncio.run(write_beside())
    assert log.payloads() == [b"before", b"after"]


@pytest.mark.filterwarnings("ignore:.*log_(write|page):DeprecationWarning")  # no batch here has 10,000 tasks
def test_a_sink_with_too_many_tasks_leaves_the_logs_writer_alone(log: Written) -> None:
    bound = {"log_write_bytes_max": 2500, "log_page_rows": 2}
    options = SinkOptions(log.uri, log.name, "w", security=bound)  # type: ignore[arg-type]

    async def written(client: bkpy.Client) -> BatchPart:
        inner = log_parts(client)
        log_list, _ = await inner.logs.read(log.name)
        ledger = await create_segment(inner, log.name, log_list, b"")
        await ledger.append(bytes(STAMP_BYTES))
        await ledger.close()
        return BatchPart(ledger.ledger_id, 1, STAMP_BYTES, 0)

    async def write_beside() -> None:
        async with bkpy.connect(log.uri) as client, await client.open_log(log.name) as writer:
            await writer.append(b"before")
            parts = await asyncio.gather(*(written(client) for _ in range(160)))
            with pytest.raises(ConfigError, match=r"160 nodes.*: write batches of fewer tasks, as after coalesce\(\)"):
                await commit_batch(options, 0, parts)
            await writer.append(b"after")

    asyncio.run(write_beside())
    assert log.payloads() == [b"before", b"after"]


# --- in Spark ---------------------------------------------------------------------------------------------------------


def numbers(spark: SparkSession, count: int, parts: int) -> DataFrame:
    return spark.range(count).repartition(parts).selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS payload")


def test_a_log_is_appended_to_and_nothing_else(spark: SparkSession, log: Written) -> None:
    rows = numbers(spark, 3, 1)
    writing = rows.write.format("bkpy").options(**log.options("load"))
    with pytest.raises(PySparkException, match="a log is appended to, and can't be overwritten: use mode append"):
        writing.mode("overwrite").save()
    for mode in ("ignore", "errorifexists"):  # the latter is what a write without a mode has
        with pytest.raises(AnalysisException, match='use either the "Append" or "Overwrite" mode'):
            writing.mode(mode).save()
    with pytest.raises(AnalysisException, match='use either the "Append" or "Overwrite" mode'):
        rows.write.format("bkpy").options(**log.options("load")).save()
    with pytest.raises(PySparkException, match="unknown option path"):
        writing.mode("append").save("somewhere")
    assert log.payloads() == []
    assert log.unlisted() == set()


@pytest.mark.exhaustive
def test_a_row_that_is_no_entry_ends_the_write_and_nothing_of_it_gets_into_the_log(
    spark: SparkSession, log: Written
) -> None:
    some = spark.sql("SELECT CAST(CASE WHEN id = 7 THEN null ELSE '' END AS BINARY) AS payload FROM range(0, 20, 1, 4)")

    def write(rows: DataFrame) -> None:
        rows.write.format("bkpy").mode("append").options(**log.options("load")).save()

    with pytest.raises(PySparkException, match="a row has no payload: an entry may be empty, but not null"):
        write(some)
    assert log.payloads() == []
    with pytest.raises(PySparkException, match="column payload is string, not binary: cast it"):
        write(spark.sql("SELECT 'a' AS payload"))
    with pytest.raises(PySparkException, match="a row's payload of 5000000 bytes is too large for a log"):
        write(spark.sql("SELECT CAST(repeat('a', 5000000) AS BINARY) AS payload"))
    write(some.where("payload IS NOT NULL"))
    assert log.payloads() == [b""] * 19
    swept(log)  # other tasks may have been ended in the middle
    assert log.payloads() == [b""] * 19


@pytest.mark.exhaustive
def test_two_hundred_small_tasks_are_two_hundred_ledgers(spark: SparkSession, log: Written) -> None:
    numbers(spark, 1000, 200).write.format("bkpy").mode("append").options(**log.options("load")).save()
    assert sorted(log.payloads(), key=int) == [b"%d" % i for i in range(1000)]
    assert 150 < len(log.list().segments) <= 200
    assert len(log.list().encode()) < 200 * 100
    assert log.unlisted() == set()
    numbers(spark, 1000, 200).coalesce(1).write.format("bkpy").mode("append").options(**log.options("again")).save()
    assert 151 < len(log.list().segments) <= 201


@pytest.mark.exhaustive
def test_a_batch_of_foreach_batch_is_written_once(
    spark: SparkSession, ledgers: Ledgers, log: Written, tmp_path: Path
) -> None:
    """The first attempt fails behind the write, so that Spark doesn't know of it."""
    failures = [1]

    def write(rows: DataFrame, batch: int) -> None:
        given: dict[str, Any] = log.options("each", batchId=batch)
        rows.select("payload").write.format("bkpy").mode("append").options(**given).save()
        if batch in failures:
            failures.remove(batch)
            raise OSError("behind the write")

    with TestLog(ledgers.uri) as source:
        source.append(250)

        def run() -> None:
            query = stream(spark, source, maxEntriesPerTrigger=100).writeStream.foreachBatch(write)
            query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
            assert query.start().awaitTermination(300)

        with pytest.raises(PySparkException, match="behind the write"):
            run()
        run()
        assert len(log.payloads()) == 250
        assert log.list().producers.batches == {"each": 2}
        run()  # nothing new
    assert len(set(log.payloads())) == 250
    assert log.unlisted() == set()


@pytest.mark.exhaustive
def test_batches_without_rows_are_passed_over(
    spark: SparkSession, ledgers: Ledgers, log: Written, tmp_path: Path
) -> None:
    with TestLog(ledgers.uri) as source:
        source.append(250)
        rows = stream(spark, source, maxEntriesPerTrigger=50).where("position >= 220").select("payload")
        query = rows.writeStream.format("bkpy").options(**log.options("some"))
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        assert query.start().awaitTermination(300)
    assert len(log.payloads()) == 30
    assert log.list().producers.batches == {"some": 4}
