"""Makes a failing plan small by delta debugging: what is left of it violates the same invariant.

    python -m tests.sim.everything.shrink 17 [--run everything-long] [--to tests/sim/everything/test_found.py]

A candidate is played with up to `WORLDS` seeds: dropping an actor also moves the latencies that others draw. What is
tried depends on the plan alone, so a plan always shrinks to the same one.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tests.sim.runs import RUNS

from .plan import Actor, Fault, Plan
from .run import UNHANDLED, Outcome, play
from .story import as_test, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Set

Number: TypeAlias = "int | float"

BUDGET = 600  # runs
WORLDS = 3
SHORTEST_S = 0.05  # a time below isn't made shorter
SIZES = {"everything": "quick", "everything-long": "long"}


class BudgetUsedError(Exception):
    """All runs that were allowed are played."""


def signature(outcome: Outcome) -> tuple[str, ...]:
    """What has to stay the same: the invariant, and the assertion if it has several.

    Of an unhandled error also its type and the function that raised it.
    """
    error = outcome.error
    if error is None or (outcome.invariant != UNHANDLED and error.__cause__ is None):
        return (outcome.invariant or "",)
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    if outcome.invariant != UNHANDLED:
        return (outcome.invariant or "", frames[-1].line or "" if frames else "")
    return (UNHANDLED, type(error).__name__, frames[-1].name if frames else "")


class Shrinker:
    """Of one failing plan. `smallest` is the outcome of the smallest plan so far."""

    def __init__(
        self,
        plan: Plan,
        *,
        budget: int = BUDGET,
        play: Callable[[Plan], Outcome] = play,
        report: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.budget = budget
        self.runs = 0
        self._play = play
        self._report = report
        self._tried: set[str] = set()
        self.smallest = self._played(plan)
        self._wanted = signature(self.smallest)

    @property
    def plan(self) -> Plan:
        return self.smallest.plan

    def shrink(self) -> Outcome:
        """The outcome of the smallest plan that the budget allows to find."""
        assert self.smallest.error is not None, "the plan doesn't fail"
        self._progress()
        try:
            before = None
            while before != self.plan:
                before = self.plan
                self._leave_out(lambda plan: [one.key for one in (*plan.faults, *plan.actors)], Plan.without)
                self._leave_out(lambda plan: [*plan.bounds], Plan.calmer)
                self._leave_out(lambda plan: sorted(plan.features), _without_features)
                self._lower_all()
        except BudgetUsedError:
            self._report(f"the budget of {self.budget} runs is used up")
        return self.smallest

    def _leave_out(self, names: Callable[[Plan], Sequence[str]], without: Callable[[Plan, Set[str]], Plan]) -> None:
        """Leave out all, halves, quarters, and so on to single ones, as long as the same goes wrong."""
        size = len(names(self.plan))
        while size:
            at = 0
            while some := names(self.plan)[at : at + size]:
                if not self._still_fails(without(self.plan, set(some))):
                    at += size
            size //= 2

    def _lower_all(self) -> None:
        """Fewer appends, smaller batches, shorter times."""
        for key in [one.key for one in (*self.plan.actors, *self.plan.faults)]:
            for name in ("appends", "batch_max", "at_s", "lasts_s"):
                self._lower(lambda key=key, name=name: _number(_item(self.plan, key), name), key, name)  # type: ignore[misc]
        self._lower(lambda: self.plan.shape["storm_s"], "", "storm_s")

    def _lower(self, value: Callable[[], object], key: str, name: str) -> None:
        """Try the least value, then halves, as long as the same goes wrong."""
        while True:
            now = value()
            if not isinstance(now, int | float) or now <= (1 if isinstance(now, int) else SHORTEST_S):
                return
            less = (1, now // 2) if isinstance(now, int) else (0.0, round(now / 2, 3))
            if not any(self._still_fails(_with_number(self.plan, key, name, number)) for number in less):
                return

    def _still_fails(self, plan: Plan) -> bool:
        for seed in range(plan.seed, plan.seed + WORLDS):
            candidate = dataclasses.replace(plan, seed=seed)
            if (text := candidate.to_json()) in self._tried:
                continue
            self._tried.add(text)
            outcome = self._played(candidate)
            if signature(outcome) == self._wanted:
                self.smallest = outcome
                self._progress()
                return True
        return False

    def _played(self, plan: Plan) -> Outcome:
        if self.runs == self.budget:
            raise BudgetUsedError
        self.runs += 1
        return self._play(plan)

    def _progress(self) -> None:
        plan = self.plan
        appends = sum(int(actor.options.get("appends", 0)) for actor in plan.actors)  # type: ignore[arg-type]
        self._report(
            f"run {self.runs} of {self.budget}: {len(plan.faults)} faults, {len(plan.actors)} actors, "
            f"{appends} appends, {len(plan.bounds)} settings, {len(plan.features)} features"
        )


def _without_features(plan: Plan, names: Set[str]) -> Plan:
    return dataclasses.replace(plan, features=plan.features - names)


def _item(plan: Plan, key: str) -> Actor | Fault:
    return next(one for one in (*plan.actors, *plan.faults) if one.key == key)


def _number(one: Actor | Fault, name: str) -> object:
    return getattr(one, name, None) if name.endswith("_s") else one.options.get(name)


def _with_number(plan: Plan, key: str, name: str, number: Number) -> Plan:
    """The plan with a number of one actor or fault, or of the shape, replaced."""
    if not key:
        return dataclasses.replace(plan, shape={**plan.shape, name: number})

    def changed(one: Actor | Fault) -> Actor | Fault:
        if one.key != key:
            return one
        if name.endswith("_s"):
            return dataclasses.replace(one, **{name: number})
        return dataclasses.replace(one, options={**one.options, name: number})

    return dataclasses.replace(
        plan,
        actors=tuple(changed(actor) for actor in plan.actors),
        faults=tuple(changed(fault) for fault in plan.faults),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.everything.shrink", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--run", default="everything", choices=RUNS)
    parser.add_argument("--to", type=Path, help="the file that gets the test")
    parser.add_argument("--budget", type=int, default=BUDGET, help=f"how many runs to play at most ({BUDGET})")
    options = parser.parse_args(arguments)
    logging.lastResort = None  # what runs do to bookies and clients makes them warn all the time
    if options.run not in SIZES:
        print(f"The run {options.run} draws its schedule as it goes, so there is no plan to shrink.", file=sys.stderr)
        print(f"To see it whole: make sim SCENARIO={options.run} SEED={options.seed}", file=sys.stderr)
        return 2
    plan = Plan.draw(options.seed, SIZES[options.run])
    shrinker = Shrinker(plan, budget=options.budget, report=lambda line: print(line, file=sys.stderr, flush=True))
    if shrinker.smallest.error is None:
        print(f"seed {options.seed} of {options.run} violates nothing", file=sys.stderr)
        return 2
    outcome = shrinker.shrink()
    print(tell(outcome))
    if options.to is not None:
        options.to.write_text(as_test(outcome, f"{options.run} {options.seed}"), encoding="utf-8")
        print(f"\nThe test is in {options.to}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
