"""The storage engine, as the bookie's server uses it: ledgers' states, adds, fences, reads and checkpoints.

Invariants: nothing is acknowledged before its journal's sync (S1), but for adds where the settings give that up, and
nothing at all after a write or sync failed (S2); a fence takes effect before anybody waits for it, and is durable
before anybody gets an answer (S16); the bookie denies an entry only if it can't have acknowledged it. All methods run
on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import BookKeeperError, StorageFailedError
from bkpy.protocol.wire.messages import Status
from bkpy.runtime.pacer import Interval
from bkpy.storage.at_risk import NOTHING, put_mark
from bkpy.storage.held_entries import HeldEntries
from bkpy.storage.journal.format import RecordKind
from bkpy.storage.journal.journal import UnjournaledAdds, begin_journals
from bkpy.storage.ledgers.info import lac_of, take_explicit_lac
from bkpy.storage.ledgers.ledgers import checkpoint_errors
from bkpy.storage.memtable.split import after, split
from bkpy.storage.scrub.scrub import Scrub
from bkpy.storage.space.reclaimer import SpaceTotals

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from bkpy.buffers import Bytes
    from bkpy.config.bookie import BookieSettings
    from bkpy.protocol.wire.messages import AddColumns
    from bkpy.runtime.interfaces import DiskRuntime
    from bkpy.storage.journal.format import Mark
    from bkpy.storage.journal.journal import Journal, JournalWriter, Position, WriteTimes
    from bkpy.storage.ledgers.info import LedgerInfo
    from bkpy.storage.ledgers.ledgers import Ledgers
    from bkpy.storage.memory_budget import MemoryBudget
    from bkpy.storage.observer import StorageObserver
    from bkpy.storage.shard import Shard
    from bkpy.storage.space.reclaimer import Reclaimer


class ReadResult(NamedTuple):
    """What this bookie knows of a range of a ledger.

    `segments` are entry records in ascending id order, none outside the range. An id up to `examined_to` that is
    neither in them nor in `unknown` was never acknowledged here. A range in `unknown` may cover ids that are in the
    segments; those are known all the same. Of a ledger in limbo the first range is all that was examined, and others
    follow of what was stored here and is damaged. `lac` is the highest last add confirmed that entries here carry.
    """

    segments: list[Bytes]
    examined_to: int
    unknown: list[tuple[int, int]]
    lac: int


class LastEntry(NamedTuple):
    """The end of a ledger on this bookie. `limbo`: later entries may have been lost, so this is no promise."""

    entry: Bytes  # the record of the highest entry, empty if there is none
    explicit_lac: bytes
    fenced: bool
    known: bool  # False: this bookie never acknowledged anything of the ledger
    limbo: bool

    @property
    def lac(self) -> int:
        """The highest last add confirmed that the two records carry; below -1 if there is none."""
        return max(lac_of(self.entry), lac_of(self.explicit_lac))


class LedgerStorage:
    """One bookie's storage. `open_storage` makes it, `close` ends it.

    `journals` of the constructor have begun their files; `release` closes everything that the storage is made of.

    `ledgers`: the state of each ledger, and the shards.
    `fenced`: ledgers whose normal adds must be refused. It is right for each ledger that `states` has just loaded, and
    for each that `ledgers.writable` names.
    `failed`: gets the exception of a failed write or sync; the process must stop then.
    `memory`: the bookie's budget; some of its parts are the storage's.
    `fences`: the latest fences, each with its time since the epoch.
    `full`: a memtable's two generations or a journal's queue have reached their bounds, or the budget is used up. Stop
    reading sockets until an `on_space` callback.
    """

    def __init__(
        self,
        settings: BookieSettings,
        runtime: DiskRuntime,
        observer: StorageObserver,
        ledgers: Ledgers,
        reclaimers: Sequence[Reclaimer],
        journals: Sequence[JournalWriter],
        cookie: bytes,
        release: Callable[[], None],
        memory: MemoryBudget,
    ) -> None:
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failed.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may have no waiter
        self.full = False
        self.on_space: list[Callable[[], None]] = []
        self.fences: deque[tuple[int, float]] = deque(maxlen=settings.activity_ledgers_max)
        self.cookie = cookie
        self.memory = memory
        self.ledgers = ledgers
        self.shards = ledgers.shards
        self.fenced = ledgers.fenced
        self.generation_bytes_max = ledgers.generation_bytes_max
        self.journals = begin_journals(journals, settings, runtime, self.look_for_space, self.fail, observer)
        self.reclaimers = reclaimers
        self._unjournaled = None if settings.journal_write_data else UnjournaledAdds(self.fail)
        self._held = HeldEntries(memory, self.shards, self.journals)
        self._settings = settings
        self._runtime = runtime
        self._release = release
        self._fencing: dict[int, asyncio.Future[None]] = {}
        self._deleting: dict[int, asyncio.Future[None]] = {}  # ledgers whose deletions are not durable yet
        self._publishing: dict[int, asyncio.Future[None]] = {}  # the last explicit last add confirmed of each ledger
        self._flushing: set[int] = set()  # shards whose memtables are full
        self._closed = self._released = False
        self._reclaiming = [
            runtime.spawn(reclaimer.run(), name=f"reclaimer {number}", on_death=self.fail)
            for number, reclaimer in enumerate(self.reclaimers)
        ]
        self._periodic: asyncio.Task[None] | None = None
        self._interval = Interval(runtime.clock, lambda: settings.checkpoint_interval_s)
        self.scrub = Scrub(self.shards, runtime, settings, observer)

    # --- states -------------------------------------------------------------------------------------------------------

    @property
    def untrusted(self) -> bool:
        """See `Ledgers.untrusted`."""
        return self.ledgers.untrusted

    async def states(self, ledger_ids: Collection[int]) -> dict[int, LedgerInfo | None]:
        """See `Ledgers.load`."""
        return await self.ledgers.load(ledger_ids)

    def was_deleted(self, ledger_id: int) -> bool:
        """Whether a ledger that `states` has just found unknown was deleted here: then it stays fenced."""
        return self.ledgers.was_deleted(ledger_id)

    def create(self, ledger_id: int, key: bytes) -> LedgerInfo:
        """Make a ledger known that `states` has just found unknown. Journaled before any later add of it."""
        info = self.ledgers.get(ledger_id)
        if info is None:
            info = self._introduce(ledger_id, key)
            if info.fenced and not info.fence_of_limbo:
                self._record_fence(ledger_id, key)
            else:
                self._record(RecordKind.KEY, ledger_id, key)
        return info

    async def replace_key(self, ledger_id: int, key: bytes) -> Status:
        """Replace a ledger's wrong key by its own `key`, that of the metadata. A fence with the wrong key goes.

        Journaled before any later add of it. UNKNOWN if entries are stored under the other key, which then stays.
        UNAVAILABLE while the ledger is hidden.
        """
        info = await self.looked_up(ledger_id)
        if info is None or info.key == key:
            return Status.OK
        info.pins += 1
        try:
            shard = self.shards[info.shard]
            deleted = await self.ledgers.has_tombstone(ledger_id)
            # A fence or an explicit last add confirmed that is under way concerns the other key, and must not reach
            # into this one's time: no checkpoint with entries of this one may have a mark before its record.
            while (pending := self._under_way(ledger_id)) is not None or await shard.catch_up(ledger_id):
                if pending is not None:
                    await self._durable(pending)
        finally:
            info.pins -= 1
        if info.gone:
            return Status.OK  # deleted or replaced meanwhile: the caller looks at its state again
        if info.hidden:
            return Status.UNAVAILABLE
        if shard.highest(info) >= 0:
            return Status.UNKNOWN
        self.ledgers.replace_key(info, key, deleted=deleted)
        self._grown(shard)
        if ledger_id in self.fenced and not self.ledgers.is_fenced_by_limbo(ledger_id):
            self._record_fence(ledger_id, key)
        else:
            self._record(RecordKind.KEY, ledger_id, key)
        return Status.OK

    def _under_way(self, ledger_id: int) -> asyncio.Future[None] | None:
        """Done once a fence or an explicit last add confirmed of the ledger is durable; None if all are."""
        return self._fencing.get(ledger_id) or self._publishing.get(ledger_id)

    def _journal(self, ledger_id: int) -> Journal:
        return self.journals[ledger_id % len(self.journals)]

    def _record(
        self, kind: RecordKind, ledger_id: int, body: bytes, on_durable: Callable[[], None] | None = None
    ) -> None:
        journal = self._journal(ledger_id)
        journal.record(kind, ledger_id, body, on_durable)
        self.full = self.full or journal.full

    def _introduce(self, ledger_id: int, key: bytes) -> LedgerInfo:
        info = self.ledgers.introduce(ledger_id, key)
        self._grown(self.shards[info.shard])
        return info

    def _touch(self, info: LedgerInfo) -> None:
        self.ledgers.touch(info)
        self._grown(self.shards[info.shard])

    # --- writing ------------------------------------------------------------------------------------------------------

    def add(self, columns: AddColumns, head: Bytes, body: Bytes, on_durable: Callable[[], None]) -> None:
        """Store accepted batches of known ledgers; `on_durable` is called once they are synced, or never.

        Without `journal_write_data` it is called once they are in memory. `head` is `columns` as a msgpack value. The
        buffers are kept, not copied, and must not change any more.
        """
        if len(self.shards) == 1 and len(self.journals) == 1 and self._unjournaled is None:
            journal = self.journals[0]
            self._store(self.shards[0], columns, body, journal.add(head, body, on_durable))
            self.full = self.full or journal.full
            return
        if self._unjournaled is not None:
            for number, part in split(columns, head, body, self.ledgers.shard_of).items():
                self._store(self.shards[number], part.columns, part.body, None)
            self._unjournaled.add(on_durable)
            return
        count = len(self.journals)
        parts = split(columns, head, body, lambda ledger_id: ledger_id % count)
        callback = on_durable if len(parts) == 1 else after(len(parts), on_durable)
        positions = []
        for number, part in parts.items():
            positions.append(self.journals[number].add(part.head, part.body, callback))
            self.full = self.full or self.journals[number].full
        whole = positions[0] if len(positions) == len(self.shards) == 1 else None  # parts are joined into new buffers
        for number, part in split(columns, head, body, self.ledgers.shard_of).items():
            self._store(self.shards[number], part.columns, part.body, whole)

    def _store(self, shard: Shard, columns: AddColumns, body: Bytes, position: Position | None) -> None:
        """Put batches into the shard's memtable, and flush it in the background when it is full."""
        shard.active.add(columns, body, position)
        self._grown(shard)

    def _grown(self, shard: Shard) -> None:
        limit = self.generation_bytes_max
        self.full = self.full or shard.memory_bytes >= 2 * limit
        if shard.active.bytes >= limit * shard.active.fill_target:
            self._flush_soon(shard)
        self._held.measure()
        if self.memory.full and not self.full and self._held.use_up_budget():
            self.full = True
            self._flush_all_soon()

    def _flush_all_soon(self) -> None:
        for shard in self.shards:  # even small ones: entries may keep alive buffers much larger than themselves
            self._flush_soon(shard)

    def _flush_soon(self, shard: Shard) -> None:
        if shard.number not in self._flushing:
            self._flushing.add(shard.number)
            self._runtime.spawn(self._flush_when_full(shard), name=f"flush of {shard.directory}", on_death=self.fail)

    async def fence(self, ledger_id: int, key: bytes) -> bool:
        """Fence the ledger for good; returns when that is durable. One never seen is created with that key.

        False, and nothing is fenced: the ledger has another key.
        """
        info = (await self.states((ledger_id,)))[ledger_id]
        if info is not None and info.key not in (key, b""):
            return False
        pending = self._fencing.get(ledger_id)
        if pending is None:
            if info is not None and info.fenced and not info.fence_of_limbo:
                return True
            if info is None:
                info = self._introduce(ledger_id, key)
            info.fenced, info.fence_of_limbo = True, False
            self.fenced.add(ledger_id)
            self._touch(info)
            self.fences.append((ledger_id, self._runtime.clock.time()))
            pending = self._record_fence(ledger_id, info.key or key)
        await self._durable(pending)
        return True

    def _record_fence(self, ledger_id: int, key: bytes) -> asyncio.Future[None]:
        """Journal a fence; until that is durable, all callers that fence the ledger wait for it."""
        done = self._fencing[ledger_id] = asyncio.get_running_loop().create_future()
        self._record(RecordKind.FENCE, ledger_id, key, lambda: _settle(self._fencing, ledger_id, done))
        return done

    async def set_explicit_lac(self, ledger_id: int, record: bytes) -> None:
        """Keep the explicit last add confirmed of a known ledger if it is the highest; returns when it is durable."""
        info = (await self.states((ledger_id,)))[ledger_id]
        if info is None:
            raise AssertionError(f"ledger {ledger_id} is not known")
        if take_explicit_lac(info, record):
            self._touch(info)
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._publishing[ledger_id] = done
            self._record(RecordKind.EXPLICIT_LAC, ledger_id, record, lambda: _settle(self._publishing, ledger_id, done))
        # A record at least as high may not be synced yet; the one journaled last is durable last.
        pending = self._publishing.get(ledger_id)
        if pending is not None:
            await self._durable(pending)

    async def force(self, ledger_id: int) -> None:
        """Return once earlier fences of the ledger are durable, and earlier adds as far as the settings make them."""
        fence = self._fencing.get(ledger_id)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tell = self._journal(ledger_id).barrier if self._unjournaled is None else self._unjournaled.add
        tell(lambda: done.set_result(None))
        await self._durable(done)
        if fence is not None:  # where adds are not journaled, none of them has waited for it
            await self._durable(fence)

    @property
    def last_write(self) -> WriteTimes | None:
        """Of the journals' frames whose callbacks run, or ran last; None if no journal holds entries."""
        return None if self._unjournaled else max((one.last_write for one in self.journals), key=attrgetter("ended"))

    @property
    def unsynced_bytes(self) -> int:
        """Bytes in memory that wait for a journal."""
        return self._held.queued_bytes

    async def _durable(self, future: asyncio.Future[None]) -> None:
        """Wait for a journal's callback; `StorageFailedError` if it will never come."""
        await asyncio.wait({future, self.failed}, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            self._check()

    # --- reading ------------------------------------------------------------------------------------------------------

    async def read(self, ledger_id: int, first: int, last: int, bytes_max: int) -> ReadResult:
        """Entries first..last, as many as fit `bytes_max` bytes, at least one if there is any."""
        info = await self.looked_up(ledger_id)
        if info is None:
            return ReadResult([], last, [(first, last)] if self.ledgers.doubts(ledger_id) else [], -1)
        found = await self.shards[info.shard].read(info, first, last, bytes_max)
        return ReadResult([*found.segments], found.examined_to, found.unknown, found.lac)

    async def last_entry(self, ledger_id: int) -> LastEntry:
        """The highest entry of the ledger here, and its explicit last add confirmed."""
        info = await self.looked_up(ledger_id)
        if info is None:
            return LastEntry(b"", b"", False, in_limbo := self.ledgers.doubts(ledger_id), in_limbo)
        shard = self.shards[info.shard]
        highest = shard.highest(info)
        if highest < 0:
            return LastEntry(b"", info.explicit_lac, info.fenced, True, info.limbo)
        found = await shard.read(info, highest, highest, 1)
        entry = b"".join(found.segments)
        return LastEntry(entry, info.explicit_lac, info.fenced, True, info.limbo or not entry)

    async def looked_up(self, ledger_id: int) -> LedgerInfo | None:
        """The state of a ledger, once the memtable's index is ready for reads of it."""
        info = (await self.states((ledger_id,)))[ledger_id]
        if info is not None and await self.shards[info.shard].catch_up(ledger_id):
            info = (await self.states((ledger_id,)))[ledger_id]  # the state that is in memory now
        return info

    async def has_entries(self, ledger_id: int) -> bool:
        """Whether the ledger has had entries here, as far as the index can tell. Limbo doesn't count.

        A ledger that appears while data are lost is in limbo at once, and a stranger's key for any id makes one appear.
        """
        info = await self.looked_up(ledger_id)
        return info is not None and self.shards[info.shard].highest(info) >= 0

    # --- deleting -----------------------------------------------------------------------------------------------------

    async def held_ledgers(self, after: int, limit: int) -> list[int]:
        """The lowest ids above `after` of ledgers that are here, ascending, `limit` at most; no deleted ones."""
        return await self.ledgers.held(after, limit)

    async def journal_deletion(self, ledger_id: int) -> None:
        """Journal that a ledger, which `ledgers` has just forgotten, is deleted; returns when that is durable.

        See `bkpy.storage.space.deletion`, which deletes ledgers.
        """
        done = self._deleting[ledger_id] = asyncio.get_running_loop().create_future()
        self._record(RecordKind.DELETED, ledger_id, b"", lambda: _settle(self._deleting, ledger_id, done))
        await self._durable(done)

    @property
    def space(self) -> SpaceTotals:
        """The space that all shards' full logs take, as of the last round of each."""
        return SpaceTotals(*map(sum, zip(*(reclaimer.totals for reclaimer in self.reclaimers), strict=True)))

    # --- checkpoints --------------------------------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """Bytes held by the memtables, an estimate of what is around the entries included."""
        return self._held.memtable_bytes

    async def checkpoint(self) -> None:
        """Write out all that is in memory, move the marks, let journal files go. `StorageFailedError` if that fails."""
        for shard in self.shards:
            await self.checkpoint_shard(shard)

    async def checkpoint_shard(self, shard: Shard, *, close_log: bool = False) -> None:
        """The same for one shard. It goes on if the caller is cancelled: no generation is left half flushed."""
        task = self._runtime.spawn(
            self._checkpoint(shard, close_log), name=f"checkpoint of {shard.directory}", on_death=self.fail
        )
        with checkpoint_errors(shard):
            await asyncio.shield(task)

    async def _checkpoint(self, shard: Shard, close_log: bool) -> None:
        async with shard.checkpointing:
            # No journal has these entries of a ledger's new life. If their mark were committed before the record of the
            # earlier life's deletion is durable, a replay could delete them with it.
            while self._unjournaled and (again := shard.active.dirty & self._deleting.keys()):
                await self._durable(self._deleting[again.pop()])
            self._check()
            try:
                written = await self.ledgers.checkpoint(shard, self._ends, close_log=close_log)
            except Exception as e:
                self.fail(e)
                raise
            if not written:
                return
            if self.memory.full and shard.cleared is not None:
                await asyncio.wait((shard.cleared,))  # there may be room only after that
            self.look_for_space()
        for number, journal in enumerate(self.journals):
            journal.retain(min(s.row.marks[number].file_id for s in self.shards))

    async def put_at_risk(self, mark: bytes) -> None:
        """Store in every shard what an unclean stop would lose from now on, see `bkpy.storage.at_risk`.

        It goes on if the caller is cancelled.
        """
        await asyncio.shield(self._runtime.spawn(self._put_at_risk(mark), name="mark of the run", on_death=self.fail))

    async def _put_at_risk(self, mark: bytes) -> None:
        for shard in self.shards:
            async with shard.checkpointing:
                with checkpoint_errors(shard):
                    await shard.change_row(put_mark, shard.store, mark)

    def _ends(self) -> list[Mark]:
        return [journal.position for journal in self.journals]

    async def _flush_when_full(self, shard: Shard) -> None:
        try:
            limit = self.generation_bytes_max
            while not self.failed.done() and (
                shard.active.bytes >= limit * shard.active.fill_target
                or (self.full and self.memory.full and not shard.active.empty)
            ):
                await self._checkpoint(shard, False)
        finally:
            self._flushing.discard(shard.number)
        if not self.memory.full and not self.failed.done():  # others may have freed it before there was a flush
            self.look_for_space()

    def look_for_space(self) -> None:
        """Call the `on_space` callbacks if memory was full and isn't any more."""
        if not self.full or self._held.over_bounds(2 * self.generation_bytes_max):
            return
        if self._held.must_shrink():
            self._flush_all_soon()  # after each flush this runs again
            return
        self.full = False
        for callback in list(self.on_space):
            callback()

    def release_idle(self) -> bool:
        """Drop cached blocks and flush memtables that nobody used since the last call; whether there were any."""
        freed, idle = self._held.release_idle(self._settings.memtable_rest_bytes_min)
        for shard in () if self._closed else idle:
            self._runtime.spawn(self._checkpoint(shard, False), name=f"flush of {shard.directory}", on_death=self.fail)
        return freed or bool(idle)

    def checkpoint_periodically(self) -> None:
        """From now on, until the storage is closed or fails."""
        self._periodic = self._runtime.spawn(self._checkpoint_forever(), name="checkpoints", on_death=self.fail)

    def settings_changed(self) -> None:
        """Settings were reloaded: checkpoints and rounds of the scrub are due by the intervals that there are now."""
        self._interval.changed()
        self.scrub.settings_changed()

    async def _checkpoint_forever(self) -> None:
        """Checkpoint every `checkpoint_interval_s`, so that a restart has little to replay."""
        while True:
            await self._interval.wait()
            if self._closed or self.failed.done():
                return
            await self.checkpoint()
            for shard in self.shards:
                await shard.on_index(shard.store.prepare_check, self._settings.index_check_share)

    # --- end ----------------------------------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """Acknowledge nothing any more, and set `failed`."""
        if self.failed.done():
            return
        if not isinstance(error, BookKeeperError):
            why = error if isinstance(error, OSError) else repr(error)  # a KeyError's text is its key alone
            failure = StorageFailedError(f"the storage failed and refuses everything from now on: {why}")
            failure.__cause__ = error
            error = failure
        self.failed.set_exception(error)
        for journal in self.journals:
            journal.fail(error)
        if self._unjournaled is not None:
            self._unjournaled.fail()

    def _check(self) -> None:
        if self.failed.done():
            raise StorageFailedError(f"the storage has failed: {self.failed.exception()}")

    async def close(self) -> None:
        """Checkpoint, end the journals in order, and release the directories. After a failure, only release them.

        `StorageFailedError` if that fails. Nothing is lost then: the next start replays the journals. A call that is
        cancelled releases nothing, and the next one goes on: without a journal, what is in memory is nowhere else.
        """
        if self._released:
            return
        self._closed = True
        try:
            await self.scrub.stop()
            for reclaimer in self.reclaimers:
                reclaimer.stop()
            await asyncio.wait(self._reclaiming)
            for journal in self.journals:
                await journal.drain()
            if not self.failed.done():
                for shard in self.shards:
                    await self.checkpoint_shard(shard, close_log=True)
                for journal in self.journals:
                    await journal.stop()
                self._check()
                await self.put_at_risk(NOTHING)  # last: from here on a power cut can't lose anything
        except asyncio.CancelledError:
            raise
        except BaseException:
            self.release()
            raise
        self.release()

    def release(self) -> None:
        """Close files and locks without waiting for pending work. Blocks until running writes have ended."""
        self._closed = self._released = True
        if self._periodic is not None:
            self._periodic.cancel()
        for reclaiming in self._reclaiming:
            reclaiming.cancel()
        self.scrub.close()
        for journal in self.journals:
            journal.release()
        self._release()

    def check_invariants(self) -> None:
        self.ledgers.check_invariants()
        for shard in self.shards:
            for mark, journal in zip(shard.row.marks, self.journals, strict=True):
                assert mark.sequence <= journal.position.sequence


def _settle(pending: dict[int, asyncio.Future[None]], ledger_id: int, done: asyncio.Future[None]) -> None:
    """A record is durable: its waiters go on. A later record of the ledger may be the pending one by now."""
    done.set_result(None)
    if pending[ledger_id] is done:
        del pending[ledger_id]
