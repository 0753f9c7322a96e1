"""What a closing write that came too late means: a pure table from what the metadata say now to what must be done.

Invariant: a ledger is closed once; whoever meant the same end has succeeded, and a writer never closes a ledger that
somebody is recovering.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Final

from bkpy.protocol.ledger_metadata import LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from collections.abc import Mapping


class Closer(enum.Enum):
    WRITER = "the ledger's writer"
    RECOVERY = "a recovery"


class Found(enum.Enum):
    """The fresh metadata, against the end that was to be written."""

    OPEN = "open"
    IN_RECOVERY = "in recovery"
    SAME_END = "closed at the same entry, with the same length"
    OTHER_END = "closed elsewhere"


class Verdict(enum.Enum):
    TRY_AGAIN = "write the end into the fresh value"
    CLOSED = "it is closed as it should be"
    FENCED = "somebody is recovering it"
    CLOSED_ELSEWHERE = "it was closed at another entry"
    IMPOSSIBLE = "a ledger in recovery never becomes open again"


VERDICTS: Final[Mapping[tuple[Closer, Found], Verdict]] = {
    (Closer.WRITER, Found.OPEN): Verdict.TRY_AGAIN,
    (Closer.WRITER, Found.IN_RECOVERY): Verdict.FENCED,
    (Closer.WRITER, Found.SAME_END): Verdict.CLOSED,
    (Closer.WRITER, Found.OTHER_END): Verdict.CLOSED_ELSEWHERE,
    (Closer.RECOVERY, Found.OPEN): Verdict.IMPOSSIBLE,
    (Closer.RECOVERY, Found.IN_RECOVERY): Verdict.TRY_AGAIN,
    # The first of several recoveries wins, and where it saw the end is the end for all of them.
    (Closer.RECOVERY, Found.SAME_END): Verdict.CLOSED,
    (Closer.RECOVERY, Found.OTHER_END): Verdict.CLOSED,
}


def found(fresh: LedgerMetadata, last_entry: int, length: int) -> Found:
    if fresh.state is LedgerState.OPEN:
        return Found.OPEN
    if fresh.state is LedgerState.IN_RECOVERY:
        return Found.IN_RECOVERY
    return Found.SAME_END if (fresh.last_entry, fresh.length) == (last_entry, length) else Found.OTHER_END


def rebased(fresh: LedgerMetadata, original: LedgerMetadata, ours: LedgerMetadata) -> LedgerMetadata:
    """Our new fragments in a value in which somebody else, meanwhile, has moved copies of earlier ones."""
    new = [fragment for fragment in ours.fragments if fragment not in original.fragments]
    if not new:
        return fresh
    kept = [fragment for fragment in fresh.fragments if fragment.first_entry < new[0].first_entry]
    return dataclasses.replace(fresh, fragments=(*kept, *new))
