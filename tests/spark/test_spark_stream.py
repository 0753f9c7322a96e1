"""`spark.readStream.format("bkpy").option("log", ...)`: each entry of a log once, whatever happens to the query."""

from __future__ import annotations

import json
import random
import re
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StructField, StructType
from tests.spark.logs import TestLog, assert_exactly
from tests.waiting import eventually_here

from bkpy.errors import ConfigError, NoSuchEntryError, NoSuchLogError, TruncatedError
from bkpy.spark.options import COLUMNS, LOG_COLUMNS
from bkpy.spark.schema import TYPES
from bkpy.spark.stream import LogStreamReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from tests.spark.conftest import Ledgers

pytestmark = pytest.mark.timeout(900)

SCHEMA = StructType([StructField(name, TYPES[name]) for name in LOG_COLUMNS])


@pytest.fixture
def log(ledgers: Ledgers) -> Iterator[TestLog]:
    with TestLog(ledgers.uri, roll_entries=300) as log:
        yield log


# --- the reader by itself, as Spark calls it on the driver and in tasks ----------------------------------------------


class Planner:
    """A reader on the driver, stopped at the end."""

    def __init__(self, log: TestLog, **options: object) -> None:
        given = {name: str(value) for name, value in options.items()}
        self.reader = LogStreamReader.of(given | {"metadataServiceUri": log.uri, "log": log.name}, SCHEMA)

    def __enter__(self) -> LogStreamReader:
        return self.reader

    def __exit__(self, *_: object) -> None:
        self.reader.stop()


def rows_between(log: TestLog, start: dict[str, Any], end: dict[str, Any], **options: object) -> list[dict[str, Any]]:
    """Planned by a reader that knows nothing of another one, read by a third."""
    with Planner(log, **options) as planner:
        partitions = planner.partitions(start, end)
    tasks = Planner(log, **options).reader
    return [row for partition in partitions for batch in tasks.read(partition) for row in batch.to_pylist()]


def test_offsets_ascend_to_what_is_confirmed_and_enclose_the_same_for_ever(log: TestLog) -> None:
    log.append(1000)
    with Planner(log) as planner:
        begin = planner.initialOffset()
        assert planner.initialOffset() == begin
        assert begin["position"] == 0
        first = planner.latestOffset(begin, ReadMaxRows(450))
        assert first == {**begin, "position": 450, "begin": 0}
        assert planner.reportLatestOffset() == {**begin, "position": 1000, "lag": 550}
        second = planner.latestOffset(first, ReadAllAvailable())
        assert second["position"] == 1000
        assert planner.latestOffset(second, ReadAllAvailable()) == second
        assert planner.partitions(second, second) == []
        assert planner.partitions(second, first) == []
        before = planner.partitions(begin, first)
        log.die()
        log.append(500)
        assert [part.value for part in planner.partitions(begin, first)] == [part.value for part in before]
        assert planner.latestOffset(second, ReadMaxRows(10**9))["position"] == 1500
    # As after a restart: of the query, and of the log's writer.
    assert_exactly(rows_between(log, begin, first), 0, 450)
    assert_exactly(rows_between(log, first, second), 450, 1000)
    assert rows_between(log, second, second) == []


@pytest.mark.parametrize("given", ["latest", "earliest", '{"position": 7}'])
def test_a_first_batch_that_is_interrupted_begins_where_it_began(log: TestLog, given: str) -> None:
    log.append(10)
    with Planner(log, startingOffsets=given) as planner:
        begin = planner.initialOffset()
        log.append(10)
        end = planner.latestOffset(begin, ReadMaxRows(10))
    log.append(10)
    if given == "earliest":
        log.truncate(5)
    with Planner(log, startingOffsets=given) as planner:
        anew = planner.initialOffset()  # which Spark has kept nowhere
        if given == "earliest":
            with pytest.raises(TruncatedError):
                planner.partitions(anew, end)
            return
    assert_exactly(rows_between(log, anew, end), begin["position"], begin["position"] + 10)
    with Planner(log, startingOffsets=given) as planner:
        following = planner.latestOffset(end, ReadAllAvailable())
    assert_exactly(rows_between(log, end, following), end["position"], 30)


