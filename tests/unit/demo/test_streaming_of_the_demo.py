"""The events of the streaming part of the demonstration, and its comparisons, which must notice what differs."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from bkpy.demo.chart import draw
from bkpy.demo.delays import DelayWindow, windows_of
from bkpy.demo.events import FlightEvent, flight_events, replay
from bkpy.demo.streaming import DeliveryCount, events_in, flights_in

if TYPE_CHECKING:
    from pathlib import Path

LATER = b"2013,12,31,1200,1158,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,11,58,2013-12-31T16:00:00Z"
NEVER = b"2013,1,1,NA,515,NA,NA,819,NA,B6,7,N14228,JFK,IAH,NA,1400,5,15,2013-01-01T10:00:00Z"
EARLY = b"2013,1,1,1057,1100,-3,NA,819,NA,B6,8,N14228,JFK,BOS,NA,1400,11,0,2013-01-01T16:00:00Z"
LINES = [LATER, EARLY, NEVER]


def test_events_come_in_the_order_in_which_they_were_to_leave_and_end_with_the_year() -> None:
    first, second, third, last = map(json.loads, (event.payload for event in flight_events(LINES)))
    assert first == {
        "scheduled": "2013-01-01T05:15:00",
        "origin": "JFK",
        "destination": "IAH",
        "carrier": "B6",
        "flight": 7,
        "delay": None,
    }
    assert (second["delay"], third["delay"]) == (-3, 2)
    assert third["scheduled"] == "2013-12-31T11:58:00"
    assert last == {"scheduled": "2014-01-02T00:00:00"}


def test_the_windows_of_the_source() -> None:
    assert windows_of(LINES) == [
        DelayWindow("2013-01-01 00:00", "JFK", 2, 1, -3),
        DelayWindow("2013-12-31 00:00", "EWR", 1, 1, 2),
    ]


def events_each_hour(count: int) -> list[FlightEvent]:
    return [FlightEvent(datetime(2013, 1, 1) + timedelta(hours=i), b"%d" % i) for i in range(count)]


async def test_a_replay_takes_the_time_that_it_is_given() -> None:
    events = events_each_hour(25)
    began = time.monotonic()
    batches = [batch async for batch in replay(events, 1, 10.0)]
    assert time.monotonic() - began >= 23 / 24 / 10
    assert len(batches) > 1
    assert [payload for batch in batches for payload in batch] == [event.payload for event in events[1:]]


async def test_a_replay_gives_no_event_before_its_time() -> None:
    events = events_each_hour(2)
    batches = replay(events, 0, 0.001)
    assert await anext(batches) == [b"0"]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(batches), 0.05)
    assert [batch async for batch in replay(events, 2, 1.0)] == []


async def test_what_is_late_comes_at_once_but_not_without_bound() -> None:
    events = [FlightEvent(datetime(2013, 1, 1), b"%d" % i) for i in range(2500)]
    assert [len(batch) async for batch in replay(events, 0, 1.0)] == [1000, 1000, 500]


A, B, C, END = (FlightEvent(datetime(2013, 1, day), name) for day, name in enumerate((b"a", b"b", b"c", b"end"), 1))


@pytest.mark.parametrize(
    ("found", "tally"),
    [
        ([b"a", b"b", b"c", b"end"], DeliveryCount(3, 0, 0, 0)),
        ([b"a", b"b", b"end"], DeliveryCount(2, 1, 0, 1)),
        ([b"a", b"b", b"b", b"c", b"end"], DeliveryCount(4, 0, 1, 2)),
        ([b"b", b"a", b"c", b"end"], DeliveryCount(3, 0, 0, 2)),
        ([b"a", b"x", b"c", b"end"], DeliveryCount(3, 1, 1, 1)),
        ([b"a", b"b", b"c"], DeliveryCount(3, 1, 0, 0)),
        ([], DeliveryCount(0, 4, 0, 0)),
    ],
)
def test_what_is_missing_doubled_or_displaced_is_told(found: list[bytes], tally: DeliveryCount) -> None:
    assert events_in(found, [A, B, C, END]) == tally
    assert tally.exact == (found == [b"a", b"b", b"c", b"end"])


def test_windows_that_miss_or_double_flights_are_told() -> None:
    one, two = DelayWindow("2013-01-01 00:00", "JFK", 10, 9, 5), DelayWindow("2013-01-02 00:00", "JFK", 20, 20, 0)
    assert flights_in([one, two], [one, two]) == DeliveryCount(30, 0, 0, None)
    assert flights_in([one], [one, two]) == DeliveryCount(10, 20, 0, None)
    assert flights_in([one, one, two], [one, two]) == DeliveryCount(40, 0, 10, None)
    assert flights_in([two._replace(flights=19)], [two]) == DeliveryCount(19, 1, 0, None)
    assert not flights_in([one, one, two], [one, two]).exact


@pytest.mark.thorough
def test_days_are_drawn_also_those_on_which_nobody_left(tmp_path: Path) -> None:
    draw([*windows_of(LINES), DelayWindow("2013-02-01 00:00", "LGA", 3, 0, 0)], tmp_path / "days.png")
    assert (tmp_path / "days.png").read_bytes().startswith(b"\x89PNG")
