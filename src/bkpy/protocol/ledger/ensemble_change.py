"""What a writer does about bookies that fail: pure tables from what is known to what must be done.

Invariants: the tables are total, one row for every case; nothing here makes an entry count that is not on the ack
quorum of the ensemble which the metadata name for it.
"""

from __future__ import annotations

import enum
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from bkpy.protocol.ledger.quorum import write_set

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


def ack_quorum_at_risk(failed: Collection[int], ensemble_size: int, write_quorum: int, ack_quorum: int) -> bool:
    """Whether some write set has fewer than Qa bookies left when those at the positions `failed` are gone."""
    return any(
        sum(i not in failed for i in write_set(first, ensemble_size, write_quorum)) < ack_quorum
        for first in range(ensemble_size)
    )


class Reaction(enum.Enum):
    """What follows from failures in the ensemble."""

    NOTHING = "go on without them"
    CHANGE = "put other bookies in their place"
    RETRY = "send to the same bookies again"


class Case(NamedTuple):
    """`allowed`: ensembles may be changed. `delay`: only when needed. `to_be_left`: one takes no more, or is lost."""

    allowed: bool
    delay: bool
    ack_quorum_at_risk: bool
    to_be_left: bool


def _reaction(case: Case) -> Reaction:
    if not case.allowed:
        return Reaction.RETRY
    if case.delay and not case.ack_quorum_at_risk and not case.to_be_left:
        return Reaction.NOTHING
    return Reaction.CHANGE


REACTIONS: Final[Mapping[Case, Reaction]] = {
    case: _reaction(case) for case in (Case(*flags) for flags in product((False, True), repeat=4))
}


class Conflict(enum.Enum):
    """What a writer does when somebody else's write came before its own change of the ensemble."""

    TRY_AGAIN = "the failed bookie is still named: change the fresh value"
    ADOPT = "the failed bookies are gone already: take the fresh ensemble"
    FENCED = "somebody is recovering the ledger: fail everything"
    CLOSED = "somebody has closed the ledger: fail everything"


def on_conflict(fresh: LedgerMetadata, failed: Collection[str]) -> Conflict:
    """By the fresh metadata and the bookies that were to be replaced."""
    if fresh.state is LedgerState.IN_RECOVERY:
        return Conflict.FENCED
    if fresh.state is LedgerState.CLOSED:
        return Conflict.CLOSED
    return Conflict.TRY_AGAIN if set(failed) & set(fresh.fragments[-1].bookies) else Conflict.ADOPT


def members_of(entry_id: int, ensemble: Sequence[str], write_quorum: int) -> tuple[str, ...]:
    """The names of the bookies that hold an entry of this ensemble."""
    return tuple(ensemble[i] for i in write_set(entry_id, len(ensemble), write_quorum))
