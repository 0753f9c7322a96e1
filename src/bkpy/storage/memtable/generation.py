"""One generation of the memtable: frames in order of arrival, and an index by ledger that is built when it is needed.

Invariants: a frame is readable as soon as it was added; the index covers every frame before it is used; a sealed
generation never changes again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from itertools import accumulate, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from bkpy.storage.memtable.overlaps import Batch, Item, Overlaps, ascending, last_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bkpy.buffers import Bytes
    from bkpy.protocol.wire.messages import AddColumns
    from bkpy.storage.journal.journal import Position

    # An add, and where the journal has its body if that is known: all of it in one record.
    Frame = tuple[AddColumns, Bytes, Position | None]

FRAME_OVERHEAD_BYTES: Final = 800  # what the objects around a frame cost in memory, however few batches it has
BATCH_OVERHEAD_BYTES: Final = 200  # what a batch's column values cost in memory, besides its bytes
STATE_BYTES: Final = 500  # what the state of a ledger costs, which stays in memory until it is written

_first = itemgetter(0)


def index_frames(frames: Sequence[Frame], by_ledger: defaultdict[int, list[Batch]]) -> int:
    """Append the batches of `frames` to their ledgers' lists; returns how many there were."""
    total = 0
    for columns, body, _ in frames:
        _, ledger_ids, first_ids, counts, strides, sizes = columns
        ends = list(accumulate(sizes))
        each = strides if isinstance(strides, list) else repeat(strides)
        batches = zip(first_ids, counts, each, repeat(body), [0, *ends], ends, strict=False)
        for ledger_id, batch in zip(ledger_ids, batches, strict=True):
            by_ledger[ledger_id].append(batch)
        total += len(ledger_ids)
    return total


class LedgerBatches:
    """A ledger's batches in one generation, in a form that range reads can search.

    As long as batches arrive in the order of their ids, the order of arrival is searched. From the first other one on,
    all are sorted.
    """

    __slots__ = ("_arrived", "_checked", "_in_order", "_others", "_step_batches", "last")

    def __init__(self, arrived: list[Batch], step_batches: int) -> None:
        self._arrived = arrived
        self._step_batches = step_batches
        self._checked = 0
        self._in_order = 0  # how many of the first are ascending, none reaching into another
        self._others: Overlaps | None = None
        self.last = -1  # the highest id

    def refresh(self, batches_max: int) -> bool:
        """Index up to that many of the batches that arrived since the last call; whether none are left."""
        end = min(len(self._arrived), self._checked + batches_max)
        if self._others is None:
            self._take_in_order(end)
        while self._checked < end:
            start, stop = self._checked, min(end, self._checked + self._step_batches)
            batches = self._arrived[start:stop]
            assert self._others is not None
            self._others.add([(batch[0], i, batch) for i, batch in enumerate(batches, start)])
            self.last = max(self.last, max(map(last_of, batches)))
            self._checked = stop
        return self._checked == len(self._arrived)

    def _take_in_order(self, end: int) -> None:
        for batch in self._arrived[self._checked : end]:
            if batch[0] <= self.last:
                self._others = Overlaps(self._step_batches)
                return
            self.last = last_of(batch)
            self._in_order += 1
            self._checked += 1

    @property
    def newest(self) -> Batch:
        """The batch that arrived last."""
        return self._arrived[-1]

    def find(self, first: int, last: int, bytes_max: int) -> tuple[list[tuple[int, Batch]], int]:
        """((arrival, batch) that may hold ids from first to last, the id up to which these are all).

        Stops after about `bytes_max` bytes, but never before all that may hold `first`.
        """
        items = self._ordered(first, last)
        if self._others is not None:
            items = ascending([items, *self._others.touching(first, last)])
        found: list[tuple[int, Batch]] = []
        total = 0
        for lowest, arrival, batch in items:
            if total >= bytes_max and lowest > first:
                return found, lowest - 1
            found.append((arrival, batch))
            size, highest = batch[5] - batch[4], last_of(batch)
            if lowest < first:  # what it has before `first` makes no answer longer
                size = size * (highest + 1 - first) // (highest + 1 - lowest)
            total += size
        return found, last

    def _ordered(self, first: int, last: int) -> Iterator[Item]:
        """The batches that touch the range, of all that arrived in order."""
        arrived = self._arrived
        start = max(0, bisect_left(arrived, first + 1, 0, self._in_order, key=_first) - 1)
        for arrival in range(start, self._in_order):
            batch = arrived[arrival]
            if batch[0] > last:
                return
            if last_of(batch) >= first:
                yield batch[0], arrival, batch


