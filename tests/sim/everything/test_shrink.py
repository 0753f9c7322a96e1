"""A failing plan becomes the few faults and operations that matter, always the same ones, and a test to commit."""

from __future__ import annotations

import contextlib
import runpy
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from bkpy.storage import shard

from .plan import Plan
from .run import Outcome, play
from .shrink import Shrinker, main
from .story import as_test, tell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FORGETS = 2003  # a seed that finds what is planted here


@contextlib.contextmanager
def collected_ledgers_forgotten() -> Iterator[None]:
    """S12: a ledger that was collected is one that was never seen."""
    with patch.object(shard, "has_tombstone", lambda txn, ledger_id: False):
        yield


def breaks(plan: Plan) -> Outcome:
    """What a defect would make of the plan that needs a writer's tenth append, two faults and a setting."""
    keys = {one.key for one in (*plan.actors, *plan.faults)}
    appends = [actor.options["appends"] for actor in plan.actors if actor.key == "writer-1"]
    if {"fault-1", "fault-3"} <= keys and appends >= [10] and len(plan.bounds) > 0:
        return Outcome(plan, AssertionError("broken"), "I2")
    return Outcome(plan, AssertionError("something else"), "I4") if not keys else Outcome(plan)


def test_what_does_not_matter_is_left_out() -> None:
    plan = next(plan for plan in map(Plan.draw, range(1000)) if breaks(plan).invariant == "I2" and len(plan.bounds) > 3)
    small = Shrinker(plan, play=breaks).shrink()
    assert [fault.key for fault in small.plan.faults] == ["fault-1", "fault-3"]
    assert [actor.key for actor in small.plan.actors] == ["writer-1"]
    assert 10 <= small.plan.actors[0].options["appends"] < 20  # type: ignore[operator]
    assert small.plan.actors[0].at_s == small.plan.faults[0].lasts_s == 0.0
    assert len(small.plan.bounds) == 1
    assert not small.plan.features
    assert small.invariant == "I2"
    assert Shrinker(plan, play=breaks).shrink().plan == small.plan


def test_another_assertion_of_the_same_invariant_is_another_failure() -> None:
    plan = next(plan for plan in map(Plan.draw, range(1000)) if breaks(plan).invariant == "I2")

    def fails(candidate: Plan) -> Outcome:
        error = AssertionError("logs dense")
        try:
            if len(candidate.actors) == len(plan.actors):
                raise AssertionError("an entry is missing")
            raise AssertionError("the tail has read less")
        except AssertionError as cause:
            error.__cause__ = cause
        return Outcome(candidate, error, "logs dense")

    assert len(Shrinker(plan, play=fails).shrink().plan.actors) == len(plan.actors)


def test_no_more_runs_are_played_than_allowed() -> None:
    plan = next(plan for plan in map(Plan.draw, range(1000)) if breaks(plan).invariant == "I2")
    played: list[Plan] = []

    def counted(candidate: Plan) -> Outcome:
        played.append(candidate)
        return breaks(candidate)

    lines: list[str] = []
    small = Shrinker(plan, budget=7, play=counted, report=lines.append).shrink()
    assert len(played) == 7
    assert small.invariant == "I2"
    assert lines[-1] == "the budget of 7 runs is used up"


@pytest.mark.exhaustive
@pytest.mark.thorough
def test_a_planted_defect_becomes_a_story_and_a_test(tmp_path: Path) -> None:
    with collected_ledgers_forgotten():
        small = Shrinker(Plan.draw(FORGETS), budget=25).shrink()
    assert small.invariant == "I8"
    assert not small.plan.faults
    assert sorted(actor.kind for actor in small.plan.actors) == ["deletion", "writer"]
    story = tell(small)
    begins = [f"{actor.key} begins" for actor in small.plan.actors]
    for part in ("I8 is violated", *begins, "collected, ledger 0", "violation I8"):
        assert part in story
    (tmp_path / "test_found.py").write_text(as_test(small, f"everything {FORGETS}"))
    test = runpy.run_path(str(tmp_path / "test_found.py"))[f"test_i8_everything_{FORGETS}"]
    test()
    with collected_ledgers_forgotten(), pytest.raises(AssertionError, match="I8"):
        test()


@pytest.mark.thorough
def test_the_command_writes_the_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "test_found.py"
    with collected_ledgers_forgotten():
        assert main([str(FORGETS), "--budget", "2", "--to", str(path)]) == 0
    shown = capsys.readouterr()
    assert f"The test is in {path}." in shown.out
    assert "the budget of 2 runs is used up" in shown.err
    assert f"def test_i8_everything_{FORGETS}() -> None:" in path.read_text()


@pytest.mark.thorough
def test_a_seed_that_fails_nothing_and_a_run_without_a_plan_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert play(Plan.draw(FORGETS)).error is None
    assert main([str(FORGETS)]) == 2
    assert capsys.readouterr().err == f"seed {FORGETS} of everything violates nothing\n"
    assert main(["17", "--run", "failover"]) == 2
    assert "there is no plan to shrink" in capsys.readouterr().err
