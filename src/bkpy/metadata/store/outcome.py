"""Outcomes of conditional writes, as values: callers must distinguish them, and could overlook an error.

    certain   Done, Gone; Exists, Missing, Changed: refused, and nothing of this call is there; NotDone: never sent
    open      Unknown: it may be there, now or later; Superseded: it is not there any more, but may have been

A caller matches all kinds, with `assert_never` after the last. Only where an outcome reaches a user, `to_error` turns
it into an error with `outcome_unknown`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bkpy.errors import BookKeeperError


@dataclass(frozen=True, slots=True)
class Done:
    """The value is there, at `version`."""

    version: int


@dataclass(frozen=True, slots=True)
class Gone:
    """The node is not there any more."""


@dataclass(frozen=True, slots=True)
class Exists:
    """Refused: there is somebody else's node at `node`."""

    node: str


@dataclass(frozen=True, slots=True)
class Missing:
    """Refused: there is no `node`, or none above it. `index` is the operation's place in its transaction."""

    node: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class Changed:
    """Refused: the node has another version than expected, and not ours, or nodes below it."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """Somebody else's later write is there. The node doesn't show whether ours came before it."""


@dataclass(frozen=True, slots=True)
class NotDone:
    """Certainly nothing was written, because of `error`."""

    error: BookKeeperError


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something may have been written; `error` says why that is unknown."""

    error: BookKeeperError


CreateOutcome = Done | Exists | Missing | Superseded | NotDone | Unknown
PutOutcome = Done | Missing | Changed | Superseded | NotDone | Unknown
DeleteOutcome = Gone | Missing | Changed | Superseded | NotDone | Unknown


def escalate_unknown(outcome: NotDone | Unknown, doubt: bool) -> NotDone | Unknown:
    """The outcome of a failure: unknown as well, if an earlier step of the same call had an unknown outcome."""
    return Unknown(outcome.error) if doubt else outcome


def to_error(outcome: NotDone | Unknown, *, ledger_id: int | None = None, bookie: str | None = None) -> BookKeeperError:
    """The error for a user, always a new one: the one inside may be shared, and says nothing of the whole call."""
    error = outcome.error
    public = type(error)(
        error.message,
        ledger_id=error.ledger_id if ledger_id is None else ledger_id,
        entry_id=error.entry_id,
        bookie=error.bookie if bookie is None else bookie,
        path=error.path,
        retriable=error.retriable,
        outcome_unknown=isinstance(outcome, Unknown),
    )
    public.__cause__ = error
    return public
