"""Deletes one ledger of a bookie, step by step. This module is the only one that does, and calls go only downwards.

    | step | function | durable | after a crash |
    | --- | --- | --- | --- |
    | hide | `hide` | all of the ledger so far | the ledger is there and visible |
    | delete | `HiddenLedger.delete` | the journal's *deleted* record | the replay deletes it once more |
    | tombstone | `Shard.write_tombstones` | the index: no row, a tombstone, its block rows as trash | purged |
    | purge | `Shard.purge` | the index: no block rows, fewer living bytes in the logs | dead logs go |

The collector takes the first two steps; the next checkpoint or the reclaimer takes the others.

While a ledger is hidden, reads of it answer *unknown*, so that nobody comes to rely on it; adds are stored. An add in
that time proves that somebody stores the ledger here. Then it is not deleted but fenced, and the collector may try it
again later. So a crash between hiding and deletion leaves nothing behind, and the replay has nothing to take apart: a
*deleted* record concerns all that was journaled of the ledger before it.

Invariants: a deletion is in the journal, and later in the index, and nowhere else; after it nobody holds the ledger's
state, or may add to the ledger without asking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bkpy.storage.engine import LedgerStorage
    from bkpy.storage.ledgers.info import LedgerInfo


async def hide(storage: LedgerStorage, ledger_id: int) -> HiddenLedger | None:
    """Hide what is stored of the ledger; None if it isn't here, or is hidden already. A crash unhides it."""
    info = await storage.looked_up(ledger_id)
    if info is not None and storage.shards[info.shard].holds(ledger_id):
        await storage.checkpoint_shard(storage.shards[info.shard])
    await storage.force(ledger_id)  # so that a mark behind the deletion is behind all adds before it, too
    info = await storage.looked_up(ledger_id)
    if info is None or info.hidden:
        return None
    info.hidden = True
    info.disturbed = storage.shards[info.shard].holds(ledger_id)
    info.pins += 1
    return HiddenLedger(storage, info)


class HiddenLedger:
    """A ledger that is hidden, until `unhide` or `delete`."""

    __slots__ = ("_info", "_storage", "ledger_id")

    def __init__(self, storage: LedgerStorage, info: LedgerInfo) -> None:
        self.ledger_id = info.ledger_id
        self._storage = storage
        self._info = info

    def unhide(self) -> None:
        """Show what is stored of the ledger again, unless that was done."""
        if self._info.hidden:
            self._info.hidden = False
            self._info.pins -= 1

    async def delete(self) -> bool:
        """Delete the ledger for good; returns when that is durable. It stays fenced: no writer is welcome any more.

        False: something was stored for it since it was hidden. Then all of it stays, visible and fenced, so that what a
        writer stores there comes to an end; it may be hidden and deleted later.
        """
        storage, info = self._storage, self._info
        if not info.hidden:
            raise AssertionError(f"ledger {info.ledger_id} is not hidden")
        shard = storage.shards[info.shard]
        await shard.catch_up(info.ledger_id)
        disturbed = info.disturbed or shard.holds(info.ledger_id)
        self.unhide()
        if disturbed:
            await storage.fence(info.ledger_id, info.key)
            return False
        storage.ledgers.forget(info.ledger_id, shard)  # with the record, before anybody else runs
        await storage.journal_deletion(info.ledger_id)
        storage.reclaimers[info.shard].wake()
        return True
