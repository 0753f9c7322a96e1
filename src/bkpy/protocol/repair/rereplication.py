"""The repair of a ledger with lost or draining bookies: which copies are made, in what order.

    look, under the ledger's lock ----> COPY one fragment's share --> swap --> look again ...
                                  |        '-- in place, where nothing else can be done --> look again
                                  |---> KEEP_WRITER: the bookies that an open ledger's writer lost are back
                                  |---> WAIT, and after the grace period RECOVER --> look again
                                  |---> STUCK, until some bookie comes back: `Stuck` names it
                                  '---> DONE: nothing names those bookies any more

A *copy* is the share of one bookie of one fragment: exactly the entries whose write set has it. The new bookie takes
the old one's place when it has all of the share, and not before. The last fragment of a ledger that isn't CLOSED has no
such share: nobody can say what belongs to it, so no copy of it is ever made.

A bookie that is here and merely *misses* entries keeps its place if no other bookie can take it: its whole share is
copied to it, and it is *repaired in place*. It was in the write sets of these entries all the time, so no ensemble
changes. It is repaired in the ledger when it is repaired in all fragments that name it.

Invariants: no bookie takes a place in an ensemble that names it already, or that isn't writable; a copy in place goes
only to a bookie that is here, with what it had; an entry that no readable bookie of its write set may have makes its
copy impossible, never shorter; `copy_method`, `next_step`, `record_update` and `AFTER_SWAP` are total.
"""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.ledger.quorum import write_set
from bkpy.protocol.repair.holdings import holdings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.holdings import Holdings, Share


_NO_ENTRIES: Final[Mapping[str, int]] = MappingProxyType({})


class Bookies(NamedTuple):
    """The bookies of the cluster, by what clients may do with them. A draining bookie may still be readable.

    Bookies `in_limbo` are registered, and have lost data.
    """

    readable: frozenset[str]
    writable: frozenset[str]
    in_limbo: frozenset[str] = frozenset()


class RepairedInPlace(NamedTuple):
    """A bookie that all of its share of a fragment was copied to in place. `first` and `last` are the fragment's."""

    fragment: int
    place: int
    bookie_id: str
    first: int
    last: int


class Copy(NamedTuple):
    """A bookie's share of a fragment that another bookie is to get, and its place with it; or it itself, `in_place`.

    `left`: of the entry that has the fewest, how many copies are on readable bookies.
    """

    fragment: int
    place: int
    old: str
    first: int
    last: int  # of the fragment; below `first` if that is empty
    share: Share
    left: int
    in_place: bool = False

    @property
    def repaired_in_place(self) -> RepairedInPlace:
        """The result of a copy in place."""
        return RepairedInPlace(self.fragment, self.place, self.old, self.first, self.last)


class CopyBlocker(enum.StrEnum):
    """Why a copy can't be made now."""

    NO_SOURCE = "no bookie that has a copy can be reached"
    NO_TARGET = "no writable bookie is outside the ensemble"


class CopyMethod(enum.StrEnum):
    """How to repair a bookie's share of a fragment that has an end."""

    ELSEWHERE = "another bookie gets it, and the place"
    IN_PLACE = "the bookie itself gets it, and keeps its place"


def copy_method(*, sources: bool, others: bool, incomplete: bool, takes: bool) -> CopyMethod | CopyBlocker:
    """How to repair one place of an ensemble.

    `sources`: each of its entries is on a readable bookie, as far as the metadata tell. `others`: a writable bookie
    that isn't draining is outside the ensemble. `incomplete`: the bookie is here and merely misses entries; `takes`: it
    takes entries.

    A bookie that has missed entries, or has them damaged, may do so again: another one is better. A bookie that is
    away, draining, or in limbo, where it repairs itself, gets no copy.
    """
    if not sources:
        return CopyBlocker.NO_SOURCE
    if others:
        return CopyMethod.ELSEWHERE
    return CopyMethod.IN_PLACE if incomplete and takes else CopyBlocker.NO_TARGET


