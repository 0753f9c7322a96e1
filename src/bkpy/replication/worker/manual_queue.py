"""Ledgers that an operator wants to be repaired now: the records for a worker of the operator's own, in memory alone.

The auditor's records stay; the worker that takes one of them finds nothing left to do.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bkpy.metadata.replication.underreplication import LossReason, LostBookie, UnderreplicationRecord
from bkpy.metadata.store.outcome import Gone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable

    from bkpy.metadata.replication.locks import LedgerLock


class ManualQueue:
    """Records that `ledger_ids` miss `bookie_id`. Works whether re-replication is enabled or not."""

    def __init__(self, bookie_id: str, ledger_ids: Iterable[int] = (), *, reason: LossReason = LossReason.LOST) -> None:
        self._lost = {bookie_id: LostBookie(0, reason.value)}
        self._left = dict.fromkeys(ledger_ids)
        self._news = asyncio.Event()
        self._news.set()

    def __len__(self) -> int:
        return len(self._left)

    @property
    def left(self) -> tuple[int, ...]:
        """The ledgers that are not repaired."""
        return tuple(self._left)

    def add(self, ledger_ids: Iterable[int]) -> None:
        """Have these repaired, too."""
        if new := [ledger_id for ledger_id in ledger_ids if ledger_id not in self._left]:
            self._left.update(dict.fromkeys(new))
            self._news.set()

    async def read(self, ledger_id: int) -> UnderreplicationRecord | None:
        return UnderreplicationRecord(ledger_id, self._lost, 0) if ledger_id in self._left else None

    async def seen(self, ledger_id: int) -> bool:
        return ledger_id in self._left

    async def remove(self, record: UnderreplicationRecord, bookie_ids: Collection[str]) -> Gone:
        if set(bookie_ids) >= record.lost.keys():
            self._left.pop(record.ledger_id, None)
        return Gone()

    async def return_bookies(self, record: UnderreplicationRecord, bookie_ids: Collection[str]) -> Gone:
        """The cluster's own records say which bookies a worker verifies."""
        return await self.remove(record, bookie_ids)

    async def end_absence(self, record: UnderreplicationRecord, bookie_ids: Collection[str]) -> Gone:
        """The same: no record of its own says that a bookie was absent at a ledger's creation."""
        return await self.remove(record, bookie_ids)

    async def remove_with(self, record: UnderreplicationRecord, lock: LedgerLock) -> bool:
        """These records are no nodes that could be deleted together with those of the lock."""
        return False

    async def tidy(self) -> None:
        """They have no parent nodes."""

    async def list(self) -> AsyncIterator[int]:
        for ledger_id in list(self._left):
            yield ledger_id

    async def changed(self) -> bool:
        """The first call returns at once; another one when there are more."""
        await self._news.wait()
        self._news.clear()
        return True

    async def switched(self) -> AsyncGenerator[bool, None]:
        yield True
        await asyncio.Event().wait()  # nobody switches it
