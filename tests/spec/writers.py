"""A process that writes many ledgers until it is killed, and says when each has entries: `writers.py URI COUNT`."""

from __future__ import annotations

import asyncio
import sys

import bkpy
from tests.faults.healing import SIZES
from tests.faults.load import Load

READY = "each ledger has entries"
ENTRIES = 10


async def write(uri: str, count: int) -> None:
    async with bkpy.connect(uri) as client:
        loads = []
        for number in range(count):
            ensemble, write, ack = SIZES[number % len(SIZES)]
            writer = await client.create_ledger(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack)
            loads.append(Load(writer, outstanding=2, filler_bytes_max=100, pause_s=1.0, seed=number))
            loads[-1].start()
        for load in loads:
            await load.more(ENTRIES)
        print(READY, flush=True)
        await asyncio.gather(*(load.fails(deadline_s=None) for load in loads))


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1], int(sys.argv[2])))
