"""Blocks of a log's entries as Arrow's columns, with the positions, times and numbers that a log gives them.

Only imported where columns are asked for, since it needs pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from bkpy.client.read.arrow import ascending, entry_ids, ledger_ids, payloads
from bkpy.protocol.wire.records import STAMP_BYTES

if TYPE_CHECKING:
    from bkpy.client.read.arrow import Numbers
    from bkpy.client.read.block import Block
    from bkpy.log.entries import LogBlock

_SEQUENCE_BYTES: Final = 2 * STAMP_BYTES  # how far before a payload its number begins

TIME: Final = pa.timestamp("us", tz="UTC")  # what Spark itself compares with, whatever time zone the session has

SCHEMA: Final = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("time", TIME, nullable=False),
        pa.field("producer", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)


def record_batch(log_block: LogBlock) -> pa.RecordBatch:
    """The block's entries, a row each, of `SCHEMA`."""
    block = log_block.block
    arrays = [
        ascending(log_block.first_position, len(block)),
        ledger_ids(block),
        entry_ids(block),
        times(block, log_block.begun_ms),
        producers(block, log_block.producer),
        sequences(block, log_block.producer),
        payloads(block),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def times(block: Block, begun_ms: int) -> pa.Array:
    """The later one of each entry's stamp, which ends where its payload starts, and the time its ledger began."""
    return pa.array(np.maximum(_before(block, STAMP_BYTES), begun_ms) * 1000, pa.int64()).cast(TIME)


def producers(block: Block, producer: str | None) -> pa.Array:
    """The producer, for each entry; null where none has numbered them."""
    return pa.repeat(pa.scalar(producer, pa.string()), len(block))


def sequences(block: Block, producer: str | None) -> pa.Array:
    """The producer's numbers of the entries; null where none has numbered them."""
    return pa.nulls(len(block), pa.int64()) if producer is None else pa.array(_before(block, _SEQUENCE_BYTES))


def _before(block: Block, distance: int) -> Numbers:
    """The number of eight bytes that begins so far before each payload."""
    starts = np.frombuffer(block.starts, dtype=np.int64)
    # Every place of the buffer as the beginning of a number, of which a few are taken: no loop over entries.
    places = np.ndarray((len(block.buffer) - STAMP_BYTES + 1,), "<i8", block.buffer, strides=(1,))
    found: Numbers = places[starts - distance]
    return found