def test_what_was_confirmed_to_an_earlier_run_is_read_whatever_the_bookies_tell_now(log: TestLog) -> None:
    log.append(10)
    with Planner(log) as planner:
        begin = planner.initialOffset()
    log.append(90, 90, seen=False)  # that the last of them are acknowledged, the writer alone may know
    end = {**begin, "position": 100}
    assert_exactly(rows_between(log, begin, end), 0, 100)
    with Planner(log) as planner:
        assert planner.latestOffset(end, ReadAllAvailable()) == end


def test_a_bound_in_bytes(log: TestLog) -> None:
    log.append(1000)
    with Planner(log, maxBytesPerTrigger=20_000) as planner:
        limit = planner.getDefaultReadLimit()
        assert isinstance(limit, ReadMaxBytes)
        ends = [planner.initialOffset()]
        while ends[-1]["position"] < 1000:
            ends.append(planner.latestOffset(ends[-1], limit))
        positions = [end["position"] for end in ends]
        # Payloads have 28 bytes on average, records 40 more.
        assert all(200 < after - before < 400 for before, after in pairwise(positions[:-1]))
        assert planner.latestOffset(ends[0], ReadMaxBytes(1))["position"] == 1


def test_where_a_query_begins(log: TestLog) -> None:
    log.append(40)
    with Planner(log, startingOffsets="latest") as planner:
        begin = planner.initialOffset()
        log.append(10)
        assert planner.initialOffset() == begin
        assert begin["position"] == 40
    for given, position in (('{"position": 7}', 7), ("50", 50), ("2020-01-01T00:00:00Z", 0), ("earliest", 0)):
        with Planner(log, startingOffsets=given) as planner:
            assert planner.initialOffset()["position"] == position
    with Planner(log, startingOffsets="51") as planner, pytest.raises(NoSuchEntryError, match="position 51 is past"):
        planner.initialOffset()


def test_what_is_available_now_stays_what_it_was(log: TestLog) -> None:
    log.append(100)
    with Planner(log) as planner:
        begin = planner.initialOffset()
        planner.prepareForTriggerAvailableNow()
        log.append(100)
        some = planner.latestOffset(begin, ReadMaxRows(70))
        rest = planner.latestOffset(some, ReadMaxRows(70))
        assert (some["position"], rest["position"]) == (70, 100)
        assert planner.latestOffset(rest, ReadMaxRows(70)) == rest


def test_truncation_below_a_query(log: TestLog) -> None:
    log.append(1000)
    with Planner(log) as planner:
        begin = planner.initialOffset()
        end = planner.latestOffset(begin, ReadMaxRows(100))
        log.truncate(700)
        with pytest.raises(
            TruncatedError, match=r"positions 100 to 699 of log .* were truncated before they were read"
        ):
            planner.latestOffset(end, ReadMaxRows(650))
    with Planner(log, failOnDataLoss="false") as planner:
        following = planner.latestOffset(end, ReadMaxRows(50))
        assert following["position"] == 750
    assert_exactly(rows_between(log, end, following, failOnDataLoss="false"), 700, 750)
    with pytest.raises(TruncatedError, match="positions 100 to 699"):
        rows_between(log, end, following)
    with pytest.raises(TruncatedError, match="positions 0 to 699"):
        rows_between(log, {**begin, "begin": 0}, following)  # as after a batch that ended there


def test_a_checkpoint_belongs_to_one_log(log: TestLog) -> None:
    log.append(10)
    with Planner(log) as planner:
        end = planner.latestOffset(planner.initialOffset(), ReadAllAvailable())
    other = {**end, "log_uid": "another"}
    with Planner(log) as planner, pytest.raises(ConfigError, match="another checkpointLocation"):
        planner.latestOffset(other, ReadAllAvailable())
    with pytest.raises(ConfigError, match="another checkpointLocation"):
        rows_between(log, {**other, "position": 0}, other)


