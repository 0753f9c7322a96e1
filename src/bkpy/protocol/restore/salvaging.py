"""What is certain of an entry that was found in bookies' directories, without a cluster that could say more.

    by a record's last add confirmed   it was acknowledged: some record of the ledger proves so
    by the metadata, CLOSED            it is an entry of the ledger, or behind its end
    else                               unproved: it may have been acknowledged, or not

Invariant: an entry that is called acknowledged was; nothing is called lost, because other directories may have it.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from bkpy.errors import CorruptDataError, UnsupportedVersionError
from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState


class Certainty(enum.StrEnum):
    """Of one entry."""

    ACKNOWLEDGED = "acknowledged"
    IN_THE_LEDGER = "in the ledger"  # its metadata say where it ends, and this entry is not behind that
    BEHIND_THE_END = "behind the end"  # never acknowledged: a recovery has cut it off
    UNPROVED = "unproved"


class LedgerEnd(NamedTuple):
    """What metadata from a backup say of a ledger."""

    state: str
    last_entry: int
    digest: str


def end_in(ledger_id: int, value: bytes) -> LedgerEnd | None:
    """The end in a ledger's value; None if this version can't read it."""
    try:
        metadata = LedgerMetadata.decode(ledger_id, value)
    except (CorruptDataError, UnsupportedVersionError):
        return None
    return LedgerEnd(metadata.state.value, metadata.last_entry, metadata.digest)


def certainty(entry_id: int, acknowledged: int, end: LedgerEnd | None) -> Certainty:
    """By the highest last add confirmed that any record proves, and the ledger's end, if there is a backup."""
    if entry_id <= acknowledged:
        return Certainty.ACKNOWLEDGED
    if end is None or end.state != LedgerState.CLOSED:
        return Certainty.UNPROVED
    return Certainty.IN_THE_LEDGER if entry_id <= end.last_entry else Certainty.BEHIND_THE_END
