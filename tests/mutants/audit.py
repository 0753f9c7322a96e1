"""Defects in how lost bookies are found and their ledgers are marked."""

from __future__ import annotations

from tests.mutants import Mutant

_MARKS = "tests/unit/metadata/test_marks.py"
_ELECTION = "tests/unit/metadata/test_election.py"
_DECISIONS = "tests/unit/protocol/test_audit_decisions.py"
_AUDITOR = "tests/unit/recovery/test_auditor.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "an auditor writes marks without a check of its term",
        "an auditor that was paused for long marks what is not lost any more",
        "self._checks = () if guard is None else (Check(guard, 0),)",
        "self._checks = ()",
        (f"{_MARKS}::test_nothing_is_written_without_the_guard",),
    ),
    Mutant(
        "a suspended session ends no term",
        "two auditors are at work, as long as the one that was cut off tries",
        "if state is not SessionState.CONNECTED:\n    over.set()",
        "if state is SessionState.EXPIRED:\n    over.set()",
        (f"{_ELECTION}::test_a_leader_gives_up_when_its_session_is_suspended",),
    ),
    Mutant(
        "most bookies may be absent and are copied",
        "a cluster that was cut off from ZooKeeper for a while copies everything that it has",
        "return 2 * missing > bookies - worked_off",
        "return False",
        (
            f"{_DECISIONS}::test_while_most_are_absent_nothing_is_marked",
            f"{_AUDITOR}::test_while_most_are_absent_nothing_is_marked_and_it_is_said",
        ),
    ),
    Mutant(
        "a bookie that comes back empty has what it had",
        "the ledgers of the storage that it lost stay without their copies for good",
        "return not now or not before or set(before.split()) <= set(now.split())",
        "return True",
        (
            f"{_DECISIONS}::test_a_storage_that_has_got_directories_is_the_same",
            f"{_AUDITOR}::test_a_bookie_that_comes_back_with_another_storage_has_lost_what_it_had",
        ),
    ),
    Mutant(
        "a bookie that rebuilds itself is worked off at once",
        "all that it had is copied twice, and it comes back for nothing",
        "if not covers(is_.instance, before) and is_.presence is not Presence.HERE:",
        "if not is_.instance:",
        (
            f"{_DECISIONS}::test_a_bookie_that_rebuilds_itself_has_as_long_as_an_absent_one",
            "tests/unit/recovery/test_rebuilding_beside_workers.py::test_it_is_left_alone_as_long_as_one_that_is_away",
        ),
    ),
    Mutant(
        "ledgers that were worked off are not read again",
        "a ledger that was copied to a bookie that is lost next is never marked for that one",
        "await self._read(sorted({*remembered.open, *also, *worked_off}), lost)",
        "await self._read(sorted(remembered.open), lost)",
        (
            f"{_AUDITOR}::test_a_ledger_that_comes_to_name_a_lost_bookie_is_marked_later",
            f"{_AUDITOR}::test_ledgers_that_changed_since_they_were_read_are_read_again",
        ),
    ),
    Mutant(
        "what others have announced is not heeded",
        "a ledger that was moved by another's mark is never marked for the bookie that it was moved to",
        "return remembered.complete and fresh and await self._marks.announced() == remembered.announced",
        "return remembered.complete and fresh",
        (f"{_AUDITOR}::test_marks_of_others_that_are_announced_make_all_be_read_again",),
    ),
    Mutant(
        "marks of a bookie that is back are dropped whatever they were for",
        "what a check has missed on it, or what it lost, is never copied",
        "loss.reason == LossReason.LOST and instance and loss.instance and covers(instance, loss.instance)",
        "instance",
        (
            f"{_AUDITOR}::test_a_bookie_that_comes_back_as_it_was_is_not_lost",
            f"{_AUDITOR}::test_a_bookie_in_limbo_is_lost_though_it_is_there",
        ),
    ),
]
