"""What the auditor does for named logs: retention where there is no writer, and deletions that were not finished.

    each log_retention_interval_s   every log: deletes what is deleted or pending delete, and, where there is no writer,
                                    what retention doesn't keep
    each log_orphan_interval_s      every ledger: deletes it if it belongs to a log whose list doesn't name it; removes
                                    the notes of deletions that no ledger needs any more

Invariants: several keepers at once do no harm (see `bkpy.metadata.logs.maintenance`), and so a deposed auditor does
none; a log, a ledger or a note that can't be read, or whose maintenance fails in any other way, is skipped and
reported, and holds up no other; where orphans are deleted, what can't be read counts as naming everything.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from typing import TYPE_CHECKING

from bkpy.errors import BookKeeperError, ClientClosedError, MetadataUnavailableError, UnauthorizedError
from bkpy.metadata.ledgers.all_ledgers import all_ledgers
from bkpy.metadata.logs.catalog import LogStore
from bkpy.metadata.logs.deletions import LogDeletions
from bkpy.metadata.logs.maintenance import LogMaintenance, Swept, log_of
from bkpy.metadata.restore_record import read_restore
from bkpy.protocol.restore.restoring import is_confirmed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.cluster import Cluster
    from bkpy.metadata.logs.maintenance import Fence, LogOfLedger
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.restore.restoring import Restore
    from bkpy.runtime.interfaces import Runtime

log = logging.getLogger("bkpy.recovery")


class LogKeeper:
    """Of one term of the auditor. `fence` is that of `bkpy.replication.context`."""

    def __init__(self, cluster: Cluster, fence: Fence, runtime: Runtime, settings: RecoverySettings) -> None:
        self._fence = fence
        self._catalog = cluster.catalog
        self._logs = LogStore(cluster.store, cluster.root, cluster.catalog.layout, runtime, settings)
        self._log_maintenance = LogMaintenance(self._logs, cluster.catalog)
        self._deletions = LogDeletions(self._logs)
        self._now = runtime.clock.monotonic
        self._settings = settings
        self._store, self._root = cluster.store, cluster.root
        self._restore: Restore | None = None  # that the cluster comes from
        self._reached = ""  # the log at which a call of `_maintain_all` was cut short

    async def run(self) -> None:
        """Until cancelled. Raises `ClientClosedError` when the metadata store is closed."""
        swept_at = self._now()
        while True:
            if not await self._tried("maintaining logs", self._read_restore) or not is_confirmed(self._restore):
                await asyncio.sleep(self._settings.log_retention_interval_s)
                continue
            await self._tried("maintaining logs", self._maintain_all)
            if self._now() - swept_at >= self._settings.log_orphan_interval_s and await self._tried(
                "searching for ledgers that no log names", self._sweep
            ):
                swept_at = self._now()
            await asyncio.sleep(self._settings.log_retention_interval_s)

    async def _read_restore(self) -> None:
        """Of a cluster that was restored from a backup nothing is deleted before that is confirmed."""
        found = await read_restore(self._store, self._root)
        self._restore = None if found is None else found.restore

    async def _tried(self, what: str, act: Callable[[], Awaitable[None]]) -> bool:
        """Do it, or report why it has failed. False if the metadata store is away."""
        try:
            await act()
        except ClientClosedError:
            raise
        except BookKeeperError as error:
            away = _concerns_all(error)
            log.log(logging.DEBUG if away else logging.WARNING, "%s failed, retrying later: %s", what, error)
            return not away
        return True

    async def _maintain_all(self) -> None:
        """All logs once, from behind the one where the former call was cut short."""
        names = await self._logs.names()
        begin = bisect_right(names, self._reached)
        for name in names[begin:] + names[:begin]:
            self._reached = name
            try:
                await self._log_maintenance.maintain(name, self._fence)
            except BookKeeperError as error:
                if _concerns_all(error):
                    raise
                log.warning("failed to maintain log %s: %s", name, error)
            except Exception:
                log.exception("failed to maintain log %s", name)
        self._reached = ""

    async def _sweep(self) -> None:
        """One pass over all ledgers."""
        grace_s = self._settings.log_orphan_grace_s
        notes = await self._deletions.older_than(grace_s)  # unless there is a ledger that needs one of them
        found = _Found()
        async for some in all_ledgers(self._catalog, reads_at_once=self._settings.audit_reads_at_once):
            for ledger_id, metadata in some:
                if metadata is None:
                    found.unreadable.add(ledger_id)
                elif (belongs := log_of(metadata)) is not None:
                    found.seen.add(belongs.uid)
                    await self._sweep_one(metadata, belongs, grace_s, found)
        found.report()
        if found.unreadable.count:  # it may belong to any log
            return
        for note in notes:
            if note.uid not in found.seen:
                try:
                    await self._deletions.forget(note.uid)
                except UnauthorizedError as error:
                    log.warning("the note that log %s was deleted can't be removed: %s", note.name, error)

    async def _sweep_one(self, metadata: LedgerMetadata, belongs: LogOfLedger, grace_s: float, found: _Found) -> None:
        ledger_id = metadata.ledger_id
        if self._restore is not None and not self._restore.collects_later and ledger_id <= self._restore.kept_to:
            return  # the backup may have the list as it was before the ledger was in it
        try:
            swept = await self._log_maintenance.sweep(metadata, grace_s)
        except BookKeeperError as error:
            if _concerns_all(error):
                raise
            found.failed.setdefault((belongs.name, str(error)), _Kept()).add(ledger_id)
        except Exception:
            log.exception("failed to maintain ledger %d of log %s", ledger_id, belongs.name)
        else:
            if swept is Swept.DELETED:
                found.deleted += 1
            elif swept is Swept.KEPT_FOR_LOST_LIST:
                found.lost.setdefault(belongs, _Kept()).add(ledger_id)


def _concerns_all(error: BookKeeperError) -> bool:
    """Whether the metadata store is away or closed, so that no other log can be maintained either."""
    return isinstance(error, ClientClosedError) or (isinstance(error, MetadataUnavailableError) and error.retriable)


class _Kept:
    """Ledgers, ascending."""

    __slots__ = ("count", "first", "last")

    def __init__(self) -> None:
        self.count = 0
        self.first = self.last = -1

    def add(self, ledger_id: int) -> None:
        self.first = self.first if self.count else ledger_id
        self.count += 1
        self.last = ledger_id


class _Found:
    """What one pass over all ledgers has found."""

    def __init__(self) -> None:
        self.seen: set[str] = set()  # uids of logs
        self.deleted = 0
        self.lost: dict[LogOfLedger, _Kept] = {}  # by a log whose list was lost
        self.failed: dict[tuple[str, str], _Kept] = {}  # by a log, and the error
        self.unreadable = _Kept()

    def report(self) -> None:
        if self.deleted:
            log.info("%d ledgers were deleted that belonged to logs and that no list named", self.deleted)
        for (name, uid), kept in self.lost.items():
            log.warning(
                "%d ledgers of log %s, %d to %d, are in no list, and it is not known that the log was deleted: the "
                "list with uid %s seems to be lost. They are kept; put it back, or delete them with bkpy ledger delete",
                kept.count,
                name,
                kept.first,
                kept.last,
                uid,
            )
        for (name, error), kept in self.failed.items():
            log.warning(
                "%d ledgers that say they belong to log %s, %d to %d, are kept: %s",
                kept.count,
                name,
                kept.first,
                kept.last,
                error,
            )
        if (kept := self.unreadable).count:
            log.warning(
                "%d ledgers, %d to %d, are skipped: their metadata can't be read. No note of a deleted log is removed",
                kept.count,
                kept.first,
                kept.last,
            )
