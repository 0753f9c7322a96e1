"""Counts the memory of a bookie, part by part, against one bound.

    |<------------------------------- bytes_max ------------------------------>|
    [ entries ][ received ][ states ] . . . free . . . [ caches ][ set aside   ]
                                                                 [ for answers ]

Invariants: a cache never keeps memory that another part needs: with all other parts it stays below the bound, or it is
empty; bytes set aside for a part count as used for all but caches. This is pure accounting: `full` stops only callers
that look at it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class MemoryPart:
    """One part, which holds `used` bytes. `set_aside`: only caches may use so many besides it."""

    __slots__ = ("_budget", "name", "set_aside", "used")

    def __init__(self, budget: MemoryBudget, name: str, set_aside: int) -> None:
        self.name = name
        self.used = 0
        self.set_aside = set_aside
        self._budget = budget

    def set(self, used: int) -> None:
        """Set the bytes that the part holds."""
        by = used - self.used
        if by:
            self.used = used
            self._budget.changed(by, max(used, self.set_aside) - max(used - by, self.set_aside))

    def change(self, by: int) -> None:
        """The part holds so many bytes more, or less."""
        self.set(self.used + by)


class CachePart:
    """A part that gives way. `give_way(excess)` drops so many bytes, or all, and calls `change` for them."""

    __slots__ = ("_budget", "give_way", "name", "used")

    def __init__(self, budget: MemoryBudget, name: str, give_way: Callable[[int], None]) -> None:
        self.name = name
        self.used = 0
        self.give_way = give_way
        self._budget = budget

    def change(self, by: int) -> None:
        """The part holds so many bytes more, or less."""
        self.used += by
        self._budget.changed(by, 0)


class MemoryBudget:
    """The budget of a bookie, in bytes. `used`: by all parts. `full`: used up by parts other than caches."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.full = False
        self.parts: list[MemoryPart] = []
        self.caches: list[CachePart] = []
        self.measures: list[Callable[[], None]] = []  # of parts that don't notice by themselves what was freed
        self._needed = 0  # of all parts but caches, and what is set aside
        self._giving_way = False

    def part(self, name: str, *, set_aside: int = 0) -> MemoryPart:
        """A new part that doesn't give way."""
        part = MemoryPart(self, name, set_aside)
        self.parts.append(part)
        self.changed(0, set_aside)
        return part

    def cache(self, name: str, give_way: Callable[[int], None]) -> CachePart:
        """A new part that gives way to all others, before caches that were made later."""
        part = CachePart(self, name, give_way)
        self.caches.append(part)
        return part

    def changed(self, by: int, needed: int) -> None:
        """Count so many bytes more as used, and so many more as needed or set aside. Parts call it."""
        self.used += by
        self._needed += needed
        self.full = self._needed >= self.bytes_max
        if by > 0 and self.used > self.bytes_max and not self._giving_way:
            self._make_room()

    def _make_room(self) -> None:
        self._giving_way = True  # changes that caches report meanwhile start no further round
        try:
            for cache in self.caches:
                if self.used > self.bytes_max and cache.used:
                    cache.give_way(self.used - self.bytes_max)
        finally:
            self._giving_way = False

    def measure(self) -> bool:
        """Have all parts measure what they hold; whether the budget is still full."""
        for measure in self.measures:
            measure()
        return self.full

    def by_name(self) -> dict[str, int]:
        """Bytes of each part; those of one name together."""
        found: dict[str, int] = {}
        for part in self._all():
            found[part.name] = found.get(part.name, 0) + part.used
        return found

    def _all(self) -> list[MemoryPart | CachePart]:
        return [*self.parts, *self.caches]

    def check_invariants(self) -> None:
        assert self.used == sum(part.used for part in self._all())
        assert self._needed == sum(max(part.used, part.set_aside) for part in self.parts)
        assert self.full == (self._needed >= self.bytes_max)
        assert all(part.used >= 0 for part in self._all())
        held = sum(part.used for part in self.parts)
        assert self.used <= max(self.bytes_max, held), "caches have not given way"
