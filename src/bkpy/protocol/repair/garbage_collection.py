"""What a bookie may delete, and when: the decisions of garbage collection, as tables.

There are two reasons to delete a ledger from a bookie. It is *gone*: the metadata have no such ledger, which is for
good, since no id is given out twice. Or the copy is *over-replicated*: the ledger is CLOSED, and no ensemble of it
names this bookie. One look at the metadata is enough for the first. The second is true until a worker copies entries
here, so it takes the ledger's re-replication lock, and a second look behind the hiding of the copy. In a cluster of
BookKeeper's callers may choose the id of a deleted ledger again: there the first takes a second look, too.

    not listed --look--> DELETE
    listed, over-replicated --lock, look--> HIDE --look--> DELETE

Neither is true in a metadata store that was put back to an older state: ledgers that were created since are missing
there, and ensembles that have changed since name others. Such a store gives itself away as long as it would give out an
id that a ledger with entries here has. So the first look of a run is at the highest ledger, no run begins once one saw
that, and no run goes on in another session: sessions don't outlast the going back.

Invariants: nothing is deleted but by a look that was sure, in the cluster that the bookie belongs to; whatever a look
could not tell keeps the ledger; a bookie that an ensemble names, or that an ensemble in somebody's memory may name (the
ledger isn't CLOSED), keeps what it has.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from bkpy.protocol.ledger.ledger_metadata import LedgerState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata


class ProbeState(enum.StrEnum):
    """What a look at a ledger's metadata saw."""

    NO_LEDGER = "no such ledger"
    NAMED = "an ensemble names this bookie"
    OVER_REPLICATED = "closed, and no ensemble names this bookie"
    NOT_CLOSED = "not closed"  # and no ensemble names this bookie yet
    UNREADABLE = "the metadata are unreadable"
    NOT_MADE = "of a ledger that is still to be made"  # anybody may present a key for its id, or fence it
    UNSURE = "the metadata store was away"  # or the session has ended between two reads
    FOREIGN = "the metadata store is another cluster's"
    OLDER = "the metadata store is older than what this bookie has"


class Step(enum.StrEnum):
    """How far the collection of a ledger has come."""

    BEGUN = "begun"  # nothing was done yet; the ledger is the highest that is here
    UNLISTED = "unlisted"  # it is here, and a listing that began later doesn't have it
    LOCKED = "locked"  # it seemed to be over-replicated, and its re-replication lock was taken
    HIDDEN = "hidden"  # and then it was hidden


class Action(enum.StrEnum):
    """What to do next with the ledger."""

    DELETE = "delete"
    HIDE = "hide"
    KEEP = "keep"  # and unhide; go on with the others
    STOP = "stop"  # the same, and leave all the others for another time