@pytest.mark.parametrize("available_now", [False, True])
def test_a_batch_that_was_planned_of_a_deleted_log_is_not_read_from_its_successor(
    log: TestLog, available_now: bool
) -> None:
    log.append(100)
    with Planner(log) as planner:
        begin = planner.initialOffset()
        end = planner.latestOffset(begin, ReadMaxRows(50))
    log.replace(1000)
    with Planner(log) as planner:
        if available_now:  # which looks at the log before the batch is planned
            planner.prepareForTriggerAvailableNow()
        with pytest.raises(ConfigError, match=r"belongs to a deleted log .*another checkpointLocation"):
            planner.partitions(begin, end)
        with pytest.raises(ConfigError, match=r"belongs to a deleted log .*another checkpointLocation"):
            planner.latestOffset(end, ReadAllAvailable())


def test_a_checkpoint_without_a_uid_is_adopted_with_its_first_batch(log: TestLog) -> None:
    log.append(100)
    old, also_old = {"position": 10}, {"position": 20}
    assert_exactly(rows_between(log, old, also_old), 10, 20)
    with Planner(log) as planner:
        new = planner.latestOffset(old, ReadMaxRows(50))
    assert new == {"position": 60, "log_uid": log.uid, "begin": 10}
    assert_exactly(rows_between(log, old, new), 10, 60)


def test_startingoffsets_that_were_taken_from_a_checkpoint_belong_to_one_log(log: TestLog) -> None:
    log.append(100)
    with Planner(log) as planner:
        given = json.dumps(planner.latestOffset(planner.initialOffset(), ReadMaxRows(50)))
    with Planner(log, startingOffsets=given) as planner:
        assert planner.initialOffset()["position"] == 50
    log.replace(100)
    with (
        Planner(log, startingOffsets=given) as planner,
        pytest.raises(ConfigError, match="an offset belongs to a deleted log"),
    ):
        planner.initialOffset()


def test_a_query_that_reads_what_is_available_now_knows_less_than_its_checkpoint(log: TestLog) -> None:
    """As where the bookies are away that could tell how far the log is confirmed."""
    log.append(10)
    with Planner(log) as planner, Planner(log) as other:
        for one in (planner, other):
            one.prepareForTriggerAvailableNow()
        log.append(90)
        begin = planner.initialOffset()
        end = {**begin, "position": 100}
        assert planner.latestOffset(end, ReadAllAvailable()) == end
        partitions = other.partitions(begin, end)
    tasks = Planner(log).reader
    assert_exactly([row for part in partitions for batch in tasks.read(part) for row in batch.to_pylist()], 0, 100)


