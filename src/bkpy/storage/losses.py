"""Finds the entries that a bookie has lost, and ends limbo: ledger by ledger, then for ledgers that it has never seen.

The integrity checker asks here which entries of a ledger are missing, stores them like any copy, flushes, and then ends
the ledger's limbo. `protocol/repair/integrity.py` decides what may be concluded.

Invariants: missing entries are judged by the committed index alone, not by memory or journals; a ledger leaves limbo in
a transaction that finds all of its block rows sound, and among them every id that its metadata want here; ledgers that
were never seen leave it only above an id that was given out after the loss.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from bkpy.errors import CorruptDataError
from bkpy.protocol.repair.holdings import holdings
from bkpy.protocol.repair.integrity import LimboEvidence, MissingRange, demand_of, ends_limbo
from bkpy.storage.entry_log.entry_log import log_id_of
from bkpy.storage.index.ids import SPAN_MAX, Ids
from bkpy.storage.index.index import (
    SHARD_KEY,
    blocks_fit,
    checksum_of,
    decode_block_row,
    decode_ledger,
    encode_ledger,
    encode_shard,
    get_ledger,
    ledger_key,
    ledger_rows,
    put_shard,
    scan_blocks,
)
from bkpy.storage.ledgers.ledgers import checkpoint_errors
from bkpy.storage.tools.rebuild.settle import holds_all

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from bkpy.config.bookie import BookieSettings
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.holdings import Share
    from bkpy.runtime.interfaces import OrderedStore, Runtime
    from bkpy.storage.engine import LedgerStorage
    from bkpy.storage.index.index import ShardRow
    from bkpy.storage.shard import Shard

Block = tuple[int, int]  # a log's id, and the offset in it


class _Scanned(NamedTuple):
    """Ledgers in limbo among some rows, and the id to go on after, None at the end."""

    found: list[int]
    after: int | None


class Losses:
    """The losses of bookie `settings.bookie_id`. `on_trusted`: called when ledgers that it never saw are out of doubt.

    All methods run on the event loop.
    """

    def __init__(
        self, storage: LedgerStorage, settings: BookieSettings, runtime: Runtime, on_trusted: Callable[[], None]
    ) -> None:
        self._storage = storage
        self._settings = settings
        self._runtime = runtime
        self._on_trusted = on_trusted

    @property
    def all_in_doubt(self) -> bool:
        """Whether any ledger, even one never seen, may have been lost."""
        return self._storage.untrusted

    @property
    def any_in_doubt(self) -> bool:
        """Whether older ledgers that this bookie doesn't have are in doubt, because it once lost something."""
        return any(shard.row.limbo_to >= 0 for shard in self._storage.shards)

    async def damaged(self) -> set[int]:
        """The ledgers in which the scrub found damage that is still there."""
        found = (await self._storage.scrub.damages()).found
        return {defect.ledger_id for defect in found if defect.ledger_id is not None}

    async def in_limbo(self) -> set[int]:
        """The ledgers that the index has in limbo. Reads all rows, in steps."""
        settings = self._settings
        found: set[int] = set()
        for shard in self._storage.shards:
            after: int | None = -1
            while after is not None:
                scanned = await shard.on_index(_scan, shard.store, after, settings.index_step_rows)
                found.update(scanned.found)
                after = scanned.after
                await asyncio.sleep(settings.index_step_pause_s)
        return found

    async def in_doubt(self, ledger_id: int) -> bool:
        """Whether something of the ledger may be lost."""
        info = (await self._storage.states((ledger_id,)))[ledger_id]
        return self._storage.ledgers.doubts(ledger_id) if info is None else info.limbo

    async def flush(self) -> None:
        """Write everything stored so far into the index."""
        await self._storage.checkpoint()

    async def make_known(self, metadata: LedgerMetadata) -> None:
        """Make a row for a ledger that will be copied here, in limbo if it is in doubt, so that this is remembered.

        A row without a key, as a replay makes of an earlier life whose key it doesn't know, gets that of the metadata,
        unless there are entries: without a key nothing can be copied here.
        """
        ledger_id, key = metadata.ledger_id, metadata.ledger_key
        info = (await self._storage.states((ledger_id,)))[ledger_id]
        if info is None:
            self._storage.create(ledger_id, key)
        elif not info.key:
            await self._storage.replace_key(ledger_id, key)

    async def missing_ranges(self, metadata: LedgerMetadata) -> list[MissingRange]:
        """The entries that this bookie should hold by the ledger's metadata, and that are missing or damaged.

        Only of fragments that have an end. It looks into the index only, so flush first.
        """
        shard = await self._shard_of(metadata.ledger_id)
        damaged = await self._damaged_blocks(metadata.ledger_id)
        missing_ranges: list[MissingRange] = []
        for number, held in enumerate(holdings(metadata)):
            for place, share in enumerate(held.shares):
                if share.bookie_id != self._settings.bookie_id or not share.entries:
                    continue
                assert held.last_entry is not None  # a counted share has an end
                whole = MissingRange(number, place, held.first_entry, held.last_entry)
                if shard is None:
                    missing_ranges.append(whole)
                else:
                    missing_ranges += await _missing(shard, metadata.ledger_id, share, whole, damaged)
        return missing_ranges

    async def end(self, metadata: LedgerMetadata) -> bool:
        """End the limbo of a ledger whose re-replication lock the caller holds since before it read `metadata`.

        Durable when it returns. False: entries are missing or index rows damaged, so the ledger stays in limbo.
        """
        ledger_id = metadata.ledger_id
        shard = await self._shard_of(ledger_id)
        if shard is None:
            return False
        ended: list[bool] = []

        def take_over() -> None:
            info = self._storage.ledgers.get(ledger_id)
            if ended and info is not None:
                info.limbo = info.fence_of_limbo = False

        await self._change(shard, take_over, _end_limbo, shard.store, metadata, self._settings.bookie_id, ended)
        return bool(ended)

    async def trust_unseen(self, limbo_to: int) -> None:
        """Doubt ledgers that were never seen only up to that id, which was given out since the bookie started.

        Call it after all other ledgers were checked. Durable when it returns.
        """
        await self._storage.checkpoint()
        for shard in self._storage.shards:
            await self._change(shard, lambda: None, _put_limbo_to, shard.store, limbo_to)
        self._on_trusted()

    async def _change(
        self, shard: Shard, take_over: Callable[[], None], function: Callable[..., ShardRow], *args: Any
    ) -> None:
        """One transaction between two checkpoints, and its consequences. It goes on if the caller is cancelled."""

        async def change() -> None:
            async with shard.checkpointing:
                with checkpoint_errors(shard):
                    await shard.change_row(function, *args)
                take_over()

        name = f"end of limbo in {shard.directory}"
        await asyncio.shield(self._runtime.spawn(change(), name=name, on_death=self._storage.fail))

    async def _shard_of(self, ledger_id: int) -> Shard | None:
        info = (await self._storage.states((ledger_id,)))[ledger_id]
        return None if info is None else self._storage.shards[info.shard]

    async def _damaged_blocks(self, ledger_id: int) -> set[Block]:
        if not self._storage.scrub.damage_count:
            return set()
        found = (await self._storage.scrub.damages()).found
        return {
            (log_id, defect.offset)
            for defect in found
            if defect.ledger_id == ledger_id
            and defect.offset is not None
            and (log_id := log_id_of(defect.path.rpartition("/")[2])) is not None
        }


