"""Which bookies may miss acknowledged entries that a ledger's metadata name them for, as far as its writer knows.

A bookie misses what it failed to take, from the first such entry on, until all of that was sent once more and accepted.
Nothing is kept for an entry: a bookie that has not failed is not in here.

Invariants: a bookie that failed at an entry and has not accepted it since is reported, once the entry is acknowledged
and while the metadata name the bookie for it; an entry that was acknowledged without a bookie and is not kept any more
is missing there for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from bkpy.protocol.ledger.acks import Batch
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata


class Shortfall:
    """What the bookies of one ledger miss."""

    __slots__ = ("_awaited", "_first")

    def __init__(self) -> None:
        self._first: dict[str, int] = {}  # by bookie, the first entry that it failed to take
        self._awaited: dict[str, set[Batch]] = {}  # by bookie, what it misses and was sent once more

    def failed(self, bookie_id: str, entry_id: int, metadata: LedgerMetadata) -> None:
        """The bookie did not take a batch that begins with the entry."""
        if bookie_id not in metadata.fragment_of(entry_id).bookies:
            return  # others have replaced it, and hold what it was sent
        awaited = self._awaited.pop(bookie_id, None)
        if awaited:  # what it has accepted meanwhile it no longer misses
            entry_id = min(entry_id, *(batch.first_id for batch in awaited))
        else:
            entry_id = min(entry_id, self._first.get(bookie_id, entry_id))
        self._first[bookie_id] = entry_id

    def sent_again(self, bookie_id: str, batches: Collection[Batch], confirmed: int) -> None:
        """The bookie is sent all that is above `confirmed` and that it has not accepted."""
        first = self._first.get(bookie_id)
        if first is None or first <= confirmed:
            return  # what was acknowledged without it is not kept
        if batches:
            self._awaited[bookie_id] = set(batches)
        else:
            del self._first[bookie_id]

    def accepted(self, bookie_id: str, batch: Batch) -> None:
        """The bookie has accepted a batch that was sent once more, or late."""
        awaited = self._awaited.get(bookie_id)
        if awaited is not None:
            awaited.discard(batch)
            if not awaited:
                del self._awaited[bookie_id], self._first[bookie_id]

    def moved(self, metadata: LedgerMetadata) -> None:
        """Other bookies hold the last entries now."""
        self._first = {b: first for b, first in self._first.items() if b in metadata.fragment_of(first).bookies}
        self._awaited = {b: batches for b, batches in self._awaited.items() if b in self._first}

    def up_to(self, confirmed: int) -> dict[str, int]:
        """By bookie, the first entry up to `confirmed` that it may miss."""
        return {bookie_id: first for bookie_id, first in sorted(self._first.items()) if first <= confirmed}
