"""The writer that `bkpy demo` kills: it appends a year of flights to one ledger and prints what was acknowledged.

    python -m bkpy.demo.writer URI

Prints `ledger ID`, then `acknowledged N` for the first N flights, again and again.

Invariant: it prints nothing as acknowledged before that is acknowledged.
"""

from __future__ import annotations

import asyncio
import sys

import bkpy
from bkpy.demo.flights import ACK_QUORUM, ENSEMBLE_SIZE, WRITE_QUORUM, batched, load_flights, run_to_its_end

BATCHES_AT_ONCE = 8  # so that there is something in flight whenever it dies


async def write(uri: str) -> None:
    """Append all flights, and close the ledger if it gets that far."""
    batches = batched([line for month in load_flights().values() for line in month])
    async with (
        bkpy.connect(uri) as client,
        await client.create_ledger(
            ensemble_size=ENSEMBLE_SIZE, write_quorum=WRITE_QUORUM, ack_quorum=ACK_QUORUM
        ) as writer,
    ):
        print(f"ledger {writer.ledger_id}", flush=True)

        async def append() -> None:
            for batch in batches:
                await writer.append_batch(batch)
                print(f"acknowledged {writer.last_add_confirmed + 1}", flush=True)

        async with asyncio.TaskGroup() as group:
            for _ in range(BATCHES_AT_ONCE):
                group.create_task(append())


if __name__ == "__main__":
    run_to_its_end(write(sys.argv[1]))
