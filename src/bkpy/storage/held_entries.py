"""What memtables and journals' queues hold of the memory's budget, and when writers have to wait for them.

Invariants: writers wait for the budget only while something is held that a flush or a write will let go of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bkpy.storage.journal.journal import Journal
    from bkpy.storage.memory_budget import MemoryBudget
    from bkpy.storage.shard import Shard


class HeldEntries:
    """The memtables of all shards, and the queues of all journals."""

    def __init__(self, budget: MemoryBudget, shards: Sequence[Shard], journals: Sequence[Journal]) -> None:
        self._budget = budget
        self._shards = shards
        self._journals = journals
        self._memtables = budget.part("memtables")
        self._queues = budget.part("journal queues")
        budget.measures.append(self.measure)

    def measure(self) -> None:
        """Tell the budget. What lies in memory that it was received into is counted there."""
        self._memtables.set(sum(shard.own_bytes for shard in self._shards))
        self._queues.set(self.queued_bytes)

    @property
    def memtable_bytes(self) -> int:
        """Bytes held by the memtables, an estimate of what is around the entries included."""
        return sum(shard.memory_bytes for shard in self._shards)

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for a journal."""
        return sum(journal.queued_bytes for journal in self._journals)

    def over_bounds(self, memtable_bytes_max: int) -> bool:
        """Whether a shard's memtable has that many bytes, or a journal's queue as many as it may."""
        full = any(shard.memory_bytes >= memtable_bytes_max for shard in self._shards)
        return full or any(journal.full for journal in self._journals)

    def use_up_budget(self) -> bool:
        """Whether the budget is full, now that everybody has looked at what was let go of."""
        return self._budget.full and self._budget.measure()

    def must_shrink(self) -> bool:
        """Whether writers have to wait until a flush or a write has made room.

        While nothing is held, waiting would make none: one more is let in, however little room there is.
        """
        return self.use_up_budget() and (self.memtable_bytes > 0 or self.queued_bytes > 0)

    def rest(self, bytes_min: int) -> tuple[bool, list[Shard]]:
        """(whether anything is let go of that nobody asks for, shards with that much that nothing is added to)."""
        freed = [shard.cache.rest() or shard.clearing for shard in self._shards]
        return any(freed), [shard for shard in self._shards if shard.active.rests(bytes_min)]
