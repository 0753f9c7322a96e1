"""The catalogue of ledgers: creating, reading, replacing, deleting and listing their metadata.

Invariants: one call of `create` makes at most one ledger, whatever is lost on the way; a write replaces exactly the
version that its caller has read; a write that has an unknown outcome is found out here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from bkpy.errors import BookKeeperError, ConfigError, MetadataConflictError, MetadataUnavailableError, NoSuchLedgerError
from bkpy.metadata.layout import IdGenerator, Layout
from bkpy.metadata.resolve import create_certainly, delete_certainly, ensure_path, put_certainly
from bkpy.metadata.store import (
    BadVersion,
    Create,
    Delete,
    MetadataStore,
    NodeExists,
    NoNode,
    SessionState,
    Watch,
    parent_of,
)
from bkpy.protocol.ledger_metadata import LedgerMetadata
from bkpy.runtime import Runtime

CREATE_ATTEMPTS_MAX = 10
CREATE_PAUSE_MAX_S = 0.05


class LedgerCatalog:
    """The ledgers under `root`. All calls raise `MetadataUnavailableError` when the store can't be reached in time."""

    def __init__(self, store: MetadataStore, root: str, layout: Layout, runtime: Runtime) -> None:
        self.layout = layout
        self._store = store
        self._root = root
        self._runtime = runtime
        self._new_ids = IdGenerator(store, root, layout)

    @property
    def reachable(self) -> bool:
        """Whether there is a connection to the store now."""
        return self._store.state is SessionState.CONNECTED

    def path_of(self, ledger_id: int) -> str:
        return self.layout.path_of(self._root, ledger_id)

    async def create(self, build: Callable[[int], LedgerMetadata]) -> tuple[LedgerMetadata, int]:
        """Store a new ledger's metadata, made by `build` from its new id; the metadata and its version.

        `build` may be called again with another id. The value's `owner_token` must be unique to this call.
        """
        for _ in range(CREATE_ATTEMPTS_MAX):
            ledger_id, id_node = await self._new_ids.next()
            try:
                metadata = build(ledger_id)
                if metadata.ledger_id != ledger_id:
                    raise ConfigError(f"the metadata is for ledger {metadata.ledger_id}", ledger_id=ledger_id)
                await self._create_at(Create(self.path_of(ledger_id), metadata.encode()), Delete(id_node))
                return metadata, 0
            except (NodeExists, NoNode):
                # The id is in use, made by hand, or the session and with it the id's node was lost meanwhile.
                await self._discard(id_node)
                await asyncio.sleep(self._runtime.rng.random() * CREATE_PAUSE_MAX_S)
            except Exception:
                await self._discard(id_node)
                raise
        raise MetadataConflictError(f"{CREATE_ATTEMPTS_MAX} new ledger ids in a row were taken or lost")

    async def _create_at(self, ledger: Create, id_node: Delete) -> None:
        try:
            await create_certainly(self._store, ledger, id_node)
        except NoNode as refusal:
            if refusal.index != 0:
                raise
            await ensure_path(self._store, parent_of(ledger.path))  # the first ledger of its partition
            await create_certainly(self._store, ledger, id_node)

    async def _discard(self, id_node: str) -> None:
        with contextlib.suppress(BookKeeperError):  # at the latest it goes with the session
            await self._store.delete(id_node)

    async def read(self, ledger_id: int, *, fresh: bool = False) -> tuple[LedgerMetadata, int]:
        """The metadata and its version, `fresh` if no earlier write may be missed: a server's answer may be old.

        Raises `NoSuchLedgerError`, `CorruptDataError`, `UnsupportedVersionError`.
        """
        path = self.path_of(ledger_id)
        try:
            if fresh:
                await self._store.sync(path)
            data, version = await self._store.get(path)
        except NoNode:
            raise self._missing(ledger_id) from None
        return LedgerMetadata.decode(ledger_id, data), version

    def watch(self, ledger_id: int) -> Watch:
        """Wakes whenever the ledger's metadata may have changed or gone; to be closed by the caller."""
        return self._store.watch(self.path_of(ledger_id))

    async def write(self, metadata: LedgerMetadata, expected_version: int) -> int:
        """Replace the metadata; the new version.

        Raises `MetadataConflictError` when it is not at `expected_version` any more, and `NoSuchLedgerError`.
        """
        path = self.path_of(metadata.ledger_id)
        try:
            return await put_certainly(self._store, path, metadata.encode(), expected_version)
        except BadVersion:
            raise MetadataConflictError(
                f"the metadata is not at version {expected_version} any more", ledger_id=metadata.ledger_id
            ) from None
        except NoNode:
            raise self._missing(metadata.ledger_id) from None
        except MetadataUnavailableError as error:
            error.ledger_id = metadata.ledger_id
            raise

    async def delete(self, ledger_id: int) -> None:
        """Remove the ledger. Raises `NoSuchLedgerError`."""
        try:
            await delete_certainly(self._store, self.path_of(ledger_id))
        except NoNode:
            raise self._missing(ledger_id) from None

    async def ids(self) -> AsyncIterator[int]:
        """The ids of all ledgers, ascending; one partition is in flight at a time.

        A ledger that exists during the whole listing is in it; one that is created or deleted meanwhile may be.
        """
        async for partition in self.layout.partitions(self._store, self._root):
            for ledger_id in partition:
                yield ledger_id

    def _missing(self, ledger_id: int) -> NoSuchLedgerError:
        return NoSuchLedgerError("there is no such ledger", ledger_id=ledger_id)
