"""Places for answers: bounded in number and in bytes, in order, and never lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from bkpy.bookie.connection.answers import AnswerPlace, Answers, held_bytes
from bkpy.storage.memory_budget import MemoryBudget


def answers_of(count_max: int, bytes_max: int) -> tuple[Answers, MemoryBudget]:
    budget = MemoryBudget(1 << 30)
    return Answers(count_max, bytes_max, budget.part("answers", set_aside=bytes_max)), budget


def test_a_slice_holds_all_of_its_block_once_and_what_was_received_is_counted_elsewhere() -> None:
    block, other, chunk = bytes(1000), bytes(500), bytearray(9000)
    view = memoryview(block)
    assert held_bytes([view[1:2][:1], view[5:7], memoryview(chunk)[:5]]) == 1000
    assert held_bytes([view, other, b""]) == 1500
    assert held_bytes([]) == 0


async def test_one_answer_goes_however_large_it_is_and_others_wait_in_order() -> None:
    answers, budget = answers_of(5, 100)
    first = await answers.begin(1000)
    waiting = [asyncio.ensure_future(answers.begin(size)) for size in (40, 50, 20, 10)]
    await asyncio.sleep(0)
    assert answers.wanted
    assert answers.full
    first.holds([bytes(30)])  # less than was thought
    await asyncio.sleep(0)
    assert [future.done() for future in waiting] == [True, False, False, False]  # nobody overtakes
    assert budget.used == 70
    first.end()
    await asyncio.sleep(0)
    assert [future.done() for future in waiting] == [True, True, False, False]
    waiting[0].result().end()
    await asyncio.sleep(0)
    assert [future.done() for future in waiting] == [True] * 4
    for future in waiting[1:]:
        future.result().end()
    assert budget.used == 0
    assert not answers.full


async def test_whoever_waits_and_is_cancelled_leaves_the_line() -> None:
    answers, budget = answers_of(1, 100)
    first = await answers.begin(10)
    waiting = [asyncio.ensure_future(answers.begin(10)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    first.end()
    waiting[1].cancel()  # it has just got its place, and can't take it any more
    place = await waiting[2]
    place.end()
    assert budget.used == 0
    assert not answers.wanted


@pytest.mark.parametrize("seed", range(20))
async def test_bounds_hold_and_everybody_gets_a_place(seed: int) -> None:
    rng = random.Random(seed)
    count_max, bytes_max = rng.choice([1, 2, 10]), rng.choice([1, 50, 500])
    answers, budget = answers_of(count_max, bytes_max)
    held: list[AnswerPlace] = []
    done = 0

    async def one() -> None:
        nonlocal done
        place = await answers.begin(rng.randrange(1, 100))
        held.append(place)
        try:
            assert len(held) <= count_max
            assert len(held) == 1 or budget.used <= bytes_max
            await asyncio.sleep(0)
            place.holds([bytes(rng.randrange(place.bytes + 1))])
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
            done += 1
        finally:
            held.remove(place)
            place.end()

    tasks = [asyncio.ensure_future(one()) for _ in range(60)]
    for task in rng.sample(tasks, 10):
        await asyncio.sleep(0)
        if not held or rng.random() < 0.5:
            task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    lost = [r for r in results if isinstance(r, asyncio.CancelledError)]
    assert done + len(lost) == 60
    assert held == []
    assert budget.used == 0
    assert not answers.wanted
