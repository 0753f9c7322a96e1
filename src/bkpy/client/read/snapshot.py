"""A reader's knowledge of its ledger: the metadata, and how far the ledger may be read.

Invariants: last add confirmed rises only by what a digest proves or the metadata says; metadata is never replaced by
an older version; once the ledger is CLOSED, its last entry and length are those of the metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.protocol.wire.lac_reply import LastAddConfirmed


class LedgerSnapshot:
    """Shared by the range reader and the tails of one ledger.

    `given`: the metadata name other bookies to ask than those of the store, which count for nothing.
    """

    def __init__(self, metadata: LedgerMetadata, *, given: bool = False) -> None:
        self.metadata = metadata
        self._given = given
        self.confirmed = metadata.last_entry if metadata.state is LedgerState.CLOSED else -1
        self.length = metadata.length
        self._measured = (-1, 0)  # an entry, and the payload bytes up to it
        self._version = -1  # of `metadata`, once this object has read it

    @property
    def ledger_id(self) -> int:
        return self.metadata.ledger_id

    @property
    def closed(self) -> bool:
        return self.metadata.state is LedgerState.CLOSED

    def bytes_of(self, entries: int) -> int:
        """The approximate payload size of `entries` entries, from the average so far; 0 before any size is known."""
        entry_id, length = (self.confirmed, self.length) if self.closed else self._measured
        return length * entries // (entry_id + 1) if entry_id >= 0 else 0

    async def refresh(self, catalog: LedgerCatalog, *, fresh: bool = False) -> None:
        """Read the metadata again, `fresh` if no earlier write may be missed.

        Raises `NoSuchLedgerError`, `MetadataUnavailableError`.
        """
        if self._given:
            return
        metadata, version = await catalog.read(self.ledger_id, fresh=fresh)
        if version < self._version:  # from a server that lags behind
            return
        self.metadata, self._version = metadata, version
        if self.closed:
            self.confirmed, self.length = metadata.last_entry, metadata.length
        else:  # a fragment begins right behind an acknowledged entry
            self.confirmed = max(self.confirmed, metadata.fragments[-1].first_entry - 1)

    def advance(self, confirmed: LastAddConfirmed) -> None:
        """Take over what a bookie proved. Only the metadata says where a closed ledger ends."""
        self._measured = max(self._measured, confirmed.measured)
        if confirmed.entry_id > self.confirmed and not self.closed:
            self.confirmed = confirmed.entry_id
            if confirmed.length is not None:
                self.length = confirmed.length
