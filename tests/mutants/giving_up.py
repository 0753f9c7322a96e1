"""Defects in what is done for ledgers whose bookies are gone, or lack something."""

from __future__ import annotations

from tests.mutants import Mutant

_GIVING_UP = "tests/unit/protocol/ledger/test_giving_up.py"
_ACCEPTING = "tests/unit/replication/test_accepting_loss.py"

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
        "if present + denied + unknown < write_quorum:\n    return EntryStatus.OPEN",
        "if present + denied + unknown < write_quorum and not given_up:\n    return EntryStatus.OPEN",
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
    Mutant(
        "a bookie that hangs counts as one that denies",
        "an entry that somebody has is recorded as lost, and never copied again",
        "        except BookKeeperError:\n            return False\n        status = m.reply_status(frame.head)\n",
        "        except BookKeeperError:\n            return True\n        status = m.reply_status(frame.head)\n",
        (f"{_ACCEPTING}::test_an_entry_that_somebody_may_have_is_no_hole",),
    ),
    Mutant(
        "any absent bookie counts as given up",
        "entries of a bookie that is restarted are recorded as lost",
        "given_up = loss is not None and name in loss.bookies and name not in readable",
        "given_up = name not in readable",
        (f"{_ACCEPTING}::test_an_entry_that_somebody_may_have_is_no_hole",),
    ),
    Mutant(
        "the bookies of a hole are needed",
        "bookies that are gone can't be decommissioned, and entries beside the hole are marked for ever",
        "            if not self.is_hole(number)\n            for name in fragment.bookies\n",
        "            for name in fragment.bookies\n",
        (f"{_ACCEPTING}::test_entries_beside_one_that_nobody_has_are_copied_and_its_bookies_can_go",),
    ),
    Mutant(
        "an entry whose loss was accepted is denied",
        "readers take what was acknowledged for something that never was",
        "    elif kinds == {MissKind.NEGATIVE} and loss_accepted:\n",
        "    elif False:\n",
        (f"{_ACCEPTING}::test_an_accepted_loss_never_reads_as_no_such_entry",),
    ),
    Mutant(
        "bookies of earlier fragments are not recorded as given up",
        "a ledger whose first bookies are gone never heals, though that was accepted",
        "            for fragment in fragments[:-1]\n",
        "            for fragment in fragments[:0]\n",
        (f"{_ACCEPTING}::test_a_whole_fragment_whose_bookies_were_given_up_is_a_hole",),
    ),
]
