"""Defects in what the periodic checks look at and mark."""

from __future__ import annotations

from tests.mutants import Mutant

_DECISIONS = "tests/unit/protocol/repair/test_check_decisions.py"
_CHECKS = "tests/unit/replication/auditor/test_periodic_checks.py"

MUTANTS: list[Mutant] = [
    Mutant(
        "a check goes by the clock of an earlier auditor, however far that was ahead",
        "auditors read all replicas again and again, for years",
        "run = CheckRun(now_ms, min(run.ended_ms, now_ms - 1))",
        "run = CheckRun(max(now_ms, run.ended_ms + 1), run.ended_ms)",
        (f"{_CHECKS}::test_a_clock_that_was_years_ahead_has_them_checked_once_and_not_all_the_time",),
    ),
    Mutant(
        "a ledger that seems to fall short is marked without a second look",
        "every ledger that was just closed is copied",
        "found = set(suspect.bookies).intersection(await kind.under_replicated(metadata, suspect.chances))",
        "found = set(suspect.bookies)",
        (f"{_CHECKS}::test_what_is_there_at_the_second_look_is_not_marked",),
    ),
    Mutant(
        "the end of a fragment isn't looked at",
        "a bookie that lacks the end of every ledger is never found",
        "for start in (*starts, last - size + 1):",
        "for start in starts:",
        (f"{_DECISIONS}::test_windows_are_both_ends_and_some_between_without_an_id_twice",),
    ),
    Mutant(
        "a copy counts though it is damaged",
        "the last intact copy of an entry is lost before anybody knows of the other",
        """except DigestMismatchError:
    continue
intact.add(header.entry_id)""",
        """except DigestMismatchError:
    pass
intact.add(header.entry_id)""",
        (f"{_CHECKS}::test_a_damaged_copy_is_marked_and_replaced_by_a_sound_one",),
    ),
    Mutant(
        "a new auditor begins a check again",
        "a check that takes longer than an auditor lives never ends",
        "if run.began_ms > run.ended_ms:\n    return True",
        "if run.began_ms > run.ended_ms:\n    return False",
        (f"{_CHECKS}::test_the_next_auditor_goes_on_where_the_last_one_was",),
    ),
    Mutant(
        "a check ends at the first node below which ledgers may not be listed",
        "no ledger behind it is ever checked, and no placement at all",
        "after=after, skipped=skipped):",
        "after=after):",
        (
            "tests/unit/replication/auditor/test_periodic_checks.py::"
            "test_ledgers_below_a_node_that_may_not_be_listed_hold_up_no_check",
        ),
    ),
]
