"""Reads blocks that rows of the index name: of entry logs, or batches that stayed in journal files.

Invariant: a block is returned only if ledger, ids and checksum are those of the row.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from bkpy.errors import CorruptDataError
from bkpy.protocol.wire.records import HEADER_BYTES
from bkpy.storage.entry_log.entry_log import StoredBlock, decode_block
from bkpy.storage.index.ids import Ids

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bkpy.storage.entry_log.entry_log import BlockReader, Place
    from bkpy.storage.index.index import BlockRow, KeptBatch

_SIZE: Final = struct.Struct("<I")  # a record begins with it: the bytes behind its header


def read_block(reader: BlockReader, ledger_id: int, row: BlockRow, run_bytes: int) -> StoredBlock:
    """The whole block that the row names, verified; `CorruptDataError` if it isn't there, `OSError` of reading it.

    `run_bytes`: between two places where a walk through a batch may begin (a block brings its own). Blocks.
    """
    if row.kept is None:
        return decode_block(reader.read(row.place), ledger_id)
    raw = _read_kept(reader, ledger_id, row.place, row.kept)
    return StoredBlock(Ids(row.kept.first, row.kept.entries), _table(raw, row.kept.entries, run_bytes), memoryview(raw))


def verify_block(reader: BlockReader, ledger_id: int, row: BlockRow) -> None:
    """Read the row's block and drop it; raises like `read_block`, and if ids of the row are missing in it. Blocks."""
    if row.kept is None:
        check_ids(row, decode_block(reader.read(row.place), ledger_id).ids)
    else:
        _read_kept(reader, ledger_id, row.place, row.kept)
        check_ids(row, Ids(row.kept.first, row.kept.entries))


def check_ids(row: BlockRow, stored: Ids) -> None:
    """`CorruptDataError` unless the ids that the row names are among those of the block."""
    low, high = row.ids.first, row.ids.last
    if row.ids.bits(low, high) & ~stored.bits(low, high):
        raise CorruptDataError("the block holds other entries than the index says")


def _read_kept(reader: BlockReader, ledger_id: int, place: Place, kept: KeptBatch) -> bytes:
    raw = reader.read(place)
    if len(raw) != place.length or crc32c(raw) != kept.checksum:
        reader.check_there(place.log_id)  # once its name is gone the journal may write over a file that is open here
        raise CorruptDataError("the journal file doesn't hold the batch that the index names", ledger_id=ledger_id)
    return raw


def read_blocks(
    reader: BlockReader, ledger_id: int, rows: Iterable[BlockRow], run_bytes: int
) -> dict[Place, StoredBlock | Exception]:
    """The rows' blocks by place, or the error of reading one, which says nothing of the others. Blocks."""
    blocks: dict[Place, StoredBlock | Exception] = {}
    for row in rows:
        try:
            blocks[row.place] = read_block(reader, ledger_id, row, run_bytes)
        except (OSError, CorruptDataError) as e:
            blocks[row.place] = e
    return blocks


def _table(raw: bytes, count: int, run_bytes: int) -> list[tuple[int, int]]:
    """(rank, offset) of records about `run_bytes` apart, as far as the batch is made of whole records.

    The records were never verified, so a walk that begins at such a place checks each.
    """
    size, rest = divmod(len(raw), count)
    if not rest and size >= HEADER_BYTES and _alike(raw, count, size):
        step = -(-run_bytes // size)
        return [(rank, rank * size) for rank in range(0, count, step)]
    return _walked(raw, count, run_bytes)


def _alike(raw: bytes, count: int, size: int) -> bool:
    """Whether all records have that size, without a step of Python for each."""
    return all(raw[i::size] == bytes((byte,)) * count for i, byte in enumerate(_SIZE.pack(size - HEADER_BYTES)))


def _walked(raw: bytes, count: int, run_bytes: int) -> list[tuple[int, int]]:
    table = [(0, 0)]
    offset, following, last = 0, run_bytes, len(raw) - HEADER_BYTES
    unpack = _SIZE.unpack_from
    for rank in range(count):
        if offset > last:
            break
        if offset >= following:
            table.append((rank, offset))
            following = offset + run_bytes
        offset += HEADER_BYTES + unpack(raw, offset)[0]
    return table
