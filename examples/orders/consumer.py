"""The consumer: ships each order once, which here is a line in a file.

python examples/orders/consumer.py FILE
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import bkpy


class Shipments:
    """Lines [position, order]. They are written before the position is committed, so the file may be ahead of it."""

    def __init__(self, path: Path) -> None:
        path.touch()
        whole, _, torn = path.read_bytes().rpartition(b"\n")
        if torn:  # of a consumer that was killed in the midst of a line
            os.truncate(path, len(whole) + bool(whole))
        self.next_position = json.loads(whole.rpartition(b"\n")[2])[0] + 1 if whole else 0
        self._file = path.open("ab", buffering=0)

    def add(self, entries: list[bkpy.LogEntry]) -> None:
        # An order that is no text must not stop those behind it.
        orders = ([entry.position, entry.data.decode(errors="backslashreplace")] for entry in entries)
        lines = (json.dumps(order) + "\n" for order in orders)
        self._file.write("".join(lines).encode())
        self.next_position = entries[-1].position + 1


async def main(path: Path) -> None:
    shipments = Shipments(path)
    # A consumer that was killed has its lease until its session has ended.
    async with bkpy.connect(os.environ["BKPY_CONNECT"], client_name="shipping", session_timeout_s=4.0) as client:
        while True:
            try:
                await ship(client, shipments)
            except bkpy.NoSuchLogError:
                print("no service has begun to take orders", flush=True)
                await asyncio.sleep(1.0)
            except bkpy.BookKeeperError as error:
                if not error.retriable:
                    raise
                print(f"going on in a second: {error}", flush=True)
                await asyncio.sleep(1.0)


async def ship(client: bkpy.Client, shipments: Shipments) -> None:
    async with (
        await client.read_log("orders") as reader,
        await reader.consumer("shipping", create=True, lease=True) as shipping,
    ):
        reader.seek(max(shipping.position, shipments.next_position))
        print(f"{(await shipping.lag()).entries} orders are waiting", flush=True)
        while True:
            if entries := await reader.poll(timeout=10.0):
                shipments.add(entries)
                await shipping.commit(shipments.next_position)


if __name__ == "__main__":
    if "BKPY_CONNECT" not in os.environ or len(sys.argv) != 2:
        sys.exit("usage: consumer.py FILE, with BKPY_CONNECT set as the output of bkpy local says")
    asyncio.run(main(Path(sys.argv[1])))