class Stuck(NamedTuple):
    """A copy that can't be made before one of `bookies` comes back (NO_SOURCE), or another one is there (NO_TARGET).

    The `entries` entries that are concerned are every `step`-th from `first` to `last`.
    """

    fragment: int
    place: int
    old: str
    blocker: CopyBlocker
    first: int
    last: int
    entries: int
    bookies: tuple[str, ...]
    step: int = 1

    @property
    def description(self) -> str:
        """What is in the way, for people."""
        which = f"entries {self.first} to {self.last}" if self.first < self.last else f"entry {self.first}"
        some = f"{self.entries} of " if 0 < self.entries <= self.last - self.first else ""
        if some and self.step > 1:
            which = f"{which}, one in {self.step}"
        if self.blocker is CopyBlocker.NO_TARGET:
            return f"{some}{which}, to be copied from {self.old}'s place: {self.blocker}"
        return f"{some}{which}: {self.blocker}; {' or '.join(self.bookies)} has to come back"


class Plan(NamedTuple):
    """The repair of a ledger. `unclosed`: leaving bookies of the last ensemble, if the ledger isn't CLOSED."""

    copies: tuple[Copy, ...] = ()  # the most urgent first
    stuck: tuple[Stuck, ...] = ()
    unclosed: tuple[str, ...] = ()

    @property
    def left(self) -> int | None:
        """The copies left of the entry that has the fewest; None if nothing is to be copied or recovered."""
        if self.stuck and any(stuck.blocker is CopyBlocker.NO_SOURCE for stuck in self.stuck):
            return 0
        return min((copy.left for copy in self.copies), default=None)


def plan(
    metadata: LedgerMetadata,
    leaving: Collection[str],
    bookies: Bookies,
    *,
    incomplete: Collection[str] = (),
    repaired_in_place: Collection[RepairedInPlace] = (),
    whole_from: Mapping[str, int] = _NO_ENTRIES,
) -> Plan:
    """How to get the bookies `leaving` out of the ledger's ensembles. They may be readable: then they are sources too.

    The `incomplete` ones are here and merely miss entries: they keep the places where they are `repaired_in_place`. So
    do those of `whole_from`, in the fragments that begin at that entry or behind it.
    """
    copies: list[Copy] = []
    stuck: list[Stuck] = []
    unclosed: tuple[str, ...] = ()
    for number, held in enumerate(holdings(metadata)):
        names = metadata.fragments[number].bookies
        first = held.first_entry
        leave = [i for i, name in enumerate(names) if name in leaving and first < whole_from.get(name, first + 1)]
        if held.last_entry is None:  # the last one of a ledger that isn't closed
            unclosed = tuple(names[index] for index in leave)
            if leave and _gains_nothing(metadata, names, unclosed, leaving, bookies):
                stuck += [Stuck(number, i, names[i], CopyBlocker.NO_TARGET, first, first, 0, ()) for i in leave]
                unclosed = ()
            continue
        if metadata.is_hole(number):
            continue
        for index in leave:
            if RepairedInPlace(number, index, names[index], held.first_entry, held.last_entry) in repaired_in_place:
                continue
            found = _copy(metadata, number, held, index, leaving, bookies, incomplete=names[index] in incomplete)
            if isinstance(found, Copy):
                copies.append(found)
            else:
                stuck.extend(found)
    return Plan(tuple(sorted(copies, key=urgency)), tuple(stuck), unclosed)


def _gains_nothing(
    metadata: LedgerMetadata,
    names: tuple[str, ...],
    unclosed: tuple[str, ...],
    leaving: Collection[str],
    bookies: Bookies,
) -> bool:
    """Whether closing the ledger would end its writer for nothing: no bookie could take the place of a leaving one.

    Its writer goes on without them: each write set has an ack quorum of bookies with what they had. This never holds
    for a recovery that has begun, which has ended the writer already; nor for a bookie in limbo, which may have lost
    what was acknowledged, and says so of this ledger until it is closed.
    """
    if metadata.state is not LedgerState.OPEN or bookies.writable - set(names) - set(leaving):
        return False
    if not bookies.in_limbo.isdisjoint(unclosed):
        return False
    sound = bookies.readable - bookies.in_limbo
    return all(
        sum(name in sound for name in _members(metadata, names, start)) >= metadata.ack_quorum
        for start in range(metadata.ensemble_size)
    )


