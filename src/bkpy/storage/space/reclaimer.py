"""Reclaims one shard's space in the background: purges deleted ledgers, compacts mostly dead logs, removes dead logs.

Invariants: a log's file is removed only after the commit that removed its row, and that only if nothing in it lives by
an index that has all of its ledgers' rows; work goes in short steps with pauses; a full disk, or a log that can't be
written or removed, only delays it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from typing import TYPE_CHECKING, NamedTuple

from bkpy.runtime.pacer import StoppablePauses
from bkpy.storage.entry_log.entry_log import log_name
from bkpy.storage.file_names import INDEX_NAME
from bkpy.storage.index.index import LogRow, is_whole, log_key, log_rows
from bkpy.storage.space.compaction import Compactor

if TYPE_CHECKING:
    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import DiskRuntime, ReadTransaction
    from bkpy.storage.observer import StorageObserver
    from bkpy.storage.shard import Shard


class SpaceTotals(NamedTuple):
    """The complete logs of a shard. `living` leaves out logs that are not counted yet."""

    logs: int
    bytes: int
    living: int
    deleted_ledgers: int  # deleted ledgers that still have rows in the index
    compacting: int  # bytes left to copy in the compaction that is under way


class Reclaimer:
    """The reclaiming of one shard's space."""

    def __init__(self, shard: Shard, runtime: DiskRuntime, settings: BookieSettings, observer: StorageObserver) -> None:
        self._shard = shard
        self._files = runtime.files
        self._clock = runtime.clock
        self._settings = settings
        self._observer = observer
        self._pauses = StoppablePauses()
        self.compactor = Compactor(shard, runtime, settings, observer, self._pauses)
        # When the intervals began; settings may change.
        self._minor_from = self._major_from = self._damages_from = self._clock.monotonic()
        self._due = 0.0  # the living ratio of a compaction that failed, to be retried
        self._logs: dict[int, LogRow | None] = {}  # as of the last round
        self._dead: list[tuple[int, LogRow]] = []  # logs without a row whose files are not removed yet
        self._index_was_whole = False  # when its rows were looked at last
        self._loss_reported = False
        self._woken = asyncio.Event()
        self._reclaiming = asyncio.Lock()
        self._log = logging.getLogger("bkpy.bookie")

    @property
    def totals(self) -> SpaceTotals:
        """As of the last round."""
        rows = [row for row in self._logs.values() if row is not None]
        living = sum(row.living for row in rows if row.living is not None)
        deleted = len(self._shard.deleted.pending_delete) + len(self._shard.deleted.trash)
        return SpaceTotals(len(rows), sum(row.bytes for row in rows), living, deleted, self.compactor.pending_bytes)

    def wake(self) -> None:
        """Begin the next round now."""
        self._woken.set()

    async def run(self) -> None:
        """Run a round every `reclaim_interval_s`, and at `wake`, until `stop`."""
        while True:
            await self._pause()
            if self._pauses.stopped:
                return
            try:
                self._due = max(self._due, await self.ratio_due())
                await self.reclaim(self._due)
            except OSError as e:
                if e.errno == errno.ENOSPC:
                    self._log.warning(
                        "failed to reclaim space in %s for want of free space, retrying in %g s: %s",
                        self._shard.directory,
                        self._settings.reclaim_interval_s,
                        e,
                    )
                elif self._is_of_index(e):
                    raise
                else:
                    self._log.error(
                        "failed to reclaim space in %s, retrying in %g s: %s",
                        self._shard.directory,
                        self._settings.reclaim_interval_s,
                        e,
                    )
                    self._observer.reclaim_failed()

    def _is_of_index(self, error: OSError) -> bool:
        """Whether a write to the index may have failed. Work on logs can be retried."""
        return error.filename is None or str(error.filename).startswith(f"{self._shard.directory}/{INDEX_NAME}")

    def stop(self) -> None:
        """Let `run` end after its present step, with that completed."""
        self._pauses.stop()
        self._woken.set()

    def close(self) -> None:
        """End the thread. Blocks until it has finished its work."""
        self.compactor.close()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._settings.reclaim_interval_s):
                await self._woken.wait()
        except TimeoutError:
            return
        self._woken.clear()

    async def reclaim(self, living_ratio: float = 0.0) -> None:
        """One round, after the one that is under way; compacts logs of which less than that share lives.

        Raises the error of a dead log that can't be removed, after all else is done.
        """
        async with self._reclaiming:
            await self._delete()
            await self._count()
            stuck = await self._remove_dead_logs()
            tried: set[int] = set()
            while living_ratio and await self.compactor.compact(living_ratio, tried):
                stuck = await self._remove_dead_logs()
            if living_ratio >= self._due:
                self._due = 0.0
            self._logs = await self._shard.on_index(self._list)
            if stuck is not None:
                raise stuck

    async def ratio_due(self) -> float:
        """The living ratio below which logs are due for compaction, 0 for none. With little space it is due at once."""
        settings, now = self._settings, self._clock.monotonic()
        free = (await self._shard.on_index(self._files.space, self._shard.directory))[0]
        if now >= self._damages_from + settings.compaction_major_interval_s:  # also while there is little space
            self._damages_from = now
            self.compactor.forget_damages()
        if now >= self._major_from + settings.compaction_major_interval_s or free < settings.disk_free_bytes_resume:
            self._major_from = self._minor_from = now
            return settings.compaction_major_living_ratio
        if now >= self._minor_from + settings.compaction_minor_interval_s:
            self._minor_from = now
            return settings.compaction_minor_living_ratio
        return 0.0

    async def _delete(self) -> None:
        """Take deleted ledgers out of the index."""
        shard = self._shard
        if shard.deleted.pending_delete:
            async with shard.checkpointing:
                await shard.write_tombstones()
        while shard.deleted.trash and not self._pauses.stopped:
            await shard.purge(shard.deleted.trash)
            await self._pauses.pause(self._settings.index_step_pause_s)

    async def _remove_dead_logs(self) -> OSError | None:
        """Remove the files of dead logs. One that can't be removed holds up no other: returns its error."""
        shard, stuck = self._shard, None
        self._dead += await shard.on_index(self._take_dead_logs)
        for dead in list(self._dead):
            log_id, row = dead
            try:
                await shard.on_index(self._remove, f"{shard.directory}/{log_name(log_id)}")
            except OSError as e:
                stuck = stuck or e
                continue
            await shard.forget_log(log_id)
            self._observer.log_removed(row.bytes)
            self._dead.remove(dead)
        return stuck

    async def _count(self) -> None:
        """Count the living bytes of logs where they are not known."""
        shard = self._shard
        counting = shard.living.count(shard.store, self._settings.index_step_rows, self._size_of)
        while not self._pauses.stopped:
            if not await shard.on_index(next, counting, False):
                return
            await self._pauses.pause(self._settings.index_step_pause_s)
        await shard.on_index(counting.close)

    def _size_of(self, log_id: int) -> int:
        """Bytes of a log's file, 0 if it is gone."""
        try:
            file = self._files.open(f"{self._shard.directory}/{log_name(log_id)}", read_only=True)
        except FileNotFoundError:
            return 0
        try:
            return file.size()
        finally:
            file.close()

    def _remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # of a run that a power cut ended before anything relied on it
            self._files.unlink(path)

    def _take_dead_logs(self) -> list[tuple[int, LogRow]]:
        """Remove the rows of dead logs, and return those logs. Blocks."""
        with self._shard.store.read() as txn:
            rows = log_rows(txn)
            dead = [(log_id, row) for log_id, row in rows.items() if row is not None and row.living == 0]
            if dead and not self._trusts(txn, nothing_lives=len(dead) == len(rows)):
                return []
        if dead:
            with self._shard.store.write() as txn:
                for log_id, _ in dead:
                    txn.delete(log_key(log_id))
        return dead

    def _trusts(self, txn: ReadTransaction, *, nothing_lives: bool) -> bool:
        """Whether logs may be removed by this index. Blocks.

        It verifies all ledgers' rows before the first log of a run is removed, and whenever nothing lives in any log:
        an index that lost its rows looks the same.
        """
        if self._index_was_whole and not nothing_lives:
            return True
        whole = is_whole(txn, self._shard.row.uuid)
        if not whole and not self._loss_reported:
            self._loss_reported = True
            self._observer.damage(
                "the ledger rows differ from the count and checksum in the index, so no entry log is removed; stop the "
                "bookie, run `bkpy bookie check`, and `bkpy bookie rebuild-index` if that says so",
                f"{self._shard.directory}/{INDEX_NAME}",
            )
        self._index_was_whole = whole
        return whole

    def _list(self) -> dict[int, LogRow | None]:
        with self._shard.store.read() as txn:
            return log_rows(txn)
