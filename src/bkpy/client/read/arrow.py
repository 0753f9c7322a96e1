"""Blocks of entries as Arrow's columns: made of whole buffers, with no Python object for an entry.

Only imported where columns are asked for, since it needs pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from bkpy.client.read.block import Block

    Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]

SCHEMA: Final = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)


def record_batch(block: Block) -> pa.RecordBatch:
    """The block's entries, a row each, of `SCHEMA`."""
    return pa.RecordBatch.from_arrays([ledger_ids(block), entry_ids(block), payloads(block)], schema=SCHEMA)


def ledger_ids(block: Block) -> pa.Array:
    """The ledger, for each entry."""
    return pa.repeat(pa.scalar(block.ledger_id, pa.int64()), len(block))


def entry_ids(block: Block) -> pa.Array:
    """Each entry's id."""
    return ascending(block.first_entry, len(block))


def ascending(first: int, count: int) -> pa.Array:
    """So many numbers from `first` on."""
    return pa.array(np.arange(first, first + count, dtype=np.int64))


def lengths(block: Block) -> Numbers:
    """The bytes of each payload."""
    return np.frombuffer(block.ends, dtype=np.int64) - np.frombuffer(block.starts, dtype=np.int64)


def payloads(block: Block) -> pa.Array:
    """The payloads end to end: all but what lies between them is taken out of the buffer, by Arrow, in one go."""
    edges = np.empty(2 * len(block), dtype=np.int32)
    edges[0::2] = np.frombuffer(block.starts, dtype=np.int64)
    edges[1::2] = np.frombuffer(block.ends, dtype=np.int64)
    whole = pa.Array.from_buffers(pa.binary(), len(edges) - 1, [None, pa.py_buffer(edges), pa.py_buffer(block.buffer)])
    return whole.take(pa.array(np.arange(0, len(edges), 2, dtype=np.int32)))
