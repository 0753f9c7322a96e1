"""Copies are never faster than they may be, and slower while bookies answer late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from bkpy.config.recovery import RecoverySettings
from bkpy.replication.worker.pacing import CopyRate

PART = 1000  # bytes


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
    rate.answered("a", PART, 0.1)
    for _ in range(3):  # late together, for one reason
        rate.answered("a", PART, 1.5)
    assert rate.bytes_per_s == 500
    clock.now += 1.0
    rate.answered("a", PART, 1.5)
    assert rate.bytes_per_s == 250
    rate.answered("a", PART, 1.0)
    assert rate.bytes_per_s == 375
    for _ in range(10):
        rate.answered("a", PART, 0.1)
    assert rate.bytes_per_s == 1000
    for _ in range(10):
        clock.now += 1.0
        rate.answered("a", PART, 9.0)
    assert rate.bytes_per_s == 100


def test_on_a_slow_disk_an_answer_is_late_that_takes_some_times_as_long_as_others() -> None:
    rate, clock = made(copy_bytes_per_s_max=1000, copy_bytes_per_s_min=10, copy_late_s=0.1, copy_late_factor=4.0)
    for seconds in (0.5, 1.9, 0.6, 1.8):
        clock.now += 10.0
        rate.answered("a", PART, seconds)
    assert rate.bytes_per_s == 1000
    clock.now += 10.0
    rate.answered("a", PART, 2.5)
    assert rate.bytes_per_s < 1000


def test_quick_answers_of_long_ago_do_not_make_all_others_late() -> None:
    rate, clock = made(copy_bytes_per_s_max=1000, copy_bytes_per_s_min=10, copy_late_s=0.1, copy_late_factor=4.0)
    rate.answered("a", PART, 0.01)
    rates = []
    for _ in range(1000):
        clock.now += 1.0
        rate.answered("a", PART, 1.0)
        rates.append(rate.bytes_per_s)
    assert (min(rates), rates[-1]) == (10, 1000)


def test_a_bookie_with_a_slow_disk_among_quick_ones_is_not_always_late() -> None:
    rate, clock = made(copy_bytes_per_s_max=1000, copy_bytes_per_s_min=10, copy_late_s=0.1, copy_late_factor=4.0)
    for _ in range(10):
        for bookie_id, seconds in (("quick", 0.001), ("slow", 0.5)):
            clock.now += 1.0
            rate.answered(bookie_id, PART, seconds)
    assert rate.bytes_per_s == 1000
    rate.answered("slow", PART, 2.5)
    assert rate.bytes_per_s == 500
    rate.answered("quick", PART, 0.05)
    clock.now += 1.0
    rate.answered("quick", PART, 0.2)
    assert rate.bytes_per_s < 500


def test_a_large_part_is_not_late_nor_are_small_ones_behind_it() -> None:
    """Of a bookie that is idle, and stores so many bytes a second. Ledgers of all sizes are copied side by side."""
    rate, clock = made(copy_bytes_per_s_max=1000, copy_bytes_per_s_min=10, copy_late_s=0.02, copy_late_factor=5.0)

    def answered(count: int, *, behind: int = 0) -> None:
        clock.now += 1.0
        rate.answered("a", count, 0.001 + (behind + count) / 50e6)

    for _ in range(100):
        for count, behind in ((100, 0), (5_000_000, 0), (3_000_000, 1000), (100, 6_000_000)):
            answered(count, behind=behind)
    assert rate.bytes_per_s == 1000
    answered(5_000_000, behind=40_000_000)
    assert rate.bytes_per_s == 500
    answered(100, behind=40_000_000)
    assert rate.bytes_per_s == 250
    for _ in range(30):
        answered(100)
    assert rate.bytes_per_s == 1000
    answered(100, behind=5_000_000)  # somebody else's: there was no large part for long
    assert rate.bytes_per_s == 500


def test_a_rate_that_people_have_lowered_is_not_raised_by_late_answers() -> None:
    """Below the least rate that a busy cluster is to heal with: then that is all."""
    rate, clock = made(copy_bytes_per_s_max=1000)
    rate.answered("a", PART, 0.001)
    for _ in range(3):
        clock.now += 1.0
        rate.answered("a", PART, 9.0)
        assert rate.bytes_per_s == 1000
