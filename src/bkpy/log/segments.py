"""Opening the ledgers of a log for reading: their entries begin with stamps, which nobody else gets to see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.client.read.reader import LedgerReader
from bkpy.metadata.logs.maintenance import LOG_PRODUCER
from bkpy.protocol.wire.records import RecordCodec, digest_key

if TYPE_CHECKING:
    from bkpy.client.bookies.pool import BookiePool
    from bkpy.config.client import ClientSettings
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.runtime.interfaces import Runtime


class Segments:
    """Readers of ledgers whose entries have stamps: `bkpy.protocol.wire.records.stamp_at` gives the one of an entry."""

    def __init__(self, catalog: LedgerCatalog, pool: BookiePool, settings: ClientSettings, runtime: Runtime) -> None:
        self._catalog = catalog
        self._pool = pool
        self._settings = settings
        self._runtime = runtime

    async def look_up(
        self, ledger_id: int, password: bytes, stamp: int, *, fresh: bool = False, confirmed: int = -1
    ) -> LedgerReader:
        """A reader that knows the metadata, and no bookie's word of how far an open ledger may be read.

        `stamp` is the format of its stamps. `fresh` if the metadata must not be old; `confirmed` is an entry that is
        known to be. Raises `NoSuchLedgerError`, `UnauthorizedError`.
        """
        metadata, _ = await self._catalog.read(ledger_id, fresh=fresh)
        return LedgerReader(
            metadata.authorised(password),
            codec=RecordCodec(ledger_id, metadata.digest, digest_key(password), stamp_format=stamp),
            catalog=self._catalog,
            pool=self._pool,
            settings=self._settings,
            runtime=self._runtime,
            confirmed=confirmed,
        )

    async def open(self, ledger_id: int, password: bytes, stamp: int, confirmed: int = -1) -> LedgerReader:
        """A reader that may read as far as the metadata, or the bookies of an open ledger, say at this moment.

        If it is known of an entry that it is `confirmed`, no bookie is asked, and the reader may read up to there: the
        bookies that know of it may be away. Raises what `Client.open_ledger` does.
        """
        reader = await self.look_up(ledger_id, password, stamp)
        if confirmed >= 0 and not reader.closed and reader.last_add_confirmed < confirmed:
            # Not closed short of it: metadata that tell of the end may come late.
            reader = await self.look_up(ledger_id, password, stamp, fresh=True, confirmed=confirmed)
        elif confirmed < 0 and not reader.closed:
            await reader.read_last_add_confirmed()
        return reader


def producer_of(reader: LedgerReader) -> str | None:
    """The name of the producer that has numbered the entries of a log's ledger; None if they have no numbers."""
    name = reader.metadata.custom_metadata.get(LOG_PRODUCER)
    return None if name is None else name.decode()
