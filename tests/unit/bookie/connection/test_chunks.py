"""What a bookie receives into counts as long as anything of it is kept, and is given back."""

from __future__ import annotations

import random

import pytest
from tests.hooks import handed_out

from bkpy.bookie.connection.chunks import BookieChunks
from bkpy.storage.memory_budget import MemoryBudget

KIB = 1024


def chunks_of(budget: MemoryBudget, spares_max: int = 4) -> BookieChunks:
    return BookieChunks(budget, free_max=spares_max, bytes_min=KIB, bytes_max=16 * KIB, room_bytes_min=100)


def test_a_small_slice_keeps_a_whole_piece_and_that_is_what_counts() -> None:
    budget = MemoryBudget(1 << 20)
    chunks = chunks_of(budget)
    kept = [memoryview(chunks.take(16 * KIB))[10:20] for _ in range(5)]
    assert budget.by_name() == {"received": 5 * 16 * KIB, "spare chunks": 0}
    for view in kept:
        view.release()
    assert budget.by_name()["received"] == 5 * 16 * KIB  # nobody is told when a slice goes
    budget.measure()
    assert budget.by_name() == {"received": 0, "spare chunks": 4 * 16 * KIB}
    assert not budget.full


def test_a_piece_is_used_again_when_nobody_keeps_a_slice_of_it() -> None:
    chunks = chunks_of(MemoryBudget(1 << 20))
    first = chunks.take(16 * KIB)
    kept = memoryview(first)[10:20]
    other = memoryview(chunks.take(16 * KIB))
    assert other.obj is not first
    kept.release()
    assert chunks.take(16 * KIB) is first
    assert len(first) == 16 * KIB


@pytest.mark.parametrize("seed", range(20))
def test_nothing_that_is_kept_is_handed_out_or_forgotten(seed: int) -> None:
    rng = random.Random(seed)
    budget = MemoryBudget(rng.choice([1, 100 * KIB, 1 << 20]))
    chunks = chunks_of(budget, rng.randrange(4))
    kept: list[memoryview] = []
    for _ in range(300):
        action = rng.random()
        if action < 0.5:
            chunk = chunks.take(rng.choice([KIB, 5000, 16 * KIB, 16 * KIB, 40 * KIB]))
            assert all(view.obj is not chunk for view in kept)
            kept.append(memoryview(chunk)[3:7])
        elif action < 0.9 and kept:
            kept.pop(rng.randrange(len(kept))).release()
        elif action < 0.95:
            chunks.release_idle()
        else:
            budget.measure()
            assert budget.by_name()["received"] == sum(len(view.obj) for view in kept)  # type: ignore[arg-type]
        assert budget.by_name()["received"] >= sum(len(view.obj) for view in kept)  # type: ignore[arg-type]
        chunks.check_invariants()
        budget.check_invariants()
    # However many are let go of, those that are handed out meanwhile are looked at twice as fast.
    for view in kept:
        view.release()
    for _ in range(handed_out(chunks)):
        memoryview(chunks.take(KIB)).release()
    assert handed_out(chunks) <= 2


def test_spares_that_nobody_needed_are_given_back_in_two_looks() -> None:
    budget = MemoryBudget(1 << 20)
    chunks = chunks_of(budget)
    views = [memoryview(chunks.take(16 * KIB)) for _ in range(4)]
    for view in views:
        view.release()
    chunks.collect()
    assert budget.by_name()["spare chunks"] == 4 * 16 * KIB
    assert not chunks.release_idle()  # they have only just come
    assert not chunks.idle
    busy = memoryview(chunks.take(16 * KIB))
    assert chunks.release_idle()  # one was needed meanwhile, three were not
    busy.release()
    chunks.collect()
    assert budget.by_name()["spare chunks"] == 16 * KIB
    assert not chunks.release_idle()
    assert chunks.idle
    assert chunks.release_idle()
    assert budget.used == 0
    assert not chunks.release_idle()


def test_spares_give_way_to_whatever_needs_memory() -> None:
    budget = MemoryBudget(100 * KIB)
    chunks = chunks_of(budget)
    for view in [memoryview(chunks.take(16 * KIB)) for _ in range(4)]:
        view.release()
    chunks.collect()
    budget.part("answers").set(60 * KIB)
    assert budget.by_name()["spare chunks"] == 2 * 16 * KIB
