"""The ledgers that wait for a worker: in two halves, and in each the most endangered first.

A ledger whose last attempt has *failed* may fail again, after the time-outs of several bookies. There may be more of
these than hands, and they are the most endangered ones; so they take at most half of the hands while others wait.

The number of copies left changes as bookies come and go. So the queue keeps the write sets of each ledger that have a
lost bookie, and sorts them again when the bookies have changed.

Invariants: a ledger is in it once; ledgers that have not failed get at least every second place, and half of the hands;
of equally endangered ones the oldest record comes first, and of equally old ones each worker has an order of its own,
so that many workers don't all reach for the same lock.
"""

from __future__ import annotations

import heapq
import zlib
from typing import TYPE_CHECKING, NamedTuple

from bkpy.protocol.repair.rereplication import copies_left

if TYPE_CHECKING:
    from bkpy.replication.worker.backlog import WriteSets


class _Waiting(NamedTuple):
    since_ms: int
    sets: WriteSets


class QueuedLedger(NamedTuple):
    """A ledger out of the queue; `failed`: the last time it was tried."""

    ledger_id: int
    failed: bool


class RepairQueue:
    """For the worker `holder`, which has so many `hands`."""

    def __init__(self, holder: str, hands: int) -> None:
        self._hands = hands
        self._untried = _Half(holder)
        self._failed = _Half(holder)
        self._failed_last = False  # whether the ledger that was taken last had failed

    def __len__(self) -> int:
        return len(self._untried) + len(self._failed)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._untried or ledger_id in self._failed

    def length(self, *, failed: bool) -> int:
        """How many ledgers of this kind wait."""
        return len(self._half(failed=failed))

    def put(self, ledger_id: int, since_ms: int, sets: WriteSets, *, failed: bool = False) -> None:
        """Queue the ledger, recorded at `since_ms`, or update it in the queue. Without a write set it comes last."""
        self._half(failed=not failed).drop(ledger_id)
        self._half(failed=failed).put(ledger_id, _Waiting(since_ms, sets))

    def pop(self, readable: frozenset[str], *, failed_in_hand: int = 0) -> QueuedLedger | None:
        """The next ledger; None if there is none. `failed_in_hand`: how many hands are at ledgers that have failed."""
        may_fail = not self._failed_last and (self._hands == 1 or 2 * (failed_in_hand + 1) <= self._hands)
        failed = bool(self._failed) and (may_fail or not self._untried)
        ledger_id = self._half(failed=failed).pop(readable)
        if ledger_id is None:
            return None
        self._failed_last = failed
        return QueuedLedger(ledger_id, failed)

    def _half(self, *, failed: bool) -> _Half:
        return self._failed if failed else self._untried


class _Half:
    """Ledgers of one kind."""

    def __init__(self, holder: str) -> None:
        self._holder = holder
        self._waiting: dict[int, _Waiting] = {}
        self._heap: list[tuple[float, int, int, int]] = []
        self._readable: frozenset[str] | None = None  # by which the heap is ordered

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._waiting

    def drop(self, ledger_id: int) -> None:
        self._waiting.pop(ledger_id, None)

    def put(self, ledger_id: int, waiting: _Waiting) -> None:
        if self._waiting.get(ledger_id) == waiting:
            return
        self._waiting[ledger_id] = waiting
        if self._readable is None:
            return
        if len(self._heap) > 2 * len(self._waiting):  # half of it is of what was changed since
            self._order(self._readable)
        else:
            heapq.heappush(self._heap, self._key(ledger_id, waiting, self._readable))

    def pop(self, readable: frozenset[str]) -> int | None:
        """The most urgent ledger; None if there is none."""
        if readable != self._readable:
            self._readable = readable
            self._order(readable)
        while self._heap:
            key = heapq.heappop(self._heap)
            ledger_id = key[-1]
            waiting = self._waiting.get(ledger_id)
            if waiting is not None and key == self._key(
                ledger_id, waiting, readable
            ):  # else a newer key is in the heap
                del self._waiting[ledger_id]
                return ledger_id
        return None

    def _order(self, readable: frozenset[str]) -> None:
        self._heap = [self._key(ledger_id, waiting, readable) for ledger_id, waiting in self._waiting.items()]
        heapq.heapify(self._heap)

    def _key(self, ledger_id: int, waiting: _Waiting, readable: frozenset[str]) -> tuple[float, int, int, int]:
        left = copies_left(waiting.sets, readable)
        own_order = zlib.crc32(f"{self._holder} {ledger_id}".encode())
        return float("inf") if left is None else left, waiting.since_ms, own_order, ledger_id
