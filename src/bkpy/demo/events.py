"""The flights as a stream of events, in the order of their scheduled departures, which services of the demo append.

Invariant: every process computes the same events in the same order, so that one service goes on where another ended.
"""

from __future__ import annotations

import asyncio
import json
import time
from bisect import bisect_right
from datetime import datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from bkpy.demo.flights import load_flights

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

LOG = "flights"
YEAR = 2013

# Columns of flights.csv, see `flights.py`. The last two are the scheduled hour and minute of departure.
_MONTH, _DAY, _DELAY, _CARRIER, _FLIGHT, _ORIGIN, _DESTINATION, _HOUR, _MINUTE = 1, 2, 5, 9, 10, 12, 13, 16, 17
_UNKNOWN = "NA"

_AT_ONCE_MAX = 1000  # events
_TICK_S = 0.02  # the pause before the next events, however quickly the year passes


class FlightEvent(NamedTuple):
    """A flight as it is appended. `scheduled`: local time in New York."""

    scheduled: datetime
    payload: bytes


def flight_events(lines: Iterable[bytes]) -> list[FlightEvent]:
    """The flights of these lines of flights.csv, by their scheduled departures; then the end of the year.

    The payload of a flight is JSON: `scheduled`, `origin`, `destination`, `carrier`, `flight`, and `delay` in minutes,
    which is null for a flight that never left. The last event is a mere time, a day after the last flight: it shows
    readers that aggregate by time that all flights of the year have come.
    """
    events = sorted(map(_event, lines), key=_scheduled)
    end = datetime(YEAR + 1, 1, 1) + timedelta(days=1)
    return [*events, FlightEvent(end, json.dumps({"scheduled": end.isoformat()}).encode())]


def all_events() -> list[FlightEvent]:
    """Those of the whole year. Takes some seconds."""
    return flight_events(chain.from_iterable(load_flights().values()))


def _event(line: bytes) -> FlightEvent:
    values = line.decode().split(",")
    month, day, hour, minute = (int(values[column]) for column in (_MONTH, _DAY, _HOUR, _MINUTE))
    scheduled = datetime(YEAR, month, day, hour, minute)
    delay = values[_DELAY]
    event = {
        "scheduled": scheduled.isoformat(),
        "origin": values[_ORIGIN],
        "destination": values[_DESTINATION],
        "carrier": values[_CARRIER],
        "flight": int(values[_FLIGHT]),
        "delay": None if delay == _UNKNOWN else int(delay),
    }
    return FlightEvent(scheduled, json.dumps(event).encode())


def _scheduled(event: FlightEvent) -> datetime:
    return event.scheduled


async def replay(
    events: Sequence[FlightEvent], first: int, days_per_second: float
) -> AsyncGenerator[list[bytes], None]:
    """The payloads from `events[first]` on, as their times come: so many days of theirs pass in a second."""
    if first >= len(events):
        return
    zero, began = events[first].scheduled, time.monotonic()
    while first < len(events):
        now = zero + timedelta(days=(time.monotonic() - began) * days_per_second)
        end = bisect_right(events, now, first, min(first + _AT_ONCE_MAX, len(events)), key=_scheduled)
        if end > first:
            yield [event.payload for event in events[first:end]]
            first = end
        else:
            due_s = (events[first].scheduled - now).total_seconds() / timedelta(days=1).total_seconds()
            await asyncio.sleep(max(_TICK_S, due_s / days_per_second))
