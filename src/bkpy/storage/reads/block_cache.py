"""Recently read blocks of a ledger directory, so that scans go on inside them and tailing readers share them.

A block that was asked for again stays longer. So a sequential reader, which asks once for each of many blocks, evicts
none that other readers share.

Invariants: the memory budget counts exactly the bytes of all blocks; they stay within the bound, but for a single
block; blocks that were asked for again have at most half of the bound.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bkpy.storage.entry_log.entry_log import Place, StoredBlock
    from bkpy.storage.memory_budget import MemoryBudget


class BlockCache:
    """Blocks by place, `bytes_max` bytes at most. Not one stays while the budget of `memory` has no room."""

    def __init__(self, bytes_max: int, memory: MemoryBudget) -> None:
        self.bytes_max = bytes_max
        self.hits = 0
        self.misses = 0
        self._part = memory.cache("block cache", self.give_way)
        self._passed: OrderedDict[Place, StoredBlock] = OrderedDict()  # the least recently used first
        self._kept: OrderedDict[Place, StoredBlock] = OrderedDict()  # asked for again, likewise
        self._kept_bytes = 0
        self._bytes = 0
        self._rested = True

    def __len__(self) -> int:
        return len(self._passed) + len(self._kept)

    def __contains__(self, place: Place) -> bool:
        return place in self._passed or place in self._kept

    def get(self, place: Place, *, going_on: bool = False) -> StoredBlock | None:
        """The block at `place` if it is here. `going_on`: for a reader that goes on from what it has just read."""
        self._rested = False
        if (block := self._kept.get(place)) is not None:
            self._kept.move_to_end(place)
        elif (block := self._passed.get(place)) is None:
            self.misses += 1
            return None
        elif going_on:
            self._passed.move_to_end(place)
        else:
            self._keep(place, self._passed.pop(place))
        self.hits += 1
        return block

    def _keep(self, place: Place, block: StoredBlock) -> None:
        self._kept[place] = block
        self._kept_bytes += place.length
        while 2 * self._kept_bytes > self.bytes_max and self._kept:
            other, block = self._kept.popitem(last=False)
            self._kept_bytes -= other.length
            self._passed[other] = block

    def put(self, place: Place, block: StoredBlock) -> None:
        """Take in a block that was read."""
        self._rested = False
        if place in self:
            return
        self._passed[place] = block
        self._bytes += place.length
        self._part.change(place.length)  # which may let go of it at once
        while self._bytes > self.bytes_max and len(self) > 1:
            self._evict(self._passed if len(self._passed) > 1 else self._kept)

    def _evict(self, blocks: OrderedDict[Place, StoredBlock]) -> None:
        place, _ = blocks.popitem(last=False)
        if blocks is self._kept:
            self._kept_bytes -= place.length
        self._bytes -= place.length
        self._part.change(-place.length)

    def give_way(self, excess: int) -> None:
        """Evict that many bytes, or all."""
        below = self._bytes - excess
        while self._bytes > max(0, below):
            self._evict(self._passed or self._kept)

    def release_idle(self) -> bool:
        """Evict everything if nobody asked for a block since the last call; whether there was anything."""
        rested, self._rested = self._rested, True
        if not rested or not self._bytes:
            return False
        self.give_way(self._bytes)
        return True

    def check_invariants(self) -> None:
        assert self._bytes == sum(place.length for place in (*self._passed, *self._kept)) == self._part.used
        assert self._kept_bytes == sum(place.length for place in self._kept)
        assert 2 * self._kept_bytes <= self.bytes_max
        assert self._bytes <= self.bytes_max or len(self) == 1
