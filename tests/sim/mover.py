"""Moves copies of a closed ledger as re-replication does, for no other reason than that they are moved.

What it leaves on the bookie that it took out of the ensemble is a spare copy, for that bookie to collect; and where it
copies to, the bookie may be collecting one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from bkpy.client.client import replication_context
from bkpy.config.recovery import RecoverySettings
from bkpy.errors import BookKeeperError
from bkpy.metadata.replication.locks import LedgerLocks
from bkpy.protocol.repair.rereplication import RepairScope
from bkpy.replication.worker.fragment_copy import CopyCount
from bkpy.replication.worker.ledger_repair import LedgerRepair, Repaired, RepairOutcome
from bkpy.replication.worker.pacing import CopyRate

if TYPE_CHECKING:
    from collections.abc import Collection
    from random import Random

    from bkpy.client.client import Client

SETTINGS = RecoverySettings(copy_window_bytes=4096)


async def move(client: Client, ledger_id: int, rng: Random, *, of: Collection[str] = ()) -> bool:
    """Move the copies of one bookie, one of these if there are any, to others; whether that was done."""
    context = replication_context(client)
    cluster, runtime = context.cluster, context.parts.runtime
    locks = LedgerLocks(cluster.store, cluster.root, "mover", runtime)
    repair = LedgerRepair(context, locks, SETTINGS, CopyRate(SETTINGS, runtime), CopyCount())
    copy = repair.copy

    async def copy_and_dally(*args: Any) -> Any:
        copied = await copy(*args)
        await asyncio.sleep(rng.random() ** 2)
        return copied

    repair.copy = copy_and_dally  # type: ignore[method-assign]
    try:
        async with repair.locked(ledger_id) as ledger:
            if isinstance(ledger, Repaired):
                return False
            metadata = await ledger.metadata()
            if metadata is None:
                return False  # it was deleted meanwhile
            named = sorted({name for fragment in metadata.fragments for name in fragment.bookies})
            source = rng.choice([name for name in named if name in of] or named)
            ended = await ledger.repair(RepairScope(frozenset({source})))
    except BookKeeperError:
        return False
    return ended.how is RepairOutcome.DONE
