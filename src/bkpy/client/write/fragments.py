"""What the writer of a ledger stores: the fragments of its ledger, and at last where it ends.

Invariants: the first entry of a new ensemble is stored before anything is acknowledged on it; a writer never closes a
ledger that somebody is recovering.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, assert_never

from bkpy.client.close import Closed, close_ledger
from bkpy.errors import (
    BookKeeperError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    UnsupportedVersionError,
)
from bkpy.metadata.store.outcome import Changed, Done, Missing, NotDone, Superseded, Unknown, escalate_unknown, to_error
from bkpy.protocol.ledger.close_conflict import Closer
from bkpy.protocol.ledger.ensemble_change import Conflict, on_conflict

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bkpy.client.write.interfaces import OpenFragment
    from bkpy.config.client import ClientSettings
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata


log = logging.getLogger("bkpy.client")


class StoredFragments:
    """Those of one ledger; knows the version of the metadata that its writer goes by."""

    __slots__ = ("_catalog", "_end_in_doubt", "_settings", "_version")

    def __init__(self, catalog: LedgerCatalog, version: int, settings: ClientSettings) -> None:
        self._catalog = catalog
        self._version = version
        self._settings = settings
        self._end_in_doubt = False  # whether an earlier `close` may have closed the ledger

    async def store(
        self, fragment: OpenFragment, ensemble: Sequence[str], replaced: Collection[str]
    ) -> LedgerMetadata | None:
        doubt = False  # whether an attempt may have been stored: then nothing counts until that is known
        while fragment.error is None:
            if not self._catalog.reachable and not doubt:
                return None  # without the store, the bookies that are left have to do
            wanted = fragment.metadata.new_fragment(fragment.confirmed + 1, tuple(ensemble))
            outcome = await self._catalog.write(wanted, self._version)
            match outcome:
                case Done():
                    self._version = outcome.version
                    return wanted
                case Changed() | Superseded():
                    return await self._other_fragment(fragment, replaced)
                case Missing():
                    raise NoSuchLedgerError("the ledger was deleted while it was open", ledger_id=fragment.ledger_id)
                case NotDone():
                    if not doubt:
                        return None
                case Unknown():
                    doubt = True
                case _:
                    assert_never(outcome)
            # Only a write that is refused, or a second one that is not, will tell.
            await asyncio.sleep(self._settings.metadata_write_pause_s)
        return None

    async def _other_fragment(self, fragment: OpenFragment, replaced: Collection[str]) -> LedgerMetadata:
        """Another client has changed the metadata. Returns its version, if its ensemble is the one to go on with."""
        fresh, version = await self._read_certainly(fragment)
        conflict = on_conflict(fresh, replaced)
        if conflict is Conflict.FENCED:
            raise LedgerFencedError("another client is recovering the ledger", ledger_id=fragment.ledger_id)
        if conflict is Conflict.CLOSED:
            raise LedgerClosedError(
                f"another client closed the ledger at entry {fresh.last_entry}",
                ledger_id=fragment.ledger_id,
                outcome_unknown=True,
            )
        present, found = fragment.metadata.fragments[-1], fresh.fragment_of(max(fragment.confirmed, 0))
        if fresh.fragments[-1].first_entry > fragment.confirmed + 1 or (
            # What was acknowledged must be where it was. Nothing was, of a fragment that begins behind it.
            present.first_entry <= fragment.confirmed and (found.first_entry, found.bookies) != _place(present)
        ):
            raise MetadataConflictError(
                "another client has changed the bookies of entries that this writer has written",
                ledger_id=fragment.ledger_id,
                outcome_unknown=True,
            )
        self._version = version
        return fresh

    async def _read_certainly(self, fragment: OpenFragment) -> tuple[LedgerMetadata, int]:
        """The metadata, which there must be; waits for a store that is away (`stalled` ends that)."""
        while True:
            try:
                return await self._catalog.read(fragment.ledger_id, fresh=True)
            except MetadataUnavailableError:
                if fragment.error is not None:
                    raise
                await asyncio.sleep(self._settings.metadata_write_pause_s)

    async def taken_in(self, fragment: OpenFragment, bookie_ids: Collection[str], first_entry: int) -> None:
        """See `FragmentStore.taken_in`."""
        marks, ledger_id = self._catalog.marks(), fragment.ledger_id
        while fragment.error is None:
            try:
                outcome = await marks.taken_in(ledger_id, bookie_ids, first_entry)
                if isinstance(outcome, Done):
                    await marks.announce()  # the fragment before has an end
            except (BookKeeperError, UnsupportedVersionError) as error:
                log.warning("ledger %d: failed to update its under-replication record: %s", ledger_id, error)
                return
            if isinstance(outcome, Done | Missing):
                return
            await asyncio.sleep(self._settings.metadata_write_pause_s)

    async def close(self, metadata: LedgerMetadata, last_entry: int, length: int) -> LedgerMetadata:
        """Close the ledger; returns its metadata. Raises what `LedgerWriter.close` does."""
        try:
            closed = await close_ledger(
                self._catalog,
                metadata,
                self._version,
                last_entry,
                length,
                Closer.WRITER,
                conflicts_max=self._settings.metadata_conflicts_max,
            )
        except asyncio.CancelledError:
            self._end_in_doubt = True  # the write may be on its way
            raise
        match closed:
            case Closed():
                self._version = closed.version
                return closed.metadata
            case NotDone() | Unknown():
                # A later call that can't write anything does not make certain what an earlier one has written.
                closed = escalate_unknown(closed, self._end_in_doubt)
                self._end_in_doubt = isinstance(closed, Unknown)
                raise to_error(closed, ledger_id=metadata.ledger_id)
            case _:
                assert_never(closed)


def _place(fragment: Fragment) -> tuple[int, tuple[str, ...]]:
    return fragment.first_entry, fragment.bookies