# A ledger that was deleted while it was locked, or exists though it was not listed, is for the next run to look at.
DECISIONS: Mapping[Step, Mapping[ProbeState, Action]] = {
    Step.BEGUN: {
        ProbeState.NO_LEDGER: Action.KEEP,
        ProbeState.NAMED: Action.KEEP,
        ProbeState.OVER_REPLICATED: Action.KEEP,
        ProbeState.NOT_CLOSED: Action.KEEP,
        ProbeState.UNREADABLE: Action.KEEP,
        ProbeState.NOT_MADE: Action.KEEP,
        ProbeState.UNSURE: Action.STOP,
        ProbeState.FOREIGN: Action.STOP,
        ProbeState.OLDER: Action.STOP,
    },
    Step.UNLISTED: {
        ProbeState.NO_LEDGER: Action.DELETE,
        ProbeState.NAMED: Action.KEEP,
        ProbeState.OVER_REPLICATED: Action.KEEP,
        ProbeState.NOT_CLOSED: Action.KEEP,
        ProbeState.UNREADABLE: Action.KEEP,
        ProbeState.NOT_MADE: Action.KEEP,
        ProbeState.UNSURE: Action.STOP,
        ProbeState.FOREIGN: Action.STOP,
        ProbeState.OLDER: Action.STOP,
    },
    Step.LOCKED: {
        ProbeState.NO_LEDGER: Action.KEEP,
        ProbeState.NAMED: Action.KEEP,
        ProbeState.OVER_REPLICATED: Action.HIDE,
        ProbeState.NOT_CLOSED: Action.KEEP,
        ProbeState.UNREADABLE: Action.KEEP,
        ProbeState.NOT_MADE: Action.KEEP,
        ProbeState.UNSURE: Action.STOP,
        ProbeState.FOREIGN: Action.STOP,
        ProbeState.OLDER: Action.STOP,
    },
    Step.HIDDEN: {
        ProbeState.NO_LEDGER: Action.KEEP,
        ProbeState.NAMED: Action.KEEP,
        ProbeState.OVER_REPLICATED: Action.DELETE,
        ProbeState.NOT_CLOSED: Action.KEEP,
        ProbeState.UNREADABLE: Action.KEEP,
        ProbeState.NOT_MADE: Action.KEEP,
        ProbeState.UNSURE: Action.STOP,
        ProbeState.FOREIGN: Action.STOP,
        ProbeState.OLDER: Action.STOP,
    },
}


def decide(step: Step, sight: ProbeState, *, own_lock: bool, unchanged: bool) -> Action:
    """What follows from a look.

    `own_lock`: the lock was there, and ours, at this look. `unchanged`: the metadata are those of the look before.
    Neither counts for a ledger that is gone.
    """
    action = DECISIONS[step][sight]
    if action in (Action.KEEP, Action.STOP) or step is Step.UNLISTED:
        return action
    if not own_lock or (step is Step.HIDDEN and not unchanged):
        return Action.KEEP
    return action


def probe_state_of(metadata: LedgerMetadata | None, bookie_id: str) -> ProbeState:
    """The state of the bookie's copy, by the metadata that are certainly stored now (None: there are none)."""
    if metadata is None:
        return ProbeState.NO_LEDGER
    if any(bookie_id in fragment.bookies for fragment in metadata.fragments):
        return ProbeState.NAMED
    return ProbeState.OVER_REPLICATED if metadata.state is LedgerState.CLOSED else ProbeState.NOT_CLOSED


def probe_state_of_nothing(ledger_id: int, next_id: int, *, held: bool, empty: bool) -> ProbeState:
    """What it means that the metadata have no such ledger as is here, in a store that gives out `next_id` next.

    Ids come from there alone, ascending: one with entries was given out once, and a store that hasn't is an earlier
    one. An `empty` one proves nothing, for a stranger needs no more than a key of its own making to leave it here.
    So it may also be here before its ledger is made, while somebody has drawn the id (`held`); what is deleted then
    would stay fenced for good.
    """
    if ledger_id < next_id:
        return ProbeState.NOT_MADE if held else ProbeState.NO_LEDGER
    return ProbeState.NOT_MADE if empty else ProbeState.OLDER


def may_begin(*, older: bool) -> bool:
    """Whether a run may begin; `older`: one before has found the store to be older than what is here.

    In a while such a store will have given out the ids that are here a second time, and then it no longer shows. So
    it takes somebody who has looked into it, and starts the bookie again.
    """
    return not older


def may_collect_over_replicated(*, untrusted: bool) -> bool:
    """Whether a bookie may delete copies that nobody needs.

    A bookie that has lost data may not: others may have lost theirs for the same reason, and then its copy is the last.
    Ledgers that are gone are nobody's any more, so these go on any bookie: one that is full must get space again.
    """
    return not untrusted


def unlisted(held: Sequence[int], listed: Collection[int]) -> list[int]:
    """The ledgers that may be gone: those `held`, in their order, that a whole listing, begun later, doesn't have."""
    return [ledger_id for ledger_id in held if ledger_id not in listed]
