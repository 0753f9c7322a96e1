"""Blocks of entries as Arrow record batches: columns made of whole buffers, with no Python object for a row.

Invariant: every batch has exactly the schema it was asked for. Spark checks only the first one of a partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from bkpy.client.read.arrow import ascending, entry_ids, ledger_ids, lengths, payloads
from bkpy.log.arrow import TIME, producers, sequences, times

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bkpy.client.read.block import Block
    from bkpy.spark.planning import Origin

# As Spark has them. Its own function for that takes other arguments in each version.
_TYPES: Final[Mapping[str, pa.DataType]] = {
    "log": pa.string(),
    "ledger_id": pa.int64(),
    "entry_id": pa.int64(),
    "payload": pa.binary(),
    "length": pa.int32(),
    "position": pa.int64(),
    "time": TIME,
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
    ends = np.cumsum(lengths(block))
    first, before = 0, 0
    while first < len(block):
        end = max(first + 1, int(np.searchsorted(ends, before + bytes_max, side="right")))
        yield block.slice(block.first_entry + first, block.first_entry + end - 1)
        first, before = end, int(ends[end - 1])


def _column(name: str, block: Block) -> pa.Array:
    count = len(block)
    if name == "ledger_id":
        return ledger_ids(block)
    if name == "entry_id":
        return entry_ids(block)
    if name == "payload":
        return payloads(block)
    if name == "length":
        return pa.array(lengths(block).astype(np.int32))
    # A ledger that is read by its id.
    return pa.nulls(count, {"log": pa.string(), "position": pa.int64()}[name])


def _log_column(name: str, block: Block, origin: Origin, producer: str | None) -> pa.Array:
    count = len(block)
    if name == "log":
        return pa.repeat(pa.scalar(origin.log, pa.string()), count)
    if name == "position":
        return ascending(origin.position + block.first_entry, count)
    if name == "time":
        return times(block, origin.begun_ms)
    if name == "producer":
        return producers(block, producer)
    if name == "sequence":
        return sequences(block, producer)
    return _column(name, block)
