"""`spark.read.format("bkpy")` in a real Spark, on ledgers of a real cluster."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructField, StructType
from tests.cluster.zookeeper_proxy import ZooKeeperProxy

from bkpy.config.client import ClientSettings
from bkpy.spark.failures import translated
from bkpy.spark.options import COLUMNS, parse_options
from bkpy.spark.planning import EntryRange
from bkpy.spark.schema import TYPES
from bkpy.spark.source import LazyClient, LedgerSourceReader, blocks_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from tests.spark.conftest import Ledgers

# Seconds, the start of a cluster and of Spark included. An interrupted call would also break all that follow.
pytestmark = pytest.mark.timeout(900)

SCHEMA = "log string, ledger_id bigint, entry_id bigint, payload binary, length int, position bigint"


def read(spark: SparkSession, ledgers: Ledgers, ids: object, **options: object) -> DataFrame:
    reader = spark.read.format("bkpy").option("metadataServiceUri", ledgers.uri).option("ledgers", str(ids))
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


def error_of(rows: DataFrame) -> str:
    """What collecting the rows fails with, as a user of the export is told."""
    with pytest.raises(PySparkException) as caught:
        rows.collect()
    return f"{type(translated(str(caught.value))).__name__}: {translated(str(caught.value))}"


def by_ledger(rows: DataFrame) -> dict[int, list[bytes]]:
    """Payloads in the order of entry ids, which must be 0, 1, 2 and so on."""
    found: dict[int, dict[int, bytes]] = defaultdict(dict)
    for row in rows.collect():
        assert row["entry_id"] not in found[row["ledger_id"]]
        found[row["ledger_id"]][row["entry_id"]] = bytes(row["payload"])
        assert row["length"] == len(row["payload"])
        assert row["log"] is None
        assert row["position"] is None
    for entries in found.values():
        assert sorted(entries) == list(range(len(entries)))
    return {ledger_id: [entries[i] for i in range(len(entries))] for ledger_id, entries in found.items()}


@pytest.mark.exhaustive
def test_a_task_waits_for_a_zookeeper_that_is_being_restarted(ledgers: Ledgers) -> None:
    async def read_meanwhile() -> list[bytes]:
        proxy = ZooKeeperProxy(ledgers.cluster.zookeeper.port)
        uri = ledgers.uri.replace(str(ledgers.cluster.zookeeper.port), str(proxy.port))
        options = parse_options({"metadataServiceUri": uri, "ledgers": str(ledgers.plain), "timeoutSeconds": "60"})
        connection = LazyClient(options)
        blocks = blocks_of(connection, EntryRange(ledgers.plain, 0, 9, 10_000))
        reading = asyncio.ensure_future(anext(blocks))
        # Longer than a client waits by itself while every server refuses.
        await asyncio.wait([reading], timeout=1.5 * ClientSettings().metadata_refused_timeout_s)
        assert not reading.done()
        await proxy.start()
        block, _ = await reading
        await blocks.aclose()
        await connection.close()
        await proxy.stop()
        return [entry.data for entry in block]

    assert asyncio.run(read_meanwhile()) == ledgers.payloads[ledgers.plain][:10]


def test_all_closed_ledgers_come_back_as_they_were_written(spark: SparkSession, ledgers: Ledgers) -> None:
    rows = read(spark, ledgers, "closed")
    assert rows.schema.simpleString() == f"struct<{SCHEMA.replace(' ', ':').replace(',:', ',')}>"
    written = {ledger_id: payloads for ledger_id, payloads in ledgers.payloads.items() if payloads}
    assert by_ledger(rows) == written


def test_partitions_are_bounded_in_bytes_and_lose_nothing(spark: SparkSession, ledgers: Ledgers) -> None:
    both = f"{ledgers.plain},{ledgers.striped}"
    rows = read(spark, ledgers, both, maxBytesPerPartition=300_000, fetchBytes=20_000, prefetchDepth=3)
    assert rows.rdd.getNumPartitions() >= 4
    assert by_ledger(rows) == {i: ledgers.payloads[i] for i in (ledgers.plain, ledgers.striped)}
    assert read(spark, ledgers, ledgers.awkward, minPartitions=3).rdd.getNumPartitions() == 3


@pytest.mark.exhaustive
def test_every_bound_may_be_one(ledgers: Ledgers) -> None:
    """No Spark is needed for that: what it would do is ask for the partitions and read each."""
    names = ("maxBytesPerPartition", "fetchBytes", "prefetchDepth", "maxBytesPerBatch", "metadataRequests")
    given = dict.fromkeys((*names, "minPartitions", "sessionTimeoutSeconds"), "1")
    given |= {"metadataServiceUri": ledgers.uri, "ledgers": "closed"}
    given["endingOffsets"] = json.dumps({ledgers.plain: 40, ledgers.striped: 40})
    reader = LedgerSourceReader.of(given, StructType([StructField(name, TYPES[name]) for name in COLUMNS]))
    batches = [list(reader.read(partition)) for partition in reader.partitions()]
    assert all(len(task) == 1 and task[0].num_rows == 1 for task in batches)
    rows = [row for task in batches for batch in task for row in batch.to_pylist()]
    assert [(row["ledger_id"], row["entry_id"], row["payload"]) for row in rows] == [
        (ledger_id, entry_id, payload)
        for ledger_id in (ledgers.plain, ledgers.striped, ledgers.awkward)
        for entry_id, payload in enumerate(ledgers.payloads[ledger_id][:40])
    ]


def test_an_empty_ledger_is_an_empty_table(spark: SparkSession, ledgers: Ledgers) -> None:
    assert read(spark, ledgers, ledgers.empty).collect() == []


def test_offsets_choose_entries(spark: SparkSession, ledgers: Ledgers) -> None:
    starts, ends = json.dumps({ledgers.plain: 4990}), json.dumps({ledgers.plain: 4995, ledgers.striped: 0})
    rows = read(spark, ledgers, f"{ledgers.plain},{ledgers.striped}", startingOffsets=starts, endingOffsets=ends)
    assert sorted(row["entry_id"] for row in rows.collect()) == [4990, 4991, 4992, 4993, 4994]
    message = error_of(read(spark, ledgers, ledgers.plain, endingOffsets=json.dumps({ledgers.plain: 5001})))
    assert message.startswith("NoSuchEntryError: the offset 5001 is past the ledger's 5000 entries")


@pytest.mark.exhaustive
def test_columns_and_their_order(spark: SparkSession, ledgers: Ledgers) -> None:
    rows = read(spark, ledgers, ledgers.awkward, columns="length,entry_id")
    assert rows.columns == ["length", "entry_id"]
    lengths = [len(payload) for payload in ledgers.payloads[ledgers.awkward]]
    assert [row["length"] for row in rows.orderBy("entry_id").collect()] == lengths
    own = spark.read.format("bkpy").schema("payload binary").option("METADATASERVICEURI", ledgers.uri)
    payloads = [bytes(row["payload"]) for row in own.option("LEDGERS", ledgers.awkward).load().collect()]
    assert sorted(payloads) == sorted(ledgers.payloads[ledgers.awkward])
    with pytest.raises(PySparkException, match="column length is int, not string"):
        own.schema("length string").option("ledgers", ledgers.awkward).load().collect()


@pytest.mark.parametrize("pushdown", ["true", pytest.param("false", marks=pytest.mark.exhaustive)])
def test_conditions_give_the_same_rows_with_and_without_pushdown(
    spark: SparkSession, ledgers: Ledgers, pushdown: str
) -> None:
    # Without pushdown, a reader must not have the method that Spark looks for.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
    rows = read(spark, ledgers, "closed", pushdown=pushdown).where(
        f"ledger_id IN ({ledgers.plain}, {ledgers.striped}) AND entry_id > 10 AND entry_id <= 13 AND length > 0"
    )
    wanted = {(i, k) for i in (ledgers.plain, ledgers.striped) for k in (11, 12, 13)}
    assert {(row["ledger_id"], row["entry_id"]) for row in rows.collect()} == wanted
    assert read(spark, ledgers, "closed", pushdown=pushdown).where("ledger_id = 999999").collect() == []
    assert (rows.rdd.getNumPartitions() == 2) == (pushdown == "true")


def test_sql(spark: SparkSession, ledgers: Ledgers) -> None:
    spark.sql(
        f"CREATE TEMPORARY VIEW entries USING bkpy"
        f" OPTIONS (metadataServiceUri '{ledgers.uri}', ledgers '{ledgers.plain},{ledgers.striped}')"
    )
    counted = spark.sql(
        "SELECT ledger_id, count(*) AS n, sum(length) AS size FROM entries GROUP BY ledger_id"
    ).collect()
    assert {row["ledger_id"]: (row["n"], row["size"]) for row in counted} == {
        i: (len(ledgers.payloads[i]), sum(map(len, ledgers.payloads[i]))) for i in (ledgers.plain, ledgers.striped)
    }


@pytest.mark.exhaustive
def test_a_table(spark: SparkSession, ledgers: Ledgers) -> None:
    spark.sql(f"CREATE TABLE kept USING bkpy OPTIONS (metadataServiceUri '{ledgers.uri}', ledgers '{ledgers.striped}')")
    try:
        assert spark.table("kept").columns == list(COLUMNS)
        assert spark.sql("SELECT count(*) FROM kept WHERE entry_id < 100").first()[0] == 100  # type: ignore[index]
    finally:
        spark.sql("DROP TABLE kept")


@pytest.mark.exhaustive
def test_a_password(spark: SparkSession, ledgers: Ledgers, tmp_path: Path) -> None:
    secret = ledgers.write([b"x", b"y"], password=b"sesame", digest="hmac-sha256")
    try:
        none = error_of(read(spark, ledgers, secret))
        assert none.startswith("UnauthorizedError: the ledger has a password, and none was given")
        (tmp_path / "password").write_text("sesam\n")
        wrong = error_of(read(spark, ledgers, secret, passwordFile=tmp_path / "password"))
        assert wrong.startswith("UnauthorizedError: the password is not the ledger's")
        (tmp_path / "password").write_text("sesame\n")
        rows = read(spark, ledgers, secret, passwordFile=tmp_path / "password")
        assert by_ledger(rows) == {secret: [b"x", b"y"]}
    finally:
        ledgers.delete(secret)


def test_a_deleted_ledger(spark: SparkSession, ledgers: Ledgers) -> None:
    gone = ledgers.write([b"x"])
    named = f"{ledgers.awkward},{gone}"
    planned = read(spark, ledgers, named, failOnDataLoss="false", columns="ledger_id")
    ledgers.delete(gone)
    assert {row["ledger_id"] for row in planned.collect()} == {ledgers.awkward}
    message = error_of(read(spark, ledgers, named))
    assert message.startswith("NoSuchLedgerError")
    assert f"ledger {gone}" in message


def test_an_open_ledger_is_refused_by_name(spark: SparkSession, ledgers: Ledgers) -> None:
    message = error_of(read(spark, ledgers, ledgers.unfinished))
    assert "only closed ones can be read" in message
    assert f"ledger {ledgers.unfinished}" in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ledger": "7"}, "unknown option ledger; the nearest valid one is ledgers"),
        ({"columns": "payloads"}, "there is no column 'payloads'; the nearest one is payload"),
        ({"minPartitions": "many"}, "option minPartitions = 'many': expected a whole number"),
    ],
)
def test_wrong_options_are_refused(spark: SparkSession, ledgers: Ledgers, options: dict[str, Any], words: str) -> None:
    with pytest.raises(PySparkException, match=words):
        read(spark, ledgers, "closed", **options)


@pytest.mark.exhaustive
def test_a_dead_bookie_is_read_around_and_dead_ones_are_named(spark: SparkSession, ledgers: Ledgers) -> None:
    bookies = ledgers.cluster.bookies
    try:
        asyncio.run(bookies[0].kill())
        assert by_ledger(read(spark, ledgers, ledgers.striped)) == {ledgers.striped: ledgers.payloads[ledgers.striped]}
        for bookie in bookies[1:]:
            asyncio.run(bookie.kill())
        message = error_of(read(spark, ledgers, ledgers.awkward, timeoutSeconds=1))
        assert message.startswith("BookieUnavailableError")
        assert "entry 0" in message
    finally:
        for bookie in bookies:
            asyncio.run(bookie.start())
