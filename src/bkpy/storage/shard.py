"""One ledger directory: its memtable, entry logs and index, and reads over all three.

Invariants: a read references both memtable generations before it opens an index snapshot (S6); a generation is dropped
only after the commit of its checkpoint (S5); only a ledger whose rows were verified since the start denies entries; at
most one checkpoint runs at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from bkpy.storage.checkpoint.flush import Flush, WrittenLedgers, last_add_confirmed
from bkpy.storage.checkpoint.kept_runs import KeptFiles, KeptRuns
from bkpy.storage.entry_log.entry_log import KEPT, BlockReader, BlockWriter, Place, StoredBlock, log_id_of, log_name
from bkpy.storage.index.index import (
    BlockRow,
    LedgerRow,
    LogRow,
    ShardRow,
    blocks_fit,
    doubt_up_to,
    find_blocks,
    get_ledger,
    held_ledgers,
    log_key,
    put_all_in_limbo,
)
from bkpy.storage.index.living import LivingBytes
from bkpy.storage.index.tombstones import has_tombstone
from bkpy.storage.memtable.generation import Generation, LedgerBatches
from bkpy.storage.reads.block_cache import BlockCache
from bkpy.storage.reads.blocks import read_blocks
from bkpy.storage.reads.ranges import Assembled, StoredRange, assemble, of_batch, of_block
from bkpy.storage.reads.read_ahead import ReadAhead
from bkpy.storage.space.deleted_ledgers import DeletedLedgers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import DiskRuntime, OrderedStore
    from bkpy.storage.journal.format import Mark
    from bkpy.storage.ledgers.info import LedgerInfo
    from bkpy.storage.memory_budget import MemoryBudget
    from bkpy.storage.observer import StorageObserver

T = TypeVar("T")

_SEALED_AGE: Final = 0
_ACTIVE_AGE: Final = 1 << 40  # arrivals of the sealed generation never reach it


class RangeRead(NamedTuple):
    """A shard's part of an `engine.ReadResult`."""

    segments: list[memoryview]
    examined_to: int
    unknown: list[tuple[int, int]]
    lac: int


class _Found(NamedTuple):
    """The rows of an index snapshot for a range of a ledger."""

    row: LedgerRow | None
    blocks: list[BlockRow]
    complete_to: int
    damaged: bool


class Loaded(NamedTuple):
    """Some ledgers in the index: the rows that there are, and the ids that were deleted."""

    rows: dict[int, LedgerRow]
    with_tombstone: set[int]


