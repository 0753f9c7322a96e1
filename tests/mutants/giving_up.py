"""Defects in what is done for ledgers whose bookies are gone, or lack something."""

from __future__ import annotations

from tests.mutants import Mutant

_GIVING_UP = "tests/unit/protocol/test_giving_up.py"
_ACCEPTING = "tests/unit/recovery/test_accepting_loss.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "any silent bookie is given up, where some are",
        "a bookie that is slow has acknowledged entries, and the ledger is cut off before them",
        "return self._giving_up is not None and bookie_id not in self._giving_up.registered",
        "return self._giving_up is not None",
        (f"{_ACCEPTING}::test_a_bookie_that_is_registered_and_silent_is_not_given_up",),
    ),
    Mutant(
        "an entry is given up before all have been heard",
        "a copy that could be read is cut off",
        "if present + denied + unknown < write_quorum:\n    return Fate.OPEN",
        "if present + denied + unknown < write_quorum and not given_up:\n    return Fate.OPEN",
        (
            f"{_GIVING_UP}::test_an_entry_is_given_up_only_when_all_have_been_heard_and_those_that_can_not_tell_never_will",
        ),
    ),
    Mutant(
        "less is kept than was shown",
        "somebody accepts the loss of nothing, and loses entries",
        "if last < giving_up.at_least:",
        "if last < giving_up.at_least - 100:",
        (f"{_ACCEPTING}::test_nothing_less_is_kept_than_was_shown",),
    ),
    Mutant(
        "the fence ends with enough answers though something is to be given up",
        "the bookie that proves the highest entry is not heard",
        "while not fencing.complete or (waiting and self._giving_up is not None):",
        "while not fencing.complete:",
        (f"{_ACCEPTING}::test_the_slowest_bookie_is_heard_before_anything_is_given_up",),
    ),
]
