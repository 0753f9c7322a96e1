"""Copies closed ledgers of a BookKeeper cluster into a cluster of bkpy.

    the copy's custom metadata: what the original has, "bookkeeper.ledger" = <instance id>/<ledger id>, and
    "bookkeeper.token" = what its creation has that no other has (cToken), if it has that: ids may be used again.
    Where neither that nor the instance id is stored, as by old versions, the token is made of what never changes

    take the original's lock -> look for copies -> delete unfinished ones -> write a copy -> read it back -> close it

An import holds the *lock* of each original that it copies (`imports/` in the target's metadata), so several imports
share the work. The lock of a process that was killed goes with its session.

Invariants: an entry is copied only after its digest was verified, and keeps its id. An import closes a copy only after
all of it was read back and is what was read from the original. A CLOSED copy with the original's last entry and
without an accepted loss is complete, and is never made twice: also one whose import was killed and that a recovery has
closed, which keeps the entries that were acknowledged, with their checksums, and was not read back. An unfinished copy
is deleted only under the original's lock, at the version that was read: the import that made it has lost the lock, and
can't close it any more. The original's length is not compared: a recovery by Java may have counted bytes of entries
that it could not recover.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from array import array
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from bkpy.client.client import audit_trail, is_of_bookkeeper, replication_context
from bkpy.errors import (
    BookKeeperError,
    ConfigError,
    CorruptDataError,
    LedgerClosedError,
    MetadataConflictError,
    NoSuchLedgerError,
    UnsupportedVersionError,
)
from bkpy.metadata import paths
from bkpy.metadata.audit_trail import ActKind
from bkpy.metadata.ledgers.all_ledgers import UNREADABLE
from bkpy.metadata.replication.locks import LedgerLocks
from bkpy.metadata.store.outcome import Changed, Exists, Gone, Missing, NotDone, Superseded, Unknown, to_error
from bkpy.protocol.bookkeeper.ledger_metadata import BookKeeperLedgerMetadata
from bkpy.protocol.ledger.ledger_metadata import LedgerState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from bkpy.admin.client import AdminClient
    from bkpy.client.write.writer import LedgerWriter
    from bkpy.metadata.replication.locks import LedgerLock
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata

_MARK: Final = "bookkeeper.ledger"
_TOKEN: Final = "bookkeeper.token"
_HMAC: Final = "bk-hmac-sha1"


class CopiedLedger(NamedTuple):
    """A ledger and its copy. `new`: this import has made the copy; an earlier one, or another, has otherwise."""

    ledger_id: int
    copy_id: int
    entries: int
    bytes: int
    new: bool


class LedgerImport:
    """One import; others may run at the same time.

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
        self._target = target.client
        self._password = password
        self._quorums = quorums
        context = replication_context(self._target)
        cluster, settings = context.cluster, context.parts.settings
        self._store, self._catalog, self._runtime = cluster.store, cluster.catalog, cluster.store.runtime
        self._pause_s = settings.metadata_retry_pause_s
        self._reads_at_once = settings.metadata_requests_in_flight_max
        folder = paths.imports(self._source.instance_id)
        self._locks = LedgerLocks(
            self._store, cluster.root, self._runtime.process, self._runtime, settings, folder=folder
        )
        self._copies: dict[bytes, list[int]] = {}  # their ids, by what they are copies of
        self._looked_to = 0  # ledgers created since the last look have this id or a higher one
        self._looked_at: set[int] = set()  # the ones that the last look has seen nevertheless

    async def begin(self) -> None:
        """Find the copies that are there. Reads the metadata of all ledgers of the target."""
        await self._look()

    async def closed_ledgers(self) -> AsyncIterator[int]:
        """The ids of all closed ledgers, and of ledgers with unreadable metadata, which `copy` reports; ascending."""
        async with aclosing(self._source.list_ledgers()) as ids:
            async for ledger_id in ids:
                try:
                    closed = (await self._source.ledger_metadata(ledger_id)).state is LedgerState.CLOSED
                except UNREADABLE:
                    closed = True
                except NoSuchLedgerError:
                    closed = False
                if closed:
                    yield ledger_id

    async def copy(self, ledger_id: int, on_copied: Callable[[int, int], None]) -> CopiedLedger:
        """Copy a ledger, unless that was done. `on_copied` is called with the entries so far, and all.

        While another import copies it, waits. Raises `LedgerClosedError` if it isn't CLOSED, and what reading and
        writing raise; then there is no copy.
        """
        while True:
            copied = await self.copy_unless_locked(ledger_id, on_copied)
            if copied is not None:
                return copied
            await asyncio.sleep(self._pause_s)

    async def copy_unless_locked(self, ledger_id: int, on_copied: Callable[[int, int], None]) -> CopiedLedger | None:
        """The same; None while another import copies the ledger, or was killed while it did, a short time ago."""
        metadata = await self._source.ledger_metadata(ledger_id)
        if metadata.state is not LedgerState.CLOSED:
            raise LedgerClosedError(
                f"the ledger is {metadata.state.value}: only closed ones are imported, and a recovery closes it",
                ledger_id=ledger_id,
            )
        assert isinstance(metadata, BookKeeperLedgerMetadata)
        try:
            lock = await self._locks.take(ledger_id)
            if isinstance(lock, Exists):
                return None
            if isinstance(lock, NotDone):
                raise to_error(lock, ledger_id=ledger_id)
            try:
                copied = await self._copy_locked(metadata, lock, on_copied)
            finally:
                self._locks.abandon(lock)
            await self._locks.release_abandoned()
        finally:  # a call that is cancelled gives its lock back, too
            self._locks.release_abandoned_later()
        return copied

    async def _copy_locked(
        self, metadata: BookKeeperLedgerMetadata, lock: LedgerLock, on_copied: Callable[[int, int], None]
    ) -> CopiedLedger:
        ledger_id, entries = metadata.ledger_id, metadata.last_entry + 1
        mark = f"{self._source.instance_id}/{ledger_id}".encode()
        await self._look()  # others may have made copies
        found = [await self._kept(copy_id, metadata, lock) for copy_id in self._copies.get(mark, ())]
        complete = [copy for copy in found if copy is not None]
        copy = complete[0] if complete else await self._copy(metadata, mark, lock, lambda n: on_copied(n, entries))
        self._copies[mark] = [each.ledger_id for each in complete] or [copy.ledger_id]
        return CopiedLedger(ledger_id, copy.ledger_id, entries, copy.length, not complete)

    # --- the copies that are there ----------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Find the copies among the ledgers that were created since the last look."""
        given = await self._catalog.ids_given()
        looked_to, looked_at = min((given.below, *given.held)), self._looked_at
        async for partition in self._catalog.partitions(self._looked_to):
            ids = [ledger_id for ledger_id in partition if ledger_id not in self._looked_at]
            for begin in range(0, len(ids), self._reads_at_once):
                await asyncio.gather(*map(self._note_copy, ids[begin : begin + self._reads_at_once]))
            looked_at.update(ids)
        self._looked_to, self._looked_at = looked_to, {one for one in looked_at if one >= looked_to}

    async def _note_copy(self, ledger_id: int) -> None:
        try:
            metadata, _ = await self._catalog.read(ledger_id)
        except (NoSuchLedgerError, CorruptDataError, UnsupportedVersionError):
            return  # no copy that anybody could use
        mark = metadata.custom_metadata.get(_MARK)
        if mark is not None and ledger_id not in self._copies.setdefault(mark, []):
            self._copies[mark].append(ledger_id)

    async def _kept(self, copy_id: int, original: BookKeeperLedgerMetadata, lock: LedgerLock) -> LedgerMetadata | None:
        """The copy, if it is complete. Otherwise it is deleted, unless it is that of an earlier ledger of this id.

        It stays, too, if it is as long as the original, and entries of it were given up.
        """
        while True:
            try:
                copy, version = await self._catalog.read(copy_id, fresh=True)
            except NoSuchLedgerError:
                return None
            of_this = copy.custom_metadata.get(_TOKEN, b"") == self._token(original)
            if copy.state is LedgerState.CLOSED:
                whole = copy.last_entry == original.last_entry
                if whole or not of_this:
                    # One with an accepted loss may miss entries. It stays, as somebody may read what is left of it.
                    return copy if whole and of_this and copy.accepted_loss is None else None
            audit = await audit_trail(self._target).entry(ActKind.DELETE_LEDGER, copy_id, "an unfinished import")
            outcome = await self._catalog.delete_locked(copy_id, version, lock, *audit)
            match outcome:
                case Gone():
                    return None
                case Missing() if outcome.node == lock.proof:
                    raise _lock_lost(original.ledger_id)
                case Missing() | Changed() | Superseded():
                    continue  # somebody has changed or deleted it meanwhile
                case NotDone() | Unknown():
                    raise to_error(outcome, ledger_id=copy_id)
                case _:
                    assert_never(outcome)

    def _token(self, original: BookKeeperLedgerMetadata) -> bytes:
        """What tells this ledger from others of its id, of the same instance id; empty if nothing does."""
        if original.owner_token or self._source.instance_id:
            return original.owner_token.encode()
        # All such clusters look like one. A closed ledger keeps these values.
        fixed = (original.created_ms, original.last_entry, original.length, original.digest, original.ledger_key)
        return hashlib.sha256(repr(fixed).encode()).hexdigest().encode()

    # --- a new copy -------------------------------------------------------------------------------------------------

    async def _copy(
        self, metadata: BookKeeperLedgerMetadata, mark: bytes, lock: LedgerLock, on_copied: Callable[[int], None]
    ) -> LedgerMetadata:
        for name in (_MARK, _TOKEN):
            if name in metadata.custom_metadata:
                raise ConfigError(f"the ledger has custom metadata {name!r} already", ledger_id=metadata.ledger_id)
        custom = {**metadata.custom_metadata, _MARK: mark}
        if token := self._token(metadata):
            custom[_TOKEN] = token
        password = metadata.password if self._password is None else self._password
        password = b"" if password is None else password
        sizes = self._quorums or (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        reader = await self._source.open_ledger(metadata.ledger_id, password=password)
        writer = await self._target.create_ledger(
            ensemble_size=sizes[0],
            write_quorum=sizes[1],
            ack_quorum=sizes[2],
            password=password,
            digest="hmac-sha256" if metadata.digest == _HMAC else "crc32c",
            custom_metadata=custom,
        )
        try:
            contents = _Contents()
            async with aclosing(reader.read_blocks(0, metadata.last_entry)) as blocks:
                async for block in blocks:
                    payloads = block.payloads()
                    contents.add(payloads)
                    await writer.append_batch(payloads)
                    on_copied(block.last_entry + 1)
            await self._verify(writer, password, contents)
            await self._store.sync(lock.proof)
            if not await self._store.exists(lock.proof):
                raise _lock_lost(metadata.ledger_id)
            await writer.close()
        except BookKeeperError:
            with contextlib.suppress(BookKeeperError):  # else the next import deletes it
                await self._kept(writer.ledger_id, metadata, lock)
            raise
        finally:
            writer.abandon()
        return writer.metadata

    async def _verify(self, writer: LedgerWriter, password: bytes, contents: _Contents) -> None:
        """Read back what was written. Raises `CorruptDataError` if it is anything else."""
        found = _Contents()
        if writer.last_add_confirmed >= 0:
            async with (
                await self._target.open_ledger(writer.ledger_id, password=password) as reader,
                aclosing(reader.read_unconfirmed(0, writer.last_add_confirmed)) as entries,
            ):
                async for entry in entries:
                    found.add((entry.data,))
        if found.digest() != contents.digest():
            raise CorruptDataError("the copy, read back, is not what was written", ledger_id=writer.ledger_id)


class _Contents:
    """A digest of payloads, however many of them are added at a time."""

    def __init__(self) -> None:
        self._sizes = hashlib.sha256()
        self._bytes = hashlib.sha256()

    def add(self, payloads: Iterable[bytes]) -> None:
        payloads = tuple(payloads)
        self._sizes.update(array("Q", map(len, payloads)))
        self._bytes.update(b"".join(payloads))

    def digest(self) -> bytes:
        return self._sizes.digest() + self._bytes.digest()


def _lock_lost(ledger_id: int) -> MetadataConflictError:
    return MetadataConflictError(
        "the session with the target's metadata has ended, and with it the lock on the ledger: run the import again",
        ledger_id=ledger_id,
    )
