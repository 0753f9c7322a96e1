"""Flights and delays by origin and time: as Spark aggregates them from a stream, and as they are in the source.

Invariant: the two have nothing in common but the lines of flights.csv that they come from.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.demo.events import YEAR

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

# The times of the events have no zone: a clock in New York showed them, and nothing converts them. To count so few rows
# takes no more tasks than there are cores.
SPARK_CONFIG: Final[Mapping[str, str]] = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"}
DAY: Final = "1 day"

_EVENT: Final = "scheduled TIMESTAMP, origin STRING, delay INT"
_LATE: Final = "1 hour"


class DelayWindow(NamedTuple):
    """The flights scheduled to leave an airport in a window of time, which begins at `begins`."""

    begins: str
    origin: str
    flights: int
    departed: int
    delay_minutes: int  # the sum over departed flights

    @property
    def mean_delay(self) -> float:
        """Minutes; not a number if no flight left."""
        return self.delay_minutes / self.departed if self.departed else float("nan")


def delays_by_origin(entries: DataFrame, window: str = DAY) -> DataFrame:
    """The entries of the log, a table or a stream of them, aggregated by origin and window of time.

    A window of a stream is complete when the event of a flight scheduled an hour after its end has come. Then its row
    appears, once, and never changes.
    """
    from pyspark.sql import functions as sql

    events = entries.select(sql.from_json(sql.col("payload").cast("string"), _EVENT).alias("event")).select("event.*")
    return (
        events.withWatermark("scheduled", _LATE)
        .groupBy(sql.window("scheduled", window).alias("window"), "origin")
        .agg(
            sql.count("*").alias("flights"),
            sql.count("delay").alias("departed"),
            sql.coalesce(sql.sum("delay"), sql.lit(0)).alias("delay_minutes"),
            sql.avg("delay").alias("mean_delay"),
        )
        .select(sql.col("window.start").alias("begins"), "origin", "flights", "departed", "delay_minutes", "mean_delay")
    )


def stored_windows(spark: SparkSession, directory: Path) -> list[DelayWindow]:
    """The aggregates that a stream has put into a directory, by time and origin.

    Spark reads them, since only Spark knows which files count: a killed one leaves others beside them.
    """
    rows = spark.read.parquet(str(directory)).selectExpr(
        "date_format(begins, 'yyyy-MM-dd HH:mm') AS begins", "origin", "flights", "departed", "delay_minutes"
    )
    return sorted(DelayWindow(*row) for row in rows.collect())


def windows_of(lines: Iterable[bytes]) -> list[DelayWindow]:
    """The same by day, computed from the lines of flights.csv without Spark."""
    flights: Counter[tuple[str, str]] = Counter()
    departed: Counter[tuple[str, str]] = Counter()
    minutes: Counter[tuple[str, str]] = Counter()
    for line in lines:
        _, month, day, _, _, delay, _, _, _, _, _, _, origin, *_ = line.decode().split(",")
        key = f"{YEAR}-{month:0>2}-{day:0>2} 00:00", origin
        flights[key] += 1
        if delay != "NA":
            departed[key] += 1
            minutes[key] += int(delay)
    return [DelayWindow(*key, flights[key], departed[key], minutes[key]) for key in sorted(flights)]
