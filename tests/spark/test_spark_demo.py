"""The part of the demonstration that streams, on a few flights; the whole of it is `make demo`."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from bkpy.demo.delays import SPARK_CONFIG, windows_of
from bkpy.demo.events import flight_events
from bkpy.demo.flights import load_flights
from bkpy.demo.streaming import PARTS, Pipeline, events_in, flights_in, stream

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.spark.conftest import Ledgers

OF_EACH_MONTH = 100


@pytest.mark.exhaustive  # `make demo` shows the same
def test_a_service_is_killed_and_a_query_stopped_and_each_flight_comes_everywhere_once(
    ledgers: Ledgers, spark: SparkSession, tmp_path: Path
) -> None:
    lines = [line for month in load_flights().values() for line in month[:OF_EACH_MONTH]]
    events = flight_events(lines)
    session = spark.newSession()
    for name, value in SPARK_CONFIG.items():
        session.conf.set(name, value)
    told: Counter[str] = Counter()
    pipeline = Pipeline(ledgers.uri, session, tmp_path, events, 150.0, OF_EACH_MONTH)
    streamed = asyncio.run(stream(pipeline, lambda part, position: told.update({part: 1} if position else {})))
    assert set(told) == set(PARTS)

    takeover = streamed.takeover
    assert len(events) // 3 <= takeover.acknowledged <= takeover.position < len(events)
    assert streamed.ledgers >= 2  # one of each service
    assert streamed.payloads == [event.payload for event in events]
    assert streamed.tailed.payloads == streamed.payloads
    assert streamed.tailed.resumed_at >= len(events) // 2
    assert events_in(streamed.payloads, events).exact

    aggregated = streamed.aggregated
    assert aggregated.resumed_at >= aggregated.stopped_at >= len(events) // 2
    assert aggregated.batches >= 2
    assert aggregated.windows == windows_of(lines)
    assert flights_in(aggregated.windows, windows_of(lines)).flights == len(lines)
