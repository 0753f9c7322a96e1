"""When limbo ends: every case, and a model of who may still name the bookie, which says why each clause is there."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pytest

from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.ledger.quorum import write_set
from bkpy.protocol.repair.holdings import holdings
from bkpy.protocol.repair.integrity import (
    Demand,
    IntegrityAction,
    LimboEvidence,
    MissingRange,
    copy_of,
    demand_of,
    denies_unseen,
    ends_limbo,
    next_action,
    within,
)

ENSEMBLE = ("a", "b", "c")


def ledger(state: LedgerState, *ensembles: tuple[str, ...], write_quorum: int = 2) -> LedgerMetadata:
    """A ledger whose fragments begin at 0, 10, 20, ..., closed at 25."""
    return LedgerMetadata(
        ledger_id=7,
        ensemble_size=3,
        write_quorum=write_quorum,
        ack_quorum=min(2, write_quorum),
        fragments=tuple(Fragment(10 * number, names) for number, names in enumerate(ensembles)),
        state=state,
        last_entry=25 if state is LedgerState.CLOSED else -1,
        length=100 if state is LedgerState.CLOSED else 0,
        digest="crc32c",
        ledger_key=b"k" * 32,
    )


# --- what the metadata want -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", LedgerState)
@pytest.mark.parametrize(("first", "last"), list(itertools.product((True, False), repeat=2)))
def test_the_demand_of_every_ledger(state: LedgerState, first: bool, last: bool) -> None:
    others = ("b", "c", "d")
    found = demand_of(ledger(state, ENSEMBLE if first else others, ENSEMBLE if last else others), "a")
    if not first and not last:
        assert found is Demand.NOTHING
    elif state is LedgerState.CLOSED:
        assert found is Demand.CLOSED
    elif state is LedgerState.IN_RECOVERY:
        assert found is Demand.IN_RECOVERY
    else:
        assert found is Demand.OPEN


def test_the_demand_of_a_ledger_that_is_gone() -> None:
    assert demand_of(None, "a") is Demand.GONE


@pytest.mark.parametrize("demand", Demand)
@pytest.mark.parametrize(("to_end", "missing", "grace_over"), list(itertools.product((True, False), repeat=3)))
def test_the_duty_in_every_case(demand: Demand, to_end: bool, missing: bool, grace_over: bool) -> None:
    unclosed = IntegrityAction.COPY if missing else IntegrityAction.LEAVE
    expected = {
        Demand.GONE: IntegrityAction.LEAVE,
        Demand.NOTHING: IntegrityAction.LEAVE,
        Demand.OPEN: (IntegrityAction.RECOVER if grace_over else IntegrityAction.WAIT) if to_end else unclosed,
        Demand.IN_RECOVERY: IntegrityAction.RECOVER if to_end else unclosed,
        Demand.CLOSED: IntegrityAction.COPY if missing else IntegrityAction.END,
    }
    assert next_action(demand, to_end=to_end, missing=missing, grace_over=grace_over) is expected[demand]


@pytest.mark.parametrize("demand", Demand)
@pytest.mark.parametrize(("missing", "locked"), list(itertools.product((True, False), repeat=2)))
def test_limbo_ends_in_one_case_only(demand: Demand, missing: bool, locked: bool) -> None:
    assert ends_limbo(LimboEvidence(demand, missing, locked)) == (demand is Demand.CLOSED and not missing and locked)


@pytest.mark.parametrize(("all_in_doubt", "limbo_to", "denied"), [
    (True, -1, False), (True, 4, False), (True, 9, False), (False, -1, True), (False, 4, True), (False, 5, False),
    (False, 9, False),
])  # fmt: skip
def test_what_was_never_seen_is_denied_only_if_it_is_newer(all_in_doubt: bool, limbo_to: int, denied: bool) -> None:
    assert denies_unseen(5, all_in_doubt=all_in_doubt, limbo_to=limbo_to) == denied


# --- copies of a part -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write_quorum", [1, 2, 3])
def test_a_lack_is_copied_exactly(write_quorum: int) -> None:
    metadata = ledger(LedgerState.CLOSED, ENSEMBLE, ("d", "a", "b"), write_quorum=write_quorum)
    for number, held in enumerate(holdings(metadata)):
        assert held.last_entry is not None
        for place, share in enumerate(held.shares):
            for first in range(held.first_entry, held.last_entry + 1):
                for last in range(first, held.last_entry + 1):
                    missing = MissingRange(number, place, first, last)
                    part = within(share, missing)
                    wanted = {i for i in range(first, last + 1) if place in write_set(i, 3, write_quorum)}
                    ids = {i for start in part.starts for i in range(start, last + 1, part.step)}
                    assert ids == wanted
                    assert part.entries == len(wanted)
                    copy = copy_of(metadata, missing, {"b", "d"})
                    assert (copy.first, copy.last, copy.old, copy.place) == (first, last, share.bookie_id, place)


# --- why each clause is there -----------------------------------------------------------------------------------------
#
# One entry of one ledger, and one bookie that acknowledges it and then loses it, in whatever order with a check of the
# bookie, with whoever stored the entry there, and with what puts the bookie into the ensembles. A ledger may be created
# after the loss, and then nothing of it was lost.


@dataclass(frozen=True)
class State:
    closed: bool  # the ledger
    named: bool  # the entry's ensemble has the bookie
    elsewhere: bool  # another fragment's has it, whose entries it never lost
    storing: str  # who stores the entry here: "adder", "recovery", "worker"
    acknowledged: bool = False
    here: str = "no"  # "no", "memory", "index"
    lost: bool = False
    lock: str = ""  # who has it
    limbo: bool = True

    @property
    def denies(self) -> bool:
        """Whether the bookie says that it never acknowledged the entry."""
        if self.here != "no" or not self.lost:
            return False
        return not self.limbo

    @property
    def wrong(self) -> bool:
        return self.named and self.acknowledged and self.denies


def steps(state: State, without: str) -> list[State]:
    """What may happen next. `without`: the clause that is switched off."""
    found: list[State] = []
    if not state.acknowledged and not state.lost:
        if state.storing == "worker":
            if not state.lock:
                found.append(replace(state, lock="worker"))
            if state.lock == "worker":
                found.append(replace(state, acknowledged=True, here="memory"))
        elif not state.closed:
            found.append(replace(state, acknowledged=True, here="memory"))
    if state.acknowledged and not state.named:  # what was stored is put into the metadata
        if state.storing == "worker" and state.lock == "worker" and state.closed:
            found.append(replace(state, named=True, lock=""))
        if state.storing == "recovery" and not state.closed:  # the closing write names it
            found.append(replace(state, named=True, closed=True))
        if state.storing == "adder" and not state.closed:  # the write of a changed ensemble
            found.append(replace(state, named=True))
    if state.lock == "worker":  # its session may end at any time
        found.append(replace(state, lock=""))
    if state.acknowledged and not state.closed and state.named:
        found.append(replace(state, closed=True))
    if not state.lost:
        found.append(replace(state, lost=True, here="no", limbo=True))
    else:
        found += _checks(state, without)
    return found


def _checks(state: State, without: str) -> list[State]:
    found: list[State] = []
    if state.named and state.closed and state.acknowledged and state.here == "no":
        found.append(replace(state, here="memory"))  # the check copies it back
    if state.here == "memory":
        found.append(replace(state, here="index"))
        if not state.limbo:  # a power cut, of a bookie that trusts itself
            found.append(replace(state, here="no"))
    if state.lock in ("", "check") or without == "locked":
        demand = Demand.CLOSED if state.closed else Demand.OPEN
        demand = demand if state.named or state.elsewhere else Demand.NOTHING
        wants = state.named and state.acknowledged and state.closed  # no other share has an end
        held = {"flushed": ("memory", "index")}.get(without, ("index",))
        verdict = LimboEvidence(demand, missing=wants and state.here not in held, locked=True)
        if without == "closed" and state.named:
            verdict = verdict._replace(demand=Demand.CLOSED)
        if without == "unclosed and unnamed":
            verdict = verdict._replace(demand=Demand.CLOSED)
        if without == "all here":
            verdict = verdict._replace(missing=False)
        if ends_limbo(verdict):
            lock = state.lock if without == "locked" else ""  # it was taken by the check, and is released
            found.append(replace(state, limbo=False, lock=lock))
    return found


def goes_wrong(without: str) -> bool:
    """Whether a state can be reached in which the bookie denies what it acknowledged."""
    begins = [
        State(closed, named, elsewhere, storing)
        for closed, named, elsewhere, storing in itertools.product(
            (False, True), (False, True), (False, True), ("adder", "recovery", "worker")
        )
        if not (storing == "worker" and not closed)
    ]
    seen, left = set(begins), list(begins)
    while left:
        state = left.pop()
        if state.wrong:
            return True
        for following in steps(state, without):
            if following not in seen:
                seen.add(following)
                left.append(following)
    return False


def test_nothing_goes_wrong() -> None:
    assert not goes_wrong("")


@pytest.mark.parametrize("clause", ["closed", "unclosed and unnamed", "all here", "flushed", "locked"])
def test_each_clause_is_needed(clause: str) -> None:
    assert goes_wrong(clause)
