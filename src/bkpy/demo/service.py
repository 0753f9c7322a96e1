"""The service that the demo kills: it replays the flights into the log, and prints what was acknowledged.

    python -m bkpy.demo.service URI DAYS_PER_SECOND [FLIGHTS]

With FLIGHTS, only the first so many of each month. Prints `from N` when it has become the log's writer and N events are
there, then `acknowledged N` for the first N events, again and again.

Invariant: it prints nothing as acknowledged before that is acknowledged.
"""

from __future__ import annotations

import sys

import bkpy
from bkpy.demo.events import LOG, flight_events, replay
from bkpy.demo.flights import load_flights, run_to_its_end

ROLL_ENTRIES = 50_000  # so that a year is several ledgers


async def serve(uri: str, days_per_second: float, of_each_month: int | None) -> None:
    """Append the events that the log doesn't have yet."""
    lines = [line for month in load_flights().values() for line in month[:of_each_month]]
    events = flight_events(lines)
    async with (
        bkpy.connect(uri) as client,
        await client.open_log(LOG, create=True, roll_entries=ROLL_ENTRIES) as log,
    ):
        print(f"from {log.next_position}", flush=True)
        async for payloads in replay(events, log.next_position, days_per_second):
            positions = await log.append_batch(payloads)
            print(f"acknowledged {positions.stop}", flush=True)


if __name__ == "__main__":
    run_to_its_end(serve(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None))
