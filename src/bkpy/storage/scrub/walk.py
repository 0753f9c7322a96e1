"""The scrub's walk through an index: it finds the next blocks to verify, and damaged rows.

Invariants: a step looks at a bounded number of rows and names a bounded number of bytes, but for the last step of a
ledger with findings about rows together: it looks at all rows of that ledger in one snapshot, and reports the findings
that hold there too. They count only if the ledger's row was the same at both ends as well. The row alone does not show
that nothing moved: its checksum is an XOR, and rows that move together may leave it as it was. Everything
here blocks, and only reads.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import CorruptDataError
from bkpy.storage.entry_log.entry_log import BlockReader, log_id_of
from bkpy.storage.file_names import INDEX_NAME
from bkpy.storage.index.index import (
    U64_END,
    BlockRow,
    LedgerRow,
    block_key,
    decode_block_row,
    decode_ledger,
    ledger_key,
    ledger_of_block,
    scan_blocks,
    trash_key,
)
from bkpy.storage.reads.blocks import verify_block
from bkpy.storage.tools.check.defects import REBUILD, Defect
from bkpy.storage.tools.check.ledger_rows import LedgerRows, damaged_block, damaged_ledger, damaged_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bkpy.runtime.interfaces import Files, OrderedStore, ReadTransaction

START = block_key(0, 0)
_END = b"c"  # of the keys of block rows


class StoredRow(NamedTuple):
    """A block row as it was read."""

    ledger_id: int
    key: bytes
    value: bytes
    row: BlockRow


class Gathered(NamedTuple):
    """Rows whose blocks come next, what is wrong with rows, and the key to go on at, None at the end."""

    sources: list[StoredRow]
    defects: list[Defect]
    cursor: bytes | None


class RowWalk:
    """Walks along the block rows of an index from `cursor` on, as they are at each step.

    `skip`: whether a ledger was deleted, and is passed over. `doubts_max`: how many findings of one ledger are kept
    until it is clear whether they hold.
    """

    def __init__(
        self,
        store: OrderedStore,
        directory: str,
        cursor: bytes,
        skip: Callable[[int], bool],
        *,
        rows_max: int,
        bytes_max: int,
        doubts_max: int,
    ) -> None:
        self._store = store
        self._index_path = f"{directory}/{INDEX_NAME}"
        self._cursor = cursor
        self._skip = skip
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._doubts_max = doubts_max
        self._defects: list[Defect] = []
        self._ledger_id = -1
        self._begun = b""  # the ledger's row when its first block row was looked at
        self._ledger: LedgerRow | None = None  # None: nothing can be said of all its rows together
        self._rows: LedgerRows | None = None  # None: its blocks are not to be looked at
        self._doubts: list[Defect] = []

    def gather(self) -> Gathered:
        """The next step; after an error the walk is of no use any more."""
        self._defects = []
        sources: list[StoredRow] = []
        size = 0
        with self._store.read() as txn:
            for looked_at, (key, value) in enumerate(txn.scan(self._cursor, _END)):
                if looked_at == self._rows_max or size >= self._bytes_max:
                    self._cursor = key
                    return Gathered(sources, self._defects, key)
                ledger_id = ledger_of_block(key)
                if ledger_id != self._ledger_id:
                    self._leave(txn)
                    self._enter(txn, ledger_id)
                row = self._take(key, value)
                if row is not None:
                    sources.append(StoredRow(ledger_id, key, value, row))
                    size += row.place.length
            self._leave(txn)
        return Gathered(sources, self._defects, None)

    def _enter(self, txn: ReadTransaction, ledger_id: int) -> None:
        self._ledger_id, self._ledger, self._rows, self._doubts = ledger_id, None, None, []
        if self._skip(ledger_id) or txn.get(trash_key(ledger_id)) is not None:
            return
        key = ledger_key(ledger_id)
        value = txn.get(key)
        if value is None:
            what = "rows of blocks are of a ledger that has no row"
            self._defects.append(Defect(self._index_path, None, ledger_id, what, REBUILD, 0))
            return
        self._rows = LedgerRows(ledger_id, self._index_path, self._doubt)
        try:
            self._ledger, self._begun = decode_ledger(key, value), value
        except CorruptDataError as e:
            self._defects.append(damaged_ledger(self._index_path, ledger_id, e))
        if block_key(ledger_id, 0) < self._cursor:
            self._ledger = None  # its first rows were looked at before, by a walk that is no more

    def _leave(self, txn: ReadTransaction) -> None:
        if self._ledger is None or self._rows is None or txn.get(ledger_key(self._ledger_id)) != self._begun:
            return
        self._rows.end(self._ledger)
        if self._doubts:
            self._look_again(txn, self._ledger)
        self._defects += self._doubts

    def _look_again(self, txn: ReadTransaction, ledger: LedgerRow) -> None:
        """Keep the findings about rows together that hold for all rows of the ledger as they are now."""
        self._doubts = []
        rows = LedgerRows(self._ledger_id, self._index_path, self._doubt)
        for key, value in scan_blocks(txn, self._ledger_id, 0, U64_END - 1):
            with contextlib.suppress(CorruptDataError):  # the walk has reported it
                rows.take(key, value)
        rows.end(ledger)

    def _take(self, key: bytes, value: bytes) -> BlockRow | None:
        if self._rows is None:
            return None
        try:
            return self._rows.take(key, value)
        except CorruptDataError as e:
            self._defects.append(damaged_row(self._index_path, self._ledger_id, key, e))
            return None

    def _doubt(self, defect: Defect) -> None:
        if len(self._doubts) < self._doubts_max:
            self._doubts.append(defect)


def verify(files: Files, directory: str, sources: Iterable[StoredRow]) -> list[tuple[StoredRow, Exception]]:
    """Read the rows' blocks; the rows of unreadable ones, with the errors. No file stays open: it may go soon."""
    failed: list[tuple[StoredRow, Exception]] = []
    reader = BlockReader(files, directory, open_max=1)
    try:
        for source in sources:
            try:
                verify_block(reader, source.ledger_id, source.row)
            except (CorruptDataError, OSError) as e:
                failed.append((source, e))
    finally:
        reader.close()
    return failed


