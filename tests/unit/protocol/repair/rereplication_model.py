"""One ledger of one entry, and everybody who may have to do with its copies, one atomic step at a time.

Workers do what `replication/worker/{ledger_repair,worker}.py` do, and ask `protocol/repair/rereplication.py`. Beside
them are, in every order of their steps: the ledger's writer, which still reaches the bookie that everybody else takes
for lost; a recovery; somebody who deletes the ledger; a second loss; a bookie that collects its spare copy; sessions
end between any two steps, which loses the locks that they held. Bookies may be marked for what they lack alone, and
lack it once more. A state is a tuple, so that all can be visited.

`Rules` are the safeguards; each of them can be switched off.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from bkpy.protocol.ledger.close_conflict import rebased
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.ledger.recovery import EntryStatus, entry_status
from bkpy.protocol.repair.rereplication import (
    AFTER_SWAP,
    Bookies,
    Copy,
    NextStep,
    RepairedInPlace,
    RepairStep,
    Swap,
    next_step,
    plan,
    swapped,
)

BOOKIES = "abcde"
LATE = "a"  # taken for lost, though the writer reaches it
TARGET = "d"


class Rules(NamedTuple):
    """What the workers keep to."""

    waits_for_the_writer: bool = True  # rule 25
    keeps_newer_marks: bool = True  # rule 26
    copies_before_the_swap: bool = True  # rule 27
    leaves_last_fragments: bool = True  # rule 33
    checks_its_lock: bool = True  # rule 35
    checks_the_version: bool = True
    takes_the_lock: bool = True
    copies_in_place: bool = True  # before a bookie that lacks something is taken off the mark


class Worker(NamedTuple):
    at: str = "start"
    mark_version: int = -1
    left: frozenset[str] = frozenset()
    copy: Copy | None = None
    metadata: LedgerMetadata | None = None
    version: int = -1
    repaired_in_place: frozenset[RepairedInPlace] = frozenset()
    runs: int = 2


class Recovery(NamedTuple):
    at: str = "idle"
    metadata: LedgerMetadata | None = None
    version: int = -1
    has: frozenset[str] = frozenset()
    denies: frozenset[str] = frozenset()


class State(NamedTuple):
    """All there is."""

    metadata: LedgerMetadata | None  # None: deleted
    version: int = 0
    stored: frozenset[str] = frozenset()  # the bookies that have the entry
    fenced: frozenset[str] = frozenset()
    acknowledged: bool = False
    # The mark, and all who were ever marked.
    mark: frozenset[str] = frozenset()
    mark_version: int = 0
    marked: frozenset[str] = frozenset()
    incomplete: frozenset[str] = frozenset()  # of these, those that are here
    lock: str = ""
    # Those who act.
    one: Worker | None = None
    two: Worker | None = None
    recovery: Recovery | None = None
    writer: bool = False
    deleter: bool = False
    second_loss: bool = False  # still to come, of b
    relapse: bool = False  # still to come: a lacks the entry once more, and a check finds it
    collector: str = "end"
    grace_over: bool = False
    losses: int = 0  # of locks, still to come
    denied: str = ""  # what was broken


Moves = Iterator[State]


def ledger(*ensembles: str, last_entry: int | None = None, first: int = 1) -> LedgerMetadata:
    """Entry 0 is in the first fragment; CLOSED if it has a last entry."""
    closed = last_entry is not None
    return LedgerMetadata(
        ledger_id=1,
        state=LedgerState.CLOSED if closed else LedgerState.OPEN,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        digest="crc32c",
        ledger_key=bytes(32),
        fragments=tuple(Fragment(first * number, tuple(names)) for number, names in enumerate(ensembles)),
        last_entry=-1 if last_entry is None else last_entry,
        length=0 if last_entry is None else last_entry + 1,
    )


def moves(state: State, rules: Rules) -> Moves:
    """Every step that somebody may take now."""
    for actor in (_workers, _recovery, _writer, _others):
        for after in actor(state, rules):
            yield _judged(after)


def _judged(s: State) -> State:
    if s.metadata is None or s.denied:
        return s
    named = {name for fragment in s.metadata.fragments for name in fragment.bookies}
    whole = s.incomplete & (s.stored | (named - set(s.metadata.fragments[0].bookies)))  # the only one with an entry
    if lost := (s.marked & named) - s.mark - whole:
        return s._replace(denied=f"a mark is lost: of {', '.join(sorted(lost))}")
    closed = s.metadata.state is LedgerState.CLOSED
    if closed and s.acknowledged and s.metadata.last_entry < 0:
        return s._replace(denied="the ledger was cut short")
    settled = closed or len(s.metadata.fragments) > 1  # then entry 0 has its place
    holders = s.stored & set(s.metadata.fragments[0].bookies)
    if settled and (not closed or s.metadata.last_entry >= 0) and len(holders) < 2:
        return s._replace(denied="a copy was replaced by a worse one")
    return s


def _readable(s: State) -> frozenset[str]:
    return frozenset(BOOKIES) - (s.marked - s.incomplete)


# --- the workers ------------------------------------------------------------------------------------------------------


def _workers(s: State, rules: Rules) -> Moves:
    if s.one is not None:
        for after, worker in _worker(s, s.one, "one", rules):
            yield after._replace(one=worker)
    if s.two is not None:
        for after, worker in _worker(s, s.two, "two", rules):
            yield after._replace(two=worker)


def _worker(s: State, w: Worker, name: str, rules: Rules) -> Iterator[tuple[State, Worker]]:
    match w.at:
        case "start":
            if s.mark and w.runs and not (s.lock and rules.takes_the_lock):
                lock = name if rules.takes_the_lock else s.lock
                yield s._replace(lock=lock), w._replace(at="look", runs=w.runs - 1, repaired_in_place=frozenset())
        case "look":
            yield _look(s, w, rules)
        case "copy":
            assert w.copy is not None
            assert w.metadata is not None
            members = set(w.metadata.fragments[w.copy.fragment].bookies)
            if not rules.copies_before_the_swap or not w.copy.share.starts or _knows_nothing(w, rules):
                yield s, _repaired_in_place(w) if w.copy.in_place else w._replace(at="swap")
            elif w.copy.in_place:
                has = s.stored & members & _readable(s)
                stored = s.stored | ({w.copy.old} if has and rules.copies_in_place else set())
                yield s._replace(stored=stored), _repaired_in_place(w) if has else w._replace(at="release")
            elif s.stored & members & _readable(s):
                yield s._replace(stored=s.stored | {TARGET}), w._replace(at="swap")
            else:
                yield s, w._replace(at="release")
        case "swap":
            yield _swap(s, w, name, rules)
        case "unmark":
            if w.mark_version == s.mark_version or not rules.keeps_newer_marks:
                left = w.left if rules.keeps_newer_marks else s.mark
                s = s._replace(mark=s.mark - left, mark_version=s.mark_version + 1)
            yield s, w._replace(at="release")
        case "recovering":
            if s.recovery is None or s.recovery.at == "end":
                yield s, w._replace(at="look again")
        case "look again":  # the mark is that which was read at first
            again, after = _look(s, w, rules)
            yield again, after._replace(mark_version=w.mark_version)
        case "release":
            yield s._replace(lock="" if s.lock == name else s.lock), w._replace(at="start")


def _repaired_in_place(w: Worker) -> Worker:
    assert w.copy is not None
    return w._replace(at="look again", repaired_in_place=w.repaired_in_place | {w.copy.repaired_in_place})


def _knows_nothing(w: Worker, rules: Rules) -> bool:
    """A copy of a last fragment: what was acknowledged in it, a worker that doesn't leave it alone can't know."""
    return not rules.leaves_last_fragments and w.metadata is not None and w.metadata.state is not LedgerState.CLOSED


def _look(s: State, w: Worker, rules: Rules) -> tuple[State, Worker]:
    if s.metadata is None:
        return s, w._replace(at="unmark", left=s.mark, mark_version=s.mark_version)
    metadata = s.metadata
    if not rules.leaves_last_fragments and metadata.state is not LedgerState.CLOSED:
        metadata = metadata.closed(metadata.fragments[-1].first_entry, 1)  # as if nothing more could come
    writable = (_readable(s) - {"e"}) if TARGET in _readable(s) else _readable(s)
    bookies = Bookies(_readable(s), writable)
    planned = plan(metadata, s.mark, bookies, incomplete=s.mark & s.incomplete, repaired_in_place=w.repaired_in_place)
    waiting = {one.old for one in planned.copies} | {one.old for one in planned.stuck} | set(planned.unclosed)
    w = w._replace(mark_version=s.mark_version, left=s.mark - waiting, metadata=s.metadata, version=s.version)
    grace_over = s.grace_over or not rules.waits_for_the_writer
    match next_step(planned, grace_over=grace_over):
        case RepairStep.COPY:
            copy = planned.copies[0]
            there = copy.old == TARGET or TARGET in metadata.fragments[copy.fragment].bookies
            if there and not copy.in_place:
                return s, w._replace(at="release")  # there is but one target in this world
            return s, w._replace(at="copy", copy=copy)
        case RepairStep.RECOVER:
            if not s.grace_over and s.metadata.state is LedgerState.OPEN:
                s = s._replace(denied="a writer was ended that still had time")
            return s._replace(recovery=s.recovery or Recovery("mark")), w._replace(at="recovering")
        case RepairStep.DONE:
            return s, w._replace(at="unmark")
        case _:
            return s, w._replace(at="unmark" if w.left else "release")


def _swap(s: State, w: Worker, name: str, rules: Rules) -> tuple[State, Worker]:
    assert w.copy is not None
    metadata = w.metadata if rules.checks_the_version else s.metadata
    new = None if metadata is None else _swapped(metadata, w.copy, rules)
    if new is None:
        return s, w._replace(at="look again")
    if rules.checks_its_lock and rules.takes_the_lock and s.lock != name:
        result = Swap.LOCK_LOST
    elif s.metadata is None:
        result = Swap.DELETED
    elif s.version != w.version and rules.checks_the_version:
        result = Swap.CONFLICT
    else:
        result = Swap.DONE
        s = s._replace(metadata=new, version=s.version + 1)
    if result is Swap.CONFLICT:  # what was copied may fit what is there now
        fresh = w._replace(metadata=s.metadata, version=s.version)
        return s, fresh if s.metadata and _swapped(s.metadata, w.copy, rules) else w._replace(at="look again")
    return s, w._replace(at="look again" if AFTER_SWAP[result] is NextStep.LOOK else "release")


def _swapped(metadata: LedgerMetadata, copy: Copy, rules: Rules) -> LedgerMetadata | None:
    if rules.leaves_last_fragments:
        return swapped(metadata, copy, TARGET)
    fragment = metadata.fragments[copy.fragment]
    if copy.old not in fragment.bookies or TARGET in fragment.bookies:
        return None
    names = tuple(TARGET if name == copy.old else name for name in fragment.bookies)
    fragments = list(metadata.fragments)
    fragments[copy.fragment] = Fragment(fragment.first_entry, names)
    return dataclasses.replace(metadata, fragments=tuple(fragments))


# --- the others -------------------------------------------------------------------------------------------------------


def _recovery(s: State, rules: Rules) -> Moves:
    r = s.recovery
    if r is None or r.at in ("idle", "end"):
        return
    if s.metadata is None:
        yield s._replace(recovery=r._replace(at="end"))
    elif r.at == "mark":
        if s.metadata.state is LedgerState.CLOSED:
            yield s._replace(recovery=r._replace(at="end"))
        else:
            marked = s.metadata.in_recovery()
            s = s._replace(metadata=marked, version=s.version + 1)
            if len(marked.fragments) > 1:  # nothing was written behind entry 0
                yield s._replace(recovery=r._replace(at="close empty", metadata=marked, version=s.version))
            else:
                yield s._replace(recovery=r._replace(at="ask", metadata=marked, version=s.version))
    elif r.at == "ask":
        assert r.metadata is not None
        members = r.metadata.fragments[-1].bookies
        for name in members:
            if name in r.has | r.denies or name in s.marked:
                continue  # it has answered, or never does
            has = r.has | ({name} & s.stored)
            denies = r.denies | ({name} - s.stored)
            asked = s._replace(fenced=s.fenced | {name})
            verdict = entry_status(len(has), len(denies), 0, 3, 2)
            at = {EntryStatus.PRESENT: "write back", EntryStatus.MISSING: "close empty"}.get(verdict, "ask")
            yield asked._replace(recovery=r._replace(at=at, has=has, denies=denies))
    elif r.at == "write back":
        assert r.metadata is not None
        members = frozenset(r.metadata.fragments[-1].bookies) - s.marked
        if len(members) >= 2:
            yield s._replace(stored=s.stored | members, recovery=r._replace(at="close"))
    else:
        assert r.metadata is not None
        if s.metadata.state is LedgerState.CLOSED:
            yield s._replace(recovery=r._replace(at="end"))
            return
        ours = rebased(s.metadata, r.metadata, r.metadata)
        last = 0 if r.at == "close" or len(ours.fragments) > 1 else -1
        closed = ours.closed(last, last + 1)
        yield s._replace(metadata=closed, version=s.version + 1, recovery=r._replace(at="end"))


def _writer(s: State, _: Rules) -> Moves:
    """Appends the entry to its ensemble, which it knows from the time when it was alone, and closes."""
    if not s.writer or s.metadata is None:
        return
    for name in "abc":
        if name not in s.stored | s.fenced:
            stored = s.stored | {name}
            yield s._replace(stored=stored, acknowledged=s.acknowledged or len(stored & set("abc")) >= 2)
    if s.metadata.state is LedgerState.OPEN and len(s.metadata.fragments) == 1 and s.acknowledged:
        yield s._replace(metadata=s.metadata.closed(0, 1), version=s.version + 1, writer=False)


def _others(s: State, _: Rules) -> Moves:
    if s.deleter:
        yield s._replace(metadata=None, deleter=False)
    if s.second_loss:
        yield s._replace(
            second_loss=False, mark=s.mark | {"b"}, marked=s.marked | {"b"}, mark_version=s.mark_version + 1
        )
    if s.relapse and "a" in s.incomplete:
        mark, version = s.mark | {"a"}, s.mark_version + 1
        yield s._replace(relapse=False, stored=s.stored - {"a"}, mark=mark, mark_version=version)
    if s.lock and s.losses:
        yield s._replace(lock="", losses=s.losses - 1)
    if not s.grace_over:
        yield s._replace(grace_over=True)
    yield from _collector(s)


def _collector(s: State) -> Moves:
    """On the target: what it has there is spare until it is named. The rest: `garbage_collection_model.py`."""
    if s.collector == "start" and not s.lock:
        yield s._replace(collector="delete", lock="collector")
    elif s.collector == "delete":
        named = s.metadata is not None and any(TARGET in fragment.bookies for fragment in s.metadata.fragments)
        if s.lock == "collector" and not named and s.metadata is not None and s.metadata.state is LedgerState.CLOSED:
            s = s._replace(stored=s.stored - {TARGET})
        yield s._replace(collector="release")
    elif s.collector == "release":
        yield s._replace(collector="end", lock="" if s.lock == "collector" else s.lock)


# --- all of it --------------------------------------------------------------------------------------------------------


def explore(start: State, rules: Rules) -> tuple[set[State], set[str]]:
    """Every state that can be reached without breaking anything, and all that can be broken."""
    seen = {start}
    waiting = [start]
    broken = set()
    while waiting:
        state = waiting.pop()
        for after in moves(state, rules):
            if after.denied:
                broken.add(after.denied)
            elif after not in seen:
                seen.add(after)
                waiting.append(after)
    return seen, broken
