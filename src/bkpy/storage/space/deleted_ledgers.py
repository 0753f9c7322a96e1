"""Removes deleted ledgers from the index of one shard. `bkpy.storage.space.deletion` has all steps of a deletion.

Two steps, each in transactions of its own. One replaces the ledger's row by a tombstone and notes its block rows as
trash. *Purging* removes those, some at a time, and takes their bytes off the living ones.

Invariants: no mark passes the record of a deletion before the tombstone is written; block rows of a ledger that was
made known again are stored only after the trash of its earlier life is gone.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING

from bkpy.errors import CorruptDataError
from bkpy.storage.index.index import (
    SHARD_KEY,
    U64_END,
    ShardRow,
    checksum_of,
    decode_block_row,
    encode_shard,
    ledger_key,
    scan_blocks,
    seal,
    trash_key,
    trash_rows,
)
from bkpy.storage.index.tombstones import add_tombstone

if TYPE_CHECKING:
    from collections.abc import Collection

    from bkpy.runtime.interfaces import OrderedStore
    from bkpy.storage.index.living import LivingBytes


class DeletedLedgers:
    """`pending_delete`: deleted ledgers without a tombstone yet. `trash`: ledgers whose block rows are not yet removed.

    Methods that block run on the flush worker; the sets change on the event loop only.
    """

    def __init__(self, store: OrderedStore, living: LivingBytes) -> None:
        self.pending_delete: set[int] = set()
        with store.read() as txn:
            self.trash = set(trash_rows(txn))
        self._store = store
        self._living = living

    def pending(self, ledger_id: int) -> bool:
        """Whether the ledger was deleted, and block rows of it may be left."""
        return ledger_id in self.pending_delete or ledger_id in self.trash

    def tombstones_written(self, ledger_ids: Collection[int]) -> None:
        """Note that the index has tombstones of these, and that their block rows are trash."""
        self.pending_delete.difference_update(ledger_ids)
        self.trash.update(ledger_ids)

    def purged(self, ledger_ids: Collection[int]) -> None:
        """Note that no block rows of these are left."""
        self.trash.difference_update(ledger_ids)

    def write_tombstones(self, shard: ShardRow, ledger_ids: Collection[int]) -> ShardRow:
        """Write tombstones in one transaction; returns the shard's new row. Blocks."""
        count, checksum = shard.ledgers, shard.checksum
        with self._store.write() as txn:
            for ledger_id in ledger_ids:
                key = ledger_key(ledger_id)
                value = txn.get(key)
                if value is not None:
                    txn.delete(key)
                    count, checksum = count - 1, checksum ^ checksum_of(value)
                    txn.put(trash_key(ledger_id), seal(trash_key(ledger_id), b""))
                add_tombstone(txn, ledger_id)
            shard = shard._replace(ledgers=count, checksum=checksum)
            txn.put(SHARD_KEY, encode_shard(shard))
        return shard

    def purge(self, ledger_ids: Collection[int], rows_max: int) -> list[int]:
        """Remove up to that many block rows of these ledgers; returns the ledgers without any left. Blocks."""
        done: list[int] = []
        moved: defaultdict[int, int] = defaultdict(int)
        with self._store.write() as txn:
            for ledger_id in ledger_ids:
                if txn.get(trash_key(ledger_id)) is not None:
                    rows = list(islice(scan_blocks(txn, ledger_id, 0, U64_END - 1), rows_max))
                    for key, value in rows:
                        try:
                            place = decode_block_row(key, value).place
                            moved[place.log_id] -= place.length
                        except CorruptDataError:  # its log seems to hold more than it does, until the next count
                            pass
                        txn.delete(key)
                    rows_max -= len(rows)
                    if rows_max <= 0:
                        break
                    txn.delete(trash_key(ledger_id))
                done.append(ledger_id)
            self._living.change(txn, moved)
        self._living.committed()
        return done