def confirmed(store: OrderedStore, directory: str, failed: Iterable[tuple[StoredRow, Exception]]) -> list[Defect]:
    """The unreadable blocks that the index still names at their place: the others have moved, or are gone."""
    with store.read() as txn:
        return [
            damaged_block(directory, source.ledger_id, source.row, error)
            for source, error in failed
            if txn.get(source.key) == source.value and txn.get(trash_key(source.ledger_id)) is None
        ]


def as_it_is_now(store: OrderedStore, defects: Sequence[Defect]) -> list[Defect | None]:
    """Each defect with the entries that the index still has there, None if there are none. Reads no block."""
    with store.read() as txn:
        return [_as_it_is_now(txn, defect) for defect in defects]


def _as_it_is_now(txn: ReadTransaction, defect: Defect) -> Defect | None:
    ledger_id = defect.ledger_id
    if ledger_id is None or txn.get(trash_key(ledger_id)) is not None:
        return None
    log_id = log_id_of(defect.path.rpartition("/")[2])
    if log_id is None:  # a row of the index: the next round will see
        held = txn.get(ledger_key(ledger_id)) is not None or next(
            iter(scan_blocks(txn, ledger_id, 0, U64_END - 1)), None
        )
        return defect if held else None
    if defect.first is None or defect.last is None:
        return None
    for key, value in scan_blocks(txn, ledger_id, defect.first, defect.last):
        try:
            row = decode_block_row(key, value)
        except CorruptDataError:
            continue  # its place isn't known; the walk reports it by itself
        if (row.place.log_id, row.place.offset) == (log_id, defect.offset):
            return defect._replace(first=row.ids.first, last=row.ids.last)
    return None
