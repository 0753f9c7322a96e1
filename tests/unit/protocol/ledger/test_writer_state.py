"""The life of a writer: every state, and everything that may happen in it."""

from __future__ import annotations

from itertools import product

import pytest

from bkpy.protocol.ledger.writer_state import IMPOSSIBLE, TRANSITIONS, Event, WriterState

S, E = WriterState, Event


def after(*events: Event) -> WriterState:
    state = S.OPEN
    for event in events:
        state = TRANSITIONS[state, event]
    return state


def reachable() -> set[WriterState]:
    found, new = {S.OPEN}, {S.OPEN}
    while new:
        new = {then for (state, _), then in TRANSITIONS.items() if state in new} - found
        found |= new
    return found


def test_the_table_is_total() -> None:
    assert set(TRANSITIONS) | IMPOSSIBLE == set(product(WriterState, Event))
    assert not set(TRANSITIONS) & IMPOSSIBLE
    assert reachable() == set(WriterState)


@pytest.mark.parametrize("event", [E.FAIL, E.CLOSE, E.ABANDON])
@pytest.mark.parametrize("state", WriterState)
def test_a_writer_may_fail_and_be_closed_and_abandoned_at_any_time(state: WriterState, event: Event) -> None:
    assert (state, event) in TRANSITIONS


def test_a_writer_that_takes_no_entries_never_takes_any_again() -> None:
    for (state, _), then in TRANSITIONS.items():
        assert state.takes_entries or not then.takes_entries
        assert not state.close_was_called or then.close_was_called
        assert not state.over or then.over


def test_nothing_is_acknowledged_again_after_a_failure() -> None:
    acknowledging = {S.OPEN, S.CHANGING, S.CLOSING, S.CLOSING_CHANGING}
    for (state, event), then in TRANSITIONS.items():
        assert then not in acknowledging or (state in acknowledging and event is not E.FAIL)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([E.CHANGE, E.CHANGED], S.OPEN),
        ([E.CHANGE, E.CLOSE, E.CHANGED], S.CLOSING),
        ([E.CLOSE, E.CHANGE, E.CHANGED, E.STORED], S.CLOSED),
        ([E.CLOSE, E.CLOSE], S.CLOSING),
        ([E.FAIL, E.CLOSE, E.STORED], S.CLOSED),
        ([E.CLOSE, E.STORED, E.ABANDON, E.FAIL], S.CLOSED),
        ([E.ABANDON, E.FAIL], S.ABANDONED),
        ([E.FAIL, E.ABANDON, E.CLOSE], S.ABANDONED),
        ([E.CLOSE, E.ABANDON], S.GIVEN_UP),
        ([E.CLOSE, E.ABANDON, E.STORED], S.CLOSED),
    ],
    ids=lambda value: value.name if isinstance(value, WriterState) else "-".join(event.name for event in value),
)
def test_lives(events: list[Event], expected: WriterState) -> None:
    assert after(*events) is expected


def test_a_ledger_is_not_closed_while_nothing_is_acknowledged() -> None:
    assert (S.CHANGING, E.STORED) in IMPOSSIBLE
    assert (S.CLOSING_CHANGING, E.STORED) in IMPOSSIBLE
