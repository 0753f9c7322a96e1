"""Makes a cluster of a backup, under an empty root.

    verify the file --> RESTORE: writing --> nodes, some in a transaction --> RESTORE: restored, LAYOUT, INSTANCEID

A restore that was interrupted goes on with the same file: nodes that are there already must be as the file has them.

Invariants: nothing is written before the whole file was found sound; what is under the root is this backup's, or
refused; a log names no open ledger that isn't there; there is a cluster only when all of it is there; its instance id
was never another cluster's, and its ids go on behind all that the former cluster may have drawn.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from bkpy.config.shared import MetadataSettings
from bkpy.errors import ConfigError, CorruptDataError, MetadataConflictError, UnsupportedVersionError
from bkpy.metadata import paths
from bkpy.metadata.audit_trail import ActKind, entry_of
from bkpy.metadata.backup.backup_file import BackupNode, reading, verify
from bkpy.metadata.cluster import LAYOUT_VERSION, check_root_above, new_instance_id
from bkpy.metadata.ledgers.layout import LONG_HIERARCHICAL
from bkpy.metadata.restore_record import create_restore, read_restore, write_restore
from bkpy.metadata.store.outcome import Done, Exists, Missing, NotDone, Superseded, Unknown, to_error
from bkpy.metadata.store.resolve import children_if_there, create_certainly, ensure_path, read_certainly
from bkpy.metadata.store.store import Create, parent_of
from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
from bkpy.protocol.log.log_list import LogList
from bkpy.protocol.log.log_opening import with_lost_end, without_deleted
from bkpy.protocol.restore.restoring import Restore, RestoreState, ids_after, with_later_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from bkpy.metadata.audit_trail import AuditTrail
    from bkpy.metadata.restore_record import StoredRestore
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.runtime.interfaces import Files

_DEFAULTS: Final = MetadataSettings()
_TRANSACTION_BYTES: Final = 128 << 10


class Restored(NamedTuple):
    """A restored cluster. `resumed`: an earlier call had begun; `done`: it was restored already."""

    restore: Restore
    nodes: int
    ledgers: int
    resumed: bool
    done: bool


async def restore_backup(
    store: MetadataStore,
    root: str,
    files: Files,
    path: str,
    *,
    also_from: Collection[str] = (),
    settings: MetadataSettings = _DEFAULTS,
    trail: AuditTrail | None = None,
    verified: Callable[[int], None] = lambda count: None,
    wrote: Callable[[int], None] = lambda count: None,
) -> Restored:
    """Restore the backup in the file `path` under `root`; a second call with the same file goes on where one ended.

    `also_from`: clusters that were restored before, and are given up: their bookies join, as those of the backup's own;
    a further call may name them, too. The last transaction has the record of the act, for `trail`, which is of the
    restored cluster.
    Raises `ConfigError` for a root that isn't empty, or is that of the backup, and for a backup of another layout than
    long-hierarchical; `CorruptDataError` for a damaged file; `MetadataUnavailableError`.
    """
    async with reading(files, path) as reader:
        header = await reader.header()
        if header.layout != LONG_HIERARCHICAL.name:
            raise ConfigError(
                f"{path} is of a cluster of the layout {header.layout}, whose ids can't jump over those drawn since "
                f"the backup: only {LONG_HIERARCHICAL.name} can be restored. `bkpy inspect salvage` gets out entries"
            )
        if root == header.root:
            raise ConfigError(
                f"the backup is of a cluster under {root}: clients of before may still write to nodes there, at "
                "versions that the new ones have too. Restore it under another root, and give bookies and clients that"
            )
        ends = _LogEnds()
        end = await verify(reader, verified, ends.look)
        found = await _begun(store, root, end.checksum, path)
        resumed = found is not None
        if found is None or found.restore.state is RestoreState.WRITING:
            await check_root_above(store, root)
        if found is None:
            try:
                age_s = store.runtime.clock.time() - header.time_ms / 1000
                ids = ids_after(end.newest_high, header.kept_from, age_s)
            except ValueError as error:
                raise ConfigError(f"{path} can't be restored: {error}") from error
            new = Restore(
                RestoreState.WRITING,
                new_instance_id(store),
                header.instance_id,
                end.checksum,
                ids.kept_from,
                ids.kept_to,
            )
            await _begin(store, root, new.joined_from(also_from), settings)
            found = await _begun(store, root, end.checksum, path)
            assert found is not None
        found = await _name(store, root, found, also_from, trail, settings)
        if found.restore.state is not RestoreState.WRITING:
            return Restored(found.restore, end.nodes, end.ledgers, True, True)
        writer = _Writer(store, root, header.time_ms, settings, wrote, ends.deleted)
        was_disabled = False
        async with contextlib.aclosing(reader.nodes()) as nodes:
            async for node in nodes:
                was_disabled |= node.path == paths.DISABLED
                await writer.add(node)
        await writer.flush()
        if reader.end != end:
            raise CorruptDataError("the file has changed while it was restored", path=path)
        origins = ", and bookies of ".join((header.instance_id, *found.restore.also_from))
        audit = await entry_of(trail, ActKind.RESTORE, root, f"from a backup of cluster {origins}")
        restored = await _finish(store, root, found, audit, was_disabled=was_disabled, settings=settings)
        return Restored(restored.restore, end.nodes, end.ledgers, resumed, False)


async def _begun(store: MetadataStore, root: str, checksum: str, path: str) -> StoredRestore | None:
    """The restore of this backup that is under the root; None if there is nothing."""
    await store.sync(root)
    found = await read_restore(store, root)
    if found is None:
        names = await children_if_there(store, root)
        if names:
            raise ConfigError(
                f"{root} isn't empty (it has {', '.join(names[:5])}): restore under a root of which nothing is there"
            )
        return None
    if found.restore.checksum != checksum:
        raise ConfigError(
            f"another backup than {path} was, or is being, restored under {root} (its checksum is "
            f"{found.restore.checksum[:16]}...): go on with that file, or choose another root"
        )
    return found


async def _begin(store: MetadataStore, root: str, restore: Restore, settings: MetadataSettings) -> None:
    above = await ensure_path(store, root, attempts_max=settings.metadata_write_attempts_max)
    if isinstance(above, NotDone):
        raise to_error(above)
    outcome = await create_restore(store, root, restore, attempts_max=settings.metadata_write_attempts_max)
    match outcome:
        case Done() | Exists() | Superseded():
            return  # who reads it again sees whose it is
        case Missing():
            raise MetadataConflictError(f"somebody deletes nodes above {root} at the same time")
        case NotDone() | Unknown():
            raise to_error(outcome)
        case _:
            assert_never(outcome)


async def _name(
    store: MetadataStore,
    root: str,
    found: StoredRestore,
    also_from: Collection[str],
    trail: AuditTrail | None,
    settings: MetadataSettings,
) -> StoredRestore:
    """Let the bookies of these clusters join, too; nothing is written if they may already."""
    wider = found.restore.joined_from(also_from)
    if wider == found.restore:
        return found
    audit: Sequence[Create] = ()
    if wider.state is not RestoreState.WRITING:  # until then the last transaction says so
        details = f"bookies of {', '.join(wider.also_from)} may join"
        audit = await entry_of(trail, ActKind.RESTORE, root, details)
    return await write_restore(
        store, root, wider, found.version, audit, attempts_max=settings.metadata_write_attempts_max
    )


async def _finish(
    store: MetadataStore,
    root: str,
    found: StoredRestore,
    audit: Sequence[Create],
    *,
    was_disabled: bool,
    settings: MetadataSettings,
) -> StoredRestore:
    """Make what all clusters have, and in the last transaction that by which others find it."""
    restore = found.restore
    high = (restore.kept_to + 1) >> 31
    ids = LONG_HIERARCHICAL.id_nodes[0]
    writer = _Writer(store, root, 0, settings, lambda count: None, set())  # of no ledgers
    for name in (paths.AVAILABLE, paths.READ_ONLY, paths.COOKIES, ids, f"{ids}/HOB-{high:010d}"):
        await writer.add(BackupNode(name, b""))
    if not was_disabled:
        await writer.add(BackupNode(paths.DISABLED, json.dumps({"version": 1, "since_ms": 0}).encode()))
    await writer.flush()
    layout = json.dumps({"version": LAYOUT_VERSION, "layout": LONG_HIERARCHICAL.name}).encode()
    visible = [
        Create(f"{root}/{paths.LAYOUT}", layout),
        Create(f"{root}/{paths.INSTANCE_ID}", restore.instance_id.encode()),
        *audit,
    ]
    restored = dataclasses.replace(restore.advanced(), was_disabled=was_disabled)
    return await write_restore(
        store, root, restored, found.version, visible, attempts_max=settings.metadata_write_attempts_max
    )


class _LogEnds:
    """Ledgers that lists of logs name as open, two of each log at most, and that the backup hasn't.

    The backup reads lists first. A ledger that is missing was deleted meanwhile.
    """

    def __init__(self) -> None:
        self.deleted: set[int] = set()

    def look(self, node: BackupNode) -> None:
        """Of all nodes, in the order of the file."""
        log_list = _list_of(node)
        if log_list is not None:
            self.deleted.update(segment.ledger_id for segment in log_list.open_segments)
        elif self.deleted and (ledger_id := LONG_HIERARCHICAL.id_of(node.path)) is not None:
            self.deleted.discard(ledger_id)


def _list_of(node: BackupNode) -> LogList | None:
    """The list of a log; None if it is another node, or unreadable."""
    parts = node.path.split("/")
    if parts[0] != paths.LOGS or len(parts) != 2:
        return None
    try:
        return LogList.decode(parts[1], node.data)
    except (CorruptDataError, UnsupportedVersionError):
        return None


class _Writer:
    """Makes nodes below `root`, several in a transaction, of a backup of the time `time_ms`.

    Their values follow from the file alone: a restore that goes on compares them with what an earlier call has made.
    """

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        time_ms: int,
        settings: MetadataSettings,
        wrote: Callable[[int], None],
        deleted: Collection[int],
    ) -> None:
        self._store = store
        self._root = root
        self._time_ms = time_ms
        self._attempts_max = settings.metadata_write_attempts_max
        self._nodes_max = settings.restore_nodes_max
        self._wrote = wrote
        self._deleted = deleted  # see `_LogEnds`
        self._waiting: list[Create] = []
        self._bytes = 0
        self._above = {root}
        self._done = 0
        self._log_ends: set[str] = set()  # paths of ledgers behind which a log may have had more: two of each log

    async def add(self, node: BackupNode) -> None:
        """Make this node, now or with the next ones."""
        path = f"{self._root}/{node.path}"
        if parent_of(path) not in self._above:
            await self.flush()
            made = await ensure_path(self._store, parent_of(path), attempts_max=self._attempts_max)
            if isinstance(made, NotDone):
                raise to_error(made)
            self._above = {self._root, parent_of(path)}
        data = self._restored_value(node)
        if self._bytes + len(data) > _TRANSACTION_BYTES or len(self._waiting) == self._nodes_max:
            await self.flush()
            self._above.add(parent_of(path))
        self._waiting.append(Create(path, data))
        self._above.add(path)
        self._bytes += len(data)

    async def flush(self) -> None:
        """All nodes are there on return."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if len(self._above) > 2 * self._nodes_max + 2:
            self._above = {self._root}
        if not waiting:
            return
        outcome = await create_certainly(self._store, *waiting, attempts_max=self._attempts_max)
        if isinstance(outcome, NotDone):
            raise to_error(outcome)
        if not isinstance(outcome, Done):  # an earlier call has made some of them, or the reply was lost
            await self._one_by_one(waiting)
        self._done += len(waiting)
        self._wrote(self._done)

    async def _one_by_one(self, nodes: Sequence[Create]) -> None:
        # All at once: a restore that goes on has to get past a million nodes that are there.
        there = await asyncio.gather(*(read_certainly(self._store, node.path) for node in nodes))
        for node, value in zip(nodes, there, strict=True):
            if value is not None and value[0] == node.data:
                continue
            outcome = await create_certainly(self._store, node, attempts_max=self._attempts_max)
            match outcome:
                case Done():
                    continue
                case Exists() | Superseded() | Unknown():
                    found = await read_certainly(self._store, node.path)
                    # A parent that was missing was made empty.
                    if found is None or found[0] != node.data:
                        raise MetadataConflictError(
                            f"{node.path} is not as the backup has it: somebody else writes under {self._root}"
                        )
                case Missing():
                    raise MetadataConflictError(f"somebody deletes nodes under {self._root} at the same time")
                case NotDone():
                    raise to_error(outcome)
                case _:
                    assert_never(outcome)

    def _restored_value(self, node: BackupNode) -> bytes:
        """The value as it is restored: a log goes on behind all positions that it may have given out since."""
        if (log_list := _list_of(node)) is not None:
            log_list = without_deleted(log_list, self._deleted)
            self._log_ends.update(
                LONG_HIERARCHICAL.path_of("", segment.ledger_id)[1:] for segment in log_list.open_segments
            )
            return with_lost_end(log_list).encode()
        ledger_id = LONG_HIERARCHICAL.id_of(node.path) if node.path in self._log_ends else None
        if ledger_id is not None:
            with contextlib.suppress(CorruptDataError, UnsupportedVersionError):
                metadata = LedgerMetadata.decode(ledger_id, node.data)
                return with_later_loss(metadata, self._time_ms).encode()
        return node.data
