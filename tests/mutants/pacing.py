"""Defects of the rate that background work keeps to."""

from __future__ import annotations

from tests.mutants import Mutant

_PACER = "tests/unit/runtime/test_pacer.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "rests of background work saved up",
        "after a quiet hour a scrub reads as fast as the disk can, beside clients",
        "self._free_at = max(self._free_at, now) + amount / self.per_s",
        "self._free_at += amount / self.per_s",
        (f"{_PACER}::test_a_rest_gives_no_credit",),
    ),
    Mutant(
        "tasks that share a rate each take all of it",
        "copies made at once are as many times too fast",
        "self._free_at = begins_at + amount / self.per_s",
        "self._free_at = now + amount / self.per_s",
        (f"{_PACER}::test_turns_of_several_tasks_stay_within_the_rate",),
    ),
]
