"""The consumer: tails the log "flights", tells of long delays, and goes on where it was when it is started again.

python examples/flights/consumer.py [MINUTES]
"""

import asyncio
import json
import os
import sys
from dataclasses import dataclass

import bkpy

COMMIT_INTERVAL_S = 1.0  # a commit is a write to ZooKeeper; what was handled since the last one is handled again


async def main(minutes: int) -> None:
    async with bkpy.connect(os.environ["BKPY_CONNECT"]) as client, await client.read_log("flights") as reader:
        # The position of a consumer is kept with the log, and what it has yet to read is not deleted.
        delays = await reader.consumer("delays", create=True)
        print(f"reading from position {delays.position:,} on", flush=True)
        handled = Handled(delays.position)
        try:
            async with asyncio.TaskGroup() as beside:  # so that the last entries are committed too, while none come
                beside.create_task(commit(delays, handled))
                # As many entries at once as have come; `reader.tail` gives them one by one.
                async for block in reader.tail_blocks(first=delays.position):
                    for payload in block.payloads():
                        tell(json.loads(payload), minutes)
                    handled.position = block.positions.stop
        finally:  # Ctrl-C, or an error: nothing of what was handled is handled again
            await delays.commit(handled.position)


@dataclass
class Handled:
    position: int  # all before it


async def commit(delays: bkpy.LogConsumer, handled: Handled) -> None:
    while True:
        await asyncio.sleep(COMMIT_INTERVAL_S)
        if handled.position != delays.position:
            await delays.commit(handled.position)


def tell(flight: dict, minutes: int) -> None:
    if (flight.get("delay") or 0) >= minutes:
        name = f"{flight['carrier']}{flight['flight']}"
        way = f"{flight['origin']} to {flight['destination']}"
        print(f"{flight['scheduled']}  {name:7} {way}  {flight['delay']} minutes late", flush=True)


if __name__ == "__main__":
    if "BKPY_CONNECT" not in os.environ:
        sys.exit("Which cluster? Set BKPY_CONNECT as the output of bkpy local says.")
    try:
        asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 600))
    except KeyboardInterrupt:
        print("Stopped; start it again, and it goes on.")
