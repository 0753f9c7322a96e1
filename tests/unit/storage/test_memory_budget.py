"""The one budget of a bookie's memory: sums are right, caches give way, and what is set aside is left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkpy.storage.memory_budget import MemoryBudget

if TYPE_CHECKING:
    from bkpy.storage.memory_budget import CachePart


class Cache:
    """Gives way in pieces, so that more goes than was asked for."""

    def __init__(self, budget: MemoryBudget, piece: int) -> None:
        self.piece = piece
        self.part: CachePart = budget.cache("cache", self.give_way)
        self.asked = 0

    def put(self) -> None:
        self.part.change(self.piece)

    def give_way(self, excess: int) -> None:
        self.asked += 1
        while self.part.used and excess > 0:
            self.part.change(-self.piece)
            excess -= self.piece


@given(
    bytes_max=st.integers(1, 60),
    set_aside=st.integers(0, 70),
    pieces=st.lists(st.integers(1, 9), max_size=3),
    steps=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40)), max_size=40),
)
def test_sums_are_right_and_caches_give_way(
    bytes_max: int, set_aside: int, pieces: list[int], steps: list[tuple[int, int]]
) -> None:
    budget = MemoryBudget(bytes_max)
    parts = [budget.part("entries"), budget.part("answers", set_aside=set_aside)]
    caches = [Cache(budget, piece) for piece in pieces]
    for which, size in steps:
        if which < len(parts):
            parts[which].set(size)
        elif which - len(parts) < len(caches):
            caches[which - len(parts)].put()
        budget.check_invariants()
        entries, answers = parts
        assert budget.full == (entries.used + max(answers.used, set_aside) >= bytes_max)
        needed = entries.used + answers.used
        assert sum(cache.part.used for cache in caches) <= max(0, bytes_max - needed)
    assert sum(budget.by_name().values()) == budget.used


def test_what_is_set_aside_is_for_its_part_and_for_caches_meanwhile() -> None:
    budget = MemoryBudget(100)
    entries, answers = budget.part("entries"), budget.part("answers", set_aside=40)
    cache = Cache(budget, 10)
    entries.set(59)
    assert not budget.full
    for _ in range(4):
        cache.put()
    assert (cache.part.used, cache.asked) == (40, 0)
    entries.change(1)
    assert budget.full
    assert cache.part.used == 40
    answers.set(35)  # what was set aside was there for it
    assert cache.part.used == 0
    assert budget.full
    answers.set(50)
    entries.set(50)
    assert budget.full
    entries.set(49)
    assert not budget.full


def test_the_first_cache_gives_way_first_and_no_more_than_is_needed() -> None:
    budget = MemoryBudget(100)
    entries = budget.part("entries")
    first, second = Cache(budget, 10), Cache(budget, 10)
    for _ in range(4):
        first.put()
        second.put()
    entries.set(35)
    assert (first.part.used, second.part.used) == (20, 40)
    entries.set(75)
    assert (first.part.used, second.part.used) == (0, 20)


@pytest.mark.parametrize("let_go", [5, 20])
def test_what_nobody_told_is_measured_before_memory_counts_as_full(let_go: int) -> None:
    budget = MemoryBudget(10)
    entries = budget.part("entries")
    entries.set(20)
    budget.measures.append(lambda: entries.set(20 - let_go))
    assert budget.full
    assert budget.measure() == (let_go < 10)
