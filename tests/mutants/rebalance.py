"""Defects in what is moved to bookies that have less than their share."""

from __future__ import annotations

from tests.mutants import Mutant

_PLAN = "tests/unit/protocol/repair/test_rebalance_plan.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "a bookie is given more than it lacks",
        "copies are moved there, and later back again",
        "if sizes[source] <= self.room[target] and self._fits(metadata, source, target):",
        "if self.room[target] > 0 and self._fits(metadata, source, target):",
        (f"{_PLAN}::test_every_move_is_needed_and_allowed",),
    ),
    Mutant(
        "a bookie is moved next to another one of its rack",
        "two copies of an entry are lost with one rack",
        "and self._crowding(fragment.bookies, place, target) <= self._crowding(fragment.bookies, place, source)",
        "",
        (f"{_PLAN}::test_racks_stay_apart",),
    ),
    Mutant(
        "draining bookies have a share",
        "copies are moved by two commands at once, and others get less than their share",
        "{name: load for name, load in loads.items() if name not in self._context.directory.draining}",
        "dict(loads)",
        (
            "tests/unit/admin/test_rebalancer.py"
            "::test_what_a_draining_bookie_has_is_no_part_of_the_shares_and_is_not_moved_here",
        ),
    ),
]
