"""What may be deleted: the tables are total, and keep their promises in every order of everybody's steps."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.unit.protocol.repair.garbage_collection_model import Rules, State, explore

from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.repair.garbage_collection import (
    DECISIONS,
    Action,
    ProbeState,
    Step,
    decide,
    may_begin,
    may_collect_over_replicated,
    probe_state_of,
    probe_state_of_nothing,
    unlisted,
)


def test_every_case_is_decided() -> None:
    assert set(DECISIONS) == set(Step)
    for step in Step:
        assert set(DECISIONS[step]) == set(ProbeState)


@pytest.mark.scenario(51)
@pytest.mark.parametrize("own_lock", [False, True])
@pytest.mark.parametrize("unchanged", [False, True])
def test_what_is_not_sure_keeps_the_ledger(own_lock: bool, unchanged: bool) -> None:
    for step, sight in itertools.product(Step, ProbeState):
        action = decide(step, sight, own_lock=own_lock, unchanged=unchanged)
        if sight in (ProbeState.UNSURE, ProbeState.FOREIGN, ProbeState.OLDER):
            assert action is Action.STOP
        elif sight is ProbeState.NOT_MADE:
            assert action is Action.KEEP
        elif action in (Action.DELETE, Action.HIDE):
            # The only three ways on.
            assert (step, sight) in {
                (Step.UNLISTED, ProbeState.NO_LEDGER),
                (Step.LOCKED, ProbeState.OVER_REPLICATED),
                (Step.HIDDEN, ProbeState.OVER_REPLICATED),
            }
            assert action is (Action.HIDE if step is Step.LOCKED else Action.DELETE)
            assert own_lock or step is Step.UNLISTED
            assert unchanged or step is not Step.HIDDEN
        else:
            assert action is Action.KEEP


def test_everything_that_may_be_deleted_is() -> None:
    assert decide(Step.UNLISTED, ProbeState.NO_LEDGER, own_lock=False, unchanged=False) is Action.DELETE
    assert decide(Step.LOCKED, ProbeState.OVER_REPLICATED, own_lock=True, unchanged=True) is Action.HIDE
    assert decide(Step.HIDDEN, ProbeState.OVER_REPLICATED, own_lock=True, unchanged=True) is Action.DELETE


def metadata(state: LedgerState, *ensembles: str) -> LedgerMetadata:
    closed: dict[str, Any] = {"last_entry": 10 * len(ensembles)} if state is LedgerState.CLOSED else {}
    return LedgerMetadata(
        ledger_id=7,
        state=state,
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=1,
        digest="crc32c",
        ledger_key=bytes(32),
        fragments=tuple(Fragment(10 * i, tuple(names)) for i, names in enumerate(ensembles)),
        **closed,
    )


@pytest.mark.parametrize("state", LedgerState)
def test_a_copy_is_spare_if_no_ensemble_names_it_and_the_ledger_is_closed(state: LedgerState) -> None:
    assert probe_state_of(None, "a") is ProbeState.NO_LEDGER
    for ensembles in (["ab"], ["cb", "ab"], ["ab", "cb"], ["cb", "ba", "cd"]):
        assert probe_state_of(metadata(state, *ensembles), "a") is ProbeState.NAMED
    spare = ProbeState.OVER_REPLICATED if state is LedgerState.CLOSED else ProbeState.NOT_CLOSED
    assert probe_state_of(metadata(state, "bc", "cd"), "a") is spare


@pytest.mark.scenario(51)
def test_a_store_that_would_give_out_the_id_of_a_ledger_that_is_here_is_older() -> None:
    ids = [0, 1, 2, 2**31 - 1, 2**31, 2**31 + 1, 2**63 - 1]
    for ledger_id, following, held in itertools.product(ids, [*ids, 2**63], (False, True)):
        given_out = any(ledger_id == one for one in ids if one < following)
        for empty, otherwise in ((False, ProbeState.OLDER), (True, ProbeState.NOT_MADE)):
            sight = probe_state_of_nothing(ledger_id, following, held=held, empty=empty)
            assert sight is (otherwise if not given_out else ProbeState.NOT_MADE if held else ProbeState.NO_LEDGER)
    assert may_begin(older=False)
    assert not may_begin(older=True)


def test_spare_copies_stay_where_data_were_lost() -> None:
    assert may_collect_over_replicated(untrusted=False)
    assert not may_collect_over_replicated(untrusted=True)


@pytest.mark.scenario(51)
def test_what_a_listing_lacks() -> None:
    assert unlisted([1, 5, 9, 2**62], {5}) == [1, 9, 2**62]
    assert unlisted([], {5}) == []
    assert unlisted([0, 2**63 - 1], {0, 2**63 - 1}) == []


# --- every order of everybody's steps ---------------------------------------------------------------------------------

STARTS = {
    # The metadata know it, and its creator is about to write it.
    "created meanwhile": State(exists=False, creator_at=0),
    "created and held": State(exists=True, named=True, creator_at=1, stored=False),
    "written": State(named=True, stored=True),
    "written, and listed by a server that lags behind": State(named=True, stored=True, lagging=True),
    "deleted while it is written": State(named=True, stored=True, deleter_at=0, zombie_at=0),
    "gone": State(exists=False, stored=True, zombie_at=0),
    "an ensemble in somebody's memory": State(stored=True, closer_at=0),
    "the same, with nothing here yet": State(closer_at=0),
    "the same, deleted meanwhile": State(stored=True, closer_at=0, deleter_at=0, zombie_at=0),
    "spare": State(closed=True, stored=True),
    "spare, and copied here": State(closed=True, stored=True, worker_at=0),
    "spare, and two locks are lost": State(closed=True, stored=True, worker_at=0, losses=2),
    "spare, copied here and deleted": State(closed=True, stored=True, worker_at=0, deleter_at=0, losses=2),
    "not here, and copied here": State(closed=True, worker_at=0, losses=2),
}


@pytest.mark.scenario(51)
@pytest.mark.parametrize("name", STARTS)
def test_nothing_that_is_relied_on_is_ever_denied(name: str) -> None:
    start = STARTS[name]
    seen, broken = explore(start, Rules())
    assert not broken
    ends = [state for state in seen if state.collector_at == "end"]
    assert ends
    # What was hidden is seen again or gone, and no lock is left behind.
    assert not any(state.hidden or state.lock == "collector" for state in ends)


@pytest.mark.parametrize(("name", "collected"), [("gone", True), ("spare", True), ("written", False)])
def test_what_nobody_needs_goes(name: str, collected: bool) -> None:
    seen, _ = explore(STARTS[name]._replace(losses=0, zombie_at=-1), Rules())
    ends = {state for state in seen if state.collector_at == "end"}
    assert all(state.stored is not collected for state in ends)


@pytest.mark.parametrize(
    ("without", "name"),
    [
        ({"local_list_first": False, "reads_again": False}, "created meanwhile"),
        ({"reads_again": False}, "written, and listed by a server that lags behind"),
        ({"only_when_closed": False}, "an ensemble in somebody's memory"),
        ({"takes_the_lock": False, "looks_behind_the_hiding": False}, "spare, and copied here"),
        ({"looks_behind_the_hiding": False}, "spare, and copied here"),
        ({"spares_what_came_after": False}, "spare, and two locks are lost"),
        ({"stays_fenced": False}, "gone"),
    ],
)
def test_each_safeguard_is_needed(without: dict[str, bool], name: str) -> None:
    _, broken = explore(STARTS[name], Rules(**without))
    assert broken


def test_the_order_of_the_lists_and_the_second_look_are_two_lines_of_defence() -> None:
    for start in STARTS.values():
        assert not explore(start, Rules(local_list_first=False))[1]
        assert start.lagging or not explore(start, Rules(reads_again=False))[1]
