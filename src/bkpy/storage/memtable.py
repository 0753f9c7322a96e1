"""One generation of the memtable: frames in order of arrival, and an index by ledger that is built when it is needed.

Invariants: a frame is readable as soon as it was added; the index covers every frame before it is used; a sealed
generation never changes again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, count, islice, repeat
from operator import itemgetter
from typing import Final

from bkpy.protocol.messages import AddColumns
from bkpy.runtime import Bytes

# (first id, count, stride, buffer, start, end): the entries first + k * stride, k < count, in buffer[start:end].
# A bare tuple, because hundreds of thousands of them are made for a flush.
Batch = tuple[int, int, int, Bytes, int, int]

BATCH_OVERHEAD_BYTES: Final = 200  # what a batch's column values cost in memory, besides its bytes
STATE_BYTES: Final = 500  # what the state of a ledger costs, which stays in memory until it is written

_first = itemgetter(0)


def last_of(batch: Batch) -> int:
    """The highest id of a batch."""
    return batch[0] + (batch[1] - 1) * batch[2]


def index_frames(frames: Sequence[tuple[AddColumns, Bytes]], by_ledger: defaultdict[int, list[Batch]]) -> int:
    """Append the batches of `frames` to their ledgers' lists; returns how many there were."""
    total = 0
    for columns, body in frames:
        _, ledger_ids, first_ids, counts, strides, sizes = columns
        ends = list(accumulate(sizes))
        each = strides if isinstance(strides, list) else repeat(strides)
        batches = zip(first_ids, counts, each, repeat(body), [0, *ends], ends, strict=False)
        for ledger_id, batch in zip(ledger_ids, batches, strict=True):
            by_ledger[ledger_id].append(batch)
        total += len(ledger_ids)
    return total


class LedgerView:
    """A ledger's batches in one generation, kept in a form that range reads find their way in."""

    __slots__ = ("_arrived", "_checked", "_ordered", "_plain", "last")

    def __init__(self, arrived: list[Batch]) -> None:
        self._arrived = arrived
        self._checked = 0
        self._plain = True  # ascending, without gaps in a batch, none overlaps another: arrival order is id order
        self._ordered: list[tuple[int, int, Batch]] = []  # otherwise (first id, arrival, batch), sorted
        self.last = -1  # the highest id

    def refresh(self) -> None:
        """Take in the batches that arrived since the last time."""
        for i in range(self._checked, len(self._arrived)):
            batch = self._arrived[i]
            if self._plain and (batch[0] <= self.last or (batch[2] != 1 and batch[1] > 1)):
                self._plain = False
                self._ordered = sorted((b[0], n, b) for n, b in enumerate(self._arrived[:i]))
            if not self._plain:
                insort(self._ordered, (batch[0], i, batch))
            self.last = max(self.last, last_of(batch))
        self._checked = len(self._arrived)

    @property
    def newest(self) -> Batch:
        """The batch that arrived last."""
        return self._arrived[-1]

    def find(self, first: int, last: int, bytes_max: int) -> tuple[list[tuple[int, Batch]], int]:
        """((arrival, batch) that may hold ids from first to last, the id up to which these are all).

        Stops after about `bytes_max` bytes, but never before all that may hold `first`.
        """
        found: list[tuple[int, Batch]] = []
        total = 0
        for arrival, batch in self._from(first):
            if batch[0] > last:
                break
            if last_of(batch) < first:
                continue
            if total >= bytes_max and batch[0] > first:
                return found, batch[0] - 1
            found.append((arrival, batch))
            total += batch[5] - batch[4]
        return found, last

    def _from(self, first: int) -> Iterator[tuple[int, Batch]]:
        if not self._plain:
            return ((arrival, batch) for _, arrival, batch in self._ordered)
        start = max(0, bisect_left(self._arrived, first + 1, 0, self._checked, key=_first) - 1)
        return zip(count(start), islice(self._arrived, start, self._checked), strict=False)


class Generation:
    """Frames, and which ledgers' states changed, since the last seal.

    `share`: how much of what it may hold it is to hold before it is flushed.
    """

    def __init__(self, share: float = 1.0) -> None:
        self.share = share
        self.frames: list[tuple[AddColumns, Bytes]] = []
        self.bytes = 0
        self.dirty: set[int] = set()  # ledgers whose state must be written with this generation
        self._by_ledger: defaultdict[int, list[Batch]] = defaultdict(list)
        self._views: dict[int, LedgerView] = {}
        self._indexed = 0

    def add(self, columns: AddColumns, body: Bytes) -> None:
        self.frames.append((columns, body))
        self.bytes += len(body) + BATCH_OVERHEAD_BYTES * len(columns[1])

    def touch(self, ledger_id: int) -> bool:
        """Note that the ledger's state must be written with this generation; False if that was noted before."""
        if ledger_id in self.dirty:
            return False
        self.dirty.add(ledger_id)
        self.bytes += STATE_BYTES
        return True

    def view(self, ledger_id: int) -> LedgerView | None:
        """The ledger's batches, None if it has none. Only on the event loop."""
        if self._indexed < len(self.frames):
            index_frames(self.frames[self._indexed :], self._by_ledger)
            self._indexed = len(self.frames)
        view = self._views.get(ledger_id)
        if view is None:
            if ledger_id not in self._by_ledger:
                return None
            view = self._views[ledger_id] = LedgerView(self._by_ledger[ledger_id])
        view.refresh()
        return view

    def clear(self) -> None:
        """Let go of everything, bit by bit: hundreds of thousands of objects at once would stop all threads."""
        while self.frames:
            self.frames.pop()
        self._views.clear()
        while self._by_ledger:
            self._by_ledger.popitem()

    @property
    def empty(self) -> bool:
        return not self.frames and not self.dirty

    def check_invariants(self) -> None:
        assert self._indexed <= len(self.frames)
        expected = STATE_BYTES * len(self.dirty)
        expected += sum(len(body) + BATCH_OVERHEAD_BYTES * len(columns[1]) for columns, body in self.frames)
        assert self.bytes == expected, f"{self.bytes} bytes are accounted for, {expected} are there"
