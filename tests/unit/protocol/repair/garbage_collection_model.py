"""One ledger, one bookie, and everybody who may have to do with the copy there, one atomic step at a time.

The collector does what `bookie/collector.py` does, and asks `protocol/repair/garbage_collection.py`. Beside it are, in
any order of their steps: a client that creates the ledger and writes it, a writer or a recovery whose next ensemble is
in its memory only, a re-replication worker that copies entries here, somebody who deletes the ledger; sessions end
between any two steps, which loses the locks that they held. A state is a tuple, so that all of them can be visited.

`Rules` are the safeguards; each of them can be switched off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bkpy.protocol.repair.garbage_collection import Action, ProbeState, Step, decide


class Rules(NamedTuple):
    """What the collector keeps to."""

    local_list_first: bool = True
    reads_again: bool = True  # S10
    only_when_closed: bool = True  # S11
    takes_the_lock: bool = True  # S11
    looks_behind_the_hiding: bool = True  # the second look
    spares_what_came_after: bool = True  # the same: what is stored after the hiding survives
    stays_fenced: bool = True  # S12


class State(NamedTuple):
    """All there is. Of actors, `..._at` is the number of their next step."""

    # The metadata of the ledger.
    exists: bool = True
    closed: bool = False
    named: bool = False  # some ensemble names the bookie
    version: int = 0
    lock: str = ""  # who has it
    # The bookie.
    stored: bool = False  # before the hiding, or when nothing is hidden
    added: bool = False  # since the hiding
    hidden: bool = False
    fenced: bool = False
    # The collector.
    collector_at: str = "start"
    held: bool = False
    listed: bool = False
    seen_version: int = -1
    # The others.
    creator_at: int = -1
    closer_at: int = -1  # a writer or a recovery
    worker_at: int = -1
    worker_version: int = -1
    worker_skips: bool = False
    deleter_at: int = -1
    zombie_at: int = -1
    losses: int = 1  # of locks, still to come
    lagging: bool = False  # a listing may be an old one
    denied: str = ""  # what was broken

    @property
    def sight(self) -> ProbeState:
        if not self.exists:
            return ProbeState.NO_LEDGER
        if self.named:
            return ProbeState.NAMED
        return ProbeState.OVER_REPLICATED if self.closed else ProbeState.NOT_CLOSED


Moves = Iterator[State]


def moves(state: State, rules: Rules) -> Moves:
    """Every step that somebody may take now."""
    for actor in (_collector, _creator, _closer, _worker, _deleter, _zombie, _losses):
        for after in actor(state, rules):
            yield _judged(after)


def _judged(state: State) -> State:
    # Whoever is sent here by the metadata must find what was acknowledged: hidden it is unknown, which denies nothing.
    relied_on = state.exists and state.named and state.closer_at in (-1, 2) and state.creator_at in (-1, 2)
    if relied_on and not (state.stored or state.added):
        return state._replace(denied="an ensemble names the bookie, and it denies what it acknowledged")
    return state


# --- the collector ----------------------------------------------------------------------------------------------------


def _collector(s: State, rules: Rules) -> Moves:
    match s.collector_at:
        case "start":
            yield s._replace(collector_at="local" if rules.local_list_first else "listing")
        case "local":
            s = s._replace(held=s.stored or s.added)
            yield s._replace(collector_at="listing" if rules.local_list_first else "compare")
        case "listing":
            after = "compare" if rules.local_list_first else "local"
            yield s._replace(listed=s.exists, collector_at=after)
            if s.lagging:
                yield s._replace(listed=False, collector_at=after)
        case "compare":
            if not s.held:
                yield s._replace(collector_at="end")
            elif not s.listed:
                yield s._replace(collector_at="look" if rules.reads_again else "delete gone")
            else:
                yield s._replace(collector_at="is it spare")
        case "look":
            action = decide(Step.UNLISTED, s.sight, own_lock=False, unchanged=False)
            yield s._replace(collector_at="delete gone" if action is Action.DELETE else "end")
        case "delete gone":
            yield _deleted(s._replace(hidden=True), rules)
        case "is it spare":
            spare = _sight(s, rules) is ProbeState.OVER_REPLICATED
            yield s._replace(collector_at="lock" if spare else "end")
        case "lock":
            if not rules.takes_the_lock:
                yield s._replace(collector_at="look locked")
            elif not s.lock:
                yield s._replace(collector_at="look locked", lock="collector")
            else:
                yield s._replace(collector_at="end")
        case "look locked":
            action = decide(Step.LOCKED, _sight(s, rules), own_lock=_own_lock(s, rules), unchanged=True)
            s = s._replace(seen_version=s.version)
            yield s._replace(collector_at="hide" if action is Action.HIDE else "release")
        case "hide":
            there = s.stored or s.added
            yield s._replace(
                stored=there, added=False, hidden=there, collector_at="look hidden" if there else "release"
            )
        case "look hidden":
            action = decide(
                Step.HIDDEN, _sight(s, rules), own_lock=_own_lock(s, rules), unchanged=s.seen_version == s.version
            )
            if not rules.looks_behind_the_hiding:
                action = Action.DELETE
            yield s._replace(collector_at="delete spare" if action is Action.DELETE else "unhide")
        case "delete spare":
            yield _deleted(s, rules)._replace(collector_at="release")
        case "unhide":
            yield s._replace(hidden=False, stored=True, added=False, collector_at="release")
        case "release":
            yield s._replace(lock="" if s.lock == "collector" else s.lock, collector_at="end")


def _sight(s: State, rules: Rules) -> ProbeState:
    return ProbeState.OVER_REPLICATED if s.sight is ProbeState.NOT_CLOSED and not rules.only_when_closed else s.sight


def _own_lock(s: State, rules: Rules) -> bool:
    return s.lock == "collector" or not rules.takes_the_lock


def _deleted(s: State, rules: Rules) -> State:
    if s.added and rules.spares_what_came_after:  # then it is not deleted at all
        return s._replace(hidden=False, stored=True, added=False, fenced=True, collector_at="end")
    return s._replace(stored=False, added=False, hidden=False, fenced=rules.stays_fenced, collector_at="end")


# --- the others -------------------------------------------------------------------------------------------------------


def _stored(s: State) -> State:
    return s._replace(added=True) if s.hidden else s._replace(stored=True)


def _creator(s: State, _: Rules) -> Moves:
    """The ledger is created with this bookie in its ensemble, and then written."""
    if s.creator_at == 0:
        yield s._replace(exists=True, named=True, creator_at=1)
    elif s.creator_at == 1 and not s.fenced:
        yield _stored(s)._replace(creator_at=2)
    elif s.creator_at == 1:
        yield s._replace(denied="a bookie has fenced a ledger that nobody deleted", creator_at=2)


def _closer(s: State, _: Rules) -> Moves:
    """An ensemble in memory names the bookie: it stores entries, and then the one write names it, and closes."""
    if s.closer_at == 0:
        yield _stored(s)._replace(closer_at=1)
    elif s.closer_at == 1:
        if s.exists:
            s = s._replace(named=True, closed=True, version=s.version + 1)
        yield s._replace(closer_at=2)


def _worker(s: State, _: Rules) -> Moves:
    """Looks, takes the lock, looks again, copies what the bookie doesn't say that it has, and swaps it in."""
    match s.worker_at:
        case 0:
            if not s.lock:
                yield s._replace(lock="worker", worker_at=1)
        case 1:
            wanted = s.exists and s.closed and not s.named
            yield s._replace(worker_version=s.version, worker_at=2 if wanted else 5)
        case 2:  # it asks first: what is hidden is unknown
            yield s._replace(worker_skips=(s.stored and not s.hidden) or s.added, worker_at=3)
        case 3:
            yield s._replace(worker_at=4) if s.worker_skips else _stored(s)._replace(worker_at=4)
        case 4:  # one multi: its own lock, and the version
            if s.lock == "worker" and s.exists and s.version == s.worker_version:
                s = s._replace(named=True, version=s.version + 1)
            yield s._replace(worker_at=5)
        case 5:
            yield s._replace(lock="" if s.lock == "worker" else s.lock, worker_at=6)


def _deleter(s: State, _: Rules) -> Moves:
    if s.deleter_at == 0:
        yield s._replace(exists=False, deleter_at=1)


def _zombie(s: State, _: Rules) -> Moves:
    """A writer that was cut off for long goes on, when the ledger is gone and was collected."""
    if s.zombie_at == 0 and s.collector_at == "end" and not s.exists and s.held:
        if not s.fenced and not s.stored:
            s = s._replace(denied="a writer of a collected ledger was let in")
        yield s._replace(zombie_at=1)


def _losses(s: State, _: Rules) -> Moves:
    """A session ends, and whoever had the lock doesn't know yet."""
    if s.lock and s.losses:
        yield s._replace(lock="", losses=s.losses - 1)


# --- all of it --------------------------------------------------------------------------------------------------------


def explore(start: State, rules: Rules) -> tuple[set[State], str]:
    """Every state that can be reached, and what was broken in the first of them in which something was."""
    seen = {start}
    waiting = [start]
    while waiting:
        state = waiting.pop()
        for after in moves(state, rules):
            if after.denied:
                return seen, after.denied
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return seen, ""
