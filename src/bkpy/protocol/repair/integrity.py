"""What a bookie that has lost data does about each ledger, and when the ledger's limbo ends.

    look at the metadata --> WAIT for the writer to close it --> RECOVER, which closes the ledger --.
            ^          '--> COPY what is missing here --> flush --.                                 |
            '-----------------------------------------------------+---------------------------------'
            '--> END its limbo: under its lock, nothing is missing
            '--> LEAVE it: it isn't ours to judge, or nothing of it is in doubt

A ledger that isn't closed is recovered only to end its limbo, and only before the bookie takes entries again. A ledger
that comes to name the bookie later keeps its writer, and its limbo lasts until it is closed. Neither a check of the
bookie nor a damaged block ends a writer. Missing entries of fragments that have an end are copied in any case.

Limbo keeps a bookie from denying entries that it has lost. It ends for a ledger that is CLOSED, in which ensembles name
this bookie, and all of whose ids that name it are in the bookie's index. That has to be so while this bookie holds the
ledger's re-replication lock: a worker that copied entries here before the loss may be about to swap the bookie in.
Any other ledger stays in limbo: the metadata may name the bookie later for entries that it stored before.

Invariants: all functions are total; a ledger that isn't CLOSED never leaves limbo; one that was never seen is denied
only if it was created after the loss.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple, assert_never

from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.repair.holdings import holdings
from bkpy.protocol.repair.rereplication import Copy

if TYPE_CHECKING:
    from collections.abc import Collection

    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.holdings import Share


class MissingRange(NamedTuple):
    """Entries of a fragment that a bookie has to hold and doesn't; some between `first` and `last` may be there.

    `place`: the bookie's, in the fragment's ensemble.
    """

    fragment: int
    place: int
    first: int
    last: int


class Demand(enum.Enum):
    """What a ledger's metadata want of a bookie."""

    GONE = "there is no such ledger"
    NOTHING = "no ensemble names the bookie"
    OPEN = "it is open"
    IN_RECOVERY = "a recovery has begun and not ended"
    CLOSED = "it is closed"


def demand_of(metadata: LedgerMetadata | None, bookie_id: str) -> Demand:
    """What the metadata, None for a ledger that is gone, want of the bookie."""
    if metadata is None:
        return Demand.GONE
    if bookie_id not in metadata.needed_bookies:
        return Demand.NOTHING
    match metadata.state:
        case LedgerState.CLOSED:
            return Demand.CLOSED
        case LedgerState.IN_RECOVERY:
            return Demand.IN_RECOVERY
        case LedgerState.OPEN:
            return Demand.OPEN
        case _:
            assert_never(metadata.state)


class IntegrityAction(enum.Enum):
    """What to do next about a ledger."""

    LEAVE = "leave it as it is"
    WAIT = "its writer may close it by itself"
    RECOVER = "close it, which fences its writer"
    COPY = "copy what is missing here"
    END = "end its limbo, if that still holds under its lock"


def next_action(demand: Demand, *, to_end: bool, missing: bool, grace_over: bool) -> IntegrityAction:
    """By the metadata as they are now, and by the bookie's index.

    `to_end`: the ledger's limbo ends, though that ends its writer; `missing`: the index misses entries of fragments
    that have an end; `grace_over`: the writer had the time to close the ledger.
    """
    match demand:
        case Demand.GONE | Demand.NOTHING:
            return IntegrityAction.LEAVE
        case Demand.OPEN | Demand.IN_RECOVERY if not to_end:
            return IntegrityAction.COPY if missing else IntegrityAction.LEAVE
        case Demand.OPEN:
            return IntegrityAction.RECOVER if grace_over else IntegrityAction.WAIT
        case Demand.IN_RECOVERY:
            return IntegrityAction.RECOVER
        case Demand.CLOSED:
            return IntegrityAction.COPY if missing else IntegrityAction.END


class LimboEvidence(NamedTuple):
    """The state of a ledger whose limbo may end. `missing`: by the index on disk, so that all copies are flushed."""

    demand: Demand
    missing: bool
    locked: bool


def ends_limbo(verdict: LimboEvidence) -> bool:
    """Whether the ledger's limbo may end: from then on the bookie denies what it doesn't have of it."""
    return verdict.demand is Demand.CLOSED and not verdict.missing and verdict.locked


def denies_unseen(ledger_id: int, *, all_in_doubt: bool, limbo_to: int) -> bool:
    """Whether a bookie may deny a ledger that it has never seen: only if that was certainly created after the loss.

    `limbo_to`: an id that was given out after the loss, -1 if there was none; `all_in_doubt`: before that is so.
    """
    return not all_in_doubt and ledger_id > limbo_to


def copy_of(metadata: LedgerMetadata, missing: MissingRange, readable: Collection[str]) -> Copy:
    """The copy to the bookie itself of the missing entries."""
    held = list(holdings(metadata))[missing.fragment]
    names = metadata.fragments[missing.fragment].bookies
    share = held.shares[missing.place]
    others = sum(name in readable for name in names)
    return Copy(
        missing.fragment, missing.place, share.bookie_id, missing.first, missing.last, within(share, missing), others
    )


def within(share: Share, missing: MissingRange) -> Share:
    """The part of a share that is missing."""
    starts = tuple(
        sorted(
            start
            for start in (share.step * -(-(missing.first - one) // share.step) + one for one in share.starts)
            if start <= missing.last
        )
    )
    entries = sum((missing.last - start) // share.step + 1 for start in starts)
    return share._replace(starts=starts, entries=entries)
