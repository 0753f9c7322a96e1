"""The recoveries of one client: with a ledger's password, without it, or without bookies that are gone.

Invariant: the client's `close` ends each recovery that has begun and not ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.client.dialect import record_codec
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.wire.records import RecordCodec
from bkpy.recovery.ledger_recovery import Everywhere, GivingUp, LedgerRecovery

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.client.write.interfaces import ReplicationParts
    from bkpy.metadata.bookies.registration import BookieDirectory
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.recovery.write_back import WriteBack


class Recoveries:
    """Makes the recoveries of one client. `check_open` raises when the client is closed.

    `codec_of` makes the codec of a ledger, given its metadata and password.
    """

    __slots__ = ("_catalog", "_check_open", "_codec_of", "_directory", "_on_begun", "_on_ended", "_parts")

    def __init__(
        self,
        catalog: LedgerCatalog,
        directory: BookieDirectory,
        parts: ReplicationParts,
        *,
        check_open: Callable[[], None],
        on_begun: Callable[[WriteBack], None],
        on_ended: Callable[[WriteBack], None],
        codec_of: Callable[[LedgerMetadata, bytes], RecordCodec] = record_codec,
    ) -> None:
        self._catalog = catalog
        self._codec_of = codec_of
        self._directory = directory
        self._parts = parts
        self._check_open = check_open
        self._on_begun = on_begun
        self._on_ended = on_ended

    async def ended(self, ledger_id: int, password: bytes) -> LedgerMetadata:
        """The ledger's CLOSED metadata, after its recovery unless it was closed. See `Client.recover_ledger`."""
        metadata, version = await self._catalog.read(ledger_id)
        metadata = metadata.authorised(password)
        return await self._run(metadata, version, self._codec_of(metadata, password))

    async def ended_unread(self, ledger_id: int) -> LedgerMetadata:
        """The same without the password: entries are verified by their checksums alone."""
        self._check_open()
        metadata, version = await self._catalog.read(ledger_id, fresh=True)
        return await self._run(metadata, version, RecordCodec(ledger_id))

    async def everywhere(self, ledger_id: int, everywhere: Everywhere) -> LedgerMetadata:
        """The CLOSED metadata of a ledger of a restored cluster: read from, and fenced on, every bookie."""
        self._check_open()
        metadata, version = await self._catalog.read(ledger_id, fresh=True)
        if metadata.state is LedgerState.CLOSED:
            return metadata
        return await self._recovery(metadata, version, RecordCodec(ledger_id), everywhere=everywhere).run()

    async def fence(self, ledger_id: int) -> None:
        """Fence the ledger: no append of its writer is acknowledged any more."""
        self._check_open()
        metadata, version = await self._catalog.read(ledger_id, fresh=True)
        await self._recovery(metadata, version, RecordCodec(ledger_id)).fence()

    async def giving_up(self, ledger_id: int, password: bytes, at_least: int) -> LedgerRecovery:
        """A recovery that gives up bookies that are gone. The ledger keeps its entries up to `at_least`."""
        self._check_open()
        metadata, version = await self._catalog.read(ledger_id, fresh=True)
        codec = self._codec_of(metadata.authorised(password), password)
        await self._directory.refresh()
        at_ms = int(self._parts.runtime.clock.time() * 1000)
        return self._recovery(metadata, version, codec, GivingUp(self._directory.readable, at_ms, at_least))

    async def _run(self, metadata: LedgerMetadata, version: int, codec: RecordCodec) -> LedgerMetadata:
        if metadata.state is LedgerState.CLOSED:
            return metadata
        return await self._recovery(metadata, version, codec).run()

    def _recovery(
        self,
        metadata: LedgerMetadata,
        version: int,
        codec: RecordCodec,
        giving_up: GivingUp | None = None,
        everywhere: Everywhere | None = None,
    ) -> LedgerRecovery:
        return LedgerRecovery(
            metadata,
            version,
            codec=codec,
            catalog=self._catalog,
            parts=self._parts,
            on_begun=self._on_begun,
            on_ended=self._on_ended,
            giving_up=giving_up,
            everywhere=everywhere,
        )
