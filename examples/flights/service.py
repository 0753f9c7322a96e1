"""The service: appends the flights of 2013 to the log "flights", each at the time at which it was to leave.

python examples/flights/service.py [DAYS_PER_SECOND]
"""

import asyncio
import os
import sys

import bkpy
from bkpy.demo.events import all_events, replay


async def main(days_per_second: float) -> None:
    events = all_events()  # JSON, in order of time; in a real service they come from outside
    async with (
        bkpy.connect(os.environ["BKPY_CONNECT"]) as client,
        # This becomes the log's only writer: another service that still writes it gets LogFencedError.
        await client.open_log("flights", create=True, roll_entries=50_000) as log,
    ):
        # The log holds a beginning of the events, whatever happened to the service that wrote it: go on behind.
        print(f"writing from position {log.next_position:,} on", flush=True)
        async for payloads in replay(events, log.next_position, days_per_second):
            positions = await log.append_batch(payloads)  # on two disks of three when this returns
            print(f"\r{positions.stop:,} of {len(events):,} events", end="", flush=True)
    print("\nThe year is over.")


if __name__ == "__main__":
    if "BKPY_CONNECT" not in os.environ:
        sys.exit("Which cluster? Set BKPY_CONNECT as the output of bkpy local says.")
    try:
        asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 5))
    except KeyboardInterrupt:
        print("\nStopped; start it again, and it goes on.")
