"""The memory that a bookie receives into: every piece of it is counted as long as somebody keeps a slice of it.

A single small entry keeps all of its piece. So pieces are what the memory's budget is told of, and not what lies in
them; and who is out of memory flushes its memtables, whatever their own bytes.

Invariants: a piece is handed out only while nobody keeps a slice of it; what was told is never less than what is kept.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from bkpy.protocol.wire.receive_buffer import is_unused

if TYPE_CHECKING:
    from bkpy.storage.memory_budget import MemoryBudget


class BookieChunks:
    """`Chunks` of all connections. Those of the largest size are used again: memory that is new to a process is slow.

    `spares_max`: how many of these are kept when nobody uses them; they give way to whatever needs memory.
    """

    def __init__(
        self, memory: MemoryBudget, *, spares_max: int, bytes_min: int, bytes_max: int, room_bytes_min: int
    ) -> None:
        self.bytes_min = bytes_min
        self.bytes_max = max(bytes_min, bytes_max)
        self.room_bytes_min = room_bytes_min
        self._spares_max = spares_max
        self._used = memory.part("received")
        self._spare = memory.cache("spare chunks", self._give_way)
        self._out: deque[bytearray] = deque()  # about in the order in which a memtable lets go of them
        self._spares: list[bytearray] = []
        self._spares_min = 0  # there were no fewer since the last rest
        self._taken = False  # since then
        self.idle = False  # whether nobody needed any between the last two rests
        memory.measures.append(self.collect)

    def take(self, size: int) -> bytearray:
        """A chunk of `size` bytes that nobody else has, whatever is in it."""
        for _ in range(min(2, len(self._out))):  # twice as fast as they are handed out, so that none is missed for long
            self._look()
        if size == self.bytes_max and self._spares:
            chunk = self._spares.pop()
            self._spare.change(-size)
            self._spares_min = min(self._spares_min, len(self._spares))
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
        if size == self.bytes_max and len(self._spares) < self._spares_max:
            self._spares.append(chunk)
            self._spare.change(size)

    def collect(self) -> None:
        """Notice everything that isn't kept by anybody any more."""
        for _ in range(len(self._out)):
            self._look()

    def _give_way(self, excess: int) -> None:
        while self._spares and excess > 0:
            size = len(self._spares.pop())
            self._spare.change(-size)
            excess -= size
        self._spares_min = min(self._spares_min, len(self._spares))

    def rest(self) -> bool:
        """Give back the spares that nobody needed since the last time; whether there were any."""
        self.collect()
        self.idle, self._taken = not self._taken, False
        unneeded, self._spares_min = self._spares_min, len(self._spares)
        self._give_way(unneeded * self.bytes_max)
        self._spares_min = len(self._spares)
        return unneeded > 0

    def check_invariants(self) -> None:
        assert self._used.used == sum(map(len, self._out))
        assert self._spare.used == sum(map(len, self._spares))
        assert self._spares_min <= len(self._spares) <= self._spares_max
