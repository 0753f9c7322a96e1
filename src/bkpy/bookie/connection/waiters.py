"""The long polls of all connections, which wait for news of their ledgers.

Invariants: a waiter is registered from before it looks at its ledger until it is answered, so it misses no news; news
costs nothing while nobody waits, and nothing per entry.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Waiter:
    """One long poll. `changed`: look again. `over`: answer now, whatever there is."""

    __slots__ = ("changed", "over")

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.over = False

    def end(self) -> None:
        """Its time is up, its connection is gone, or the bookie is stopping."""
        self.over = True
        self.changed.set()


class Waiters:
    """The waiters of one bookie. Test `by_ledger` before calling `wake`: it is empty unless somebody tails."""

    def __init__(self) -> None:
        self.by_ledger: dict[int, dict[Waiter, None]] = {}  # in order of arrival, so that simulated runs repeat

    def add(self, ledger_id: int) -> Waiter:
        waiter = Waiter()
        self.by_ledger.setdefault(ledger_id, {})[waiter] = None
        return waiter

    def remove(self, ledger_id: int, waiter: Waiter) -> None:
        waiting = self.by_ledger[ledger_id]
        del waiting[waiter]
        if not waiting:
            del self.by_ledger[ledger_id]

    def wake(self, ledger_ids: Iterable[int]) -> None:
        """There may be news of these ledgers."""
        for ledger_id in self.by_ledger.keys() & ledger_ids:
            for waiter in self.by_ledger[ledger_id]:
                waiter.changed.set()

    def end_all(self) -> None:
        for waiting in self.by_ledger.values():
            for waiter in waiting:
                waiter.end()