def urgency(copy: Copy) -> tuple[int, int, int]:
    """The smaller the sooner: those with the fewest copies left, and of equals the oldest."""
    return copy.left, copy.fragment, copy.place


def _copy(
    metadata: LedgerMetadata,
    number: int,
    held: Holdings,
    index: int,
    leaving: Collection[str],
    bookies: Bookies,
    *,
    incomplete: bool,
) -> Copy | list[Stuck]:
    names = metadata.fragments[number].bookies
    share = held.shares[index]
    last = held.last_entry
    assert last is not None
    living = {start: _readable(metadata, names, start, bookies) for start in share.starts}
    gone = [start for start in share.starts if not living[start]]
    found = copy_method(
        sources=not gone,
        others=bool(bookies.writable - set(names) - set(leaving)),
        incomplete=incomplete,
        takes=names[index] in bookies.writable,
    )
    if found is CopyBlocker.NO_SOURCE:
        return [
            Stuck(
                number,
                index,
                names[index],
                CopyBlocker.NO_SOURCE,
                start,
                last - (last - start) % share.step,
                (last - start) // share.step + 1,
                tuple(sorted(_members(metadata, names, start))),
                share.step,
            )
            for start in gone
        ]
    if found is CopyBlocker.NO_TARGET:
        entries = share.entries or 0
        return [Stuck(number, index, names[index], CopyBlocker.NO_TARGET, held.first_entry, last, entries, ())]
    left = min((len(some) for some in living.values()), default=metadata.write_quorum)
    return Copy(number, index, names[index], held.first_entry, last, share, left, found is CopyMethod.IN_PLACE)


def _members(metadata: LedgerMetadata, names: tuple[str, ...], entry_id: int) -> list[str]:
    return [names[i] for i in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)]


def _readable(metadata: LedgerMetadata, names: tuple[str, ...], entry_id: int, bookies: Bookies) -> list[str]:
    return [name for name in _members(metadata, names, entry_id) if name in bookies.readable]


# --- how urgent a ledger is, for as long as it waits ------------------------------------------------------------------


def endangered(metadata: LedgerMetadata, leaving: Collection[str]) -> frozenset[tuple[str, ...]]:
    """The write sets that have one of `leaving`: all that `copies_left` needs of a ledger's metadata."""
    sets: set[tuple[str, ...]] = set()
    for number, held in enumerate(holdings(metadata)):
        names = metadata.fragments[number].bookies
        for index, name in enumerate(names):
            if name in leaving:
                starts: Iterable[int] = held.shares[index].starts
                sets.update(tuple(sorted(_members(metadata, names, start))) for start in starts)
    return frozenset(sets)


def copies_left(sets: Collection[tuple[str, ...]], readable: Collection[str]) -> int | None:
    """How many copies there are on readable bookies, of the write set that has the fewest; None for no write set."""
    return min((sum(name in readable for name in members) for members in sets), default=None)


def looks_first(ledger_id: int, place: int, workers: int, lookers: int) -> bool:
    """Whether the worker at `place` among so many is one of the `lookers` that look at the ledger before others.

    Each ledger has that many of them, if there are as many, and each worker about as many ledgers as others.
    """
    return (crc32(ledger_id.to_bytes(8)) - place) % workers < lookers


def backoff_s(failures: int, first_s: float, most_s: float) -> float:
    """The pause after a failure that `failures` others came before, each pause twice the one before. Total."""
    doublings = min(max(0, failures), 100)  # a float takes about a thousand
    return float(min(most_s, first_s * 2.0**doublings))


# --- what follows from a look -----------------------------------------------------------------------------------------


class RepairScope(NamedTuple):
    """The bookies that one repair takes out of a ledger's ensembles, and the conditions for each.

    `incomplete`, `unverified` and `absent` count only for bookies that are here when the repair looks.
    """

    leaving: frozenset[str]
    waited_for: frozenset[str] = frozenset()  # the writer of an open ledger had the time to replace them
    incomplete: frozenset[str] = frozenset()  # they keep their places if they get the entries that they miss
    unverified: frozenset[str] = frozenset()  # of the incomplete: they keep their places if they return their share
    absent: frozenset[str] = frozenset()  # they were; once they are back, no writer is ended because of them
    whole_from: Mapping[str, int] = _NO_ENTRIES  # they miss nothing in fragments that begin there, or behind