def test_a_limit_of_rows_counts_across_ledgers(log: TestLog) -> None:
    log.append(1000, at_once=50)  # in ledgers of 300
    with Planner(log) as planner:
        begin = planner.initialOffset()
        for rows in (1, 299, 300, 301, 350, 601, 999):
            assert planner.latestOffset(begin, ReadMaxRows(rows))["position"] == rows


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endingOffsets": "7"}, "endingOffsets is for batches"),
        ({"pushdown": "true"}, "pushdown is for batches"),
    ],
)
def test_wrong_options_of_a_stream_are_refused(log: TestLog, options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Planner(log, **options)


def test_a_stream_reads_no_ledgers(ledgers: Ledgers) -> None:
    with pytest.raises(ConfigError, match="a stream reads a log"):
        LogStreamReader.of(
            {"metadataServiceUri": ledgers.uri, "ledgers": "1"},
            StructType([field for field in SCHEMA.fields if field.name in COLUMNS]),
        )


def test_no_log(ledgers: Ledgers) -> None:
    reader = LogStreamReader.of({"metadataServiceUri": ledgers.uri, "log": "nobody"}, SCHEMA)
    with pytest.raises(NoSuchLogError, match="nobody"):
        reader.initialOffset()
    reader.stop()


# --- in Spark ---------------------------------------------------------------------------------------------------------


def stream(spark: SparkSession, log: TestLog, **options: object) -> DataFrame:
    reader = spark.readStream.format("bkpy").option("metadataServiceUri", log.uri).option("log", log.name)
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


def to_files(rows: DataFrame, directory: Path, trigger: dict[str, Any]) -> StreamingQuery:
    """A query whose sink commits each batch once; what it has written is `files(directory)`."""
    return (
        rows.writeStream.format("parquet")
        .option("path", str(directory / "out"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(**trigger)
        .start()
    )


def files(spark: SparkSession, directory: Path) -> list[Any]:
    return spark.read.parquet(str(directory / "out")).collect()


def finish(spark: SparkSession, log: TestLog, directory: Path, **options: object) -> None:
    query = to_files(stream(spark, log, **options), directory, {"availableNow": True})
    assert query.awaitTermination(300)


def test_a_query_reads_what_is_available_and_the_next_one_what_is_new(
    spark: SparkSession, log: TestLog, tmp_path: Path
) -> None:
    log.append(700)
    query = to_files(stream(spark, log, maxEntriesPerTrigger=300), tmp_path, {"availableNow": True})
    assert query.awaitTermination(300)
    assert_exactly(files(spark, tmp_path), 0, 700)
    sources = [progress["sources"][0] for progress in query.recentProgress if progress["numInputRows"]]
    ends = [json.loads(source["endOffset"])["position"] for source in sources]
    assert ends == [300, 600, 700]
    assert [json.loads(source["latestOffset"])["lag"] for source in sources] == [400, 100, 0]
    log.append(50)
    finish(spark, log, tmp_path)
    assert_exactly(files(spark, tmp_path), 0, 750)


@pytest.mark.exhaustive
def test_a_query_that_fails_in_its_first_batch_goes_on_with_it(
    spark: SparkSession, log: TestLog, tmp_path: Path
) -> None:
    """Where that began Spark keeps nowhere: the second run's `latest` stands for that of the first, and lies behind."""
    log.append(150)
    seen: list[Any] = []
    fails = True

    def sink(rows: DataFrame, _: int) -> None:
        found = rows.collect()
        if fails and found:
            raise RuntimeError("the sink fails")
        seen.extend(found)

    def started(given: str) -> StreamingQuery:
        writer = stream(spark, log, startingOffsets=given, maxEntriesPerTrigger=100).writeStream.foreachBatch(sink)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    with pytest.raises(StreamingQueryException, match="the sink fails"):
        started("50").awaitTermination(300)
    fails = False
    log.append(100)
    query = started("latest")
    eventually_here(lambda: len(seen) >= 200)
    query.stop()
    assert_exactly(seen, 50, 250)


@pytest.mark.exhaustive
def test_a_query_that_is_stopped_and_started_again_misses_and_doubles_nothing(
    spark: SparkSession, ledgers: Ledgers, tmp_path: Path
) -> None:
    stop_and_start(spark, ledgers, tmp_path, seed=1, seconds=2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 5))])
def test_so_it_does_at_many_points(spark: SparkSession, ledgers: Ledgers, tmp_path: Path, seed: int) -> None:
    stop_and_start(spark, ledgers, tmp_path, seed=10 + seed, seconds=20)


def stop_and_start(spark: SparkSession, ledgers: Ledgers, directory: Path, *, seed: int, seconds: float) -> None:
    """While the log grows, rolls, and changes writers."""
    rng = random.Random(seed)
    with TestLog(ledgers.uri, roll_entries=400) as log:
        log.append_for(seconds)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            limit = {"maxEntriesPerTrigger": rng.choice([100, 1000, 10_000])}
            query = to_files(stream(spark, log, **limit), directory, {"processingTime": "0 seconds"})
            query.awaitTermination(rng.uniform(0.3, 2))  # raises what the query has failed with
            query.stop()
        end = log.appended()
        log.die()
        log.append(10)
        finish(spark, log, directory)
        assert_exactly(files(spark, directory), 0, end + 10)


@pytest.mark.exhaustive
def test_truncation_ends_a_query_with_an_error_that_names_it(spark: SparkSession, log: TestLog, tmp_path: Path) -> None:
    log.append(100)
    finish(spark, log, tmp_path)
    log.append(900)
    log.truncate(500)
    query = to_files(stream(spark, log), tmp_path, {"availableNow": True})
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(300)
    assert re.search("TruncatedError: positions 100 to 499 of log .* were truncated", str(caught.value))
    finish(spark, log, tmp_path, failOnDataLoss="false")
    rows = files(spark, tmp_path)
    assert_exactly([row for row in rows if row["position"] < 500], 0, 100)
    assert_exactly([row for row in rows if row["position"] >= 500], 500, 1000)
