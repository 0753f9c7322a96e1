"""Probes a ledger's metadata with enough certainty to delete its entries on a bookie, or to decide whose it is.

Invariant: the result was true in this cluster at one moment after the call: the server had caught up, the instance id
is that of the bookie's directories, and one session has read all of it. Anything less certain is *unsure*. Several
results with one `session` are of one store: no session outlasts that a store is put back to an older state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bkpy.errors import BookKeeperError, ConfigError, CorruptDataError, UnauthorizedError, UnsupportedVersionError
from bkpy.metadata import paths
from bkpy.metadata.ledgers.layout import id_is_held, next_id
from bkpy.metadata.restore_record import read_restore
from bkpy.metadata.store.resolve import read_if_there
from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
from bkpy.protocol.repair.garbage_collection import ProbeState, probe_state_of, probe_state_of_nothing

if TYPE_CHECKING:
    from bkpy.metadata.ledgers.layout import Layout
    from bkpy.metadata.replication.locks import LedgerLock
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.protocol.restore.restoring import Restore


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result. `version` is that of the metadata, -1 without any; `why` explains an unsure one.

    `ledger_key`: the ledger's key, empty without metadata that have it. `next_id`: the next id of the store, if that
    was read. `session`: the id of the session that has read it, 0 of an unsure or unreadable one.
    """

    state: ProbeState
    version: int = -1
    own_lock: bool = True
    why: str = ""
    ledger_key: bytes = field(default=b"", repr=False)
    next_id: int = -1
    session: int = 0


class MetadataProbe:
    """Looks for the bookie `bookie_id`, whose directories belong to the cluster `instance_id`.

    `restored`: its metadata were restored from a backup, which no cluster becomes later. `codec` is of the cluster's
    ledgers. Without `ids_ascend` callers choose ids: what isn't there then says nothing of how old the store is.
    """

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        layout: Layout,
        *,
        instance_id: str,
        bookie_id: str,
        restored: bool = False,
        codec: type[LedgerMetadata] = LedgerMetadata,
        ids_ascend: bool = True,
    ) -> None:
        self._store = store
        self._root = root
        self._layout = layout
        self._instance_id = instance_id
        self._bookie_id = bookie_id
        self._restored = restored
        self._codec = codec
        self._ids_ascend = ids_ascend

    async def restore(self) -> Restore | None:
        """The restore that the cluster comes from, if any. Raises `BookKeeperError` where that is unknown."""
        if not self._restored:
            return None
        await self._store.sync(self._root)
        found = await read_restore(self._store, self._root)
        if found is None:
            raise CorruptDataError("the record of the restore is gone", path=f"{self._root}/{paths.RESTORE}")
        return found.restore

    async def look(self, ledger_id: int, lock: LedgerLock | None = None, *, empty: bool = False) -> ProbeResult:
        """The ledger as it is now, and whether `lock` is held. `empty`: the bookie has no entry of it.

        Never raises a `BookKeeperError`.
        """
        try:
            path = self._layout.path_of(self._root, ledger_id)
        except ConfigError as error:
            return ProbeResult(ProbeState.UNREADABLE, why=str(error))
        session = self._store.session_id
        try:
            await self._store.sync(path)
            instance = await read_if_there(self._store, f"{self._root}/{paths.INSTANCE_ID}")
            try:
                found = await read_if_there(self._store, path)
            except UnauthorizedError as error:  # of this one: the cluster's own nodes may be read
                return ProbeResult(ProbeState.UNREADABLE, why=str(error))
            own_lock = lock is None or await self._store.exists(lock.proof)
            following, held = 0, False
            if found is None and self._ids_ascend:
                following = await next_id(self._store, self._root, self._layout)
                if ledger_id < following:
                    held = await id_is_held(self._store, self._root, self._layout, ledger_id)
                    found = await read_if_there(self._store, path)  # it may have been created meanwhile
        except BookKeeperError as error:
            return ProbeResult(ProbeState.UNSURE, why=str(error))
        if self._store.session_id != session:  # another session may have got another, older server
            return ProbeResult(ProbeState.UNSURE, why="the session with the metadata store has ended")
        if instance is None:
            return ProbeResult(ProbeState.FOREIGN, why=f"there is no cluster under {self._root} any more")
        if instance[0].decode(errors="replace") != self._instance_id:
            return ProbeResult(ProbeState.FOREIGN, why=f"the cluster under {self._root} is not {self._instance_id}")
        if found is None and not self._ids_ascend:
            return ProbeResult(ProbeState.NO_LEDGER, own_lock=own_lock, session=session)
        if found is None:
            state = probe_state_of_nothing(ledger_id, following, held=held, empty=empty)
            why = f"its next ledger id is {following}, and ledger {ledger_id} is here"
            return ProbeResult(
                state,
                own_lock=own_lock,
                why="" if state is ProbeState.NO_LEDGER else why,
                next_id=following,
                session=session,
            )
        try:
            metadata = self._codec.decode(ledger_id, found[0])
        except (CorruptDataError, UnsupportedVersionError) as error:
            return ProbeResult(ProbeState.UNREADABLE, why=str(error))
        return ProbeResult(
            probe_state_of(metadata, self._bookie_id),
            found[1],
            own_lock,
            ledger_key=metadata.known_key,
            session=session,
        )
