"""Checks an index: every row, the sums over them, and that each block is where its row says.

Invariant: reads only, in one snapshot; memory doesn't grow with the number of rows. Everything here blocks.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from bkpy.errors import CorruptDataError
from bkpy.storage.entry_log.entry_log import (
    BLOCK_HEADER_BYTES,
    BlockReader,
    decode_block_head,
    decode_block_ids,
    log_name,
)
from bkpy.storage.index.index import (
    U64_END,
    LedgerRow,
    LogRow,
    ShardRow,
    block_rows,
    checksum_of,
    decode_block_row,
    decode_ledger,
    ledger_rows,
    log_rows,
    scan_blocks,
    trash_rows,
)
from bkpy.storage.index.tombstones import damaged_tombstones
from bkpy.storage.reads.blocks import check_ids, verify_block
from bkpy.storage.tools.check.defects import REBUILD, RESTORE, Defect
from bkpy.storage.tools.check.ledger_rows import LedgerRows, damaged_block, damaged_ledger, damaged_row

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bkpy.runtime.interfaces import Files, ReadTransaction
    from bkpy.storage.entry_log.scan import LogDamage
    from bkpy.storage.index.index import BlockRow


def named_ends(txn: ReadTransaction) -> dict[int, int]:
    """Where the last block ends that a row names, of each log. Damaged rows are left to `RowCheck`."""
    ends: dict[int, int] = {}
    for key, value in block_rows(txn):
        with contextlib.suppress(CorruptDataError):
            place = decode_block_row(key, value).place
            ends[place.log_id] = max(ends.get(place.log_id, 0), place.offset + place.length)
    return ends


class RowCheck:
    """The check of one index. `ledgers` and `blocks` count its rows, `logs` are the rows of logs."""

    def __init__(
        self,
        txn: ReadTransaction,
        shard: ShardRow,
        files: Files,
        directory: str,
        index_path: str,
        damages: Mapping[int, Sequence[LogDamage]],
        found: Callable[[Defect], None],
        *,
        open_max: int,
        running: bool,
    ) -> None:
        self.ledgers = 0
        self.blocks = 0
        self.logs: dict[int, LogRow | None] = log_rows(txn)
        self._txn = txn
        self._shard = shard
        self._directory = directory
        self._path = index_path
        self._damages = damages
        self._found = found
        self._reader = BlockReader(files, directory, open_max=open_max)
        self._running = running
        self._living = dict.fromkeys(self.logs, 0)

    def run(self) -> None:
        """Check everything."""
        try:
            self._check_ledgers()
        finally:
            self._reader.close()
        self._count_deleted()
        for first in damaged_tombstones(self._txn):
            what = (
                f"a row of the ids of deleted ledgers, from ledger {first} on, is damaged: the next start puts all "
                "ledgers in limbo for that"
            )
            self._found(Defect(self._path, None, None, what, REBUILD))
        for log_id, row in self.logs.items():
            path = f"{self._directory}/{log_name(log_id)}"
            if row is None:
                self._found(Defect(self._path, None, None, f"the row of {path} is damaged", REBUILD))
            elif row.living is not None and row.living != self._living[log_id]:
                what = f"rows name {self._living[log_id]} bytes of this log, and the index has counted {row.living}"
                self._found(Defect(path, None, None, what, REBUILD))

    def _count_deleted(self) -> None:
        """Rows of ledgers that were deleted, which leave the index in steps; others without a ledger's row are none."""
        deleted = 0
        for ledger_id in trash_rows(self._txn):
            for key, value in scan_blocks(self._txn, ledger_id, 0, U64_END - 1):
                deleted += 1
                with contextlib.suppress(CorruptDataError):
                    place = decode_block_row(key, value).place
                    if place.log_id in self._living:
                        self._living[place.log_id] += place.length
        strays = sum(1 for _ in block_rows(self._txn)) - deleted - self.blocks
        if strays > 0:
            what = f"{strays} rows of blocks are of ledgers that have no row"
            self._found(Defect(self._path, None, None, what, REBUILD))

    def _check_ledgers(self) -> None:
        checksum = 0
        for ledger_id, key, value in ledger_rows(self._txn):
            self.ledgers += 1
            checksum ^= checksum_of(value)
            try:
                row: LedgerRow | None = decode_ledger(key, value)
            except CorruptDataError as e:
                self._found(damaged_ledger(self._path, ledger_id, e))
                row = None
            self._check_blocks(ledger_id, row)
        if (self.ledgers, checksum) != (self._shard.ledgers, self._shard.checksum):
            what = "rows of ledgers are missing, or are not the stored ones: all ledgers are in limbo for that"
            self._found(Defect(self._path, None, None, what, REBUILD))

    def _check_blocks(self, ledger_id: int, ledger: LedgerRow | None) -> None:
        rows = LedgerRows(ledger_id, self._path, self._found)
        for key, value in scan_blocks(self._txn, ledger_id, 0, U64_END - 1):
            self.blocks += 1
            try:
                row = rows.take(key, value)
            except CorruptDataError as e:
                self._found(damaged_row(self._path, ledger_id, key, e))
                continue
            if row.place.log_id in self._living:
                self._living[row.place.log_id] += row.place.length
            self._check_block(ledger_id, row)
        if ledger is not None:
            rows.end(ledger)

    def _check_block(self, ledger_id: int, row: BlockRow) -> None:
        """That the block which the row names is there. Its checksum is looked at where the whole log is."""
        begin, end = row.place.offset, row.place.offset + row.place.length
        for damage in self._damages.get(row.place.log_id, ()):
            if damage.offset < end and begin < damage.offset + damage.length:
                what = f"the block with {row.ids.count} entries from {row.ids.first} to {row.ids.last} is damaged"
                self._found(damaged_block(self._directory, ledger_id, row, what))
                return
        try:
            if row.kept is not None:
                verify_block(self._reader, ledger_id, row)
            else:
                self._check_head(ledger_id, row)
        except FileNotFoundError as e:
            if not self._running:  # else it may have been removed since, and the index as it is now knows better
                self._found(damaged_block(self._directory, ledger_id, row, e))
        except (CorruptDataError, OSError) as e:
            self._found(damaged_block(self._directory, ledger_id, row, e, RESTORE))

    def _check_head(self, ledger_id: int, row: BlockRow) -> None:
        head = decode_block_head(self._reader.read(row.place._replace(length=BLOCK_HEADER_BYTES)))
        if head is None or (head.ledger_id, head.length) != (ledger_id, row.place.length):
            raise CorruptDataError("the index points at bytes that are no block of this ledger")
        check_ids(row, decode_block_ids(self._reader.read(row.place._replace(length=head.table_bytes)), head))
