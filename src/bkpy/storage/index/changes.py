"""Gathers the changes of a checkpoint to the index from snapshots, and writes them in a few short transactions.

LMDB holds all pages that a transaction changes in memory, up to a page for each ledger, and keeps that memory. So a
transaction has a bounded number of ledgers, and the last one has the marks.

Invariants: a block takes over exactly its ids from those stored before (S7); counts, XORs of checksums and living bytes
fit the rows in every committed state; marks come after all rows that they are about.
"""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from typing import TYPE_CHECKING

from bkpy.errors import CorruptDataError
from bkpy.storage.index.ids import Ids
from bkpy.storage.index.index import (
    SHARD_KEY,
    BlockRow,
    LedgerRow,
    LogRow,
    ShardRow,
    checksum_of,
    decode_block_row,
    encode_block_row,
    encode_ledger,
    encode_shard,
    ledger_key,
    scan_blocks,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bkpy.runtime.interfaces import OrderedStore, ReadTransaction
    from bkpy.storage.index.living import LivingBytes


class _Part:
    """The changes of one transaction: all rows of some ledgers.

    The rows are packed until then: as objects they would take three times as much, and leave holes in the memory of
    objects that stay.
    """

    __slots__ = ("_packed", "_sizes", "checksum", "deletes", "ledgers", "moved", "new_ledgers")

    def __init__(self) -> None:
        self.ledgers = 0
        self.new_ledgers = 0
        self.checksum = 0  # by which that of all ledger rows changes
        self.moved: defaultdict[int, int] = defaultdict(int)  # by how many bytes more or less of each log live
        self.deletes: list[bytes] = []
        self._packed = bytearray()
        self._sizes = array("I")  # of each row's key and value

    def put(self, rows: Mapping[bytes, bytes]) -> None:
        """Store these rows, none of them put before."""
        for key, value in rows.items():
            self._sizes.append(len(key))
            self._sizes.append(len(value))
            self._packed += key
            self._packed += value

    def puts(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of all rows."""
        packed, sizes = memoryview(self._packed), iter(self._sizes)
        at = 0
        for key_bytes, value_bytes in zip(sizes, sizes, strict=True):
            value_at = at + key_bytes
            end = value_at + value_bytes
            yield bytes(packed[at:value_at]), bytes(packed[value_at:end])
            at = end


class Changes:
    """The changes of one checkpoint, each ledger once, gathered from snapshots that only the checkpoint changes.

    `ledgers_max`: of one transaction.
    """

    def __init__(self, shard: ShardRow, living: LivingBytes, ledgers_max: int) -> None:
        self.shard = shard
        self._marks = shard.marks  # the marks in the index
        self._living = living
        self._ledgers_max = ledgers_max
        self._finished: dict[int, LogRow] = {}
        self._unlisted: dict[int, LogRow] = {}
        self._parts = deque([_Part()])

    def ledger(
        self,
        txn: ReadTransaction,
        ledger_id: int,
        row: LedgerRow,
        strong: Sequence[BlockRow] = (),
        weak: Sequence[BlockRow] = (),
    ) -> LedgerRow:
        """Insert blocks, disjoint from each other, and store the ledger's row: `row` with the blocks' changes.

        Strong blocks take over ids that older blocks have; weak ones get only ids that nothing else has.
        """
        if self._parts[-1].ledgers == self._ledgers_max:
            self._parts.append(_Part())
        part = self._parts[-1]
        part.ledgers += 1
        added = list(strong)
        puts: dict[bytes, bytes] = {}
        if strong and row.last_entry >= min(block.ids.first for block in strong):
            row = self._take_over(txn, part, puts, ledger_id, row, strong)
        for block in weak:
            rest = self._unclaimed(txn, ledger_id, row, block)
            if rest is not None:
                added.append(rest)
        checksum, span, last = row.checksum, row.span_max, row.last_entry
        for block in added:
            key, value = encode_block_row(ledger_id, block)
            puts[key] = value
            part.moved[block.place.log_id] += block.place.length
            checksum ^= checksum_of(value)
            span = max(span, block.ids.last - block.ids.first)
            last = max(last, block.ids.last)
        blocks = row.blocks + len(added)
        row = row._replace(last_entry=last, span_max=span, blocks=blocks, checksum=checksum)
        self._put_ledger(txn, part, puts, ledger_id, row)
        part.put(puts)
        return row

    def _take_over(
        self,
        txn: ReadTransaction,
        part: _Part,
        puts: dict[bytes, bytes],
        ledger_id: int,
        row: LedgerRow,
        blocks: Sequence[BlockRow],
    ) -> LedgerRow:
        """Remove the ids of `blocks` from the rows that have them now."""
        # By the key that the row has in the snapshot: its value, the row that it is, what is left of its ids.
        current: dict[bytes, tuple[bytes, BlockRow, Ids | None]] = {}
        for block in blocks:
            for key, value in scan_blocks(txn, ledger_id, block.ids.first - row.span_max, block.ids.last):
                try:
                    old = current[key][1] if key in current else decode_block_row(key, value)
                except CorruptDataError:
                    row = row._replace(limbo=True)  # its living entries are not known any more
                    continue
                ids = current[key][2] if key in current else old.ids
                if ids is None or ids.last < block.ids.first or ids.first > block.ids.last:
                    continue
                bits = ids.bits(ids.first, ids.last)
                left = bits & ~block.ids.bits(ids.first, ids.last)
                if left != bits:
                    current[key] = (value, old, Ids.from_bits(ids.first, left) if left else None)
        checksum, count = row.checksum, row.blocks
        for key, (value, old, rest) in current.items():
            part.deletes.append(key)
            checksum ^= checksum_of(value)
            if rest is None:
                count -= 1
                part.moved[old.place.log_id] -= old.place.length
            else:
                new_key, new_value = encode_block_row(ledger_id, old._replace(ids=rest))
                puts[new_key] = new_value
                checksum ^= checksum_of(new_value)
        return row._replace(checksum=checksum, blocks=count)

    def _unclaimed(self, txn: ReadTransaction, ledger_id: int, row: LedgerRow, block: BlockRow) -> BlockRow | None:
        """`block` without the ids that are stored already; None if no id is left."""
        base, end = block.ids.first, block.ids.last
        bits = block.ids.bits(base, end)
        for key, value in scan_blocks(txn, ledger_id, base - row.span_max, end):
            try:
                bits &= ~decode_block_row(key, value).ids.bits(base, end)
            except CorruptDataError:
                return None
        return block._replace(ids=Ids.from_bits(base, bits)) if bits else None

    def _put_ledger(
        self, txn: ReadTransaction, part: _Part, puts: dict[bytes, bytes], ledger_id: int, row: LedgerRow
    ) -> None:
        key = ledger_key(ledger_id)
        old = txn.get(key)
        value = encode_ledger(ledger_id, row)
        puts[key] = value
        part.new_ledgers += old is None
        part.checksum ^= checksum_of(value) ^ (0 if old is None else checksum_of(old))

    def unlisted_log(self, log_id: int, row: LogRow) -> None:
        """Add the row of a log that an unclean stop left without one; its living bytes are counted later."""
        self._unlisted[log_id] = row

    def finished_log(self, log_id: int, row: LogRow) -> None:
        """Add the row of the log that was just completed, with its living bytes after this transaction."""
        self._finished[log_id] = row

    def commit(self, store: OrderedStore) -> None:
        """Synced transactions; after the last, which has the marks, `shard` is the row that was stored.

        A crash between two of them leaves rows of what is in the journal behind the marks: it is replayed, and takes
        its ids over.
        """
        while self._parts:
            self._commit(store, self._parts.popleft(), last=not self._parts)

    def _commit(self, store: OrderedStore, part: _Part, *, last: bool) -> None:
        ledgers, checksum = self.shard.ledgers + part.new_ledgers, self.shard.checksum ^ part.checksum
        self.shard = self.shard._replace(ledgers=ledgers, checksum=checksum)
        with store.write() as txn:
            for key in part.deletes:
                txn.delete(key)
            put = txn.put
            for key, value in part.puts():
                put(key, value)
            self._living.change(txn, part.moved)
            if last:
                for log_id, row in self._finished.items():
                    self._living.finish(txn, log_id, row)
                for log_id, row in self._unlisted.items():
                    self._living.reset(txn, log_id, row)
            put(SHARD_KEY, encode_shard(self.shard if last else self.shard._replace(marks=self._marks)))
        self._living.committed()
