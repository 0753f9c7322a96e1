"""The window of a writer: who gets room, in which order, and what becomes of room that is not used."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest
from tests.in_process import DEADLINE_S

from bkpy.client.write.append_window import AppendWindow
from bkpy.errors import LedgerFencedError


class Batcher:
    """Counts what is added and confirmed, as the batcher of a ledger does."""

    def __init__(self) -> None:
        self.next_id = self.added_bytes = self.confirmed_entries = self.length = 0
        self.sizes: list[int] = []

    def add(self, size: int) -> int:
        self.sizes.append(size)
        self.next_id += 1
        self.added_bytes += size
        return self.next_id - 1

    def confirm(self, count: int = 1) -> None:
        for size in self.sizes[self.confirmed_entries : self.confirmed_entries + count]:
            self.length += size
        self.confirmed_entries += count


class Owner:
    """The state of a writer."""

    def __init__(self) -> None:
        self.enters_at_once = self.admits = True


class Settings(NamedTuple):
    write_window_entries: int
    write_window_bytes: int


class Scene:
    def __init__(self, entries: int = 4, size: int = 100) -> None:
        self.owner, self.batcher = Owner(), Batcher()
        settings: Any = Settings(entries, size)
        self.window = AppendWindow(self.owner, self.batcher, settings)
        self.order: list[str] = []

    async def append(self, size: int = 1, name: str = "") -> int:
        if not self.fast(size):
            await self.window.admit(size, 1)
        self.order.append(name)
        return self.batcher.add(size)

    def fast(self, size: int) -> bool:
        """As an append looks for room, without asking the window."""
        return self.batcher.next_id < self.window.ids_end and self.batcher.added_bytes + size <= self.window.bytes_end

    async def waiting(self, size: int = 1, name: str = "") -> asyncio.Task[int]:
        task = asyncio.create_task(self.append(size, name))
        await asyncio.sleep(0)
        assert not task.done()
        return task

    def confirm(self, count: int = 1) -> None:
        self.batcher.confirm(count)
        self.window.give_room()


async def results(*tasks: asyncio.Task[int]) -> list[int]:
    async with asyncio.timeout(DEADLINE_S):
        return await asyncio.gather(*tasks)


async def test_what_is_in_the_window_never_exceeds_it() -> None:
    scene = Scene()
    tasks = [asyncio.create_task(scene.append(size)) for size in (30, 30, 30, 30, 30, 1, 1, 1, 1, 1)]
    while not all(task.done() for task in tasks):
        for _ in range(3):
            await asyncio.sleep(0)
            entries, size = scene.window.filled()
            assert entries <= 4
            assert size <= 100
        scene.confirm()
    assert await results(*tasks) == list(range(10))
    assert not scene.window.busy


async def test_the_ends_are_as_far_as_the_window_reaches() -> None:
    scene = Scene()
    await scene.append(10)
    assert (scene.window.ids_end, scene.window.bytes_end) == (4, 100)
    scene.batcher.confirm()
    scene.window.give_room()
    assert (scene.window.ids_end, scene.window.bytes_end) == (5, 110)
    scene.window.reserve(20)
    scene.window.give_room()
    assert (scene.window.ids_end, scene.window.bytes_end) == (4, 90)
    scene.window.release(20)
    scene.window.give_room()
    assert (scene.window.ids_end, scene.window.bytes_end) == (5, 110)


async def test_what_was_confirmed_since_the_window_was_asked_makes_room() -> None:
    scene = Scene(entries=2)
    for i in range(6):
        assert await scene.append() == i
        scene.batcher.confirm()  # and nothing says so


async def test_appends_are_admitted_in_order_of_arrival() -> None:
    scene = Scene()
    await scene.append(90)
    tasks = [await scene.waiting(size, name) for size, name in ((50, "large"), (5, "small"), (5, "other"))]
    scene.window.give_room()
    assert not scene.fast(1)
    assert not scene.window.enter(1, 1)  # there is room for it, and others came before
    scene.confirm()
    assert await results(*tasks) == [1, 2, 3]
    assert scene.order == ["", "large", "small", "other"]


async def test_an_append_that_is_larger_than_the_window_goes_alone() -> None:
    scene = Scene()
    assert await scene.append(1000) == 0
    task = await scene.waiting(1)
    scene.confirm()
    await results(task)
    large = await scene.waiting(1000)
    scene.confirm()
    assert await results(large) == [2]


async def test_room_of_an_append_that_has_not_gone_on_is_taken() -> None:
    scene = Scene(entries=1)
    await scene.append()
    task = await scene.waiting()
    scene.confirm()
    assert scene.window.admitted == 1
    assert scene.window.busy
    assert scene.window.filled() == (1, 1)
    assert not scene.fast(1)
    assert not scene.window.enter(1, 1)
    await results(task)
    assert not scene.window.busy
    assert scene.window.filled() == (1, 1)


async def test_an_append_that_is_cancelled_while_it_waits_holds_up_nobody() -> None:
    scene = Scene()
    await scene.append(90)
    large, small = await scene.waiting(50), await scene.waiting(5)
    large.cancel()
    assert await results(small) == [1]
    assert scene.window.filled() == (2, 95)


@pytest.mark.parametrize("behind", [0, 1, 3])
async def test_an_append_that_is_cancelled_when_it_is_given_room_passes_it_on(behind: int) -> None:
    scene = Scene(entries=1)
    await scene.append()
    first = await scene.waiting()
    others = [await scene.waiting() for _ in range(behind)]
    scene.confirm()
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    for i, other in enumerate(others):
        assert await results(other) == [i + 1]
        scene.confirm()
    assert scene.window.filled() == (0, 0) or not behind
    assert not scene.window.busy
    scene.batcher.confirm(scene.batcher.next_id - scene.batcher.confirmed_entries)
    assert scene.window.enter(1, 1)


async def test_a_failure_reaches_each_that_waits_with_an_error_of_its_own() -> None:
    scene = Scene(entries=1)
    await scene.append()
    tasks = [await scene.waiting() for _ in range(3)]
    tasks[1].cancel()
    scene.owner.admits = scene.owner.enters_at_once = False
    scene.window.fail(lambda: LedgerFencedError("fenced"))
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in found] == [LedgerFencedError, asyncio.CancelledError, LedgerFencedError]
    assert found[0] is not found[2]
    assert not scene.window.busy
    assert not scene.fast(1)
    scene.confirm()
    assert not scene.fast(1)


async def test_while_the_state_admits_none_nothing_is_given_room() -> None:
    scene = Scene()
    await scene.append()
    scene.owner.admits = scene.owner.enters_at_once = False
    scene.window.give_room()
    tasks = [await scene.waiting() for _ in range(2)]
    scene.confirm()
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    scene.owner.admits = True  # those that wait end, and no other comes in, as when the writer is being closed
    scene.window.give_room()
    assert await results(*tasks) == [1, 2]
    assert not scene.fast(1)
    assert not scene.window.enter(1, 1)
    scene.owner.enters_at_once = True
    scene.window.give_room()
    assert scene.fast(1)


async def test_a_drained_window_is_one_that_nothing_waits_for() -> None:
    scene = Scene(entries=1)
    await scene.append()
    cancelled, task = await scene.waiting(), await scene.waiting()
    scene.owner.admits = scene.owner.enters_at_once = False
    cancelled.cancel()
    await asyncio.wait([cancelled])
    draining = asyncio.create_task(scene.window.drained())
    await asyncio.sleep(0)
    assert not draining.done()
    scene.owner.admits = True
    scene.confirm()
    async with asyncio.timeout(DEADLINE_S):
        await draining
    assert task.done()


async def test_two_ledgers_of_a_log_have_one_window() -> None:
    scene = Scene(entries=3, size=10)
    for size in (4, 4):
        await scene.append(size)
    former, scene.batcher = scene.batcher, Batcher()
    scene.window.follow(scene.batcher)
    assert not scene.fast(1)
    assert scene.window.filled() == (2, 8)
    assert await scene.append(2) == 0
    assert scene.window.filled() == (3, 10)
    task = await scene.waiting(4)
    former.confirm()
    scene.window.give_room()
    assert await results(task) == [1]
    former.confirm()
    scene.window.give_room()
    assert scene.window.filled() == (2, 6)
    assert (scene.window.ids_end, scene.window.bytes_end) == (3, 10)
