"""Finding batches in the memtable: the same ones as by looking at all, with a look at few."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.unit.storage.support import Batch as Entries
from tests.unit.storage.support import Host, add, read_all
from tests.unit.storage.support import settings as bookie_settings

from bkpy.protocol.wire.messages import AddColumns, decode_add, pack
from bkpy.storage.journal.journal import FramePlace, Position
from bkpy.storage.memtable.generation import Generation, LedgerBatches
from bkpy.storage.memtable.overlaps import Batch, last_of

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNT = 10_000
BODY = memoryview(bytes(64))


def batch(first: int, count: int = 2, stride: int = 1, size: int = 64) -> Batch:
    return first, count, stride, BODY, 0, size


def by_looking_at_all(
    arrived: list[Batch], first: int, last: int, bytes_max: int
) -> tuple[list[tuple[int, Batch]], int]:
    found, total = [], 0
    for arrival, its in sorted(enumerate(arrived), key=lambda item: (item[1][0], item[0])):
        if its[0] > last or last_of(its) < first:
            continue
        if total >= bytes_max and its[0] > first:
            return found, its[0] - 1
        found.append((arrival, its))
        total += its[5] * (last_of(its) + 1 - max(first, its[0])) // (last_of(its) + 1 - its[0])
    return found, last


batches = st.builds(
    batch,
    st.integers(0, 300),
    st.integers(1, 8),
    st.sampled_from((1, 1, 1, 3, 40)),
    st.sampled_from((10, 64)),
)


@pytest.mark.thorough
@examples(300)
@given(
    arrived=st.lists(batches, max_size=60),
    ascending=st.booleans(),
    chunks=st.lists(st.integers(1, 20), max_size=8),
    step=st.sampled_from((1, 2, 5, 1000)),
    asked=st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 100), st.sampled_from((1, 100, 1000))), min_size=1, max_size=5
    ),
)
def test_the_same_is_found_as_by_looking_at_all(
    arrived: list[Batch],
    ascending: bool,
    chunks: list[int],
    step: int,
    asked: list[tuple[int, int, int]],
) -> None:
    if ascending:
        arrived = sorted(arrived)
    so_far: list[Batch] = []
    view = LedgerBatches(so_far, step)
    for chunk in [*chunks, len(arrived)]:
        so_far += arrived[len(so_far) : len(so_far) + chunk]
        while not view.refresh(step):
            pass
        for first, width, bytes_max in asked:
            expected = by_looking_at_all(so_far, first, first + width, bytes_max)
            assert view.find(first, first + width, bytes_max) == expected
        assert view.last == max(map(last_of, so_far), default=-1)


def test_what_a_batch_has_before_the_range_does_not_count() -> None:
    arrived = [batch(0, 100, 1, 1000), batch(100, 100, 1, 1000)]
    view = LedgerBatches(arrived, 1000)
    assert view.refresh(1000)
    assert view.find(90, 199, 500) == ([(0, arrived[0]), (1, arrived[1])], 199)
    assert view.find(50, 199, 500) == ([(0, arrived[0])], 99)


class Looks:
    """How often an id or a batch was looked at."""

    def __init__(self) -> None:
        self.count = 0
        looks = self

        class Watched(int):
            def __add__(self, other: int) -> int:
                return Watched(int(self) + other)

            def __lt__(self, other: Any) -> bool:
                looks.count += 1
                return int(self) < other

            def __le__(self, other: Any) -> bool:
                looks.count += 1
                return int(self) <= other

            def __gt__(self, other: Any) -> bool:
                looks.count += 1
                return int(self) > other

            def __ge__(self, other: Any) -> bool:
                looks.count += 1
                return int(self) >= other

        self._watched = Watched

    def id(self, value: int) -> int:
        return self._watched(value)

    def batches(self, values: list[Batch]) -> list[Batch]:
        looks = self

        class Watched(list[Batch]):
            def __iter__(self) -> Iterator[Batch]:
                for value in super().__iter__():
                    looks.count += 1
                    yield value

            def __getitem__(self, at: Any) -> Any:
                looks.count += 1
                return super().__getitem__(at)

        return Watched(values)


def arrivals(kind: str) -> list[Batch]:
    if kind == "in order":
        return [batch(2 * i) for i in range(COUNT)]
    if kind == "striped":  # two entries of each five, as a bookie of a larger ensemble gets them
        return [batch(10 * i, 2, 5) for i in range(COUNT)]
    if kind == "interleaved":  # one batch of evens, one of odds
        return [batch(4 * (i // 2) + i % 2, 2, 2) for i in range(COUNT)]
    if kind == "one again":
        return [batch(2 * i) for i in range(COUNT - 1)] + [batch(4)]
    if kind == "shuffled":
        return random.Random(1).sample([batch(2 * i) for i in range(COUNT)], COUNT)
    assert kind == "wide"  # early ones that reach over all others
    return [batch(i, 2, 1 << 40) for i in range(3)] + [batch(2 * i + 10) for i in range(COUNT)]


@pytest.mark.parametrize("kind", ["in order", "striped", "interleaved", "one again", "shuffled", "wide"])
def test_a_few_looks_find_a_batch_among_many(kind: str) -> None:
    looks = Looks()
    arrived = arrivals(kind)
    first_of_all = min(its[0] for its in arrived)
    watched = looks.batches([(looks.id(its[0]), *its[1:]) for its in arrived])
    view = LedgerBatches(watched, 4000)
    while not view.refresh(4000):
        pass
    for first in (first_of_all, COUNT // 2, COUNT, view.last - 1, view.last):
        looks.count = 0
        view.find(first, first, 1)
        assert looks.count < 1000, first  # a logarithm in each run


def test_what_arrived_is_taken_in_step_by_step() -> None:
    looks = Looks()
    view = LedgerBatches(looks.batches(arrivals("shuffled")), 1000)
    steps = 0
    done = False
    while not done:
        looks.count = 0
        done = view.refresh(1000)
        assert looks.count <= 2100
        steps += 1
    assert steps == COUNT // 1000


def test_a_generation_catches_up_step_by_step() -> None:
    generation = Generation(step_batches=10)
    for i in range(30):
        generation.add(AddColumns(0, [1, 2, 1], [2 * i, i, 2 * i + 1], [1, 1, 1], 1, [64, 0, 0]), BODY)
    steps = 1
    while not generation.catch_up(1, 10):
        steps += 1
    assert steps == 90 // 10 + 60 // 10 - 1
    view = generation.batches_of(1)
    assert view is not None
    assert (view.last, len(view.find(0, 99, 1 << 20)[0])) == (59, 60)
    assert generation.catch_up(2, 100)
    assert generation.catch_up(7, 1)
    assert generation.batches_of(7) is None


async def test_others_go_on_while_a_read_takes_in_what_has_arrived() -> None:
    host = Host(settings=bookie_settings(memtable_step_batches=50))
    storage = await host.boot()
    await asyncio.gather(*(add(storage, *(Entries(1, 20 * i + k) for k in range(20))) for i in range(50)))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    await asyncio.sleep(0)
    before = turns
    result = await storage.read(1, 999, 999, 1)
    assert result.segments
    assert turns - before > 3
    assert (await storage.last_entry(1)).entry == bytes(result.segments[0])
    counting.cancel()
    assert set((await read_all(storage, 1, 0, 999))[0]) == set(range(1000))


async def test_a_read_ends_although_more_arrives_all_the_time() -> None:
    host = Host(settings=bookie_settings(memtable_step_batches=1, ledger_states_max=1))
    storage = await host.boot()
    written = 0
    finished = False

    async def write() -> None:
        nonlocal written
        while not finished:
            add(storage, *(Entries(1, written + k) for k in range(5)))
            written += 5
            await asyncio.sleep(0)

    writing = asyncio.ensure_future(write())
    for _ in range(20):
        await asyncio.sleep(0)
        await storage.states((2,))
    async with asyncio.timeout(30):
        for _ in range(5):
            upto = written
            assert set((await read_all(storage, 1, 0, upto - 1))[0]) == set(range(upto))
    finished = True
    await writing


@pytest.mark.thorough
@pytest.mark.parametrize("batches", [1, 3, 100])
def test_no_less_is_counted_than_is_held(batches: int) -> None:
    """However small the frames are that batches come in. What they were received into is counted elsewhere, too."""
    frames, size = 3000 // batches, 300
    chunk = memoryview(bytes(batches * size))
    heads = [
        pack([0, ids, [1000 + i] * batches, [1] * batches, 1, [size] * batches])
        for i in range(frames)
        for ids in [list(range(1000 + i * batches, 1000 + (i + 1) * batches))]
    ]
    generation = Generation()
    gc.collect()
    tracemalloc.start()
    try:
        for i, head in enumerate(heads):
            generation.add(decode_add(head, len(chunk)), chunk[:], Position(FramePlace(0), 1000 + i))
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held <= generation.bytes - generation.received_bytes <= 2 * held
    generation.check_invariants()
