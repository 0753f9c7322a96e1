"""Writing to a log from Spark: each batch once, whole, and behind everything, however often it is tried."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, StringType, StructField, StructType
from tests.spark.logs import TestLog

import bkpy
from bkpy.client.client import log_parts
from bkpy.errors import (
    BookKeeperError,
    ConfigError,
    MetadataConflictError,
    NoSuchLedgerError,
    NoSuchLogError,
    UnauthorizedError,
)
from bkpy.metadata.logs.maintenance import LOG_UID
from bkpy.spark.sink import Attempt, LogBatchWriter, LogStreamWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.spark.conftest import Ledgers

    from bkpy.protocol.log.log_list import LogList

pytestmark = pytest.mark.timeout(900)

SCHEMA = StructType([StructField("payload", BinaryType())])


@pytest.fixture
def log(ledgers: Ledgers) -> Written:
    log = TestLog(ledgers.uri)
    log.append(10)
    log.close()
    return Written(log)


class Written:
    """A log, and what is in it."""

    def __init__(self, log: TestLog) -> None:
        self.uri, self.name, self.before = log.uri, log.name, log.end

    def options(self, writer_id: str, **more: object) -> dict[str, str]:
        given = {"metadataServiceUri": self.uri, "log": self.name, "writerId": writer_id}
        return given | {name: str(value) for name, value in more.items()}

    def stream(self, writer_id: str = "w") -> LogStreamWriter:
        return LogStreamWriter.of(self.options(writer_id), SCHEMA, overwrite=False)

    def payloads(self) -> list[bytes]:
        """What was written behind what had been there."""
        return [data for data, _ in self.entries()]

    def entries(self) -> list[tuple[bytes, float]]:
        async def read() -> list[tuple[bytes, float]]:
            async with bkpy.connect(self.uri) as client:
                reader = await client.read_log(self.name)
                found = [entry async for entry in reader.read()]
                assert [entry.position for entry in found] == list(range(len(found)))
                times = [entry.time for entry in found]
                assert times == sorted(times)
                return [(entry.data, entry.time) for entry in found[self.before :]]

        return asyncio.run(read())

    def list(self) -> LogList:
        async def read() -> LogList:
            async with bkpy.connect(self.uri) as client:
                return (await log_parts(client).logs.read(self.name, fresh=True))[0]

        return asyncio.run(read())

    def unlisted(self) -> set[int]:
        """Ledgers of the log that neither its list nor a page of that names."""
        log_list = self.list()

        async def find() -> set[int]:
            async with bkpy.connect(self.uri) as client:
                found = set()
                async for ledger_id in client.list_ledgers():
                    try:
                        metadata = await client.ledger_metadata(ledger_id)
                    except NoSuchLedgerError:  # a task that was ended has still deleted it itself
                        continue
                    if metadata.custom_metadata.get(LOG_UID) == log_list.uid.encode():
                        found.add(ledger_id)
                segments = log_parts(client).logs.pages.segments(self.name, log_list)
                return found - {segment.ledger_id async for segment in segments}

        return asyncio.run(find())


def batches(*payloads: bytes | None) -> Iterator[pa.RecordBatch]:
    """Rows as Spark hands them to a task, a few at a time."""
    for i in range(0, len(payloads), 3):
        yield pa.record_batch([pa.array(payloads[i : i + 3], pa.binary())], names=["payload"])


def attempt(writer: LogStreamWriter | LogBatchWriter, *payloads: bytes) -> Attempt:
    return writer.write(batches(*payloads))


def ledger_of(message: Attempt) -> int:
    assert message.written is not None
    return message.written.ledger_id


def exists(log: Written, ledger_id: int) -> bool:
    async def look() -> bool:
        async with bkpy.connect(log.uri) as client:
            try:
                await client.ledger_metadata(ledger_id)
            except NoSuchLedgerError:
                return False
            return True

    return asyncio.run(look())


def test_a_batch_is_there_when_it_is_committed_and_in_the_order_of_its_partitions(log: Written) -> None:
    writer = log.stream()
    second, first = attempt(writer, b"c", b""), attempt(writer, *[b"%d" % i for i in range(10)])
    assert log.payloads() == []
    writer.commit([first, attempt(writer), second], 0)
    assert log.payloads() == [*[b"%d" % i for i in range(10)], b"c", b""]
    assert len({time for _, time in log.entries()}) == 1
    writer.commit([attempt(writer, b"d")], 1)
    assert log.payloads()[-2:] == [b"", b"d"]
    assert log.list().producers.batches == {"w": 1}
    assert log.unlisted() == set()


def test_a_batch_that_is_repeated_is_not_committed_again(log: Written) -> None:
    writer = log.stream()
    messages = [attempt(writer, b"a", b"b")]
    writer.commit(messages, 0)
    writer.commit(messages, 0)  # nobody told the driver that it was done
    again = [attempt(writer, b"a", b"b")]
    writer.commit(again, 0)  # a new driver, with new attempts
    assert log.payloads() == [b"a", b"b"]
    assert not exists(log, ledger_of(again[0]))
    log.stream("another").commit([attempt(writer, b"c")], 0)
    assert log.payloads() == [b"a", b"b", b"c"]
    assert log.unlisted() == set()


def test_a_number_that_was_passed_is_an_error(log: Written) -> None:
    writer = log.stream()
    writer.commit([attempt(writer, b"a")], 7)
    late = attempt(writer, b"b")
    with pytest.raises(ConfigError, match=r"writerId w has committed batch 7 .* a writerId of its own"):
        writer.commit([late], 6)
    writer.abort([late], 6)
    assert log.payloads() == [b"a"]
    assert log.unlisted() == set()


def test_an_aborted_batch_leaves_nothing_and_a_committed_one_survives(log: Written) -> None:
    writer = log.stream()
    kept, failed = attempt(writer, b"a"), attempt(writer, b"b")
    writer.commit([kept], 0)
    writer.abort([kept, None, failed], 0)  # whoever aborts may not know that it was committed
    assert log.payloads() == [b"a"]
    assert exists(log, ledger_of(kept))
    assert not exists(log, ledger_of(failed))


def test_an_attempt_that_fails_leaves_nothing(log: Written) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield from batches(b"a", b"b")
        raise ValueError("a row can't be computed")

    with pytest.raises(ValueError, match="can't be computed"):
        log.stream().write(rows())
    with pytest.raises(ConfigError, match="a row has no payload"):
        log.stream().write(batches(b"a", None))
    assert log.unlisted() == set()


def test_a_batch_whose_ledger_is_gone_is_not_committed(log: Written, ledgers: Ledgers) -> None:
    writer = log.stream()
    messages = [attempt(writer, b"a"), attempt(writer, b"b")]
    ledgers.delete(ledger_of(messages[1]))
    with pytest.raises(NoSuchLedgerError):
        writer.commit(messages, 0)
    assert log.payloads() == []
    assert log.list().producers.batches == {}


def test_a_ledger_of_a_deleted_log_does_not_get_into_its_successor(ledgers: Ledgers) -> None:
    source = TestLog(ledgers.uri)
    log = Written(source)
    writer = log.stream()
    late = attempt(writer, b"of the former log")
    source.replace(3)
    source.close()
    with pytest.raises(MetadataConflictError, match="the log was deleted and created again since"):
        writer.commit([late], 0)
    assert exists(log, ledger_of(late))  # the auditor sweeps it
    assert Written(source).payloads() == []
    assert log.list().producers.batches == {}


def test_a_log_that_does_not_exist_is_an_error_before_any_task(log: Written) -> None:
    for writer in (LogStreamWriter, LogBatchWriter):
        with pytest.raises(NoSuchLogError, match="nobody"):
            writer.of(log.options("w", log="nobody"), SCHEMA, overwrite=False)


def test_another_password_is_an_error_before_any_task(log: Written, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("sesame")
    for writer in (LogStreamWriter, LogBatchWriter):
        with pytest.raises(UnauthorizedError, match="password is not that of log"):
            writer.of(log.options("w", passwordFile=tmp_path / "password"), SCHEMA, overwrite=False)


def test_whoever_commits_takes_the_place_of_the_writer(ledgers: Ledgers) -> None:
    with TestLog(ledgers.uri, roll_entries=20) as open_log:
        open_log.append(50, 10)
        log = Written(open_log)
        writer = log.stream()
        writer.commit([attempt(writer, b"a")], 0)
        with pytest.raises(BookKeeperError):
            open_log.append(1)
        assert log.payloads() == [b"a"]
        log_list = log.list()
        assert all(segment.sealed for segment in log_list.segments)
        open_log.die()
        open_log.append(1)
        assert len(log.payloads()) == 2
        writer.commit([attempt(writer, b"b")], 1)
        assert log.payloads()[0::2] == [b"a", b"b"]
        open_log.die()  # another writer, which nobody has taken the place of, can be closed


def test_several_writers_commit_at_once(log: Written) -> None:
    async def all_at_once() -> None:
        def one(i: int) -> None:
            writer = log.stream(f"w{i}")
            for batch in range(3):
                writer.commit([attempt(writer, b"%d.%d" % (i, batch))], batch)

        await asyncio.gather(*(asyncio.to_thread(one, i) for i in range(3)))

    asyncio.run(all_at_once())
    found = log.payloads()
    assert sorted(found) == [b"%d.%d" % (i, batch) for i in range(3) for batch in range(3)]
    for i in range(3):
        assert [data for data in found if data.startswith(b"%d." % i)] == [b"%d.%d" % (i, k) for k in range(3)]


def test_entries_begin_with_a_stamp_like_all_of_a_log(log: Written) -> None:
    message = attempt(log.stream(), b"abc")
    assert message.written is not None
    assert (message.written.entries, message.written.length) == (1, 11)

    async def raw() -> bytes:
        async with bkpy.connect(log.uri) as client:
            reader = await client.open_ledger(ledger_of(message))
            (entry,) = [entry async for entry in reader.read()]
            return entry.data

    assert asyncio.run(raw()) == struct.pack("<q", message.written.last_ms) + b"abc"


@pytest.mark.parametrize(
    ("schema", "overwrite", "words"),
    [
        (StructType([*SCHEMA.fields, StructField("key", StringType())]), False, "payload alone, not key"),
        (StructType([StructField("value", BinaryType())]), False, "payload alone, not value"),
        (StructType([StructField("payload", StringType())]), False, "payload is string, not binary"),
        (StructType([]), False, "no column payload"),
        (
            StructType([*SCHEMA.fields, StructField("PAYLOAD", BinaryType())]),
            False,
            "one column payload, and there are 2: payload, PAYLOAD",
        ),
        (SCHEMA, True, "can't be overwritten"),
    ],
)
def test_other_rows_are_refused(schema: StructType, overwrite: bool, words: str) -> None:
    given = {"metadataServiceUri": "zk://127.0.0.1:1/ledgers", "log": "a", "writerId": "w"}
    with pytest.raises(ConfigError, match=words):
        LogStreamWriter.of(given, schema, overwrite)
    with pytest.raises(ConfigError, match=words):
        LogBatchWriter.of(given, schema, overwrite)


def test_a_stream_numbers_its_batches_itself() -> None:
    given = {"metadataServiceUri": "zk://127.0.0.1:1/ledgers", "log": "a", "writerId": "w", "batchId": "1"}
    with pytest.raises(ConfigError, match="batchId is for batch queries"):
        LogStreamWriter.of(given, SCHEMA, overwrite=False)


# --- in Spark ---------------------------------------------------------------------------------------------------------


def test_a_batch_query(spark: SparkSession, log: Written) -> None:
    rows = spark.range(1000).repartition(3).selectExpr("CAST(CAST(id AS STRING) AS BINARY) AS payload")

    def write(**options: Any) -> None:
        rows.write.format("bkpy").mode("append").options(**log.options("load", **options)).save()

    write()
    write()
    assert sorted(log.payloads(), key=int) == [b"%d" % i for i in range(1000)]
    write(batchId=1)
    assert len(log.payloads()) == 2000
    assert log.unlisted() == set()
    with pytest.raises(PySparkException, match="a log takes the column payload alone, not id"):
        spark.range(3).write.format("bkpy").mode("append").options(**log.options("other")).save()
    with pytest.raises(PySparkException, match="NoSuchLogError") as caught:
        write(log="nobody")
    assert "Task" not in str(caught.value)


@pytest.mark.parametrize("case_sensitive", ["false", pytest.param("true", marks=pytest.mark.exhaustive)])
def test_a_second_column_of_payloads_is_refused(spark: SparkSession, log: Written, case_sensitive: str) -> None:
    before = spark.conf.get("spark.sql.caseSensitive")
    assert before is not None
    spark.conf.set("spark.sql.caseSensitive", case_sensitive)
    try:
        rows = spark.sql("SELECT CAST('a' AS BINARY) AS payload, CAST('b' AS BINARY) AS PAYLOAD")
        with pytest.raises(PySparkException, match="takes one column payload, and there are 2: payload, PAYLOAD"):
            rows.write.format("bkpy").mode("append").options(**log.options("w")).save()
    finally:
        spark.conf.set("spark.sql.caseSensitive", before)
    assert log.payloads() == []
    assert log.unlisted() == set()


@pytest.mark.exhaustive
def test_a_stream_from_log_to_log(spark: SparkSession, ledgers: Ledgers, log: Written, tmp_path: Path) -> None:
    with TestLog(ledgers.uri, roll_entries=100) as source:
        source.append(250, 50)

        def run() -> None:
            rows = spark.readStream.format("bkpy").option("metadataServiceUri", source.uri).option("log", source.name)
            query = (
                rows.option("maxEntriesPerTrigger", 120)
                .load()
                .selectExpr("CAST(CAST(position AS STRING) AS BINARY) AS payload")
                .writeStream.format("bkpy")
                .options(**log.options("copy"))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(300)

        run()
        assert log.payloads() == [b"%d" % i for i in range(250)]
        assert log.list().producers.batches == {"copy": 2}
        # The last batch is done, and Spark doesn't know: it is run again.
        (tmp_path / "checkpoint" / "commits" / "2").unlink()
        (tmp_path / "checkpoint" / "commits" / ".2.crc").unlink(missing_ok=True)
        source.append(5)
        run()
    assert log.payloads() == [b"%d" % i for i in range(255)]
    assert log.unlisted() == set()