class Shard:
    """A ledger directory in use. All methods run on the event loop, except where they say that they block."""

    def __init__(
        self,
        number: int,
        directory: str,
        store: OrderedStore,
        row: ShardRow,
        runtime: DiskRuntime,
        settings: BookieSettings,
        observer: StorageObserver,
        memory: MemoryBudget,
    ) -> None:
        self.number = number
        self.directory = directory
        self.row = row
        self.sealed: Generation | None = None
        self.commits = 0  # checkpoints of this run
        self.checkpointing = asyncio.Lock()
        self.cleared: asyncio.Future[None] | None = None  # done when the last flushed generation is freed
        self.store = store
        self._runtime = runtime
        self._settings = settings
        self._observer = observer
        self._log: BlockWriter | None = None
        self._kept_files = KeptFiles(runtime.files, directory, settings)
        self._reader = BlockReader(runtime.files, directory, open_max=settings.open_entry_logs_max)
        self.cache = BlockCache(settings.block_cache_bytes_max, memory)
        self.ahead = ReadAhead(
            self.cache,
            runtime.spawn,
            bytes_max=settings.read_ahead_bytes_max,
            ledgers_max=settings.read_ahead_ledgers_max,
            find=self._rows_ahead,
            load=self._load_ahead,
        )
        self.unlisted_logs = self._list_logs()
        self.living = LivingBytes()
        self.deleted = DeletedLedgers(store, self.living)
        self.active = self._generation()
        # Last: they have threads, which nobody would end if an earlier step failed.
        with contextlib.ExitStack() as begun:
            self._flush_worker = runtime.files.worker(f"flush-{number}")
            begun.callback(self._flush_worker.close)
            self._read_worker = runtime.files.worker(f"read-{number}")
            begun.pop_all()

    def _list_logs(self) -> dict[int, LogRow]:
        """Logs that an unclean stop left without a row. Blocks; also raises the next log's id above all there are."""
        unlisted: dict[int, LogRow] = {}
        with self.store.read() as txn:
            for name in self._runtime.files.listdir(self.directory):
                log_id = log_id_of(name)
                if log_id is None:
                    continue
                if not log_id & KEPT:
                    self.row = self.row._replace(next_log_id=max(self.row.next_log_id, log_id + 1))
                if txn.get(log_key(log_id)) is None:
                    file = self._runtime.files.open(f"{self.directory}/{log_name(log_id)}", read_only=True)
                    unlisted[log_id] = LogRow(file.size(), 0, False)
                    file.close()
        return unlisted

    def _generation(self) -> Generation:
        # The bookies of a ledger fill up alike. If they all flush at once, nobody is quick to acknowledge.
        least = self._settings.memtable_fill_min
        fill_target = least + (1 - least) * self._runtime.rng.random()
        return Generation(fill_target, self._settings.memtable_step_batches)

    # --- states -------------------------------------------------------------------------------------------------------

    def load_now(self, ledger_ids: Collection[int]) -> Loaded:
        """Look these ledgers up. Blocks."""
        return self._without_pending_delete(self._load(ledger_ids), ledger_ids)

    async def load(self, ledger_ids: Collection[int]) -> Loaded:
        """Look these ledgers up."""
        return self._without_pending_delete(await self._read_worker.run(self._load, ledger_ids), ledger_ids)

    def _load(self, ledger_ids: Collection[int]) -> Loaded:
        rows: dict[int, LedgerRow] = {}
        with self.store.read() as txn:
            for ledger_id in ledger_ids:
                row = get_ledger(txn, ledger_id)
                if row is not None:
                    rows[ledger_id] = row
            return Loaded(rows, {i for i in ledger_ids if i not in rows and has_tombstone(txn, i)})

    def _without_pending_delete(self, found: Loaded, ledger_ids: Collection[int]) -> Loaded:
        pending_delete = self.deleted.pending_delete.intersection(ledger_ids)
        for ledger_id in pending_delete:
            found.rows.pop(ledger_id, None)
        return found._replace(with_tombstone=found.with_tombstone | pending_delete)

    async def has_tombstone(self, ledger_id: int) -> bool:
        """Whether a ledger of that id was ever deleted here. `CorruptDataError` if its range is damaged."""
        return ledger_id in self.deleted.pending_delete or await self._read_worker.run(
            self.has_tombstone_now, ledger_id
        )

    def has_tombstone_now(self, ledger_id: int) -> bool:
        """The same. Blocks."""
        if ledger_id in self.deleted.pending_delete:
            return True
        with self.store.read() as txn:
            return has_tombstone(txn, ledger_id)

    def unwritten(self) -> set[int]:
        """Ledgers that may be in memory only."""
        return self.active.dirty.union(self.sealed.dirty if self.sealed is not None else ())

    async def held(self, after: int, limit: int) -> list[int]:
        """The lowest ids above `after` that have a row, `limit` at most."""
        return await self._read_worker.run(self._held, after, limit)

    def _held(self, after: int, limit: int) -> list[int]:
        with self.store.read() as txn:
            return held_ledgers(txn, after, limit + len(self.deleted.pending_delete))

    def holds(self, ledger_id: int) -> bool:
        """Whether something of the ledger is in memory only. Call `catch_up` before, or it takes long."""
        generations = [g for g in (self.sealed, self.active) if g is not None]
        return any(ledger_id in g.dirty or g.batches_of(ledger_id) is not None for g in generations)

    def put_all_in_limbo(self) -> None:
        """Fence every ledger, whether the index knows it or not, and put it in limbo. Blocks."""
        self.row = put_all_in_limbo(self.store, self.row)

    def doubt_up_to(self, limbo_to: int) -> None:
        """Answer *unknown* for ledgers up to this id that the index doesn't know. Blocks."""
        self.row = doubt_up_to(self.store, self.row, limbo_to)

    def touch(self, info: LedgerInfo) -> None:
        """Have the next checkpoint write the state, which changed; until then it stays in the cache."""
        if self.active.touch(info.ledger_id):
            info.pins += 1

    # --- checkpoint ---------------------------------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        return self.active.bytes + (self.sealed.bytes if self.sealed is not None else 0)

    @property
    def own_bytes(self) -> int:
        """Of these, the bytes that don't lie in the buffers that they were received into."""
        sealed = self.sealed
        own = self.active.bytes - self.active.received_bytes
        return own if sealed is None else own + sealed.bytes - sealed.received_bytes

    @property
    def clearing(self) -> bool:
        """Whether the last flushed generation is still being freed."""
        return self.cleared is not None and not self.cleared.done()

    def seal(self) -> Generation:
        """Begin a new generation; the caller flushes the old one."""
        if self.sealed is not None:
            raise AssertionError("the generation sealed before is not flushed yet")
        self.sealed = self.active
        self.active = self._generation()
        return self.sealed

    async def flush(
        self, infos: Mapping[int, LedgerInfo], marks: tuple[Mark, ...], *, close_log: bool
    ) -> WrittenLedgers:
        """Write the sealed generation and the marks, then drop it; returns the news of its ledgers."""
        generation = self.sealed
        assert generation is not None
        began = self._runtime.clock.monotonic()
        await self.write_tombstones()
        while revived := generation.dirty & self.deleted.trash:  # the rows of the earlier life go before new ones come
            await self.purge(revived)
        flush = Flush(
            self.store,
            self.row,
            generation,
            infos,
            living=self.living,
            open_log=self.open_log,
            log=self._log,
            settings=self._settings,
            unlisted_logs=self.unlisted_logs,
            kept=KeptRuns(self._kept_files, marks),
        )
        try:
            while await self._flush_worker.run(flush.step):
                pass
            flushed = await self._flush_worker.run(flush.commit, marks, close_log)
        except OSError:
            with contextlib.suppress(OSError):  # the first error says why
                await self._flush_worker.run(flush.abandon)
            raise
        finally:
            self._log = flush.log
        self.row = flushed.shard
        self.commits += 1
        self.unlisted_logs = {}
        self.sealed = None
        # Nobody reads it any more. Freeing takes long, so it happens off the loop, and nobody waits for it here: the
        # caller takes over the rows before anybody reads.
        self.cleared = self._flush_worker.run(generation.clear)
        self._observer.checkpoint(generation.bytes, self._runtime.clock.monotonic() - began)
        return flushed.written

    async def write_tombstones(self) -> None:
        """Make tombstones of deleted ledgers in the index. Only while `checkpointing` is held."""
        while self.deleted.pending_delete:
            ledger_ids = list(islice(self.deleted.pending_delete, self._settings.index_step_rows))
            await self.change_row(self.deleted.write_tombstones, ledger_ids)
            self.deleted.tombstones_written(ledger_ids)

    async def purge(self, ledger_ids: Collection[int]) -> None:
        """Remove some of the block rows that are left of deleted ledgers."""
        some = list(islice(ledger_ids, self._settings.index_step_rows))
        done = await self._flush_worker.run(self.deleted.purge, some, self._settings.index_step_rows)
        self.deleted.purged(done)

    def on_index(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Run a function that blocks and may write to the index, between two steps of other writers of the index."""
        return self._flush_worker.run(function, *args)

    async def change_row(self, function: Callable[..., ShardRow], *args: Any) -> None:
        """Run a transaction that takes the shard's row and returns the new one. Only while `checkpointing` is held.

        The caller must not be cancelled.
        """
        self.row = await self._flush_worker.run(function, self.row, *args)
        self.commits += 1

    async def take_log_id(self) -> int:
        """The id of a log that is about to be begun."""
        async with self.checkpointing:  # which begins logs as well
            log_id = self.row.next_log_id
            self.row = self.row._replace(next_log_id=log_id + 1)
        return log_id

    async def forget_log(self, log_id: int) -> None:
        """Close a log whose file is gone, so that its space becomes free: no read can open it again."""
        await self._read_worker.run(self._reader.forget, log_id)

    def open_log(self, log_id: int) -> BlockWriter:
        """Begin a log. Blocks."""
        return BlockWriter(
            self._runtime.files,
            self.directory,
            log_id,
            self.row.uuid,
            write_bytes=self._settings.entry_log_write_bytes,
        )

    # --- reading ------------------------------------------------------------------------------------------------------

    async def catch_up(self, ledger_id: int) -> bool:
        """Bring the memtable's index up to date, in steps; whether the event loop ran in between."""
        step = self._settings.memtable_step_batches
        waited = False
        while not all(g.catch_up(ledger_id, step) for g in (self.sealed, self.active) if g is not None):
            waited = True
            step *= 2  # so that it ends although more arrives all the time
            await asyncio.sleep(0)
        return waited

    async def read(self, info: LedgerInfo, first: int, last: int, bytes_max: int) -> RangeRead:
        """Entries first..last of the ledger, as many as fit `bytes_max`, at least one."""
        known_to = info.last_entry
        memory, complete_to, memory_last, lac = self._memory(info.ledger_id, first, last, bytes_max)
        lac = max(lac, info.lac)
        if first > max(known_to, memory_last):
            return RangeRead([], last, [(first, last)] if info.limbo else [], lac)
        if info.hidden:
            done = assemble(memory, info.ledger_id, first, complete_to, bytes_max)
            return RangeRead(done.segments, done.examined_to, [(first, done.examined_to)], lac)
        if first > known_to or any(s.live.first <= first <= s.live.last for s in memory):
            done = assemble(memory, info.ledger_id, first, complete_to, bytes_max, stop_at_gap=first <= known_to)
            if done.segments or done.unknown or first > known_to:
                return self._result(info, first, done, lac)
        return await self._read_index(info, first, complete_to, bytes_max, memory, lac)

    async def _read_index(
        self,
        info: LedgerInfo,
        first: int,
        last: int,
        bytes_max: int,
        memory: Sequence[StoredRange],
        lac: int,
    ) -> RangeRead:
        info.pins += 1  # the findings of this read must reach the state in the cache
        self.ahead.reading += 1
        try:
            result = await self._read_pinned(info, first, last, bytes_max, memory, lac)
        finally:
            self.ahead.reading -= 1
            info.pins -= 1
        self.ahead.ended(info.ledger_id, first, result.examined_to)
        return result

    async def _read_pinned(
        self, info: LedgerInfo, first: int, last: int, bytes_max: int, memory: Sequence[StoredRange], lac: int
    ) -> RangeRead:
        ledger_id = info.ledger_id
        found, blocks = await self._look_up(ledger_id, first, last, bytes_max)
        row = found.row
        if info.gone:
            return RangeRead([], last, [(first, last)], lac)
        if row is None or found.damaged:
            self.distrust(info, "its index row is gone" if row is None else "a row of its blocks is damaged")
        ranges = [*memory, *(of_block(b.ids, block) for b, block in zip(found.blocks, blocks, strict=True))]
        done = assemble(ranges, ledger_id, first, found.complete_to, bytes_max)
        if done.gap and not info.limbo and not info.verified:
            info.verified = await self._verify(ledger_id)
            if not info.verified and not info.gone:
                self.distrust(info, "rows of its blocks are missing or are not the stored ones")
        if found.damaged:
            done = done._replace(unknown=[(first, done.examined_to)])
        return self._result(info, first, done, max(lac, row.lac if row is not None else -1))

    def _result(self, info: LedgerInfo, first: int, done: Assembled, lac: int) -> RangeRead:
        unknown = done.unknown
        if info.limbo and (done.gap or unknown):
            # Covers ids that are in the segments too; those are known. What is damaged stays beside it: that was here.
            unknown = [(first, done.examined_to), *unknown]
        return RangeRead(done.segments, done.examined_to, unknown, lac)

    def distrust(self, info: LedgerInfo, why: str) -> None:
        """Put the ledger into limbo: from now on it denies nothing."""
        if not info.limbo:
            info.limbo = True
            self.touch(info)
            self._observer.damage(f"ledger {info.ledger_id} is in limbo: {why}", self.directory)

    def _memory(self, ledger_id: int, first: int, last: int, bytes_max: int) -> tuple[list[StoredRange], int, int, int]:
        """(ranges, id up to which they are complete, highest id, last add confirmed) in both generations."""
        ranges: list[StoredRange] = []
        complete_to, highest, lac = last, -1, -1
        for generation, age in ((self.sealed, _SEALED_AGE), (self.active, _ACTIVE_AGE)):
            batches = generation.batches_of(ledger_id) if generation is not None else None
            if batches is None:
                continue
            found, limit = batches.find(first, last, bytes_max)
            ranges += [of_batch(batch, age + arrival) for arrival, batch in found]
            complete_to = min(complete_to, limit)
            highest, lac = max(highest, batches.last), max(lac, last_add_confirmed(batches.newest))
        return ranges, complete_to, highest, lac

    def highest(self, info: LedgerInfo) -> int:
        """The highest id of the ledger here, -1 if it has none."""
        found: list[LedgerBatches | None] = [self.active.batches_of(info.ledger_id)]
        if self.sealed is not None:
            found.append(self.sealed.batches_of(info.ledger_id))
        return max(info.last_entry, *(batches.last for batches in found if batches is not None), -1)

    async def _look_up(
        self, ledger_id: int, first: int, last: int, bytes_max: int
    ) -> tuple[_Found, list[StoredBlock | None]]:
        going_on = self.ahead.began(ledger_id, first, last)
        before: list[Place] | None = None
        while True:
            found = await self._read_worker.run(self._find, ledger_id, first, last, bytes_max)
            places = [row.place for row in found.blocks]
            blocks = await self._blocks(ledger_id, found.blocks, going_on, lost=places == before)
            if blocks is not None:
                return found, blocks
            before = places  # one was compacted away since; the index knows where to

    def _find(self, ledger_id: int, first: int, last: int, bytes_max: int) -> _Found:
        with self.store.read() as txn:
            row = get_ledger(txn, ledger_id)
            if row is None:
                return _Found(None, [], last, False)
            return _Found(row, *find_blocks(txn, ledger_id, row.span_max, first, last, bytes_max))

    async def _verify(self, ledger_id: int) -> bool:
        return await self._read_worker.run(self._verify_now, ledger_id)

    def _verify_now(self, ledger_id: int) -> bool:
        with self.store.read() as txn:
            row = get_ledger(txn, ledger_id)
            return row is not None and blocks_fit(txn, ledger_id, row)

    async def _rows_ahead(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[BlockRow]:
        return (await self._read_worker.run(self._find, ledger_id, first, last, bytes_max)).blocks

    async def _load_ahead(self, ledger_id: int, row: BlockRow) -> None:
        for place, block in (await self.load_blocks(ledger_id, [row])).items():
            if not isinstance(block, Exception):
                self.cache.put(place, block)

    async def _blocks(
        self, ledger_id: int, rows: Sequence[BlockRow], going_on: bool, *, lost: bool
    ) -> list[StoredBlock | None] | None:
        """The rows' blocks, None for an unreadable one; None in all if a log isn't there, unless that is `lost`."""
        loaded: dict[Place, StoredBlock | Exception] = {}
        for row in rows:
            if (cached := self.cache.get(row.place, going_on=going_on)) is not None:
                loaded[row.place] = cached
        missing = [row for row in rows if row.place not in loaded]
        if missing:
            loaded |= await self.load_blocks(ledger_id, missing)
        blocks: list[StoredBlock | None] = []
        gone: set[int] = set()
        for row in rows:
            block = loaded[row.place]
            if isinstance(block, FileNotFoundError):
                if not lost:
                    return None
                if row.place.log_id not in gone:
                    gone.add(row.place.log_id)
                    what = f"an entry log that ledger {ledger_id} needs is gone: {block}"
                    self._observer.damage(what, self.directory)
                blocks.append(None)
            elif isinstance(block, Exception):
                path = f"{self.directory}/{log_name(row.place.log_id)}"
                self._observer.damage(
                    f"the block at offset {row.place.offset} of ledger {ledger_id} can't be read: {block}", path
                )
                blocks.append(None)
            else:
                self.cache.put(row.place, block)
                blocks.append(block)
        return blocks

    async def load_blocks(self, ledger_id: int, rows: Sequence[BlockRow]) -> dict[Place, StoredBlock | Exception]:
        """The verified blocks that these rows of the ledger name, by place, or the error of reading one."""
        run_bytes = self._settings.block_run_bytes
        return await self._read_worker.run(read_blocks, self._reader, ledger_id, rows, run_bytes)

    # --- end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the threads and close the files; entries that were not checkpointed stay in the journal. Blocks."""
        self._flush_worker.close()
        self._read_worker.close()
        self._reader.close()
        if self._log is not None:
            self._log.close()
        self.store.close()

    def check_invariants(self) -> None:
        self.active.check_invariants()
        if self.sealed is not None:
            self.sealed.check_invariants()
        self.cache.check_invariants()
        assert self._log is None or self._log.log_id < self.row.next_log_id
