"""A run of consecutive verified entries in one buffer, which scans use in place of an object per entry."""

from __future__ import annotations

from array import array
from functools import partial
from itertools import count, repeat
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_SMALL_BYTES: Final = 512


class Entry(NamedTuple):
    """One entry of a ledger."""

    ledger_id: int
    """The ledger."""
    entry_id: int
    """The entry's place in the ledger, from 0."""
    data: bytes
    """The payload."""

    @property
    def length(self) -> int:
        """Bytes of `data`."""
        return len(self.data)


_ENTRY_OF: Final = partial(tuple.__new__, Entry)  # `Entry._make`, in half the time


class Block:
    """Entries first_entry .. last_entry of a ledger, in order and without gaps, their digests verified.

    `buffer` holds their records; payload i is `buffer[starts[i]:ends[i]]`. Iterating yields `Entry` objects; the other
    methods make no object per entry that outlives the call.
    """

    __slots__ = ("buffer", "ends", "first_entry", "ledger_id", "starts")

    ledger_id: int
    """The ledger."""
    first_entry: int
    """The id of the first entry."""
    buffer: memoryview
    """The memory that payloads are in."""
    starts: array[int]
    """Where each payload begins in `buffer`."""
    ends: array[int]
    """Where each payload ends in `buffer`."""

    def __init__(
        self, ledger_id: int, first_entry: int, buffer: memoryview, starts: array[int], ends: array[int]
    ) -> None:
        self.ledger_id = ledger_id
        self.first_entry = first_entry
        self.buffer = buffer
        self.starts = starts
        self.ends = ends

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def last_entry(self) -> int:
        """The id of the last entry."""
        return self.first_entry + len(self.starts) - 1

    @property
    def payload_bytes(self) -> int:
        """Bytes of all payloads."""
        return sum(self.ends) - sum(self.starts)

    def __iter__(self) -> Iterator[Entry]:
        # All of it in machine code: a step of Python for each entry would take longer than the rest.
        cuts = map(slice, self.starts, self.ends)
        if len(self.buffer) < _SMALL_BYTES * len(self):  # small ones are slices of one copy of the block
            payloads = map(self.buffer.tobytes().__getitem__, cuts)
        else:
            payloads = map(bytes, map(self.buffer.__getitem__, cuts))
        return map(_ENTRY_OF, zip(repeat(self.ledger_id), count(self.first_entry), payloads))

    def payload(self, index: int) -> memoryview:
        """The payload of entry first_entry + index, without a copy."""
        return self.buffer[self.starts[index] : self.ends[index]]

    def payloads(self) -> list[bytes]:
        """All payloads, copied."""
        buffer = self.buffer
        return [bytes(buffer[start:end]) for start, end in zip(self.starts, self.ends, strict=True)]

    def joined(self) -> tuple[array[int], bytes]:
        """(offsets, values): the payloads end to end and the n + 1 offsets between them, as Arrow lays out binary."""
        buffer = self.buffer
        offsets = array("i", [0])
        total = 0
        for start, end in zip(self.starts, self.ends, strict=True):
            total += end - start
            offsets.append(total)
        return offsets, b"".join([buffer[start:end] for start, end in zip(self.starts, self.ends, strict=True)])

    def slice(self, first: int, last: int) -> Block:
        """The part of this block that lies in first..last, without a copy."""
        low, high = first - self.first_entry, last - self.first_entry + 1
        if low <= 0 and high >= len(self.starts):
            return self
        low = max(low, 0)
        return Block(self.ledger_id, self.first_entry + low, self.buffer, self.starts[low:high], self.ends[low:high])
