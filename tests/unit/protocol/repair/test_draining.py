"""Every decision about a bookie that is to leave, in every case, and every order of the steps that lead to its end."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
from tests.unit.protocol.repair.draining_model import Rules, State, ends, start

from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.repair.draining import (
    OBJECTIONS,
    BookieReference,
    Candidate,
    DecommissionRefusal,
    Scan,
    Tenure,
    is_void,
    reference_of,
    takes_entries,
    tenure,
    to_leave,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.mark.scenario(60)
def test_a_bookie_that_leaves_takes_nothing_and_a_read_only_one_what_recoveries_write_back() -> None:
    for leaves, read_only, recovery in product((False, True), repeat=3):
        expected = False if leaves else True if not read_only else recovery
        assert takes_entries(leaves=leaves, read_only=read_only, recovery=recovery) is expected


def test_a_bookie_without_a_cookie_takes_nothing_and_draining_comes_first() -> None:
    assert tenure(draining=True, known=True) is Tenure.LEAVES
    assert tenure(draining=True, known=False) is Tenure.LEAVES
    assert tenure(draining=False, known=True) is Tenure.TAKES
    assert tenure(draining=False, known=False) is Tenure.GONE


@pytest.mark.parametrize(
    ("draining", "absent_since", "leave"),
    [
        ((), {}, ()),
        (("b", "x"), {}, ("b",)),
        ((), {"c": 90.0}, ("c",)),
        ((), {"c": 90.1, "x": 0.0}, ()),
        (("a",), {"a": 99.0, "c": 0.0}, ("a", "c")),
    ],
)
def test_writers_leave_those_that_drain_at_once_and_absent_ones_after_a_while(
    draining: tuple[str, ...], absent_since: Mapping[str, float], leave: tuple[str, ...]
) -> None:
    assert to_leave(("a", "b", "c"), draining, absent_since, 100.0, 10.0) == leave


def test_a_mark_is_void_only_when_the_bookie_stays_and_is_here() -> None:
    assert [is_void(draining=d, here=h) for d, h in product((False, True), repeat=2)] == [False, True, False, False]


def test_every_candidate_has_a_row() -> None:
    assert len(OBJECTIONS) == 32
    for one, refusal in OBJECTIONS.items():
        if refusal is None:
            assert one.known
            assert (one.lost and not one.registered) or (one.draining and one.refuses and not one.lost)
    ready = Candidate(known=True, draining=True, refuses=True, registered=True, lost=False)
    assert OBJECTIONS[ready] is None
    assert OBJECTIONS[ready._replace(registered=False)] is None
    assert OBJECTIONS[ready._replace(known=False)] is DecommissionRefusal.UNKNOWN
    assert OBJECTIONS[ready._replace(lost=True)] is DecommissionRefusal.RUNS
    assert OBJECTIONS[ready._replace(draining=False)] is DecommissionRefusal.NOT_DRAINING
    assert OBJECTIONS[ready._replace(draining=False, registered=False)] is DecommissionRefusal.AWAY
    assert OBJECTIONS[ready._replace(refuses=False)] is DecommissionRefusal.NOT_REFUSING
    assert OBJECTIONS[ready._replace(refuses=False, registered=False, lost=True)] is None


def ledger(state: LedgerState, *ensembles: str) -> LedgerMetadata:
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ledger_id=1,
        state=state,
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=1,
        digest="crc32c",
        ledger_key=bytes(32),
        fragments=tuple(Fragment(10 * n, tuple(ensemble)) for n, ensemble in enumerate(ensembles)),
        last_entry=10 * len(ensembles) if closed else -1,
        length=1 if closed else 0,
        owner_token="t",
    )


@pytest.mark.parametrize("state", LedgerState)
def test_a_ledger_needs_whom_it_names_and_one_in_recovery_may_come_to_name_anybody(state: LedgerState) -> None:
    assert reference_of(ledger(state, "ab", "bc"), "a") is BookieReference.NAMED
    assert reference_of(ledger(state, "bc", "ac"), "a") is BookieReference.NAMED
    other = BookieReference.UNSETTLED if state is LedgerState.IN_RECOVERY else BookieReference.NONE
    assert reference_of(ledger(state, "bc", "bd"), "a") is other


def test_a_scan_is_clear_when_it_has_found_nothing() -> None:
    for counts in product((0, 1), repeat=3):
        assert Scan(*counts).clear is (counts == (0, 0, 0))


@pytest.mark.scenario(60)
def test_in_no_order_of_steps_a_bookie_goes_that_is_needed() -> None:
    found = list(ends(start(), Rules()))
    assert any(state.gone for state in found)
    assert [state for state in found if needed(state)] == []


@pytest.mark.parametrize("rule", Rules._fields)
def test_each_part_of_the_rule_is_needed(rule: str) -> None:
    without = Rules()._replace(**{rule: False})
    assert any(needed(state) for state in ends(start(), without)), rule


def needed(state: State) -> bool:
    """Whether the bookie is gone, and an entry that it has is to be read from it."""
    return state.gone and bool(state.named & state.stored)
