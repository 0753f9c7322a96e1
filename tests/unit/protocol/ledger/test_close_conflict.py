"""What a closing write that came too late means: every case, by whom it was written and what it found."""

from __future__ import annotations

import itertools

import pytest

from bkpy.protocol.ledger.close_conflict import CLOSE_ACTIONS, CloseAction, Closer, FreshState, fresh_state
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState

OPEN = LedgerMetadata(
    ledger_id=1,
    state=LedgerState.OPEN,
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    digest="crc32c",
    ledger_key=bytes(32),
    fragments=(Fragment(0, ("b1", "b2", "b3")),),
)

MOVED = OPEN.new_fragment(5, ("b1", "b2", "b4")).replace_bookie(0, 0, "b4")


def action(closer: Closer, fresh: LedgerMetadata) -> CloseAction:
    """On somebody who meant to close the ledger at entry 9 with 100 bytes."""
    return CLOSE_ACTIONS[closer, fresh_state(fresh, 9, 100)]


def test_the_table_is_total() -> None:
    assert set(CLOSE_ACTIONS) == set(itertools.product(Closer, FreshState))
    assert set(CLOSE_ACTIONS.values()) == set(CloseAction)


@pytest.mark.parametrize(
    ("fresh", "expected"),
    [
        (OPEN, FreshState.OPEN),
        (OPEN.in_recovery(), FreshState.IN_RECOVERY),
        (OPEN.closed(9, 100), FreshState.SAME_END),
        (OPEN.in_recovery().closed(9, 100), FreshState.SAME_END),
        (OPEN.closed(8, 100), FreshState.OTHER_END),
        (OPEN.closed(10, 100), FreshState.OTHER_END),
        (OPEN.closed(9, 99), FreshState.OTHER_END),
        (OPEN.closed(-1, 0), FreshState.OTHER_END),
    ],
)
def test_what_is_found(fresh: LedgerMetadata, expected: FreshState) -> None:
    assert fresh_state(fresh, 9, 100) is expected


def test_an_empty_ledger_can_have_the_same_end_too() -> None:
    assert fresh_state(OPEN.closed(-1, 0), -1, 0) is FreshState.SAME_END


@pytest.mark.scenario(33)
def test_a_writer_tries_again_after_a_change_that_left_the_ledger_open() -> None:
    assert action(Closer.WRITER, MOVED) is CloseAction.TRY_AGAIN


@pytest.mark.scenario(16)
def test_a_writer_never_closes_a_ledger_that_is_being_recovered() -> None:
    assert action(Closer.WRITER, OPEN.in_recovery()) is CloseAction.FENCED


@pytest.mark.scenario(33)
def test_a_writer_whose_ledger_was_closed_just_there_has_closed_it() -> None:
    assert action(Closer.WRITER, OPEN.closed(9, 100)) is CloseAction.CLOSED


@pytest.mark.scenario(33)
@pytest.mark.parametrize(("last_entry", "length"), [(8, 90), (10, 110), (9, 99), (-1, 0)])
def test_a_writer_whose_ledger_was_closed_elsewhere_is_told(last_entry: int, length: int) -> None:
    assert action(Closer.WRITER, OPEN.closed(last_entry, length)) is CloseAction.CLOSED_ELSEWHERE


@pytest.mark.scenario(14)
@pytest.mark.parametrize(("last_entry", "length"), [(9, 100), (8, 90), (10, 110), (-1, 0)])
def test_the_first_of_several_recoveries_wins_whatever_it_saw(last_entry: int, length: int) -> None:
    assert action(Closer.RECOVERY, OPEN.in_recovery().closed(last_entry, length)) is CloseAction.CLOSED


def test_a_recovery_tries_again_after_copies_were_moved() -> None:
    assert action(Closer.RECOVERY, MOVED.in_recovery()) is CloseAction.TRY_AGAIN


def test_a_ledger_in_recovery_that_is_open_again_is_a_contradiction() -> None:
    assert action(Closer.RECOVERY, OPEN) is CloseAction.IMPOSSIBLE
