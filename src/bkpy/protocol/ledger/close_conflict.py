"""What a closing write that came too late means: a pure table from what the metadata say now to what must be done.

Invariant: a ledger is closed once; each client that meant the same end has succeeded, and a writer never closes a
ledger that another client is recovering.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Final

from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from collections.abc import Mapping


class Closer(enum.Enum):
    WRITER = "the ledger's writer"
    RECOVERY = "a recovery"


class FreshState(enum.Enum):
    """The fresh metadata, against the end that was to be written."""

    OPEN = "open"
    IN_RECOVERY = "in recovery"
    SAME_END = "closed at the same entry, with the same length"
    OTHER_END = "closed elsewhere"


class CloseAction(enum.Enum):
    """What a client has to do whose closing write came too late."""

    TRY_AGAIN = "write the end into the fresh value"
    CLOSED = "it is closed as it should be"
    FENCED = "another client is recovering it"
    CLOSED_ELSEWHERE = "it was closed at another entry"
    IMPOSSIBLE = "a ledger in recovery never becomes open again"


CLOSE_ACTIONS: Final[Mapping[tuple[Closer, FreshState], CloseAction]] = {
    (Closer.WRITER, FreshState.OPEN): CloseAction.TRY_AGAIN,
    (Closer.WRITER, FreshState.IN_RECOVERY): CloseAction.FENCED,
    (Closer.WRITER, FreshState.SAME_END): CloseAction.CLOSED,
    (Closer.WRITER, FreshState.OTHER_END): CloseAction.CLOSED_ELSEWHERE,
    (Closer.RECOVERY, FreshState.OPEN): CloseAction.IMPOSSIBLE,
    (Closer.RECOVERY, FreshState.IN_RECOVERY): CloseAction.TRY_AGAIN,
    # The first of several recoveries wins, and where it saw the end is the end for all of them.
    (Closer.RECOVERY, FreshState.SAME_END): CloseAction.CLOSED,
    (Closer.RECOVERY, FreshState.OTHER_END): CloseAction.CLOSED,
}


def fresh_state(fresh: LedgerMetadata, last_entry: int, length: int) -> FreshState:
    if fresh.state is LedgerState.OPEN:
        return FreshState.OPEN
    if fresh.state is LedgerState.IN_RECOVERY:
        return FreshState.IN_RECOVERY
    return FreshState.SAME_END if (fresh.last_entry, fresh.length) == (last_entry, length) else FreshState.OTHER_END


def rebased(fresh: LedgerMetadata, original: LedgerMetadata, ours: LedgerMetadata) -> LedgerMetadata:
    """Our new fragments in a value in which another client, meanwhile, has moved copies of earlier ones."""
    new = [fragment for fragment in ours.fragments if fragment not in original.fragments]
    if not new:
        return fresh
    kept = [fragment for fragment in fresh.fragments if fragment.first_entry < new[0].first_entry]
    return dataclasses.replace(fresh, fragments=(*kept, *new))
