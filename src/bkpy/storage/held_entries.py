"""Counts what memtables and journals' queues hold of the memory budget, and decides when writers wait for them.

Invariant: writers wait for the budget only while a flush or a write is going to free some of it.
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
        """Update the budget. Entries that lie in the buffers of received bytes are counted with those."""
        self._memtables.set(sum(shard.own_bytes for shard in self._shards))
        self._queues.set(self.queued_bytes)

    @property
    def memtable_bytes(self) -> int:
        """Bytes held by the memtables, with an estimate of their overhead."""
        return sum(shard.memory_bytes for shard in self._shards)

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for a journal."""
        return sum(journal.queued_bytes for journal in self._journals)

    def over_bounds(self, memtable_bytes_max: int) -> bool:
        """Whether a shard's memtable has that many bytes, or a journal's queue is full."""
        full = any(shard.memory_bytes >= memtable_bytes_max for shard in self._shards)
        return full or any(journal.full for journal in self._journals)

    def use_up_budget(self) -> bool:
        """Whether the budget is full, after all its parts were measured again."""
        return self._budget.full and self._budget.measure()

    def must_shrink(self) -> bool:
        """Whether writers have to wait until a flush or a write has made room.

        While nothing is held, waiting would make none: then one more add is let in, however little room there is.
        """
        return self.use_up_budget() and (self.memtable_bytes > 0 or self.queued_bytes > 0)

    def release_idle(self, bytes_min: int) -> tuple[bool, list[Shard]]:
        """(whether unused blocks or flushed entries are being freed, shards with so many bytes that get no adds)."""
        freed = [shard.cache.release_idle() or shard.clearing for shard in self._shards]
        return any(freed), [shard for shard in self._shards if shard.active.is_idle(bytes_min)]
