"""All ledgers of a bookie: their states, loaded on demand from the shards' indexes, and their checkpoints.

The replay fills this at the start; then the engine uses it.

Invariants: at most one object stands for a ledger; only a ledger that no shard has is made known, never one that merely
isn't in memory; a ledger that was deleted here is made known again only as fenced (S12); a checkpoint's marks are the
ends of the journals at its seal (S8); a fenced ledger is in `fenced` as long as its state is in memory, or somebody may
add to it without loading that.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from bkpy.errors import BookKeeperError, StorageFailedError
from bkpy.protocol.repair.integrity import denies_unseen
from bkpy.storage.ledgers.info import LedgerCache, LedgerInfo
from bkpy.storage.memtable.generation import STATE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from bkpy.config.bookie import BookieSettings
    from bkpy.storage.checkpoint.flush import WrittenLedgers
    from bkpy.storage.index.index import LedgerRow
    from bkpy.storage.journal.format import Mark
    from bkpy.storage.memory_budget import MemoryBudget
    from bkpy.storage.observer import StorageObserver
    from bkpy.storage.shard import Shard


class Ledgers:
    """Ledgers by id, and the shards that hold their entries.

    `fenced`: ledgers whose normal adds must be refused, of all that are in memory or `writable`.
    `writable`: returns the subset of some ledgers that a connection may add to without loading their states.
    `on_key_void`: callbacks that take this right away, because the ledger was deleted here or has another key.
    """

    def __init__(
        self, shards: list[Shard], settings: BookieSettings, observer: StorageObserver, memory: MemoryBudget
    ) -> None:
        self.shards = shards
        self.fenced: set[int] = set()
        self.on_key_void: list[Callable[[int], None]] = []
        self.writable: Callable[[set[int]], set[int]] = lambda _: set()
        self._sweep_at = settings.ledger_states_max  # with so many ids beside the cache, drop the unneeded ones
        self._settings = settings
        self._observer = observer
        self._cache = LedgerCache(settings.ledger_states_max)
        states = memory.part("ledger states")
        memory.measures.append(lambda: states.set(len(self._cache) * STATE_BYTES))
        # The shards of ledgers that are not in the shard of their id, for they are older than the present number of
        # shards. Like `fenced`, it covers ledgers that are in memory or `writable`, and is swept of others.
        self._shard_overrides: dict[int, int] = {}
        self._loading = asyncio.Lock()
        self._unseen: set[int] = set()  # ledgers that the last load found nowhere
        self._with_tombstone: set[int] = set()  # those of them that were deleted here once

    @property
    def untrusted(self) -> bool:
        """Whether data was lost here. Then ledgers never seen are not denied but *unknown*.

        New ledgers are fenced meanwhile, for a fence may be among the losses. The bookie should be read-only.
        """
        return any(shard.row.unknown_in_limbo for shard in self.shards)

    def doubts(self, ledger_id: int) -> bool:
        """Whether a ledger that seems never to have been here may be among the losses.

        Then the bookie refuses its adds, but for those of recoveries and copies, and denies nothing of it.
        """
        limbo_to = max(shard.row.limbo_to for shard in self.shards)
        return not denies_unseen(ledger_id, all_in_doubt=self.untrusted, limbo_to=limbo_to)

    # --- states -------------------------------------------------------------------------------------------------------

    def get(self, ledger_id: int) -> LedgerInfo | None:
        """The state if it is in memory."""
        return self._cache.get(ledger_id)

    def __len__(self) -> int:
        """How many states are in memory."""
        return len(self._cache)

    async def load(self, ledger_ids: Collection[int]) -> dict[int, LedgerInfo | None]:
        """The ledgers' states, None for one that was never seen. `CorruptDataError` if a row is damaged.

        Callers that decide something by a state do so before their next await.
        """
        cached = self._cache.get
        if any(cached(ledger_id) is None for ledger_id in ledger_ids):
            # One load at a time: no state is loaded, changed, written and evicted while another load waits.
            async with self._loading:
                wanted = set(ledger_ids)
                self.trim(keep=wanted)  # others may have evicted some while this load waited
                self._unseen = set()
                # Again if a ledger was deleted while others were loaded: `was_deleted` must know of it.
                while not (missing := {i for i in wanted if cached(i) is None}) <= self._unseen:
                    await self._load(missing)
        return {ledger_id: cached(ledger_id) for ledger_id in ledger_ids}

    async def _load(self, missing: set[int]) -> None:
        # A ledger is in the shard of its id, unless it is older than the number of shards: then in any.
        with_tombstone: set[int] = set()
        for offset in range(len(self.shards)):
            by_shard: dict[int, list[int]] = {}
            for ledger_id in sorted(missing):
                by_shard.setdefault((ledger_id + offset) % len(self.shards), []).append(ledger_id)
            for number, wanted in by_shard.items():
                shard = self.shards[number]
                commits = -1
                while commits != shard.commits:  # a row read before a checkpoint would deny its entries
                    commits = shard.commits
                    found = await shard.load(wanted)
                with_tombstone |= found.with_tombstone
                missing.difference_update(found.rows)
                for ledger_id, row in found.rows.items():
                    if self._cache.get(ledger_id) is None:  # it may have been created meanwhile
                        self._adopt(ledger_id, row, number)
            if not missing:
                break
        self._unseen, self._with_tombstone = missing, missing & with_tombstone

    def load_now(self, ledger_id: int) -> LedgerInfo | None:
        """The ledger's state. Blocks: for the replay at start."""
        with_tombstone: set[int] = set()
        for offset in range(len(self.shards)):
            if (info := self._cache.get(ledger_id)) is not None:
                return info
            number = (ledger_id + offset) % len(self.shards)
            found = self.shards[number].load_now((ledger_id,))
            with_tombstone |= found.with_tombstone
            for row in found.rows.values():
                return self._adopt(ledger_id, row, number)
        self._unseen, self._with_tombstone = {ledger_id}, with_tombstone
        return None

    def was_deleted(self, ledger_id: int) -> bool:
        """Whether a ledger that was just found unknown was deleted here: then it stays fenced for good (S12)."""
        return ledger_id in self._with_tombstone

    def _adopt(self, ledger_id: int, row: LedgerRow, number: int) -> LedgerInfo:
        """Put a ledger that an index knows into the cache."""
        if row.fenced:
            self.fenced.add(ledger_id)
        self._locate(ledger_id, number)
        info = LedgerInfo(
            ledger_id,
            row.key,
            fenced=row.fenced,
            limbo=row.limbo,
            fence_of_limbo=row.fence_of_limbo,
            explicit_lac=row.explicit_lac,
            last_entry=row.last_entry,
            lac=row.lac,
            shard=number,
        )
        self._cache.put(info)
        return info

    def _locate(self, ledger_id: int, number: int) -> None:
        """The ledger's entries are, and go, into the shard of that number."""
        if number == ledger_id % len(self.shards):
            self._shard_overrides.pop(ledger_id, None)
        else:
            self._shard_overrides[ledger_id] = number

    def introduce(self, ledger_id: int, key: bytes, shard: int | None = None) -> LedgerInfo:
        """Make a ledger known that was just found unknown; in limbo and fenced where data was lost.

        A ledger that was deleted here is fenced. `shard`: the shard of its entries, if not that of its id.
        """
        # A new state would replace a row that is there: its entries would be denied, its fence forgotten.
        if ledger_id not in self._unseen:
            raise AssertionError(f"ledger {ledger_id} may be in an index")
        self._unseen.discard(ledger_id)
        limbo = self.doubts(ledger_id)
        home = ledger_id % len(self.shards) if shard is None else shard
        self._locate(ledger_id, home)  # an earlier life may have been elsewhere
        with_tombstone = ledger_id in self._with_tombstone
        info = LedgerInfo(
            ledger_id,
            key,
            fenced=limbo or with_tombstone,
            limbo=limbo,
            fence_of_limbo=limbo and not with_tombstone,
            shard=home,
        )
        if info.fenced:
            self.fenced.add(ledger_id)
        self._cache.put(info)
        self.touch(info)
        return info

    def is_fenced_by_limbo(self, ledger_id: int) -> bool:
        """Whether a ledger in `fenced`, whose state was just loaded, is fenced for its limbo alone.

        No client asked for a fence, so its writer goes on with other bookies.
        """
        info = self._cache.get(ledger_id)
        return info is not None and info.limbo and info.fence_of_limbo

    def touch(self, info: LedgerInfo) -> None:
        """Have the next checkpoint write the state, which changed."""
        self.shards[info.shard].touch(info)

    def distrust_everything(self) -> None:
        """Fence all ledgers and put them in limbo, durably, because any may have lost data. Blocks: for the start."""
        for shard in self.shards:
            shard.put_all_in_limbo()
        for info in self._cache.all():
            info.fence_of_limbo = info.fence_of_limbo or not info.fenced
            info.limbo = info.fenced = True
            self.fenced.add(info.ledger_id)
            self.touch(info)

    def trim(self, keep: Collection[int] = ()) -> None:
        """Evict states that are not pinned and not in `keep`. Call it where no other state was just handed out."""
        self._cache.trim(keep)
        if len(self.fenced) + len(self._shard_overrides) > self._sweep_at:
            known = self.fenced.union(self._shard_overrides)
            evicted = {ledger_id for ledger_id in known if self._cache.get(ledger_id) is None}
            unneeded = evicted - self.writable(evicted)
            self.fenced -= unneeded
            for ledger_id in unneeded.intersection(self._shard_overrides):
                del self._shard_overrides[ledger_id]
            kept = len(self.fenced) + len(self._shard_overrides)
            self._sweep_at = max(self._settings.ledger_states_max, 2 * kept)

    # --- keys ---------------------------------------------------------------------------------------------------------

    async def has_tombstone(self, ledger_id: int) -> bool:
        """Whether a ledger of that id was ever deleted here. `CorruptDataError` if its range is damaged."""
        for shard in self.shards:
            if await shard.has_tombstone(ledger_id):
                return True
        return False

    def has_tombstone_now(self, ledger_id: int) -> bool:
        """The same. Blocks: for the replay at start."""
        return any(shard.has_tombstone_now(ledger_id) for shard in self.shards)

    def replace_key(self, info: LedgerInfo, key: bytes, *, deleted: bool) -> None:
        """Replace the wrong key of a ledger without entries by its own.

        The fence and the explicit last add confirmed that came with the wrong key go. A fence stays on a ledger that
        was `deleted` here once, or that is in limbo.
        """
        # A new object: a flush may be reading the old one on its thread.
        info.gone = True
        fenced = info.fenced and (deleted or info.limbo)
        new = LedgerInfo(info.ledger_id, key, fenced=fenced, limbo=info.limbo, shard=info.shard, proven_key=key)
        new.fence_of_limbo = fenced and not deleted
        new.pins = int(info.ledger_id in self.shards[info.shard].active.dirty)
        self._cache.put(new)
        self.touch(new)
        if not fenced:
            self.fenced.discard(info.ledger_id)
        for callback in self.on_key_void:
            callback(info.ledger_id)

    # --- deleting -----------------------------------------------------------------------------------------------------

    async def held(self, after: int, limit: int) -> list[int]:
        """See `LedgerStorage.held_ledgers`."""
        before: list[int] = []
        found: set[int] = set()
        while before != (commits := [shard.commits for shard in self.shards]):
            before = commits  # a row read before a tombstone was written is of a deleted ledger
            # Memory first: a checkpoint moves ledgers from memory to the index, never the other way.
            found = {i for shard in self.shards for i in shard.unwritten() if i > after}
            for shard in self.shards:
                found.update(await shard.held(after, limit))
        for shard in self.shards:
            found -= shard.deleted.pending_delete
        return sorted(found)[:limit]

    def forget(self, ledger_id: int, shard: Shard) -> None:
        """Deny the ledger from now on, of which this shard has nothing in memory, and have its rows removed later."""
        info = self._cache.get(ledger_id)
        if info is not None and info.shard == shard.number:
            info.gone = True
            self._cache.remove(ledger_id)
        shard.deleted.pending_delete.add(ledger_id)
        if self._cache.get(ledger_id) is None:  # else it has a second life already, in another directory
            self.fenced.discard(ledger_id)
        for callback in self.on_key_void:
            callback(ledger_id)

    # --- shards -------------------------------------------------------------------------------------------------------

    def add_shard(self, shard: Shard) -> None:
        """Add a ledger directory. Ledgers seen before stay where they are."""
        self.shards.append(shard)
        self._shard_overrides.clear()  # ids have other shards now; states outside memory are found again
        for info in self._cache.all():
            self._locate(info.ledger_id, info.shard)

    def shard_of(self, ledger_id: int) -> int:
        """The number of the shard of a ledger that is in memory or `writable`."""
        return self._shard_overrides.get(ledger_id, ledger_id % len(self.shards))

    @property
    def generation_bytes_max(self) -> int:
        """Bytes that a shard's memtable may hold."""
        return max(1, self._settings.memtable_bytes_max // len(self.shards))

    # --- checkpoints --------------------------------------------------------------------------------------------------

    async def checkpoint(self, shard: Shard, ends: Callable[[], Sequence[Mark]], *, close_log: bool = False) -> bool:
        """Write out all that the shard has in memory, and move its marks; whether there was anything to do.

        One call at a time for each shard. `ends` returns where each journal ends, and is called at the seal.
        """
        marks = _marks(shard, ends())  # before the seal's next await: they belong together (S8)
        if shard.active.empty and marks == shard.row.marks and not close_log and not shard.deleted.pending_delete:
            return False
        generation = shard.seal()
        infos = {i: info for i in generation.dirty if (info := self._cache.get(i)) is not None}
        if len(infos) != len(generation.dirty):
            raise AssertionError(
                f"states of ledgers {sorted(generation.dirty - infos.keys())} were evicted with changes"
            )
        written = await shard.flush(infos, marks, close_log=close_log)
        self._written(infos, written)
        return True

    def _written(self, infos: Mapping[int, LedgerInfo], written: WrittenLedgers) -> None:
        for ledger_id, last_entry, lac in written:
            info = self._cache.get(ledger_id)
            if info is not None:
                info.last_entry, info.lac = last_entry, lac
                info.disturbed = True  # if it is hidden: something was stored
        for ledger_id in written.limbo:
            info = self._cache.get(ledger_id)
            if info is not None and not info.limbo:
                info.limbo = True
                self._observer.damage(f"ledger {ledger_id} is in limbo", self.shards[info.shard].directory)
        for info in infos.values():
            info.pins -= 1

    # --- end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the shards; entries not checkpointed stay in the journals. Blocks until running writes have ended."""
        for shard in self.shards:
            shard.close()

    def check_invariants(self) -> None:
        for known in self._cache.all():
            assert self.shard_of(known.ledger_id) == known.shard, f"entries of ledger {known.ledger_id} go elsewhere"
        for shard in self.shards:
            shard.check_invariants()
            for generation in (shard.active, shard.sealed):
                for ledger_id in generation.dirty if generation is not None else ():
                    info = self._cache.get(ledger_id)
                    assert info is not None, f"ledger {ledger_id} has changes, but was evicted"
                    assert info.pins > 0
                    assert info.fenced <= (ledger_id in self.fenced)
                    assert info.shard == shard.number


def _marks(shard: Shard, ends: Sequence[Mark]) -> tuple[Mark, ...]:
    return tuple(max(pair, key=lambda mark: mark.sequence) for pair in zip(ends, shard.row.marks, strict=True))


@contextlib.contextmanager
def checkpoint_errors(shard: Shard) -> Iterator[None]:
    """Turn an error of a checkpoint, of the file system or of the index's library, into a `StorageFailedError`."""
    try:
        yield
    except BookKeeperError:
        raise
    except Exception as e:
        raise StorageFailedError(f"the checkpoint failed: {e}", path=shard.directory) from e
