"""A bookie that is to leave its cluster: what it still does, who goes away from it, and when nothing needs it any more.

    TAKES --drain--> LEAVES: refuses every entry, answers all else --decommission--> GONE
      ^------cancel-----'

A draining bookie still serves the workers that copy its entries. It may go when no ledger names it, and none can come
to name it again. An ensemble that names it may not be in the metadata yet:

    a recovery has written entries back to it, and names it when it closes the ledger
    somebody has copied a share to it, under a ledger's lock, and swaps it in
    a client whose list of bookies is old has chosen it: but nothing will be stored on it

So a *scan* that finds no such ledger counts only if these came before it, in this order: the bookie has stored in the
metadata that it refuses all entries; the locks that were held then were released. And it counts only once every ledger
that it found IN_RECOVERY is closed.

Invariants: `OBJECTIONS` and `tenure` are total; a bookie that may be named with an entry that it has is never
decommissioned; a record that names a lost bookie is never void.
"""

from __future__ import annotations

import enum
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.protocol.ledger.ledger_metadata import LedgerState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata


class Tenure(enum.Enum):
    """What a bookie is in its cluster."""

    TAKES = "takes entries"
    LEAVES = "leaves, and takes none"
    GONE = "was decommissioned, and takes none"


def tenure(*, draining: bool, known: bool) -> Tenure:
    """By what the metadata say: whether it is draining, and whether it has a cookie."""
    if draining:
        return Tenure.LEAVES
    return Tenure.TAKES if known else Tenure.GONE


def takes_entries(*, leaves: bool, read_only: bool, recovery: bool) -> bool:
    """Whether a bookie stores an entry; `recovery`: that a recovery, or somebody who copies, writes back."""
    return not leaves and (recovery or not read_only)


# --- writers ----------------------------------------------------------------------------------------------------------


def to_leave(
    ensemble: Sequence[str],
    draining: Collection[str],
    absent_since: Mapping[str, float],
    now: float,
    after_s: float,
    never_came: Collection[str] = (),
) -> tuple[str, ...]:
    """The bookies that a writer is to put others in the place of, whether it appends or not.

    A bookie that is absent for a moment may be restarting: it is lost to writers `after_s` later. One that `never_came`
    since the ledger was created has nothing: any other is better.
    """
    return tuple(
        bookie_id
        for bookie_id in ensemble
        if bookie_id in draining
        or (bookie_id in absent_since and (bookie_id in never_came or now - absent_since[bookie_id] >= after_s))
    )


# --- under-replication records ----------------------------------------------------------------------------------------


def is_void(*, draining: bool, here: bool) -> bool:
    """Whether a record that names a draining bookie is void for it, as the bookie stays after all.

    A bookie that is away may never come back: the record may be the only one that says that it is lost.
    """
    return not draining and here


# --- decommissioning --------------------------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """A bookie to decommission. `refuses`: it refuses all entries. `lost`: by an operator, it never comes back."""

    known: bool
    draining: bool
    refuses: bool
    registered: bool
    lost: bool


class DecommissionRefusal(enum.Enum):
    """Why a bookie can't be decommissioned, before any ledger is looked at."""

    UNKNOWN = "the cluster knows no such bookie"
    RUNS = "the bookie is registered, so it isn't lost: drain it"
    ANSWERS = (
        "the bookie answers at its address, though it isn't registered: it runs, cut off from the metadata store, and "
        "isn't lost. Restore that connection and drain it, or stop it first"
    )
    NOT_DRAINING = "the bookie isn't draining, and may take entries at any time: drain it first"
    AWAY = (
        "the bookie isn't draining, and doesn't run: start it and drain it first, or give --lost if it never comes "
        "back with what it had"
    )
    NOT_REFUSING = "the bookie isn't known to refuse entries yet: start it, or give --lost if it never comes back"


def _objection(bookie: Candidate) -> DecommissionRefusal | None:
    if not bookie.known:
        return DecommissionRefusal.UNKNOWN
    if bookie.lost:
        return DecommissionRefusal.RUNS if bookie.registered else None
    if not bookie.draining:
        return DecommissionRefusal.NOT_DRAINING if bookie.registered else DecommissionRefusal.AWAY
    return None if bookie.refuses else DecommissionRefusal.NOT_REFUSING


OBJECTIONS: Final[Mapping[Candidate, DecommissionRefusal | None]] = {
    bookie: _objection(bookie) for bookie in (Candidate(*flags) for flags in product((False, True), repeat=5))
}


class BookieReference(enum.Enum):
    """Whether a ledger may need a bookie, now or later."""

    NONE = enum.auto()
    NAMED = enum.auto()
    UNSETTLED = enum.auto()  # its recovery may still name it: it is to be closed first, and then looked at again


def reference_of(metadata: LedgerMetadata, bookie_id: str) -> BookieReference:
    """By the ledger's metadata, which were read after the bookie took its last entry."""
    if bookie_id in metadata.needed_bookies:
        return BookieReference.NAMED
    return BookieReference.UNSETTLED if metadata.state is LedgerState.IN_RECOVERY else BookieReference.NONE


class Scan(NamedTuple):
    """How many ledgers, of all that there are, may need the bookie. `unreadable`: nobody can tell."""

    named: int
    unsettled: int
    unreadable: int

    @property
    def clear(self) -> bool:
        """Whether the bookie can go."""
        return not any(self)
