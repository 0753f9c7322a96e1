"""Deleting a ledger in two steps: hidden first, then, when whoever collects has made sure once more, gone.

Between the two what is stored of the ledger is *unknown* to whoever asks, so that nobody comes to rely on it. An add
that arrives meanwhile is proof that somebody stores the ledger here: then it is not deleted, only fenced, and whoever
collects may try again later. So there is nothing between hiding and deletion that a crash could leave behind, or that a
replay would have to take apart: a *deleted* record concerns all that was journaled of the ledger before it.

Invariants: what is deleted is durable in the journal, and in the index, and nowhere else; after the deletion nobody
holds on to the ledger's state, or is allowed to add to it without asking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from bkpy.storage.ledgers.info import LedgerInfo
    from bkpy.storage.ledgers.ledgers import Ledgers
    from bkpy.storage.shard import Shard


class Hidden:
    """A ledger that is hidden, until it is given to `unhide` or `delete`."""

    __slots__ = ("info", "ledger_id")

    def __init__(self, info: LedgerInfo) -> None:
        self.info = info
        self.ledger_id = info.ledger_id


class HidingStorage(Protocol):
    """What hiding and deleting need of the storage."""

    @property
    def ledgers(self) -> Ledgers: ...

    async def looked_up(self, ledger_id: int) -> LedgerInfo | None:
        """The ledger's state, when the memtable's index knows all of its entries."""

    async def checkpoint_shard(self, shard: Shard) -> None: ...

    async def force(self, ledger_id: int) -> None: ...

    async def fence(self, ledger_id: int, key: bytes) -> bool: ...

    async def journal_deleted(self, info: LedgerInfo) -> None:
        """From this call on the ledger is gone; returns when that is durable."""


async def hide(storage: HidingStorage, ledger_id: int) -> Hidden | None:
    """Hide what is stored of the ledger; None if it isn't here, or is hidden already."""
    shards = storage.ledgers.shards
    info = await storage.looked_up(ledger_id)
    if info is not None and shards[info.shard].holds(ledger_id):
        await storage.checkpoint_shard(shards[info.shard])
    await storage.force(ledger_id)  # so that whatever mark has the deletion behind it has all adds behind it, too
    info = await storage.looked_up(ledger_id)
    if info is None or info.hidden:
        return None
    info.hidden = True
    info.disturbed = shards[info.shard].holds(ledger_id)
    info.pins += 1
    return Hidden(info)


def unhide(hidden: Hidden) -> None:
    """Let what is stored of the ledger be seen again."""
    info = hidden.info
    if info.hidden:
        info.hidden = False
        info.pins -= 1


async def delete(storage: HidingStorage, hidden: Hidden) -> bool:
    """Delete what was hidden; False if something was added meanwhile. Returns when it is durable."""
    info = hidden.info
    if not info.hidden:
        raise AssertionError(f"ledger {info.ledger_id} is not hidden")
    shard = storage.ledgers.shards[info.shard]
    await shard.catch_up(info.ledger_id)
    disturbed = info.disturbed or shard.holds(info.ledger_id)
    unhide(hidden)
    if disturbed:
        await storage.fence(info.ledger_id, info.key)
        return False
    await storage.journal_deleted(info)
    return True
