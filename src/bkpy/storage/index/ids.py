"""Sets of entry ids: arithmetic progressions and bitmaps, as batches, blocks and index rows need them.

Invariant: `first` and `last` are members, and no id below or above them is.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from bkpy.errors import CorruptDataError

if TYPE_CHECKING:
    from collections.abc import Iterator

SPAN_MAX: Final = 65_536  # ids from first to last of a block: bounds how far a look-up goes back, and a bitmap's size


class Ids:
    """A non-empty set of ids: first, first + stride, ... (count of them), or, with `mask`, bit i = first + i."""

    __slots__ = ("count", "first", "last", "mask", "stride")

    def __init__(self, first: int, count: int, stride: int = 1, mask: int | None = None, last: int = -1) -> None:
        self.first = first
        self.count = count
        self.stride = stride
        self.mask = mask
        self.last = first + (count - 1) * stride if mask is None else last

    @classmethod
    def from_bits(cls, base: int, bits: int) -> Ids:
        """The set of base + i for the bits i of `bits`, which is not 0."""
        low = (bits & -bits).bit_length() - 1
        mask = bits >> low
        span, count = mask.bit_length(), mask.bit_count()
        if span == count:
            return cls(base + low, count)
        return cls(base + low, count, 1, mask, base + low + span - 1)

    @property
    def full(self) -> bool:
        """Whether every id from first to last is in it."""
        return self.last - self.first + 1 == self.count

    def bits(self, base: int, end: int) -> int:
        """The members from base to end (inclusive) as a bitmap relative to `base`."""
        if self.mask is not None:
            bits = self.mask
        elif self.stride == 1:
            first, last = max(self.first, base), min(self.last, end)
            return ((1 << (last - first + 1)) - 1) << (first - base) if first <= last else 0
        else:  # only those between, for a stride may be of any width
            low, high = self.rank(base), self.rank(end + 1)
            if low >= high:
                return 0
            return _progression(high - low, self.stride) << (self.first + low * self.stride - base)
        shift = self.first - base
        bits = bits << shift if shift >= 0 else bits >> -shift
        return bits & ((1 << (end - base + 1)) - 1) if end >= base else 0

    def rank(self, entry_id: int) -> int:
        """How many members are below `entry_id`."""
        if entry_id <= self.first:
            return 0
        if entry_id > self.last:
            return self.count
        if self.mask is not None:
            return (self.mask & ((1 << (entry_id - self.first)) - 1)).bit_count()
        return -(-(entry_id - self.first) // self.stride)

    def from_rank(self, rank: int) -> Iterator[int]:
        """The members from the one with that rank on, ascending."""
        if self.mask is None:
            return iter(range(self.first + rank * self.stride, self.last + 1, self.stride))
        return _members(self.first, self.mask, rank)


def _progression(count: int, stride: int) -> int:
    """A bitmap with `count` bits, `stride` apart, by doubling."""
    bits, have = 1, 1
    while have < count:
        take = min(have, count - have)
        bits |= (bits & ((1 << ((take - 1) * stride + 1)) - 1)) << (have * stride)
        have += take
    return bits


def _members(first: int, mask: int, rank: int) -> Iterator[int]:
    text = bin(mask)[:1:-1]  # lowest bit first
    at = -1
    while (at := text.find("1", at + 1)) >= 0:
        if rank > 0:
            rank -= 1
        else:
            yield first + at


def encode_bitmap(ids: Ids) -> bytes:
    """The stored form of which ids from first to last are there; empty if all are."""
    if ids.full:
        return b""
    span = ids.last - ids.first + 1
    return zlib.compress(ids.bits(ids.first, ids.last).to_bytes((span + 7) // 8, "little"), 1)


def decode_bitmap(first: int, span: int, stored: bytes) -> Ids:
    """The ids from `first` to `first + span - 1` that the stored bitmap names; `CorruptDataError` if it can't be."""
    if not 0 < span <= SPAN_MAX:
        raise CorruptDataError(f"a span of {span} ids is out of range")
    if not stored:
        return Ids(first, span)
    try:
        bits = int.from_bytes(zlib.decompress(stored), "little")
    except zlib.error as e:
        raise CorruptDataError(f"a bitmap of entry ids can't be read: {e}") from None
    ids = Ids.from_bits(first, bits) if bits else None
    if ids is None or ids.first != first or ids.last != first + span - 1:
        raise CorruptDataError("a bitmap of entry ids doesn't fit its span")
    return ids
