"""Copies closed ledgers of a BookKeeper cluster into a cluster of bkpy.

    the copy's custom metadata: what the original has, and "bookkeeper.ledger" = <instance id>/<ledger id>

Invariants: an entry is copied only after its digest was verified, and keeps its id. A CLOSED copy with the original's
last entry and length is complete, and is never made twice. What an import that was killed has left is deleted before
its ledger is copied again.
"""

from __future__ import annotations

import contextlib
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.client.client import is_of_bookkeeper
from bkpy.errors import BookKeeperError, ConfigError, CorruptDataError, LedgerClosedError, NoSuchLedgerError
from bkpy.protocol.bookkeeper.ledger_metadata import BookKeeperLedgerMetadata
from bkpy.protocol.ledger.ledger_metadata import LedgerState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from bkpy.admin.client import AdminClient

_MARK: Final = "bookkeeper.ledger"
_HMAC: Final = "bk-hmac-sha1"


class CopiedLedger(NamedTuple):
    """A ledger and its copy. `new`: this import has made the copy; an earlier one has otherwise."""

    ledger_id: int
    copy_id: int
    entries: int
    bytes: int
    new: bool


class LedgerImport:
    """One import. Two at the same time would delete each other's unfinished copies.

    `password` is that of the originals, None for the ones that their metadata store. Copies have the same. `quorums`
    are the copies' ensemble size, write and ack quorum; those of each original by default.
    """

    def __init__(
        self,
        source: AdminClient,
        target: AdminClient,
        *,
        password: bytes | None,
        quorums: tuple[int, int, int] | None = None,
    ) -> None:
        if not is_of_bookkeeper(source.client):
            raise ConfigError("the ledgers to import are in a cluster of bkpy, not of Apache BookKeeper")
        if is_of_bookkeeper(target.client):
            raise ConfigError("ledgers are imported into a cluster of bkpy, not of Apache BookKeeper")
        self._source = source.client
        self._admin = source
        self._target = target
        self._password = password
        self._quorums = quorums
        self._copies: dict[bytes, list[tuple[int, LedgerState, int, int]]] = {}  # id, state, last entry and length

    async def begin(self) -> None:
        """Find the copies that are there. Reads the metadata of all ledgers of the target."""
        async for copy in self._target.find_ledgers():
            if _MARK in copy.custom_metadata:
                found = (copy.ledger_id, copy.state, copy.last_entry, copy.length)
                self._copies.setdefault(copy.custom_metadata[_MARK], []).append(found)

    async def closed_ledgers(self) -> AsyncIterator[int]:
        """The ids of all closed ledgers, ascending."""
        async with aclosing(self._admin.find_ledgers(state=LedgerState.CLOSED.value)) as found:
            async for ledger in found:
                yield ledger.ledger_id

    async def copy(self, ledger_id: int, on_copied: Callable[[int, int], None]) -> CopiedLedger:
        """Copy a ledger, unless that was done. `on_copied` is called with the entries so far, and all.

        Raises `LedgerClosedError` if it isn't CLOSED, and what reading and writing raise; then there is no copy.
        """
        metadata = await self._source.ledger_metadata(ledger_id)
        if metadata.state is not LedgerState.CLOSED:
            raise LedgerClosedError(
                f"the ledger is {metadata.state.value}: only closed ones are imported, and a recovery closes it",
                ledger_id=ledger_id,
            )
        assert isinstance(metadata, BookKeeperLedgerMetadata)
        mark, entries = self._mark(ledger_id), metadata.last_entry + 1
        for copy_id, state, last_entry, length in self._copies.pop(mark, ()):
            if (state, last_entry, length) == (LedgerState.CLOSED, metadata.last_entry, metadata.length):
                return CopiedLedger(ledger_id, copy_id, entries, metadata.length, new=False)
            await self._delete(copy_id)
        copy_id = await self._copy(metadata, mark, lambda done: on_copied(done, entries))
        return CopiedLedger(ledger_id, copy_id, entries, metadata.length, new=True)

    def _mark(self, ledger_id: int) -> bytes:
        return f"{self._source.instance_id}/{ledger_id}".encode()

    async def _copy(self, metadata: BookKeeperLedgerMetadata, mark: bytes, on_copied: Callable[[int], None]) -> int:
        if _MARK in metadata.custom_metadata:
            raise ConfigError(f"the ledger has custom metadata {_MARK!r} already", ledger_id=metadata.ledger_id)
        password = metadata.password if self._password is None else self._password
        password = b"" if password is None else password
        sizes = self._quorums or (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        reader = await self._source.open_ledger(metadata.ledger_id, password=password)
        writer = await self._target.client.create_ledger(
            ensemble_size=sizes[0],
            write_quorum=sizes[1],
            ack_quorum=sizes[2],
            password=password,
            digest="hmac-sha256" if metadata.digest == _HMAC else "crc32c",
            custom_metadata={**metadata.custom_metadata, _MARK: mark},
        )
        try:
            async with aclosing(reader.read_blocks(0, metadata.last_entry)) as blocks:
                async for block in blocks:
                    await writer.append_batch(block.payloads())
                    on_copied(block.last_entry + 1)
            await writer.close()
            copied = writer.metadata
            if (copied.last_entry, copied.length) != (metadata.last_entry, metadata.length):
                raise CorruptDataError(
                    f"the ledger has {metadata.length} bytes up to entry {metadata.last_entry} by its metadata, and "
                    f"{copied.length} up to entry {copied.last_entry} as it was read",
                    ledger_id=metadata.ledger_id,
                )
        except BookKeeperError:
            with contextlib.suppress(BookKeeperError):  # else the next import deletes it
                await self._delete(writer.ledger_id)
            raise
        finally:
            writer.abandon()
        return writer.ledger_id

    async def _delete(self, copy_id: int) -> None:
        try:
            await self._target.client.delete_ledger(copy_id)
        except NoSuchLedgerError:
            return
