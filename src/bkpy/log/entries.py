"""What a log's reader yields: an entry with its position and time, and a run of them in one buffer."""

from __future__ import annotations

from array import array
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import NoSuchEntryError
from bkpy.protocol.wire.records import number_at, stamp_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bkpy.client.read.block import Block


def past_the_end(name: str, position: int, next_position: int) -> NoSuchEntryError:
    """Of a log that is known to end before `next_position`: that it has no such position yet."""
    if next_position == 0:
        return NoSuchEntryError(f"log {name} has no entries yet, and so no position {position}")
    return NoSuchEntryError(f"position {position} is past the last entry of log {name}, {next_position - 1}")


class LogEntry(NamedTuple):
    """One entry of a log."""

    position: int
    """The entry's place in the log."""
    ledger_id: int
    """The ledger that the entry is in."""
    entry_id: int
    """The entry's place in that ledger."""
    data: bytes
    """The payload."""
    time: float
    """When it was appended, by the writer's clock, in seconds since the epoch; it never falls in a log."""
    producer: str | None = None
    """The producer that has numbered it; None for an entry without a number."""
    sequence: int | None = None
    """Its number; None without one."""

    @property
    def length(self) -> int:
        """Bytes of `data`."""
        return len(self.data)


class LogBlock:
    """Entries of a log at consecutive positions, all of one ledger, their digests verified.

    `block` has their bytes: `block.payload(i)`, `block.joined()` and the others are of the entry at `positions[i]`.
    Iterating yields `LogEntry` objects; nothing else makes an object per entry. `producer`: who has numbered all of
    them, None if they have no numbers.
    """

    __slots__ = ("begun_ms", "block", "first_position", "producer")

    block: Block
    """The entries' bytes."""
    first_position: int
    """The position of the first entry."""
    begun_ms: int
    """No entry of the ledger has an earlier time; in milliseconds since the epoch."""
    producer: str | None
    """The producer that has numbered all of them; None if they have no numbers."""

    def __init__(self, block: Block, first_position: int, begun_ms: int, producer: str | None = None) -> None:
        self.block = block
        self.first_position = first_position
        self.begun_ms = begun_ms
        self.producer = producer

    def __len__(self) -> int:
        return len(self.block)

    @property
    def positions(self) -> range:
        """The positions of the entries."""
        return range(self.first_position, self.first_position + len(self.block))

    @property
    def ledger_id(self) -> int:
        """The ledger that the entries are in."""
        return self.block.ledger_id

    @property
    def first_entry(self) -> int:
        """The id, in that ledger, of the first of them."""
        return self.block.first_entry

    @property
    def payload_bytes(self) -> int:
        """Bytes of all payloads."""
        return self.block.payload_bytes

    def payloads(self) -> list[bytes]:
        """All payloads, copied."""
        return self.block.payloads()

    def times(self) -> array[float]:
        """When each was appended, in seconds since the epoch; never going back."""
        buffer, begun_ms = self.block.buffer, self.begun_ms
        return array("d", [max(begun_ms, stamp_at(buffer, start)) / 1000 for start in self.block.starts])

    def sequences(self) -> array[int]:
        """The producer's numbers of the entries; nothing where they have none."""
        if self.producer is None:
            return array("q")
        buffer = self.block.buffer
        return array("q", [number_at(buffer, start)[1] for start in self.block.starts])

    def __iter__(self) -> Iterator[LogEntry]:
        new = tuple.__new__  # what `LogEntry(...)` comes to, in half the time
        producer, sequences = self.producer, self.sequences() or repeat(None, len(self))
        for position, time, entry, sequence in zip(self.positions, self.times(), self.block, sequences, strict=True):
            yield new(LogEntry, (position, *entry, time, producer, sequence))
