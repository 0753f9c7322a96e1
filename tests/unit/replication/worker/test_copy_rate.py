"""Copies are never faster than they may be, and slower while bookies answer late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from bkpy.config.recovery import RecoverySettings
from bkpy.replication.worker.pacing import CopyRate


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def made(**settings: Any) -> tuple[CopyRate, Clock]:
    clock = Clock()
    runtime: Any = SimpleNamespace(clock=clock)
    return CopyRate(RecoverySettings(**settings), runtime), clock


async def test_bytes_are_spent_one_after_the_other(monkeypatch: Any) -> None:
    rate, clock = made(copy_bytes_per_s_max=1000, copy_bytes_per_s_min=10)
    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now += seconds

    monkeypatch.setattr("bkpy.runtime.pacer.asyncio.sleep", sleep)
    for _ in range(4):
        await rate.spend(500)
    assert slept == [0.5, 0.5, 0.5]  # the first ones go at once
    clock.now += 10.0  # nothing is saved up meanwhile
    await rate.spend(500)
    await rate.spend(500)
    assert slept == [0.5] * 4


def test_a_late_answer_halves_the_rate_once_and_good_ones_raise_it_again() -> None:
    rate, clock = made(copy_bytes_per_s_max=1000, copy_bytes_per_s_min=100, copy_late_s=1.0, copy_rate_growth=0.5)
    rate.answered("a", 0.1)
    for _ in range(3):  # late together, for one reason
        rate.answered("a", 1.5)
    assert rate.bytes_per_s == 500
    clock.now += 1.0
    rate.answered("a", 1.5)
    assert rate.bytes_per_s == 250
    rate.answered("a", 1.0)
    assert rate.bytes_per_s == 375
    for _ in range(10):
        rate.answered("a", 0.1)
    assert rate.bytes_per_s == 1000
    for _ in range(10):
        clock.now += 1.0
        rate.answered("a", 9.0)
    assert rate.bytes_per_s == 100


def test_on_a_slow_disk_an_answer_is_late_that_takes_some_times_as_long_as_others() -> None:
    rate, clock = made(copy_bytes_per_s_max=1000, copy_bytes_per_s_min=10, copy_late_s=0.1, copy_late_factor=4.0)
    for seconds in (0.5, 1.9, 0.6, 1.8):
        clock.now += 10.0
        rate.answered("a", seconds)
    assert rate.bytes_per_s == 1000
    clock.now += 10.0
    rate.answered("a", 2.5)
    assert rate.bytes_per_s < 1000


def test_quick_answers_of_long_ago_do_not_make_all_others_late() -> None:
    rate, clock = made(copy_bytes_per_s_max=1000, copy_bytes_per_s_min=10, copy_late_s=0.1, copy_late_factor=4.0)
    rate.answered("a", 0.01)
    rates = []
    for _ in range(1000):
        clock.now += 1.0
        rate.answered("a", 1.0)
        rates.append(rate.bytes_per_s)
    assert (min(rates), rates[-1]) == (10, 1000)


def test_a_bookie_with_a_slow_disk_among_quick_ones_is_not_always_late() -> None:
    rate, clock = made(copy_bytes_per_s_max=1000, copy_bytes_per_s_min=10, copy_late_s=0.1, copy_late_factor=4.0)
    for _ in range(10):
        for bookie_id, seconds in (("quick", 0.001), ("slow", 0.5)):
            clock.now += 1.0
            rate.answered(bookie_id, seconds)
    assert rate.bytes_per_s == 1000
    rate.answered("slow", 2.5)
    assert rate.bytes_per_s == 500
    rate.answered("quick", 0.05)
    clock.now += 1.0
    rate.answered("quick", 0.2)
    assert rate.bytes_per_s < 500


def test_a_rate_that_people_have_lowered_is_not_raised_by_late_answers() -> None:
    """Below the least rate that a busy cluster is to heal with: then that is all."""
    rate, clock = made(copy_bytes_per_s_max=1000)
    rate.answered("a", 0.001)
    for _ in range(3):
        clock.now += 1.0
        rate.answered("a", 9.0)
        assert rate.bytes_per_s == 1000
