"""Blocks of entries as Arrow record batches: columns made of whole buffers, with no Python object for a row.

Invariant: every batch has exactly the schema it was asked for. Spark checks only the first one of a partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from bkpy.protocol.wire.records import STAMP_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bkpy.client.read.block import Block
    from bkpy.spark.planning import Origin


_SEQUENCE_BYTES: Final = 2 * STAMP_BYTES  # how far before a payload its number begins

# As Spark has them. Its own function for that takes other arguments in each version.
_TYPES: Final[Mapping[str, pa.DataType]] = {
    "log": pa.string(),
    "ledger_id": pa.int64(),
    "entry_id": pa.int64(),
    "payload": pa.binary(),
    "length": pa.int32(),
    "position": pa.int64(),
    "time": pa.timestamp("us", tz="UTC"),  # what Spark itself compares with, whatever time zone the session has
    "producer": pa.string(),
    "sequence": pa.int64(),
}


def arrow_schema(columns: Iterable[tuple[str, bool]]) -> pa.Schema:
    """The schema of batches with these columns: their names, in whatever case, and whether they may be null."""
    return pa.schema([pa.field(name, _TYPES[name.lower()], nullable) for name, nullable in columns])


def batches(
    block: Block,
    columns: Sequence[str],
    schema: pa.Schema,
    bytes_max: int,
    origin: Origin | None = None,
    producer: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """The entries of a block, with at most `bytes_max` of payload in a batch unless one entry alone is larger.

    `columns` are the source's names of the columns that the schema has. `origin` says where in its log the ledger is,
    whose entries are then stamped, and `producer` who has numbered them.
    """
    for part in _parts(block, bytes_max):
        arrays = [
            _column(name, part) if origin is None else _log_column(name, part, origin, producer) for name in columns
        ]
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
        return _payloads(block)
    if name == "length":
        return pa.array(_lengths(block).astype(np.int32))
    # A ledger that is read by its id.
    return pa.nulls(count, {"log": pa.string(), "position": pa.int64()}[name])


def _payloads(block: Block) -> pa.Array:
    """The payloads end to end: all but what lies between them is taken out of the buffer, by Arrow, in one go."""
    edges = np.empty(2 * len(block), dtype=np.int32)
    edges[0::2] = np.frombuffer(block.starts, dtype=np.int64)
    edges[1::2] = np.frombuffer(block.ends, dtype=np.int64)
    whole = pa.Array.from_buffers(pa.binary(), len(edges) - 1, [None, pa.py_buffer(edges), pa.py_buffer(block.buffer)])
    return whole.take(pa.array(np.arange(0, len(edges), 2, dtype=np.int32)))


def _log_column(name: str, block: Block, origin: Origin, producer: str | None) -> pa.Array:
    count = len(block)
    if name == "log":
        return pa.repeat(pa.scalar(origin.log, pa.string()), count)
    if name == "position":
        first = origin.position + block.first_entry
        return pa.array(np.arange(first, first + count, dtype=np.int64))
    if name == "time":
        return pa.array(_times_ms(block, origin.begun_ms) * 1000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    if name == "producer":
        return pa.repeat(pa.scalar(producer, pa.string()), count)
    if name == "sequence":
        return pa.nulls(count, pa.int64()) if producer is None else pa.array(_before(block, _SEQUENCE_BYTES))
    return _column(name, block)


def _times_ms(block: Block, begun_ms: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The later one of each entry's stamp, which ends where its payload starts, and the time its segment began."""
    times: np.ndarray[tuple[int], np.dtype[np.int64]] = np.maximum(_before(block, STAMP_BYTES), begun_ms)
    return times


def _before(block: Block, distance: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The number of eight bytes that begins so far before each payload."""
    starts = np.frombuffer(block.starts, dtype=np.int64)
    # Every place of the buffer as the beginning of a number, of which a few are taken: no loop over entries.
    places = np.ndarray((len(block.buffer) - STAMP_BYTES + 1,), "<i8", block.buffer, strides=(1,))
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = places[starts - distance]
    return found
