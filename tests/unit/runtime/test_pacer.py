"""Background work keeps to its rate, saves nothing up, and ends its pauses at a stop."""

from __future__ import annotations

import asyncio

import pytest
from tests.sim.loop import SimLoop

from bkpy.runtime.pacer import Pacer, StoppablePauses


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        raise AssertionError("it may jump")


def test_work_that_is_done_is_paid_for_by_a_pause() -> None:
    clock = Clock()
    pacer = Pacer(clock, 1000)
    assert pacer.charge(500) == pytest.approx(0.5)
    clock.now += 0.5
    assert pacer.charge(0) == 0
    assert pacer.charge(250) == pytest.approx(0.25)
    assert pacer.charge(250) == pytest.approx(0.5), "the work of others on the same pacer is waited for"


def test_a_rest_gives_no_credit() -> None:
    clock = Clock()
    pacer = Pacer(clock, 1000)
    pacer.charge(500)
    clock.now += 3600
    assert pacer.charge(500) == pytest.approx(0.5)


def test_a_new_rate_holds_from_the_next_piece_on() -> None:
    clock = Clock()
    pacer = Pacer(clock, 1000)
    pacer.charge(500)
    pacer.per_s = 100
    assert pacer.charge(50) == pytest.approx(1.0)


def test_turns_of_several_tasks_stay_within_the_rate() -> None:
    loop = SimLoop()
    began: list[float] = []

    async def work(pacer: Pacer) -> None:
        for _ in range(3):
            await pacer.take_turn(10)
            began.append(loop.time())

    async def main() -> None:
        clock = Clock()
        clock.monotonic = loop.time  # type: ignore[method-assign]
        pacer = Pacer(clock, 20)
        await asyncio.gather(work(pacer), work(pacer))

    start = loop.time()
    loop.run_until_complete(main())
    assert [at - start for at in began] == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5])


def test_a_stop_ends_a_pause_and_all_later_ones() -> None:
    loop = SimLoop()

    async def main() -> None:
        pauses = StoppablePauses()
        await pauses.pause(5)
        assert loop.time() - start == pytest.approx(5)
        assert not pauses.stopped
        loop.call_later(1, pauses.stop)
        await pauses.pause(1e6)
        await pauses.pause(1e6)
        assert loop.time() - start == pytest.approx(6)
        assert pauses.stopped

    start = loop.time()
    loop.run_until_complete(main())
