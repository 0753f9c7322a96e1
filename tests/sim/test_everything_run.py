"""Everything happens at once: whatever a seed draws, no invariant is violated, and all comes to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .everything.plan import Plan
from .everything.run import play
from .runs import play_all, seeds_of

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.thorough
@pytest.mark.parametrize("seeds", seeds_of("everything", block=20, blocks=10, often=2))
def test_nothing_is_violated_whatever_happens_at_once(seeds: Sequence[int]) -> None:
    play_all("everything", seeds)


@pytest.mark.thorough
def test_a_plan_from_json_plays_the_same_run() -> None:
    plan = Plan.draw(1)
    first, second = play(plan), play(Plan.from_json(plan.to_json()))
    assert first.error is None
    assert first.trace == second.trace
    assert first.marks == second.marks