class RepairStep(enum.StrEnum):
    """What to do next with a ledger whose lock is held."""

    DONE = "done"  # no ensemble names those bookies, or the ledger is gone
    COPY = "copy"  # the most urgent copy, and swap
    KEEP_WRITER = "keep the writer"  # the bookies that it lost are back, and it may go on with them
    WAIT = "wait"  # its writer may put another bookie in the place of the lost one
    RECOVER = "recover"  # the writer had the time: fence it, and close the ledger
    STUCK = "stuck"  # nothing more can be done now


def next_step(
    plan: Plan | None, *, grace_over: bool, all_returned: bool = False, recovered: bool = False
) -> RepairStep:
    """The step that follows from a look at the ledger. `plan`: without copies that failed; None for a deleted ledger.

    `all_returned`: the writer of this open ledger can go on with all bookies that it would have to replace;
    `grace_over`: it had the time to replace the others; `recovered`: this repair has closed the ledger before.

    Copies that can be made come first, whatever else can't be done about the ledger. A ledger whose earlier fragments
    are stuck is recovered all the same: that needs no copy.
    """
    if plan is None:
        return RepairStep.DONE
    if plan.copies:
        return RepairStep.COPY
    if plan.unclosed:
        if all_returned:
            return RepairStep.KEEP_WRITER
        if not grace_over:
            return RepairStep.WAIT
        return RepairStep.STUCK if recovered else RepairStep.RECOVER
    return RepairStep.STUCK if plan.stuck else RepairStep.DONE


class RecordUpdate(enum.StrEnum):
    """What a repair does with the ledger's under-replication record before it releases the lock."""

    KEEP = "keep"
    DROP_BOOKIES = "drop the bookies that are repaired"
    REMOVE = "remove"  # together with the lock


def record_update(lost: Collection[str], leaving: frozenset[str], repaired: frozenset[str]) -> RecordUpdate:
    """By the bookies that the record names, those of the repair's scope, and those of these that are `repaired`.

    A damaged record names nobody, and stays until the whole scope is repaired.
    """
    if not lost:
        return RecordUpdate.REMOVE if repaired == leaving else RecordUpdate.KEEP
    if repaired.issuperset(lost):
        return RecordUpdate.REMOVE
    return RecordUpdate.DROP_BOOKIES if repaired else RecordUpdate.KEEP


class Swap(enum.Enum):
    """The result of the write that puts the new bookie into the ensemble."""

    DONE = "stored"
    CONFLICT = "somebody else has changed the metadata"
    DELETED = "the ledger is gone"
    LOCK_LOST = "the lock is not held any more"
    UNCERTAIN = "the metadata store could not say"


class NextStep(enum.StrEnum):
    """What follows from a swap."""

    LOOK = "look again"
    STOP = "stop: somebody else may be at work on the ledger"
    LATER = "try again later"


# A copy that was not swapped in is over-replicated: the bookie collects it, or a later swap names the bookie.
AFTER_SWAP: Final[Mapping[Swap, NextStep]] = {
    Swap.DONE: NextStep.LOOK,
    Swap.CONFLICT: NextStep.LOOK,
    Swap.DELETED: NextStep.LOOK,
    Swap.LOCK_LOST: NextStep.STOP,
    Swap.UNCERTAIN: NextStep.LATER,
}


def swapped(metadata: LedgerMetadata, copy: Copy, new: str) -> LedgerMetadata | None:
    """`metadata`, as they are now, with `new` in the place of the old bookie; None if that isn't there any more.

    For a copy that was made by earlier metadata: the fragment may have gone elsewhere meanwhile, or be another one.
    """
    if copy.fragment >= len(metadata.fragments):
        return None
    held = list(holdings(metadata))[copy.fragment]
    bookies = metadata.fragments[copy.fragment].bookies
    same = held.first_entry == copy.first and held.last_entry == copy.last
    if not same or bookies[copy.place] != copy.old or new in bookies:
        return None
    return metadata.replace_bookie(copy.fragment, copy.place, new)
