"""Verifies the records of a large block all at once: a few calls of machine code in place of a loop over entries.

A checksum is a register that the bytes go through. At a record's end it holds what the record's own checksum says, if
that is right, and nothing else: a fact that one checksum over all of them can test. In a copy of the block,

    a head's 8 bytes       become the register's content after the record before, and four zeros,
    a body's first 4 bytes get that content exclusive-or'ed with which every record of the ledger begins.

A register that is fed its own content is zero, and so the next record begins as if it were the first. If after the last
one the register holds what that record's checksum says, all of them are right. What a wrong one leaves behind in it is
shifted by all that follows and never lost: one wrong record is found for certain, as are up to 32 bits in a row and any
two or three bits, and among arbitrary damage about one case in 2^32 is not, as with one CRC32C over the whole block.

Invariants: says how many records are the next entries, whole and right, or 0 where it can't tell; never one too many.
The block is afterwards what it was before.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np
from crc32c import crc32c

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable

    Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
    Places = Callable[[int], slice | Numbers]

_HEADER_BYTES: Final = 32
_STORED_AT: Final = 4
_BODY_AT: Final = 8  # the entry id is what a body begins with
_ONES: Final = 0xFFFFFFFF  # a checksum begins with these, and all its bits are turned around at its end

_SIZE: Final = struct.Struct("<I")


def scan_block(
    view: memoryview, first: int, last: int, seed: int, payload_at: int, starts: array[int], ends: array[int]
) -> int:
    """Verify entries first, first + 1, ... up to `last` as far as `view` has them; returns how many are verified.

    0 if any record isn't the next entry or doesn't verify, or if there is none. Appends to `starts` and `ends` where
    the payloads of the verified ones start and end; `payload_at` is the offset of the payload in its record.
    """
    if len(view) < _HEADER_BYTES or last < first:
        return 0
    edges, of_each = _cut(view, last - first + 1)
    count = len(edges) - 1
    if count < 1:
        return 0
    ids = np.ndarray((len(view) - 7,), "<i8", view, strides=(1,))[of_each(_BODY_AT)]
    if (ids != np.arange(first, first + count)).any():
        return 0
    buffer = bytearray(view) if view.readonly else view
    words = np.ndarray((len(view) - 3,), "<u4", buffer, strides=(1,))
    head, checksum, body = of_each(0), of_each(_STORED_AT), of_each(_BODY_AT)
    sizes, stored, low_ids = words[head].copy(), words[checksum].copy(), words[body].copy()
    before = np.zeros(count, np.uint32)  # the register after the record before; after nothing it is zero
    np.invert(stored[:-1], out=before[1:])
    words[head] = before
    words[checksum] = 0
    words[body] = low_ids ^ np.uint32(seed ^ _ONES)
    right = crc32c(buffer[: edges[-1]], _ONES) == stored[-1]
    words[head], words[checksum], words[body] = sizes, stored, low_ids
    if not right:
        return 0
    starts.frombytes((edges[:-1] + payload_at).tobytes())
    ends.frombytes(edges[1:].tobytes())
    return count


def _cut(view: memoryview, wanted: int) -> tuple[Numbers, Places]:
    """Where the first records begin, at most so many, and where the last one ends, if their sizes are right.

    And what tells, for an offset in a record, the places in the block that have it in theirs.
    """
    size, total = _SIZE.unpack_from(view)[0], len(view)
    stride = _HEADER_BYTES + size
    count = min(wanted, total // stride)
    if count and (count == wanted or total - count * stride < _HEADER_BYTES):
        sizes = np.ndarray((count,), "<u4", view, strides=(stride,))
        if (sizes == size).all():
            return np.arange(count + 1) * stride, lambda at: slice(at, at + (count - 1) * stride + 1, stride)
    edges = np.array(_walk(view, wanted))
    return edges, lambda at: edges[:-1] + at


def _walk(view: memoryview, wanted: int) -> list[int]:
    """The same for records of any sizes: the one thing that takes a loop, because each size says where the next is."""
    edges, offset, unpack, total = [0], 0, _SIZE.unpack_from, len(view)
    while len(edges) <= wanted and offset + _HEADER_BYTES <= total:
        offset += _HEADER_BYTES + unpack(view, offset)[0]
        if offset > total:
            break
        edges.append(offset)
    return edges
