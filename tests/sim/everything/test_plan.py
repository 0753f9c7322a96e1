"""A plan is data: it is the same for a seed, survives JSON, and what is dropped changes nothing else."""

from __future__ import annotations

import pytest

from .plan import Plan


@pytest.mark.thorough
@pytest.mark.parametrize("size", ["quick", "long"])
def test_a_seed_has_one_plan_and_json_keeps_it(size: str) -> None:
    for seed in range(50):
        plan = Plan.draw(seed, size)
        assert plan == Plan.draw(seed, size)
        assert plan == Plan.from_json(plan.to_json())
    assert Plan.draw(1, size) != Plan.draw(2, size)


def test_what_is_dropped_changes_nothing_else() -> None:
    plan = next(plan for plan in map(Plan.draw, range(50)) if len(plan.faults) > 2 and plan.bounds)
    dropped = {plan.actors[0].key, plan.faults[1].key}
    less = plan.without(dropped)
    assert [actor for actor in plan.actors if actor.key not in dropped] == [*less.actors]
    assert [fault for fault in plan.faults if fault.key not in dropped] == [*less.faults]
    name = next(iter(plan.bounds))
    assert plan.calmer({name}).bounds == {n: value for n, value in plan.bounds.items() if n != name}
    assert plan.stream("writer-1").random() == less.stream("writer-1").random()


@pytest.mark.thorough
def test_keys_are_unique() -> None:
    for seed in range(50):
        plan = Plan.draw(seed, "long")
        keys = [one.key for one in (*plan.actors, *plan.faults)]
        assert len(keys) == len(set(keys))


@pytest.mark.thorough
def test_a_quick_plan_has_three_faults_in_the_median() -> None:
    """Besides those of a second cluster."""
    counts = sorted(
        sum("of_bookkeeper" not in fault.options for fault in Plan.draw(seed).faults) for seed in range(200)
    )
    assert counts[100] == 3
