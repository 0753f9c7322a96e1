"""A re-replication worker: copies a closed ledger to another bookie, and swaps that one in.

What it leaves on the bookie that it took out of the ensemble is a spare copy, for that bookie to collect; and where it
copies to, the bookie may be collecting one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bkpy.errors import BookKeeperError
from bkpy.metadata.locks import LedgerLock, LedgerLocks
from bkpy.metadata.resolve import Answer, attempt
from bkpy.metadata.store import Check, Put
from bkpy.protocol.ledger_metadata import LedgerState
from bkpy.protocol.messages import Flags, Op, Status, decode_read_reply, pack, reply_status
from bkpy.protocol.records import walk
from tests.hooks import cluster_of, pool_of
from tests.in_process import add

if TYPE_CHECKING:
    from random import Random

    from bkpy.client.client import Client
    from bkpy.protocol.ledger_metadata import LedgerMetadata


async def move(client: Client, ledger_id: int, bookies: list[str], rng: Random) -> bool:
    """Move one copy of a ledger that is on `write_quorum` bookies; whether that was done."""
    cluster = cluster_of(client)
    locks = LedgerLocks(cluster.store, cluster.root, "mover", cluster.store.runtime)
    lock = await locks.take(ledger_id)
    if not isinstance(lock, LedgerLock):
        return False
    try:
        metadata, version = await cluster.catalog.read(ledger_id, fresh=True)
        if metadata.state is not LedgerState.CLOSED or metadata.ensemble_size != metadata.write_quorum:
            return False
        spare = [name for name in bookies if not any(name in fragment.bookies for fragment in metadata.fragments)]
        if not spare:
            return False
        target, index = rng.choice(spare), rng.randrange(metadata.ensemble_size)
        for entry_id, record in (await _records(client, metadata)).items():
            columns = [int(Flags.RECOVERY), [ledger_id], [entry_id], [1], 1, [len(record)]]
            status = await add(pool_of(client).channel(target), columns, record, pool_of(client))
            if status != Status.OK:
                return False
        await asyncio.sleep(rng.random() ** 2)
        moved = metadata
        for number in range(len(metadata.fragments)):
            moved = moved.replace_bookie(number, index, target)
        # With its own lock, or not at all.
        swap = [Check(lock.proof, 0), Put(cluster.catalog.path_of(ledger_id), moved.encode(), version)]
        return isinstance(await attempt(cluster.store.multi(swap)), Answer)
    except (BookKeeperError, TimeoutError):
        return False  # bookies die in these runs: then it is left to another one
    finally:
        await locks.release(lock)


async def _records(client: Client, metadata: LedgerMetadata) -> dict[int, bytes]:
    """All entries, as they are stored. A `BookKeeperError` if there is one that nobody can give now."""
    found: dict[int, bytes] = {}
    pool = pool_of(client)
    pool.add_key(metadata.ledger_id, metadata.ledger_key)
    for name in dict.fromkeys(name for fragment in metadata.fragments for name in fragment.bookies):
        first = 0
        while first <= metadata.last_entry:
            head = pack([0, metadata.ledger_id, first, metadata.last_entry, 1 << 20])
            frame = await pool.channel(name).call(Op.READ, head, timeout_s=5.0)
            if reply_status(frame.head) != Status.OK:
                break
            for header in walk(frame.body):
                found[header.entry_id] = bytes(frame.body[header.offset : header.end])
            first = decode_read_reply(frame.head).examined_to + 1
    if len(found) <= metadata.last_entry:
        raise BookKeeperError("an entry can't be copied now")
    return {entry_id: found[entry_id] for entry_id in range(metadata.last_entry + 1)}