async def _missing(
    shard: Shard, ledger_id: int, share: Share, whole: MissingRange, damaged: Collection[Block]
) -> list[MissingRange]:
    """The parts of a share, which spans `whole`, that are missing in the index; in steps."""
    missing_ranges: list[MissingRange] = []
    for base in range(whole.first, whole.last + 1, SPAN_MAX):
        end = min(base + SPAN_MAX - 1, whole.last)
        bits = await shard.on_index(_missing_bits, shard.store, ledger_id, share, base, end, damaged)
        if not bits:
            continue
        first, last = base + (bits & -bits).bit_length() - 1, base + bits.bit_length() - 1
        if missing_ranges and share.following(missing_ranges[-1].last) == first:
            missing_ranges[-1] = missing_ranges[-1]._replace(last=last)
        else:
            missing_ranges.append(whole._replace(first=first, last=last))
    return missing_ranges


# --- what blocks ------------------------------------------------------------------------------------------------------


def _missing_bits(
    store: OrderedStore, ledger_id: int, share: Share, base: int, end: int, damaged: Collection[Block]
) -> int:
    """The share's ids from `base` to `end` that no sound block has, as a bitmap relative to `base`."""
    missing = 0
    for start in share.starts:
        begin = start if start >= base else start + -((start - base) // share.step) * share.step
        if begin <= end:
            missing |= Ids(begin, (end - begin) // share.step + 1, share.step).bits(base, end)
    with store.read() as txn:
        for key, value in scan_blocks(txn, ledger_id, base - SPAN_MAX + 1, end):
            try:
                row = decode_block_row(key, value)
            except CorruptDataError:
                continue
            if (row.place.log_id, row.place.offset) not in damaged:
                missing &= ~row.ids.bits(base, end)
    return missing


def _scan(store: OrderedStore, after: int, rows_max: int) -> _Scanned:
    found: list[int] = []
    with store.read() as txn:
        looked_at = 0
        for ledger_id, key, value in islice(ledger_rows(txn, after + 1), rows_max):
            looked_at, after = looked_at + 1, ledger_id
            try:
                if decode_ledger(key, value).limbo:
                    found.append(ledger_id)
            except CorruptDataError:
                continue  # the next start replaces it
    return _Scanned(found, after if looked_at == rows_max else None)


def _end_limbo(
    shard: ShardRow, store: OrderedStore, metadata: LedgerMetadata, bookie_id: str, ended: list[bool]
) -> ShardRow:
    """Take the ledger out of limbo if nothing of it is lost. One transaction; returns the shard's new row."""
    ledger_id = metadata.ledger_id
    key = ledger_key(ledger_id)
    with store.write() as txn:
        row = get_ledger(txn, ledger_id)
        if row is None:
            return shard
        sound = blocks_fit(txn, ledger_id, row) and holds_all(txn, metadata, bookie_id)
        if not ends_limbo(LimboEvidence(demand_of(metadata, bookie_id), missing=not sound, locked=True)):
            return shard
        before, value = (
            encode_ledger(ledger_id, row),
            encode_ledger(ledger_id, row._replace(limbo=False, fence_of_limbo=False)),
        )
        shard = shard._replace(checksum=shard.checksum ^ checksum_of(before) ^ checksum_of(value))
        txn.put(key, value)
        txn.put(SHARD_KEY, encode_shard(shard))
    ended.append(True)
    return shard


def _put_limbo_to(shard: ShardRow, store: OrderedStore, limbo_to: int) -> ShardRow:
    shard = shard._replace(unknown_in_limbo=False, unasked=False, limbo_to=max(shard.limbo_to, limbo_to))
    put_shard(store, shard)
    return shard
