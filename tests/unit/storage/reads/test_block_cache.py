"""The cache of blocks: bounded, giving way, and not washed out by whoever passes through."""

from __future__ import annotations

import random

import pytest

from bkpy.storage.entry_log.entry_log import Place, StoredBlock
from bkpy.storage.index.ids import Ids
from bkpy.storage.memory_budget import MemoryBudget
from bkpy.storage.reads.block_cache import BlockCache

BLOCK = StoredBlock(Ids(0, 1), [(0, 0)], memoryview(b""))


def place(number: int, length: int = 10) -> Place:
    return Place(1, number, length)


def cache_of(bytes_max: int, budget_bytes: int = 1 << 30) -> tuple[BlockCache, MemoryBudget]:
    budget = MemoryBudget(budget_bytes)
    return BlockCache(bytes_max, budget), budget


def test_a_scan_takes_nothing_away_from_those_who_come_again() -> None:
    cache, _ = cache_of(100)
    for number in range(4):
        cache.put(place(number), BLOCK)
        assert cache.get(place(number)) is BLOCK
    for number in range(100, 200):
        cache.put(place(number), BLOCK)
        assert cache.get(place(number), going_on=True) is BLOCK  # as often as the block has reads in it
        assert cache.get(place(number), going_on=True) is BLOCK
        cache.check_invariants()
    assert all(place(number) in cache for number in range(4))
    assert place(199) in cache
    assert place(150) not in cache


def test_whoever_comes_again_has_half_of_it() -> None:
    cache, _ = cache_of(100)
    for number in range(20):
        cache.put(place(number), BLOCK)
        cache.get(place(number))
        cache.check_invariants()
    assert [number for number in range(20) if place(number) in cache] == list(range(10, 20))
    cache.put(place(100), BLOCK)
    cache.put(place(101), BLOCK)
    assert place(100) in cache  # there is room for who is new


@pytest.mark.parametrize("seed", range(20))
def test_bounds_hold(seed: int) -> None:
    rng = random.Random(seed)
    cache, budget = cache_of(rng.choice([1, 30, 200]), 500)
    others = budget.part("others")
    for _ in range(300):
        at = rng.randrange(30)
        action = rng.random()
        if action < 0.5:
            cache.put(place(at, 1 + at), BLOCK)
        elif action < 0.9:
            found = cache.get(place(at, 1 + at), going_on=rng.random() < 0.5)
            assert (found is BLOCK) == (place(at, 1 + at) in cache)
        else:
            others.set(rng.choice([0, 300, 490, 600]))
        cache.check_invariants()
        budget.check_invariants()


def test_it_keeps_one_block_however_large_unless_there_is_no_memory() -> None:
    cache, budget = cache_of(5)
    cache.put(place(1, 1000), BLOCK)
    assert place(1, 1000) in cache
    cache.put(place(2, 1000), BLOCK)
    assert (len(cache), place(2, 1000) in cache) == (1, True)
    cache.give_way(1)
    assert (len(cache), budget.used) == (0, 0)


def test_what_nobody_asks_for_is_let_go_of() -> None:
    cache, budget = cache_of(100)
    cache.put(place(1), BLOCK)
    assert not cache.release_idle()
    cache.get(place(1))
    assert not cache.release_idle()
    assert cache.release_idle()
    assert budget.used == 0
    assert not cache.release_idle()
