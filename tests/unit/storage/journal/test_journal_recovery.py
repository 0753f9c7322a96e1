"""The table of what a break in the journal's chain means."""

from __future__ import annotations

from itertools import product

import pytest

from bkpy.storage.journal.journal_recovery import TABLE, AtBreak, Break, BreakAction, NextFile, decide

CASES = [Break(*case) for case in product(AtBreak, (False, True), NextFile, (False, True))]


@pytest.mark.parametrize("at", CASES, ids=lambda at: "-".join(str(getattr(v, "name", v)) for v in at))
def test_exactly_one_row_matches(at: Break) -> None:
    assert [row.action for row in TABLE if row.matches(at)] == [decide(at)]


def test_every_row_is_needed() -> None:
    for row in TABLE:
        assert any(row.matches(at) for at in CASES)


@pytest.mark.parametrize("at", [at for at in CASES if decide(at) is BreakAction.TORN], ids=str)
def test_only_a_broken_frame_with_nothing_after_it_is_cut(at: Break) -> None:
    assert at == Break(AtBreak.BROKEN, False, NextFile.NONE, False)


@pytest.mark.parametrize("at", [at for at in CASES if at.later_in_file or at.next_file is NextFile.AHEAD], ids=str)
def test_whatever_proves_that_a_frame_was_acknowledged_makes_it_damage(at: Break) -> None:
    assert decide(at) is BreakAction.DAMAGED
