"""Blocks of entries as Arrow record batches: columns made of whole buffers, with no Python object for a row.

Invariant: every batch has exactly the schema it was asked for. Spark checks only the first one of a partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bkpy.client.read.block import Block


def batches(block: Block, columns: Sequence[str], schema: pa.Schema, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The entries of a block, with at most `bytes_max` of payload in a batch unless one entry alone is larger.

    `columns` are the source's names of the columns that the schema has.
    """
    for part in _parts(block, bytes_max):
        arrays = [_column(name, part) for name in columns]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)  # of exactly this schema, or an error


def _parts(block: Block, bytes_max: int) -> Iterator[Block]:
    """The block cut where the payload would grow past `bytes_max`."""
    ends = np.cumsum(_lengths(block))
    first, before = 0, 0
    while first < len(block):
        end = max(first + 1, int(np.searchsorted(ends, before + bytes_max, side="right")))
        yield block.slice(block.first_entry + first, block.first_entry + end - 1)
        first, before = end, int(ends[end - 1])


def _lengths(block: Block) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.frombuffer(block.ends, dtype=np.int64) - np.frombuffer(block.starts, dtype=np.int64)


def _column(name: str, block: Block) -> pa.Array:
    count = len(block)
    if name == "ledger_id":
        return pa.repeat(pa.scalar(block.ledger_id, pa.int64()), count)
    if name == "entry_id":
        return pa.array(np.arange(block.first_entry, block.first_entry + count, dtype=np.int64))
    if name == "payload":
        offsets, values = block.joined()
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(values)])
    if name == "length":
        return pa.array(_lengths(block).astype(np.int32))
    # A ledger that belongs to no log.
    return pa.nulls(count, {"log": pa.string(), "position": pa.int64()}[name])