class Generation:
    """Frames, and which ledgers' states changed, since the last seal.

    `fill_target`: the share of its capacity at which it is flushed. `step_batches`: what is indexed in
    one go.
    """

    def __init__(self, fill_target: float = 1.0, step_batches: int = 4000) -> None:
        self.fill_target = fill_target
        self._step_batches = step_batches
        self.frames: list[Frame] = []
        self.bytes = 0
        self.received_bytes = 0  # of these, what are slices of the memory that they were received into
        self.dirty: set[int] = set()  # ledgers whose state must be written with this generation
        self._by_ledger: defaultdict[int, list[Batch]] = defaultdict(list)
        self._ledgers: dict[int, LedgerBatches] = {}
        self._indexed = 0
        self._bytes_seen = 0  # at the last `is_idle`

    def add(self, columns: AddColumns, body: Bytes, position: Position | None = None) -> None:
        self.frames.append((columns, body, position))
        size = len(body)
        self.bytes += size + FRAME_OVERHEAD_BYTES + BATCH_OVERHEAD_BYTES * len(columns[1])
        if type(body) is memoryview:
            self.received_bytes += size

    def touch(self, ledger_id: int) -> bool:
        """Note that the ledger's state must be written with this generation; False if that was noted before."""
        if ledger_id in self.dirty:
            return False
        self.dirty.add(ledger_id)
        self.bytes += STATE_BYTES
        return True

    def is_idle(self, bytes_min: int) -> bool:
        """Whether it holds that many bytes, and nothing was added since the last call."""
        seen, self._bytes_seen = self._bytes_seen, self.bytes
        return self.bytes >= bytes_min and self.bytes == seen

    def batches_of(self, ledger_id: int) -> LedgerBatches | None:
        """The ledger's batches, None if it has none. Only on the event loop, when `catch_up` has little to do."""
        return self._index(ledger_id, 1 << 62)[0]

    def catch_up(self, ledger_id: int, batches_max: int) -> bool:
        """Do about that much of the work that `batches_of` needs; whether none is left."""
        return self._index(ledger_id, batches_max)[1]

    def _index(self, ledger_id: int, batches_max: int) -> tuple[LedgerBatches | None, bool]:
        while self._indexed < len(self.frames):
            if batches_max <= 0:
                return None, False
            batches_max -= index_frames((self.frames[self._indexed],), self._by_ledger)
            self._indexed += 1
        batches = self._ledgers.get(ledger_id)
        if batches is None:
            if ledger_id not in self._by_ledger:
                return None, True
            batches = self._ledgers[ledger_id] = LedgerBatches(self._by_ledger[ledger_id], self._step_batches)
        return batches, batches.refresh(max(0, batches_max))

    def clear(self) -> None:
        """Free everything, bit by bit: hundreds of thousands of objects at once would stop all threads."""
        while self.frames:
            self.frames.pop()
        self._ledgers.clear()
        while self._by_ledger:
            self._by_ledger.popitem()

    @property
    def empty(self) -> bool:
        return not self.frames and not self.dirty

    def check_invariants(self) -> None:
        assert self._indexed <= len(self.frames)
        expected = STATE_BYTES * len(self.dirty) + FRAME_OVERHEAD_BYTES * len(self.frames)
        expected += sum(len(body) + BATCH_OVERHEAD_BYTES * len(columns[1]) for columns, body, _ in self.frames)
        assert self.bytes == expected, f"{self.bytes} bytes are counted, {expected} are there"
