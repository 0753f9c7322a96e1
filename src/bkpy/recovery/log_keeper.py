"""What the auditor does for named logs: retention where there is no writer, and what was begun and not finished.

    each log_retention_interval_s   every log: what was deleted or doomed goes; what retention doesn't keep, without a
                                    writer, too
    each log_orphan_interval_s      every ledger: one that belongs to a log whose list doesn't name it goes; and the
                                    notes of deletions that no ledger needs any more

Invariant: nothing here relies on being the only one who does it (see `bkpy.metadata.log_upkeep`), so a deposed auditor
does no harm.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from bkpy.errors import BookKeeperError, CorruptDataError, MetadataConflictError
from bkpy.metadata.log_deletions import LogDeletions
from bkpy.metadata.log_upkeep import LogUpkeep, Swept, log_of
from bkpy.metadata.logs import LogStore
from bkpy.protocol.ledger_metadata import UnsupportedVersionError
from bkpy.recovery.all_ledgers import readable_ledgers

if TYPE_CHECKING:
    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.cluster import Cluster
    from bkpy.metadata.log_upkeep import Belongs, Fence
    from bkpy.runtime.interfaces import Runtime

log = logging.getLogger("bkpy.recovery")


class LogKeeper:
    """Of one term of the auditor. `fence` is that of `bkpy.recovery.upkeep`."""

    def __init__(self, cluster: Cluster, fence: Fence, runtime: Runtime, settings: RecoverySettings) -> None:
        self._fence = fence
        self._catalog = cluster.catalog
        self._logs = LogStore(cluster.store, cluster.root, cluster.catalog.layout, runtime, settings)
        self._upkeep = LogUpkeep(self._logs, cluster.catalog)
        self._deletions = LogDeletions(self._logs)
        self._now = runtime.clock.monotonic
        self._settings = settings

    async def run(self) -> None:
        """Until cancelled. Raises `BookKeeperError` when the metadata store is closed."""
        swept_at = self._now()
        while True:
            try:
                await self._look_after_all()
                if self._now() - swept_at >= self._settings.log_orphan_interval_s:
                    await self._sweep()
                    swept_at = self._now()
            except BookKeeperError as error:
                if not error.retriable:
                    raise
                log.debug("looking after logs goes on later: %s", error)
            await asyncio.sleep(self._settings.log_retention_interval_s)

    async def _look_after_all(self) -> None:
        for name in await self._logs.names():
            try:
                await self._upkeep.look_after(name, self._fence)
            except (CorruptDataError, UnsupportedVersionError, MetadataConflictError) as error:  # it holds up no other
                log.warning("log %s could not be looked after: %s", name, error)

    async def _sweep(self) -> None:
        """One pass over all ledgers."""
        grace_s = self._settings.log_orphan_grace_s
        done_with = await self._deletions.older_than(grace_s)  # unless there is a ledger that needs one of them
        deleted = 0
        seen: set[str] = set()
        lost: dict[Belongs, _Kept] = {}
        async for metadata in readable_ledgers(self._catalog, reads_at_once=self._settings.audit_reads_at_once):
            belongs = log_of(metadata)
            if belongs is None:
                continue
            seen.add(belongs.uid)
            try:
                swept = await self._upkeep.sweep(metadata, grace_s)
            except (CorruptDataError, UnsupportedVersionError, MetadataConflictError) as error:
                log.warning("ledger %d of a log could not be looked after: %s", metadata.ledger_id, error)
                continue
            if swept is Swept.DELETED:
                deleted += 1
            elif swept is Swept.KEPT_FOR_LOST_LIST:
                lost.setdefault(belongs, _Kept(metadata.ledger_id)).add(metadata.ledger_id)
        if deleted:
            log.info("%d ledgers were deleted that belonged to logs and that no list named", deleted)
        for (name, uid), kept in lost.items():
            log.warning(
                "%d ledgers of log %s, %d to %d, are in no list, and it is not known that the log was deleted: the "
                "list with uid %s seems to be lost. They are kept; put it back, or delete them with bkpy ledger delete",
                kept.count,
                name,
                kept.first,
                kept.last,
                uid,
            )
        for deletion in done_with:
            if deletion.uid not in seen:
                await self._deletions.forget(deletion.uid)


class _Kept:
    """Ledgers of a log whose list was lost, ascending."""

    __slots__ = ("count", "first", "last")

    def __init__(self, first: int) -> None:
        self.count = 0
        self.first = self.last = first

    def add(self, ledger_id: int) -> None:
        self.count += 1
        self.last = ledger_id
