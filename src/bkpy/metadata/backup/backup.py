"""Backs up the metadata of a running cluster: what outlives sessions, without under-replication records and drains.

    logs, with their pages and consumers --> cookies, released ids, the audit trail --> ledgers, by partition

A draining bookie would refuse what a restore copies to it; to begin the draining again is a command.

Logs come first: a log's list names no ledger that is created later, so each ledger of a list is in the backup unless
it was deleted meanwhile. Ledgers that may have been created since the first id was read are counted by that id.

Invariants: a ledger that exists during the whole backup is in it; a backup has nothing of one that was restored and
isn't confirmed; memory doesn't grow with the cluster.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.batching import batched_async
from bkpy.errors import ConfigError, CorruptDataError, UnsupportedVersionError
from bkpy.metadata import paths
from bkpy.metadata.backup.backup_file import BackupHeader, BackupNode, writing
from bkpy.metadata.restore_record import read_restore
from bkpy.metadata.store.resolve import children_if_there, read_certainly
from bkpy.protocol.log.log_list import LogList
from bkpy.protocol.restore.restoring import SEQUENCE_BITS, is_confirmed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection

    from bkpy.metadata.backup.backup_file import BackupWriter
    from bkpy.metadata.cluster import Cluster
    from bkpy.runtime.interfaces import Files

_READS_AT_ONCE: Final = 64
_TREES: Final = (paths.COOKIES, paths.RETIRED, paths.LOGS_DELETED, paths.AUDIT_TRAIL)


class BackedUp(NamedTuple):
    """What is in a backup."""

    path: str
    nodes: int
    ledgers: int
    logs: int
    checksum: str


async def back_up(
    cluster: Cluster, files: Files, path: str, *, software: str = "", wrote: Callable[[int], None] = lambda count: None
) -> BackedUp:
    """Write a backup to a new file. `wrote` is called with the number of nodes that are in it so far.

    Raises `ConfigError` if the file exists, or the cluster was restored and that isn't confirmed;
    `MetadataUnavailableError`, `UnauthorizedError` and `OSError`: then there is no file.
    """
    store, root = cluster.store, cluster.root
    found = await read_restore(store, root)
    if not is_confirmed(None if found is None else found.restore):
        raise ConfigError("the cluster was restored from a backup, and that isn't confirmed: keep that backup")
    async with writing(files, path) as writer:
        given = await cluster.catalog.ids_given()
        kept_from = min((given.below, *given.held))
        if found is not None and not found.restore.collects_later:
            kept_from = min(kept_from, found.restore.kept_from)
        await writer.header(
            BackupHeader(
                cluster.instance_id,
                cluster.layout_name,
                root,
                int(store.runtime.clock.time() * 1000),
                software,
                kept_from,
            )
        )
        backup = _Backup(cluster, writer, wrote)
        logs = await backup.logs()
        for tree in _TREES:
            await backup.below(tree)
        await backup.one(paths.DISABLED)
        ledgers = await backup.ledgers()
        newest = (await cluster.catalog.ids_given()).below
        high = newest >> SEQUENCE_BITS if cluster.catalog.layout.long_ids else 0
        end = await writer.end(ledgers=ledgers, newest_high=high)
    return BackedUp(path, end.nodes, end.ledgers, logs, end.checksum)


class _Backup:
    def __init__(self, cluster: Cluster, writer: BackupWriter, wrote: Callable[[int], None]) -> None:
        self._store = cluster.store
        self._root = cluster.root
        self._catalog = cluster.catalog
        self._writer = writer
        self._wrote = wrote

    async def one(self, path: str) -> bool:
        """The node, if there is one."""
        found = await read_certainly(self._store, f"{self._root}/{path}")
        if found is not None:
            await self._add(BackupNode(path, found[0]))
        return found is not None

    async def below(self, path: str, *, added: Collection[str] = ()) -> None:
        """All nodes below this one, parents first, but for nodes that were `added`."""
        names = await children_if_there(self._store, f"{self._root}/{path}")
        for start in range(0, len(names), _READS_AT_ONCE):
            some = [f"{path}/{name}" for name in names[start : start + _READS_AT_ONCE]]
            some = [one for one in some if not _is_lease(one)]
            values = await asyncio.gather(*(read_certainly(self._store, f"{self._root}/{one}") for one in some))
            for one, found in zip(some, values, strict=True):
                if found is not None:
                    if one not in added:
                        await self._add(BackupNode(one, found[0]))
                    await self.below(one, added=added)

    async def logs(self) -> int:
        """Every log: its list first, so that all pages that this names are read later, and still there or truncated.

        Each has the nodes that all logs have, even if it is deleted meanwhile: without them it could never be deleted.
        It has none of another uid, which a log that was made again under its name meanwhile has: a deletion would leave
        these, and could never remove the list above them.
        """
        count = 0
        for name in await children_if_there(self._store, f"{self._root}/{paths.LOGS}"):
            path = f"{paths.LOGS}/{name}"
            found = await read_certainly(self._store, f"{self._root}/{path}")
            if found is None:
                continue
            count += 1
            await self._add(BackupNode(path, found[0]))
            always = _always_below(name, found[0])
            for one in always:
                value = await read_certainly(self._store, f"{self._root}/{one}")
                await self._add(BackupNode(one, b"" if value is None else value[0]))
            await self.below(always[0] if always else path, added=always)
        return count

    async def ledgers(self) -> int:
        """Every ledger's value, whether this version can read it or not."""
        count = 0
        async for some in batched_async(self._ledger_ids(), _READS_AT_ONCE):
            nodes = [self._catalog.path_of(ledger_id) for ledger_id in some]
            values = await asyncio.gather(*(read_certainly(self._store, node) for node in nodes))
            for node, found in zip(nodes, values, strict=True):
                if found is not None:
                    count += 1
                    await self._add(BackupNode(node.removeprefix(f"{self._root}/"), found[0]))
        return count

    async def _ledger_ids(self) -> AsyncGenerator[int, None]:
        async for partition in self._catalog.partitions():
            for ledger_id in partition:
                yield ledger_id

    async def _add(self, node: BackupNode) -> None:
        await self._writer.node(node)
        self._wrote(self._writer.nodes)


def _always_below(name: str, data: bytes) -> tuple[str, ...]:
    """The nodes that the log with this list has, parents first; none are known if the list can't be read."""
    try:
        uid = LogList.decode(name, data).uid
    except (CorruptDataError, UnsupportedVersionError):
        return ()
    own = f"{paths.LOGS}/{name}/{uid}"
    return (own, f"{own}/consumers") if uid.isalnum() else ()


def _is_lease(path: str) -> bool:
    """Whether it is the lease of a log or of a consumer, which goes with the session that made it."""
    top, *rest = path.split("/")
    if top != paths.LOGS:
        return False
    match rest:  # name, uid
        case [_, _, "lease"]:
            return True
        case [_, _, "consumers", _, name]:
            return name.startswith("lease-")
    return False
