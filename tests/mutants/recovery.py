"""Defects in re-replication: copies that are not whole, swaps that come too early, marks that get lost."""

from __future__ import annotations

from typing import Final

from tests.mutants import Mutant

_PLAN: Final = "tests/unit/protocol/test_rereplication.py::"
_REPAIR: Final = "tests/unit/recovery/test_ledger_repair.py::"
_WORKER: Final = "tests/unit/recovery/test_worker.py::"

MUTANTS: list[Mutant] = [
    Mutant(
        "a last fragment may be moved while it can grow",
        "an acknowledged entry is cut off by a recovery that asks the new bookie",
        "if fragment_index == len(self.fragments) - 1 and self.state is not LedgerState.CLOSED:",
        "if fragment_index == len(self.fragments) - 1 and self.state is LedgerState.IN_RECOVERY:",
        (_PLAN + "test_the_last_fragment_of_a_ledger_that_is_not_closed_is_never_moved",),
    ),
    Mutant(
        "a bookie is swapped in though its copy came to nothing",
        "a copy is lost for good, and nobody knows",
        "        if not isinstance(copied, Copied):\n",
        "        if isinstance(copied, Unreadable):\n",
        (_REPAIR + "test_a_target_that_fails_is_left_for_another_one",),
    ),
    Mutant(
        "the swap does not check the lock",
        "a bookie is named for what it has just collected",
        "            self._store, path, metadata.encode(), expected_version, held, attempts_max=self._attempts_max\n",
        "            self._store, path, metadata.encode(), expected_version, attempts_max=self._attempts_max\n",
        (_REPAIR + "test_without_its_lock_nothing_is_swapped",),
    ),
    Mutant(
        "a newer mark is removed than the one that was read under the lock",
        "a ledger keeps a lost bookie, and nothing says so",
        "        removed = mark is None or await self._remove(mark, left)\n",
        "mark = await self._marks.read(ledger_id)\n"
        "removed = mark is None or await self._remove(mark, frozenset(mark.lost))\n",
        (_WORKER + "test_a_new_mark_during_the_work_is_not_lost",),
    ),
    Mutant(
        "an entry that no readable bookie has does not stop its share",
        "a bookie is named for entries that it never got",
        "    if lacking:\n        ends =",
        "    if len(lacking) == len(living) > 1:\n        ends =",
        (_PLAN + "test_every_lost_place_of_a_fragment_with_an_end_is_copied_or_it_is_said_what_is_missing",),
    ),
    Mutant(
        "a stuck ledger is tried again all the time",
        "a cluster reads in vain for ever",
        "        one.stuck = ended.how is How.STUCK or attempts >= settings.repair_attempts_max\n",
        "        one.stuck = ended.how is How.STUCK\n",
        (_WORKER + "test_failures_are_tried_again_less_and_less_often_and_then_left_alone",),
    ),
]
