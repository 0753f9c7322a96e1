"""Checks the block rows of one ledger, one after the other, and describes damaged rows and blocks.

Invariant: findings about rows together hold for rows of one moment. A caller that takes rows from several snapshots
must make sure that they didn't change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.storage.entry_log.entry_log import log_name
from bkpy.storage.index.ids import SPAN_MAX
from bkpy.storage.index.index import checksum_of, decode_block_row, first_of_block
from bkpy.storage.tools.check.defects import OTHER_COPIES, REBUILD, Defect

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.errors import CorruptDataError
    from bkpy.storage.index.index import BlockRow, LedgerRow


class LedgerRows:
    """The block rows of one ledger. Pass them in their order; `found` gets the defects."""

    def __init__(self, ledger_id: int, index_path: str, found: Callable[[Defect], None]) -> None:
        self._ledger_id = ledger_id
        self._path = index_path
        self._found = found
        self._count = self._checksum = 0
        self._behind = -1  # the highest id of the rows so far
        self._overlapping: list[BlockRow] = []  # in range; their ids are to be different ones

    def take(self, key: bytes, value: bytes) -> BlockRow:
        """The next row; `CorruptDataError` if it is damaged: see `damaged_row`."""
        self._count += 1
        self._checksum ^= checksum_of(value)
        row = decode_block_row(key, value)
        low, high = row.ids.first, row.ids.last
        self._overlapping = [other for other in self._overlapping if other.ids.last >= low]
        for other in self._overlapping:
            shared = other.ids.bits(low, high) & row.ids.bits(low, high)
            if shared:
                entry_id = low + (shared & -shared).bit_length() - 1
                self._report(f"two blocks are said to hold entry {entry_id}", entry_id, high)
        self._overlapping.append(row)
        self._behind = max(self._behind, high)
        return row

    def end(self, ledger: LedgerRow) -> None:
        """All rows were taken: compare them with the ledger's own."""
        if (self._count, self._checksum) != (ledger.blocks, ledger.checksum):
            what = "rows of its blocks are missing, or are not the stored ones: it is in limbo for that"
            self._report(what, 0, max(self._behind, ledger.last_entry))
        if self._behind > ledger.last_entry:
            what = f"the ledger's row ends at entry {ledger.last_entry}, and a block holds entry {self._behind}"
            self._report(what, ledger.last_entry + 1, self._behind)

    def _report(self, what: str, first: int, last: int) -> None:
        self._found(Defect(self._path, None, self._ledger_id, what, REBUILD, first, last))


def damaged_row(index_path: str, ledger_id: int, key: bytes, error: CorruptDataError) -> Defect:
    """That a block row is damaged, which hides entries from its key's on."""
    first = first_of_block(key)
    what = f"a row of its blocks: {error.message}"
    return Defect(index_path, None, ledger_id, what, REBUILD, first, first + SPAN_MAX - 1)


def damaged_ledger(index_path: str, ledger_id: int, error: CorruptDataError) -> Defect:
    """That the ledger's own row is damaged."""
    return Defect(index_path, None, ledger_id, f"the ledger's row: {error.message}", REBUILD)


def damaged_block(
    directory: str, ledger_id: int, row: BlockRow, why: Exception | str, remedy: str = OTHER_COPIES
) -> Defect:
    """That the block which the row names is not there, or can't be read, and why."""
    path = f"{directory}/{log_name(row.place.log_id)}"
    if isinstance(why, FileNotFoundError):
        why, remedy = "the log is gone, and the index needs it", OTHER_COPIES
    return Defect(path, row.place.offset, ledger_id, str(why), remedy, row.ids.first, row.ids.last)
