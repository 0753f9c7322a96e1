"""Compaction: copies the living blocks of mostly dead logs to new logs, so that the old ones can be removed.

A pass goes over the block rows in their order, so that a ledger's blocks come to lie together. It reads blocks whole,
verifies them, appends them to a new log, and syncs that with its directory. Then one transaction lets rows point there.
The old log is dead when no row names it any more, and is removed like any other dead log.

A crash leaves a log that no row names, or that has some of the blocks and no row of its own: the next start adds one.

Invariants: a row is repointed only if it is still the copied one (S13) and its ledger is still there, so replaced and
deleted entries never come back; a block that can't be verified stays where it is, with its log; the space that
checkpoints and fences need stays free.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from bkpy.config.base import MIB
from bkpy.errors import CorruptDataError
from bkpy.runtime.pacer import Pacer
from bkpy.storage.entry_log.entry_log import Place, dead_bytes
from bkpy.storage.index.index import (
    SHARD_KEY,
    BlockRow,
    LogRow,
    ShardRow,
    block_key,
    checksum_of,
    decode_block_row,
    decode_ledger,
    encode_block_row,
    encode_ledger,
    encode_shard,
    ledger_key,
    ledger_of_block,
    log_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import DiskRuntime
    from bkpy.runtime.pacer import StoppablePauses
    from bkpy.storage.entry_log.entry_log import BlockWriter
    from bkpy.storage.observer import StorageObserver
    from bkpy.storage.shard import Shard

T = TypeVar("T")


class _Source(NamedTuple):
    """A block row as it was read."""

    ledger_id: int
    key: bytes
    value: bytes
    row: BlockRow


class _Move(NamedTuple):
    """A block row, and the place of the copy of its block."""

    source: _Source
    place: Place


class Compactor:
    """The compaction of one shard. `pending_bytes`: living bytes of the chosen logs that are not copied yet."""

    def __init__(
        self,
        shard: Shard,
        runtime: DiskRuntime,
        settings: BookieSettings,
        observer: StorageObserver,
        pauses: StoppablePauses,
    ) -> None:
        self.pending_bytes = 0
        self._shard = shard
        self._files = runtime.files
        self._settings = settings
        self._observer = observer
        self._worker = runtime.files.worker(f"compaction-{shard.number}")
        self._damaged: set[int] = set()  # logs with blocks that can't be read
        self._target: BlockWriter | None = None
        self._named = False  # a row may point to the target
        self._written: set[int] = set()
        self._left: dict[int, LogRow] = {}  # complete logs, or logs that an error ended, without a row yet
        self.moves: list[_Move] = []
        self._pauses = pauses
        self._pacer = Pacer(runtime.clock, settings.compaction_bytes_per_s)

    def close(self) -> None:
        """End the thread. Blocks until it has finished its work."""
        self._worker.close()
        if self._target is not None:
            self._target.close()

    def forget_damages(self) -> None:
        """Try logs again that had blocks which could not be read: by now they may be copied anew, or readable."""
        self._damaged.clear()

    async def compact(self, living_ratio: float, tried: set[int]) -> bool:
        """Compact logs of which less than that share lives, as many as there is space for their copies.

        Adds those logs and the new ones to `tried`, and skips logs that are in it; False if there was none.
        """
        await self._list_left()
        candidates = await self._shard.on_index(self._candidates, living_ratio)
        candidates = {log_id: living for log_id, living in candidates.items() if log_id not in tried}
        chosen = self._affordable(candidates, await self._worker.run(self._files.space, self._shard.directory))
        if not chosen or self._pauses.stopped:
            return False
        tried.update(chosen)
        self.pending_bytes = sum(chosen.values())
        try:
            await self._copy(chosen.keys())
        except OSError:
            await self._abandon()
            raise
        finally:
            self.pending_bytes = 0
        tried.update(self._written)
        self._written.clear()
        return True

    def _candidates(self, living_ratio: float) -> dict[int, int]:
        """Living bytes by log, for logs that are worth compacting, the least first. Blocks."""
        with self._shard.store.read() as txn:
            rows = log_rows(txn)
        found = {
            log_id: row.living
            for log_id, row in rows.items()
            if row is not None
            and row.living
            and log_id not in self._damaged
            and dead_bytes(row.bytes, row.blocks, row.living, footer=row.footer) > (1 - living_ratio) * row.bytes
        }
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def _affordable(self, candidates: dict[int, int], space: tuple[int, int]) -> dict[int, int]:
        """The candidates whose copies fit beside the space that must stay free."""
        free = space[0] - self._settings.compaction_free_bytes_min
        chosen: dict[int, int] = {}
        for log_id, living in candidates.items():
            free -= living
            if free < 0:
                break
            chosen[log_id] = living
        return chosen

    # --- copying ------------------------------------------------------------------------------------------------------

    async def _copy(self, log_ids: Collection[int]) -> None:
        cursor: bytes | None = block_key(0, 0)
        uncommitted = 0
        while cursor is not None and not self._pauses.stopped:
            sources, cursor = await self._shard.on_index(self._gather, cursor, log_ids)
            copied = 0
            for ledger_id, group in groupby(sources, attrgetter("ledger_id")):
                if not self._shard.deleted.pending(ledger_id):
                    copied += await self._copy_blocks(ledger_id, list(group))
            uncommitted += copied
            self.pending_bytes = max(0, self.pending_bytes - copied)
            if uncommitted >= self._settings.compaction_commit_bytes:
                await self.commit()
                uncommitted = 0
            self._pacer.per_s = self._settings.compaction_bytes_per_s  # which may have changed
            await self._pauses.pause(max(self._pacer.charge(copied), self._settings.index_step_pause_s))
        await self._finish_target()

    def _gather(self, cursor: bytes, log_ids: Collection[int]) -> tuple[list[_Source], bytes | None]:
        """(rows of blocks in these logs from `cursor` on, the next cursor). Blocks."""
        found: list[_Source] = []
        size = 0
        with self._shard.store.read() as txn:
            for looked_at, (key, value) in enumerate(txn.scan(cursor, b"c")):
                if looked_at == self._settings.index_step_rows or size >= self._settings.compaction_step_bytes:
                    return found, key
                with contextlib.suppress(CorruptDataError):  # reads of its entries report it
                    row = decode_block_row(key, value)
                    if row.place.log_id in log_ids:
                        found.append(_Source(ledger_of_block(key), key, value, row))
                        size += row.place.length
        return found, None

    async def _copy_blocks(self, ledger_id: int, sources: Sequence[_Source]) -> int:
        """Append the blocks of one ledger's rows to the new log; returns how many bytes they are."""
        copied = 0
        blocks = await self._shard.load_blocks(ledger_id, [source.row for source in sources])
        for source in sources:
            block = blocks[source.row.place]
            if isinstance(block, FileNotFoundError):
                continue  # the log has died since
            if isinstance(block, Exception):
                self._report(source, block)
                continue
            target = await self._open_target()
            place = await self._write(target.append, ledger_id, block.ids, block.runs, [block.data])
            self.moves.append(_Move(source, place))
            copied += place.length
        return copied

    def _report(self, source: _Source, error: Exception) -> None:
        log_id, offset, _ = source.row.place
        if log_id not in self._damaged:
            self._damaged.add(log_id)
            self._observer.damage(
                f"entry log {log_id} isn't compacted: the block of ledger {source.ledger_id} at offset {offset} "
                f"can't be read: {error}",
                self._shard.directory,
            )

    async def _open_target(self) -> BlockWriter:
        settings, target = self._settings, self._target
        if target is not None and (
            target.size >= settings.entry_log_max_size_mb * MIB or target.blocks >= settings.entry_log_blocks_max
        ):
            await self._finish_target()
        if self._target is None:
            log_id = await self._shard.take_log_id()
            self._written.add(log_id)
            self._target, self._named = await self._write(self._shard.open_log, log_id), False
        return self._target

    async def _write(self, function: Callable[..., T], *args: Any) -> T:
        """Run a write to the new log. An error names the file, which distinguishes it from an error of the index."""
        try:
            return await self._worker.run(function, *args)
        except OSError as e:
            path = self._shard.directory if self._target is None else self._target.path
            raise OSError(e.errno, e.strerror, e.filename or path) from e

    # --- committing ---------------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Sync the copies, and let the rows point to them."""
        if self._target is None or not self.moves:
            return
        await self._write(self._target.sync)
        moves, self.moves = self.moves, []
        async with self._shard.checkpointing:  # which changes the rows of shard and ledgers as well
            self._named = True
            await self._shard.change_row(self._repoint, moves)
        self._observer.compacted(sum(move.place.length for move in moves))

    async def _finish_target(self) -> None:
        await self.commit()
        if (target := self._target) is None:
            return
        blocks = await self._write(target.finish)
        self._target = None
        self._left[target.log_id] = LogRow(target.size, blocks, True)
        await self._list_left()

    async def _list_left(self) -> None:
        """Write the rows of logs that get no more blocks."""
        while self._left:
            log_id, row = next(iter(self._left.items()))
            await self._shard.on_index(self._list, log_id, row)
            del self._left[log_id]

    def _list(self, log_id: int, row: LogRow) -> None:
        with self._shard.store.write() as txn:
            self._shard.living.change(txn, {})
            self._shard.living.finish(txn, log_id, row)
        self._shard.living.committed()

    def _repoint(self, shard: ShardRow, moves: Sequence[_Move]) -> ShardRow:
        """Repoint rows in one transaction; returns the shard's new row. Blocks."""
        checksum = shard.checksum
        moved: defaultdict[int, int] = defaultdict(int)
        with self._shard.store.write() as txn:
            for ledger_id, group in groupby(moves, lambda move: move.source.ledger_id):
                key = ledger_key(ledger_id)
                value = txn.get(key)
                if value is None:
                    continue  # it was deleted
                try:
                    ledger = decode_ledger(key, value)
                except CorruptDataError:
                    continue
                for source, place in group:
                    if txn.get(source.key) != source.value:
                        continue
                    _, new = encode_block_row(ledger_id, BlockRow(source.row.ids, place))
                    txn.put(source.key, new)
                    ledger = ledger._replace(checksum=ledger.checksum ^ checksum_of(source.value) ^ checksum_of(new))
                    moved[source.row.place.log_id] -= source.row.place.length
                    moved[place.log_id] += place.length
                new_row = encode_ledger(ledger_id, ledger)
                txn.put(key, new_row)
                checksum ^= checksum_of(value) ^ checksum_of(new_row)
            self._shard.living.change(txn, moved)
            shard = shard._replace(checksum=checksum)
            txn.put(SHARD_KEY, encode_shard(shard))
        self._shard.living.committed()
        return shard

    async def _abandon(self) -> None:
        """After an error: remove a log that no row names, so that retries don't fill the disk."""
        target, self._target, self.moves = self._target, None, []
        if target is None:
            return
        if self._named:
            target.close()
            self._left[target.log_id] = LogRow(target.written, 0, False)
            return
        with contextlib.suppress(OSError):  # the first error says why
            await self._worker.run(target.remove)
