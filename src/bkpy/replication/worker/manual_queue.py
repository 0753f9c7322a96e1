"""Ledgers that somebody wants to be worked off now, by hand: marks for a worker of one's own, in memory alone.

What the auditor has marked stays marked; whoever comes to it finds nothing left to do.
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
    """`ledger_ids` are to leave `bookie_id`. Works whether recovery by itself is switched on or off."""

    def __init__(self, bookie_id: str, ledger_ids: Iterable[int] = (), *, reason: LossReason = LossReason.LOST) -> None:
        self._lost = {bookie_id: LostBookie(0, reason.value)}
        self._left = dict.fromkeys(ledger_ids)
        self._news = asyncio.Event()
        self._news.set()

    def __len__(self) -> int:
        return len(self._left)

    def add(self, ledger_ids: Iterable[int]) -> None:
        """Have these worked off, too."""
        if new := [ledger_id for ledger_id in ledger_ids if ledger_id not in self._left]:
            self._left.update(dict.fromkeys(new))
            self._news.set()

    async def read(self, ledger_id: int) -> UnderreplicationRecord | None:
        return UnderreplicationRecord(ledger_id, self._lost, 0) if ledger_id in self._left else None

    async def seen(self, ledger_id: int) -> bool:
        return ledger_id in self._left

    async def remove(self, mark: UnderreplicationRecord, bookie_ids: Collection[str]) -> Gone:
        if set(bookie_ids) >= mark.lost.keys():
            self._left.pop(mark.ledger_id, None)
        return Gone()

    async def return_bookies(self, mark: UnderreplicationRecord, bookie_ids: Collection[str]) -> Gone:
        """The cluster's own marks say what is to be verified."""
        return await self.remove(mark, bookie_ids)

    async def remove_with(self, mark: UnderreplicationRecord, lock: LedgerLock) -> bool:
        """These are no nodes that could go together with those of the lock."""
        return False

    async def tidy(self) -> None:
        """There is nothing above them, either."""

    async def list(self) -> AsyncIterator[int]:
        for ledger_id in list(self._left):
            yield ledger_id

    async def changed(self) -> None:
        """The first call returns at once; another one when there are more."""
        await self._news.wait()
        self._news.clear()

    async def switched(self) -> AsyncGenerator[bool, None]:
        yield True
        await asyncio.Event().wait()  # nobody switches it
