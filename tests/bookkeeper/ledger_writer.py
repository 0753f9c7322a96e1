"""A process that writes ledgers with our client, as `Ledgers.java write` does with Java's, in the same words.

python -m tests.bookkeeper.ledger_writer URI DIGEST PAUSE_MS QUORUM...
"""

from __future__ import annotations

import asyncio
import itertools
import sys

import bkpy
from tests.bookkeeper.ledgers import PASSWORD, entry_of

_AT_ONCE = 20


def say(*words: object) -> None:
    print("SAID", *words, flush=True)


async def main(uri: str, digest: str, pause_ms: int, *quorums: int) -> None:
    async with bkpy.connect(uri) as client, asyncio.TaskGroup() as group:
        for quorum in quorums:
            writer = await client.create_ledger(
                ensemble_size=3, write_quorum=quorum, ack_quorum=2, digest=digest, password=PASSWORD
            )
            say("writing", writer.ledger_id)
            group.create_task(_write(writer, pause_ms / 1000))


async def _write(writer: bkpy.LedgerWriter, pause_s: float) -> None:
    """Append until an append has failed, whether what is before it is acknowledged or not."""
    failed = asyncio.Event()

    async def append(number: int) -> None:
        try:
            say("acknowledged", writer.ledger_id, await writer.append(entry_of(writer.ledger_id, number)))
        except bkpy.BookKeeperError as error:
            if not failed.is_set():
                failed.set()
                say("failed", writer.ledger_id, type(error).__name__)

    async with asyncio.TaskGroup() as group:
        for number in itertools.count():
            if failed.is_set():
                return
            group.create_task(append(number))
            if number % _AT_ONCE == 0:
                await asyncio.sleep(pause_s)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *map(int, sys.argv[4:])))
