"""The chunks of memory that a bookie receives into: each counts as long as any slice of it is in use.

A single small entry keeps all of its chunk. So the memory budget counts chunks, and not the entries in them; and a
bookie that runs out of memory flushes its memtables, however few bytes their entries have.

Invariants: a chunk is handed out only while no slice of it is in use; the budget counts at least what is in use.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from bkpy.protocol.wire.receive_buffer import is_unused

if TYPE_CHECKING:
    from bkpy.storage.memory_budget import MemoryBudget


class BookieChunks:
    """`Chunks` of all connections. It reuses those of the largest size: memory that is new to a process is slow.

    `free_max`: how many of these it keeps while they are unused. It drops them when other parts need memory.
    """

    def __init__(
        self, memory: MemoryBudget, *, free_max: int, bytes_min: int, bytes_max: int, room_bytes_min: int
    ) -> None:
        self.bytes_min = bytes_min
        self.bytes_max = max(bytes_min, bytes_max)
        self.room_bytes_min = room_bytes_min
        self._free_max = free_max
        self._used = memory.part("received")
        self._free_bytes = memory.cache("spare chunks", self._give_way)
        self._out: deque[bytearray] = deque()  # about in the order in which a memtable releases them
        self._free: list[bytearray] = []
        self._free_min = 0  # there were no fewer since the last `release_idle`
        self._taken = False  # since then
        self.idle = False  # whether no chunk was needed between the last two calls of `release_idle`
        memory.measures.append(self.collect)

    def take(self, size: int) -> bytearray:
        """A chunk of `size` bytes for this caller alone; its contents are arbitrary."""
        for _ in range(min(2, len(self._out))):  # twice as fast as they are handed out, so that none is missed for long
            self._look()
        if size == self.bytes_max and self._free:
            chunk = self._free.pop()
            self._free_bytes.change(-size)
            self._free_min = min(self._free_min, len(self._free))
        else:
            chunk = bytearray(size)
        self._out.append(chunk)
        self._used.change(size)
        self._taken = True
        return chunk

    def _look(self) -> None:
        chunk = self._out.popleft()
        if not is_unused(chunk):
            self._out.append(chunk)
            return
        size = len(chunk)
        self._used.change(-size)
        if size == self.bytes_max and len(self._free) < self._free_max:
            self._free.append(chunk)
            self._free_bytes.change(size)

    def collect(self) -> None:
        """Take back all chunks that are no longer in use."""
        for _ in range(len(self._out)):
            self._look()

    def _give_way(self, excess: int) -> None:
        while self._free and excess > 0:
            size = len(self._free.pop())
            self._free_bytes.change(-size)
            excess -= size
        self._free_min = min(self._free_min, len(self._free))

    def release_idle(self) -> bool:
        """Release the free chunks that were not needed since the last call; whether there were any."""
        self.collect()
        self.idle, self._taken = not self._taken, False
        unneeded, self._free_min = self._free_min, len(self._free)
        self._give_way(unneeded * self.bytes_max)
        self._free_min = len(self._free)
        return unneeded > 0

    def check_invariants(self) -> None:
        assert self._used.used == sum(map(len, self._out))
        assert self._free_bytes.used == sum(map(len, self._free))
        assert self._free_min <= len(self._free) <= self._free_max
