"""`for_each`: bounded, in order, and nothing goes on behind it."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from tests.sim.loop import SimLoop

from bkpy.runtime.worker_pool import for_each


async def _turns() -> None:
    """Let all tasks go on until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("at_once", [1, 3, 50])
async def test_every_item_is_done_once_and_only_so_many_at_a_time(at_once: int) -> None:
    begun: list[int] = []
    running = most = 0

    async def act(item: int) -> None:
        nonlocal running, most
        begun.append(item)
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    for items in (list(range(20)), iter(range(20))):
        begun.clear()
        most = 0
        await for_each(items, act, at_once=at_once)
        assert begun == list(range(20))
        assert most == min(at_once, 20)
        assert running == 0
    await for_each([], act, at_once=at_once)


async def test_an_item_is_taken_when_a_worker_is_free_for_it() -> None:
    taken = count()
    ready = asyncio.Event()

    async def wait(item: int) -> None:
        await ready.wait()
        if item >= 9:
            raise ValueError("enough")

    pool = asyncio.create_task(for_each(taken, wait, at_once=3))
    await _turns()
    assert next(taken) == 3
    ready.set()
    with pytest.raises(ValueError, match="enough"):
        await pool


@pytest.mark.parametrize("cancelled", [False, True])
async def test_an_error_or_a_cancellation_ends_all_workers(cancelled: bool) -> None:
    ended: list[int] = []

    async def act(item: int) -> None:
        try:
            if item == 2 and not cancelled:
                await asyncio.sleep(0)
                raise ValueError(f"item {item} failed")
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # an end that takes a moment
            ended.append(item)

    pool = asyncio.create_task(for_each(range(10), act, at_once=4))
    await _turns()
    if cancelled:
        pool.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pool
    else:
        with pytest.raises(ValueError, match="item 2 failed"):
            await pool
    assert sorted(ended) == [0, 1, 2, 3]


def test_the_end_of_the_event_loop_is_no_error() -> None:
    """Then the loop closes what never ended, which can't wait any more."""
    errors: list[Exception] = []

    async def collect() -> None:
        try:
            await for_each(range(10), lambda _: asyncio.Event().wait(), at_once=4)
        except Exception as error:
            errors.append(error)

    loop = SimLoop()
    task = loop.create_task(collect())
    loop.run_until_complete(_turns())
    assert not task.done()
    loop.close()
    assert errors == []
