"""The life of a log's writer: every state, and everything that may happen in it."""

from __future__ import annotations

from itertools import product

import pytest

from bkpy.protocol.log.log_writer_state import IMPOSSIBLE, TRANSITIONS, LogEvent, LogWriterState

S, E = LogWriterState, LogEvent

HOLDING = {S.HOLDING, S.CLOSING_HOLDING}
ENDING = {S.ENDING_FORMER, S.CLOSING_FORMER}
ROLL = (E.SWITCH, E.SWITCHED, E.RELEASE, E.FORMER_CLOSED)


def after(*events: LogEvent) -> LogWriterState:
    state = S.SERVING
    for event in events:
        state = TRANSITIONS[state, event]
    return state


def test_the_table_is_total() -> None:
    assert set(TRANSITIONS) | IMPOSSIBLE == set(product(LogWriterState, LogEvent))
    assert not set(TRANSITIONS) & IMPOSSIBLE
    found, new = {S.SERVING}, {S.SERVING}
    while new:
        new = {then for (state, _), then in TRANSITIONS.items() if state in new} - found
        found |= new
    assert found == set(LogWriterState)


@pytest.mark.parametrize("event", [E.FAIL, E.CLOSE])
@pytest.mark.parametrize("state", LogWriterState)
def test_a_writer_may_fail_and_be_closed_at_any_time(state: LogWriterState, event: LogEvent) -> None:
    assert (state, event) in TRANSITIONS


def test_a_writer_that_takes_no_appends_never_takes_any_again() -> None:
    for (state, _), then in TRANSITIONS.items():
        assert state.takes_appends or not then.takes_appends
        assert not state.close_was_called or then.close_was_called
        assert not state.failed or then.failed or then.over
        assert not state.over or then.over


def test_what_a_state_says_agrees() -> None:
    for state in LogWriterState:
        assert state.takes_appends is not (state.close_was_called or state.failed or state.over)
        assert not state.enters_at_once or (state.takes_appends and state.admits)
        assert not state.switching or not state.admits
        assert not state.admits or not (state.failed or state.over)


def test_a_closed_writer_gives_room_to_the_appends_that_it_took_before() -> None:
    for state in (S.CLOSING, S.CLOSING_HOLDING, S.CLOSING_FORMER):
        assert state.admits
        assert not state.enters_at_once


@pytest.mark.parametrize("failed", LogWriterState)
def test_an_error_ends_everything_but_a_log_that_is_closed(failed: LogWriterState) -> None:
    then = TRANSITIONS[failed, E.FAIL]
    assert then.failed or then.over
    assert then.close_was_called is failed.close_was_called
    if not then.over:
        assert {event for event in E if (then, event) in TRANSITIONS} <= {E.FAIL, E.CLOSE, E.ENDED}


def test_a_third_ledger_is_never_open() -> None:
    """Ledgers that are open beside the last one, along every way through the table: one at most."""
    beside: dict[LogWriterState, set[int]] = {S.SERVING: {0}}
    new = [(S.SERVING, 0)]
    while new:
        state, count = new.pop()
        for event in E:
            if (state, event) in TRANSITIONS:
                then = TRANSITIONS[state, event]
                more = count + (event is E.SWITCHED) - (event is E.FORMER_CLOSED)
                assert more in (0, 1), f"{more} ledgers beside the last one, by {event.name} when {state.name}"
                if more not in beside.setdefault(then, set()):
                    beside[then].add(more)
                    new.append((then, more))
    assert beside[S.SERVING] == beside[S.SWITCHING] == beside[S.CLOSING] == {0}
    assert all(beside[state] == {1} for state in HOLDING | ENDING)


def test_nothing_of_the_next_ledger_is_confirmed_before_the_former_one() -> None:
    for (state, event), then in TRANSITIONS.items():
        if event is E.SWITCHED:
            assert then in HOLDING
        if state in HOLDING:
            assert then in HOLDING or event is E.RELEASE or then.failed
        assert event is not E.RELEASE or state in HOLDING


def test_a_log_is_closed_after_its_former_ledger() -> None:
    assert {state for state in S if (state, E.ENDED) in TRANSITIONS} == {S.CLOSING, S.CLOSING_FAILED}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (ROLL, S.SERVING),
        (ROLL * 2, S.SERVING),
        ((E.SWITCH, E.RESUME), S.SERVING),
        ((E.CLOSE, E.ENDED), S.CLOSED),
        ((E.CLOSE, *ROLL, E.ENDED), S.CLOSED),
        ((E.SWITCH, E.CLOSE, E.RESUME, E.ENDED), S.CLOSED),
        ((E.SWITCH, E.SWITCHED, E.CLOSE, E.RELEASE, E.FORMER_CLOSED, E.ENDED), S.CLOSED),
        ((E.SWITCH, E.SWITCHED, E.RELEASE, E.CLOSE, E.CLOSE), S.CLOSING_FORMER),
        ((E.SWITCH, E.FAIL), S.FAILED),
        ((E.CLOSE, E.FAIL, E.ENDED), S.CLOSED),
        ((E.CLOSE, E.ENDED, E.FAIL, E.CLOSE), S.CLOSED),
        ((E.FAIL, E.CLOSE), S.CLOSING_FAILED),
    ],
    ids=lambda value: value.name if isinstance(value, LogWriterState) else "-".join(event.name for event in value),
)
def test_lives(events: tuple[LogEvent, ...], expected: LogWriterState) -> None:
    assert after(*events) is expected
