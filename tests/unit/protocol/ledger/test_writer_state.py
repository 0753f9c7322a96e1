"""The life of a writer: every state, and everything that may happen in it."""

from __future__ import annotations

from itertools import product

import pytest

from bkpy.protocol.ledger.writer_state import IMPOSSIBLE, TRANSITIONS, Event, WriterState

S, E = WriterState, Event


def after(*events: Event) -> WriterState:
    state = S.HELD if events[0] is E.RELEASE else S.OPEN
    for event in events:
        state = TRANSITIONS[state, event]
    return state


def reachable() -> set[WriterState]:
    found, new = {S.OPEN, S.HELD}, {S.OPEN, S.HELD}
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
    held_is_not_closed = state.held and event is E.CLOSE
    assert ((state, event) in TRANSITIONS) is not held_is_not_closed


def test_a_writer_that_takes_no_entries_never_takes_any_again() -> None:
    for (state, _), then in TRANSITIONS.items():
        assert state.takes_entries or not then.takes_entries
        assert not state.close_was_called or then.close_was_called
        assert not state.over or then.over


def test_nothing_is_acknowledged_again_after_a_failure() -> None:
    acknowledging = {S.OPEN, S.CHANGING, S.CLOSING, S.CLOSING_CHANGING}
    for (state, event), then in TRANSITIONS.items():
        released = state.held and event is E.RELEASE
        assert then not in acknowledging or released or (state in acknowledging and event is not E.FAIL)


def test_a_held_ledger_confirms_nothing_before_it_is_released_and_is_released_once() -> None:
    for (state, event), then in TRANSITIONS.items():
        assert then.held or not state.held or event in (E.RELEASE, E.FAIL, E.ABANDON)
        assert state.held or not then.held
        assert state.held or event is not E.RELEASE
    assert all((state, E.CLOSE) in IMPOSSIBLE for state in S if state.held)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([E.CHANGE, E.CHANGED], S.OPEN),
        ([E.RELEASE, E.CLOSE, E.STORED], S.CLOSED),
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
