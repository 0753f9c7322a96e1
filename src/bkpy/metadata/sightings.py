"""Looks at a ledger's metadata that are sure enough to delete what a bookie has of it.

Invariant: what a look says was true in this cluster, at one moment after the call: the server was made to catch up, the
instance id is that of the bookie's directories, and one session has seen all of it. What isn't sure is *unsure*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bkpy.errors import BookKeeperError, ConfigError, CorruptDataError, UnauthorizedError
from bkpy.metadata import paths
from bkpy.metadata.layout import next_id
from bkpy.metadata.resolve import read_if_there
from bkpy.protocol.collection import Sight, sight_of, sight_of_nothing
from bkpy.protocol.ledger_metadata import LedgerMetadata, UnsupportedVersionError

if TYPE_CHECKING:
    from bkpy.metadata.layout import Layout
    from bkpy.metadata.locks import LedgerLock
    from bkpy.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a look saw. `version` is that of the metadata, -1 without any; `why` explains what is not sure."""

    sight: Sight
    version: int = -1
    own_lock: bool = True
    why: str = ""


class Lookout:
    """Looks for the bookie `bookie_id`, whose directories belong to the cluster `instance_id`."""

    def __init__(self, store: MetadataStore, root: str, layout: Layout, *, instance_id: str, bookie_id: str) -> None:
        self._store = store
        self._root = root
        self._layout = layout
        self._instance_id = instance_id
        self._bookie_id = bookie_id

    async def look(self, ledger_id: int, lock: LedgerLock | None = None) -> Sighting:
        """The ledger as it is now, and whether `lock` is held. Never raises a `BookKeeperError`."""
        try:
            path = self._layout.path_of(self._root, ledger_id)
        except ConfigError as error:
            return Sighting(Sight.UNREADABLE, why=str(error))
        session = self._store.session_id
        try:
            await self._store.sync(path)
            instance = await read_if_there(self._store, f"{self._root}/{paths.INSTANCE_ID}")
            try:
                found = await read_if_there(self._store, path)
            except UnauthorizedError as error:  # of this one: the cluster's own nodes may be read
                return Sighting(Sight.UNREADABLE, why=str(error))
            own_lock = lock is None or await self._store.exists(lock.proof)
            following = None if found is not None else await next_id(self._store, self._root, self._layout)
        except BookKeeperError as error:
            return Sighting(Sight.UNSURE, why=str(error))
        if self._store.session_id != session:  # another session may have got another, older server
            return Sighting(Sight.UNSURE, why="the session with the metadata store has ended")
        if instance is None:
            return Sighting(Sight.FOREIGN, why=f"there is no cluster under {self._root} any more")
        if instance[0].decode(errors="replace") != self._instance_id:
            return Sighting(Sight.FOREIGN, why=f"the cluster under {self._root} is not {self._instance_id}")
        if found is None:
            assert following is not None
            sight = sight_of_nothing(ledger_id, following)
            why = f"its next ledger id is {following}, and ledger {ledger_id} is here"
            return Sighting(sight, own_lock=own_lock, why="" if sight is Sight.NO_LEDGER else why)
        try:
            metadata = LedgerMetadata.decode(ledger_id, found[0])
        except (CorruptDataError, UnsupportedVersionError) as error:
            return Sighting(Sight.UNREADABLE, why=str(error))
        return Sighting(sight_of(metadata, self._bookie_id), found[1], own_lock)
