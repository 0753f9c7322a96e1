"""A bookie that leaves, and all who may store something on it and come to name it, one atomic step at a time.

Three ledgers, each with somebody whose list of bookies is old, and who has chosen this one: a recovery, which writes
back and names it when it closes the ledger; somebody who copies under a lock, and swaps it in; a writer, whose new
ensemble is stored before it sends. Beside them the bookie itself, and who decommissions it, by
`protocol/repair/draining.py`.

`Rules` are the parts of the rule; each of them can be switched off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.repair.draining import (
    OBJECTIONS,
    BookieReference,
    Candidate,
    Scan,
    Tenure,
    reference_of,
    takes_entries,
    tenure,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

RECOVERED, COPIED, WRITTEN = range(3)


class Rules(NamedTuple):
    """What is kept to."""

    refuses_recoveries: bool = True
    waits_for_its_word: bool = True
    waits_for_locks: bool = True
    settles_recoveries: bool = True
    scans: bool = True


class State(NamedTuple):
    """All there is. `stored` and `named`: the ledgers of which the bookie has an entry, and that name it."""

    stored: frozenset[int] = frozenset()
    named: frozenset[int] = frozenset()
    draining: bool = False
    leaves: bool = False  # what the bookie knows
    said: bool = False
    gone: bool = False
    recovery: str = "write back"
    closed: bool = False  # the ledger of the recovery
    copier: str = "take the lock"
    locked: bool = False
    writer: str = "name"
    decommission: str = "begin"
    found: tuple[int, ...] = ()


def start() -> State:
    return State()


def ends(first: State, rules: Rules) -> Iterator[State]:
    """Every state that can be reached."""
    seen, todo = {first}, [first]
    while todo:
        state = todo.pop()
        yield state
        for after in _moves(state, rules):
            if after not in seen:
                seen.add(after)
                todo.append(after)


def _moves(state: State, rules: Rules) -> Iterator[State]:
    yield from _bookie(state)
    yield from _recovery(state, rules)
    yield from _copier(state, rules)
    yield from _writer(state)
    yield from _decommission(state, rules)


def _bookie(state: State) -> Iterator[State]:
    if state.gone:
        return
    if not state.draining:
        yield state._replace(draining=True)
    elif not state.leaves:
        yield state._replace(leaves=tenure(draining=True, known=True) is Tenure.LEAVES)
    elif not state.said:
        yield state._replace(said=True)


def _taken(state: State, ledger: int, *, recovery: bool, rules: Rules = Rules()) -> State | None:  # noqa: B008
    leaves = state.leaves and (rules.refuses_recoveries or not recovery)
    if not takes_entries(leaves=leaves, read_only=state.leaves, recovery=recovery):
        return None
    return state._replace(stored=state.stored | {ledger})


def _recovery(state: State, rules: Rules) -> Iterator[State]:
    if state.recovery == "write back":
        taken = _taken(state, RECOVERED, recovery=True, rules=rules)
        # Refused, it writes back to another bookie, which it names.
        yield state._replace(recovery="over") if taken is None else taken._replace(recovery="close")
    elif state.recovery == "close":
        yield (
            state._replace(recovery="over")
            if state.closed
            else state._replace(recovery="over", closed=True, named=state.named | {RECOVERED})
        )


def _copier(state: State, rules: Rules) -> Iterator[State]:
    if state.locked and state.copier != "over":
        yield state._replace(locked=False)  # its session has ended
    if state.copier == "take the lock":
        yield state._replace(copier="copy", locked=True)
    elif state.copier == "copy":
        taken = _taken(state, COPIED, recovery=True, rules=rules)
        yield state._replace(copier="over", locked=False) if taken is None else taken._replace(copier="swap")
    elif state.copier == "swap":
        named = state.named | {COPIED} if state.locked else state.named
        yield state._replace(copier="over", locked=False, named=named)


def _writer(state: State) -> Iterator[State]:
    if state.writer == "name":
        yield state._replace(writer="send", named=state.named | {WRITTEN})
    elif state.writer == "send":
        taken = _taken(state, WRITTEN, recovery=False)
        yield state._replace(writer="leave") if taken is None else taken._replace(writer="over")
    elif state.writer == "leave":
        yield state._replace(writer="over", named=state.named - {WRITTEN})


def _decommission(state: State, rules: Rules) -> Iterator[State]:
    step = state.decommission
    if step == "begin":
        refuses = state.said if rules.waits_for_its_word else state.draining
        one = Candidate(known=True, draining=state.draining, refuses=refuses, registered=True, lost=False)
        if OBJECTIONS[one] is None:
            # Locks that are taken later are not waited for.
            yield state._replace(decommission="locks" if state.locked and rules.waits_for_locks else "scan 0")
    elif step == "locks":
        if not state.locked:
            yield state._replace(decommission="scan 0")
    elif step.startswith("scan"):
        yield from _scan(state, int(step.removeprefix("scan ")), rules)
    elif step == "end":
        yield state._replace(gone=True, decommission="over")


def _scan(state: State, ledger: int, rules: Rules) -> Iterator[State]:
    """Read one ledger after the other."""
    need = reference_of(_metadata(state, ledger), "d") if rules.scans else BookieReference.NONE
    if need is BookieReference.UNSETTLED:
        if rules.settles_recoveries:  # closed here, before the other recovery could
            state = state._replace(closed=True)
        need = BookieReference.NONE
    named = len(state.found) + (need is BookieReference.NAMED)
    found = (*state.found, ledger) if need is BookieReference.NAMED else state.found
    if ledger < WRITTEN:
        yield state._replace(found=found, decommission=f"scan {ledger + 1}")
    else:
        clear = Scan(named, 0, 0).clear
        yield state._replace(found=found, decommission="end" if clear else "over")


def _metadata(state: State, ledger: int) -> LedgerMetadata:
    ledger_state = LedgerState.OPEN if ledger == WRITTEN else LedgerState.CLOSED
    if ledger == RECOVERED and not state.closed:
        ledger_state = LedgerState.IN_RECOVERY
    closed = ledger_state is LedgerState.CLOSED
    return LedgerMetadata(
        ledger_id=ledger,
        state=ledger_state,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        digest="crc32c",
        ledger_key=bytes(32),
        fragments=(Fragment(0, ("d" if ledger in state.named else "a",)),),
        last_entry=0 if closed else -1,
        length=1 if closed else 0,
        owner_token="t",
    )
