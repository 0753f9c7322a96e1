"""Entry records: the bytes of one entry, the same on the wire, in the journal and in an entry log.

    offset  size  field
    0       4     size of what follows the header: payload, then the MAC if the ledger has one (u32, little-endian)
    4       4     CRC32C of the ledger id (8 bytes), the rest of the header and everything after it
    8       8     entry id (i64)
    16      8     last add confirmed when the entry was sent (i64)
    24      8     length: payload bytes of the ledger up to and including this entry (i64)
    32            payload, then 32 bytes of HMAC-SHA256 in ledgers with that digest

The checksum covers the ledger id without storing it, so a record that strays into another ledger never verifies. The
MAC is inside what the CRC covers: copies can be checked without the password. A record with entry id -1 and no payload
is an *explicit last add confirmed*: the same digests, no entry.

In ledgers of named logs the payload of each entry begins with a *stamp*, in one of two formats. Sizes, lengths and
digests count it like any payload; users never see it. It ends with the time at which the writer sent the entry:

    PLAIN      8 bytes    milliseconds since the epoch (i64)
    NUMBERED   20 bytes   index of the producer (u32), the entry's number (i64), the same time (i64)

The numbers of a ledger's entries ascend by one, so its codec knows them all by the first.

Invariant: only `RecordCodec.scan` and `check` turn bytes into entries, and never one whose digests don't match.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from bkpy.errors import ConfigError, CorruptDataError, DigestMismatchError

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bkpy.buffers import Bytes


HEADER_BYTES: Final = 32
MAC_BYTES: Final = 32
STAMP_BYTES: Final = 8
NUMBERED_STAMP_BYTES: Final = 20
EXPLICIT_LAC_ENTRY: Final = -1

DIGESTS: Final = ("crc32c", "hmac-sha256")

# Formats of stamps.
NO_STAMP: Final = 0
PLAIN: Final = 1
NUMBERED: Final = 2
STAMP_SIZES: Final[Mapping[int, int]] = {NO_STAMP: 0, PLAIN: STAMP_BYTES, NUMBERED: NUMBERED_STAMP_BYTES}

_COPY_BYTES_MAX: Final = 1024  # below this, one checksum over a copy is quicker than two

# What is worth verifying as a block: with fewer records the loop is as quick.
_BLOCK_ENTRIES_MIN: Final = 64

_HEAD = struct.Struct("<II")
_TAIL = struct.Struct("<qqq")
_STAMPED_TAIL = struct.Struct("<qqqq")
_HEADER = struct.Struct("<IIqqq")
_LEDGER = struct.Struct("<q")
_STAMP = struct.Struct("<q")
_LENGTH = struct.Struct("<q")  # ends the header
_NUMBER = struct.Struct("<Iq")
_ENTRY_ID = struct.Struct("<8xq")
_LAST_ADD_CONFIRMED = struct.Struct("<16xq")


def ledger_key(password: bytes) -> bytes:
    """What bookies check and metadata stores: 32 bytes that prove the password without being it."""
    if not isinstance(password, bytes):
        raise ConfigError(f"a password is bytes, not {type(password).__name__}")
    return hmac.digest(password, b"ledger", hashlib.sha256)


def digest_key(password: bytes) -> bytes:
    """The key of the MAC in `hmac-sha256` ledgers, 32 bytes; never stored or sent."""
    return hmac.digest(password, b"digest", hashlib.sha256)


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """The decoded header of a record, at `offset` in its buffer; `end` is where the next record begins."""

    entry_id: int
    last_add_confirmed: int
    length: int
    offset: int
    end: int


class RecordCodec:
    """Makes and checks the records of one ledger.

    `digest` is "crc32c" or "hmac-sha256"; the latter needs `mac_key` (see `digest_key`). In a ledger of a log, entries
    have stamps: `stamp` returns the time for the next entries, in milliseconds since the epoch, and never falls. With a
    `producer`, an index, they have numbers as well, and `first_sequence` is set before an entry is encoded. A codec
    that only reads such a ledger gets the `stamp_format`.
    """

    __slots__ = ("__weakref__", "_clock", "_mac", "_payload_at", "_producer", "_seed", "first_sequence", "mac_bytes")

    def __init__(
        self,
        ledger_id: int,
        digest: str = "crc32c",
        mac_key: bytes = b"",
        *,
        stamp: Callable[[], int] | None = None,
        producer: int | None = None,
        stamp_format: int = NO_STAMP,
    ) -> None:
        if digest not in DIGESTS:
            raise ConfigError(f"digest {digest!r} is not one of {', '.join(DIGESTS)}", ledger_id=ledger_id)
        packed = _LEDGER.pack(ledger_id)
        self._seed: int = crc32c(packed)
        self._mac = hmac.new(mac_key, packed, hashlib.sha256) if digest == "hmac-sha256" else None
        self.mac_bytes = MAC_BYTES if self._mac is not None else 0
        self._clock = stamp
        self._producer = producer
        self.first_sequence = 0  # of the ledger's entry 0
        if stamp is not None:
            stamp_format = PLAIN if producer is None else NUMBERED
        self._payload_at = HEADER_BYTES + STAMP_SIZES[stamp_format]

    def stamp(self) -> bytes:
        """The time with which stamps of entries end that are sent now; nothing where entries have no stamps."""
        return b"" if self._clock is None else _STAMP.pack(self._clock())

    def lengths(self, payloads: Sequence[bytes], length: int) -> list[int]:
        """The ledger's cumulative length after each of these entries, the next ones after `length`."""
        stamp_bytes = self._payload_at - HEADER_BYTES
        return list(accumulate([len(payload) + stamp_bytes for payload in payloads], initial=length))[1:]

    def encode_run(self, parts: list[Bytes], payloads: Sequence[bytes], first_id: int, lac: int, length: int) -> int:
        """Append the records of payloads first_id, first_id + 1, ... to `parts`.

        `length` is the ledger's cumulative length before the first of them; returns what it is after the last.
        """
        if self._mac is not None:
            lengths = self.lengths(payloads, length)
            self.encode(parts, payloads, first_id, 1, lac, lengths, self.stamp())
            return lengths[-1] if lengths else length
        if self._producer is not None:
            payloads = self._numbered(payloads, first_id, 1, self.stamp())
        elif self._clock is not None:
            return self._encode_stamped(parts, payloads, first_id, lac, length, self._clock())
        pack_head, pack_tail, seed, add = _HEAD.pack, _TAIL.pack, self._seed, parts.append
        entry_id = first_id
        for payload in payloads:
            size = len(payload)
            length += size
            body = pack_tail(entry_id, lac, length)
            if size < _COPY_BYTES_MAX:
                body += payload
                add(pack_head(size, crc32c(body, seed)))
                add(body)
            else:
                add(pack_head(size, crc32c(payload, crc32c(body, seed))) + body)
                add(payload)
            entry_id += 1
        return length

    def _encode_stamped(
        self, parts: list[Bytes], payloads: Sequence[bytes], first_id: int, lac: int, length: int, stamp: int
    ) -> int:
        """The same with a stamp: a loop of its own, so that neither asks in each turn which of them it is."""
        pack_head, pack_tail, seed, add = _HEAD.pack, _STAMPED_TAIL.pack, self._seed, parts.append
        entry_id = first_id
        for payload in payloads:
            size = len(payload) + STAMP_BYTES
            length += size
            body = pack_tail(entry_id, lac, length, stamp)
            if size < _COPY_BYTES_MAX:
                body += payload
                add(pack_head(size, crc32c(body, seed)))
                add(body)
            else:
                add(pack_head(size, crc32c(payload, crc32c(body, seed))) + body)
                add(payload)
            entry_id += 1
        return length

    def _numbered(self, payloads: Sequence[bytes], first_id: int, stride: int, stamp: bytes) -> list[bytes]:
        """The payloads with their stamps before them."""
        pack, producer, first = _NUMBER.pack, self._producer, self.first_sequence + first_id
        return [pack(producer, first + stride * i) + stamp + payload for i, payload in enumerate(payloads)]

    def encode(
        self,
        parts: list[Bytes],
        payloads: Sequence[bytes],
        first_id: int,
        stride: int,
        lac: int,
        lengths: Sequence[int],
        stamp: bytes = b"",
    ) -> None:
        """Append the records of payloads first_id, first_id + stride, ... to `parts`.

        `lengths` are the ledger's cumulative lengths, one an entry. Each payload begins with its number, if it
        has one, and `stamp`.
        """
        if self._producer is not None and stamp:
            payloads, stamp = self._numbered(payloads, first_id, stride, stamp), b""
        entry_id = first_id
        for payload, length in zip(payloads, lengths, strict=True):
            tail = _TAIL.pack(entry_id, lac, length) + stamp + payload
            if self._mac is not None:
                mac = self._mac.copy()
                mac.update(tail)
                tail += mac.digest()
            parts.append(_HEAD.pack(len(stamp) + len(payload) + self.mac_bytes, crc32c(tail, self._seed)))
            parts.append(tail)
            entry_id += stride

    def explicit_lac(self, lac: int, length: int) -> bytes:
        """The record by which an idle writer publishes its last add confirmed."""
        parts: list[Bytes] = []
        self.encode(parts, (b"",), EXPLICIT_LAC_ENTRY, 1, lac, (length,))
        return b"".join(parts)

    @property
    def overhead_bytes(self) -> int:
        """What a record has beside its payload: the stamp is counted here."""
        return self._payload_at + self.mac_bytes

    def record_end(self, payload_end: int) -> int:
        """Where the record ends whose payload ends there."""
        return payload_end + self.mac_bytes

    def locate(self, records: Sequence[Bytes], starts: array[int], ends: array[int]) -> None:
        """Append where the payloads of these records start and end when the records are put together."""
        mac_bytes, payload_at, offset = self.mac_bytes, self._payload_at, 0
        for record in records:
            starts.append(offset + payload_at)
            offset += len(record)
            ends.append(offset - mac_bytes)

    def check(self, view: memoryview, offset: int, end: int) -> None:
        """Raise `DigestMismatchError` unless the record at offset..end is whole and this ledger's."""
        stored, entry_id = _HEAD.unpack_from(view, offset)[1], _TAIL.unpack_from(view, offset + 8)[0]
        if crc32c(view[offset + 8 : end], self._seed) != stored:
            raise DigestMismatchError("the entry's checksum doesn't match its bytes", entry_id=entry_id)
        if self._mac is not None:
            split = end - MAC_BYTES
            mac = self._mac.copy()
            if split >= offset + HEADER_BYTES:
                mac.update(view[offset + 8 : split])
                if hmac.compare_digest(mac.digest(), view[split:end]):
                    return
            raise DigestMismatchError("the entry's MAC doesn't match its bytes", entry_id=entry_id)

    def scan(
        self, view: memoryview, first: int, last: int, starts: array[int], ends: array[int], *, by_blocks: bool = False
    ) -> int:
        """Verify entries first, first + 1, ... up to `last`, as far as `view` has them; returns the next id.

        Where each payload starts and ends is appended to `starts` and `ends`. Stops, without an error, at the first
        record that isn't the next entry or doesn't verify: the caller asks another replica from there. `by_blocks` is
        quicker for many small entries, and needs numpy; the result is the same.
        """
        done = self._scan_block(view, first, last, starts, ends) if by_blocks else 0
        unpack, add_start, add_end, seed = _HEADER.unpack_from, starts.append, ends.append, self._seed
        mac_bytes, payload_at, size_of_view = self.mac_bytes, self._payload_at, len(view)
        offset, entry_id = ends[-1] if done else 0, first + done
        while entry_id <= last and offset + HEADER_BYTES <= size_of_view:
            size, stored, found, _, _ = unpack(view, offset)
            end = offset + HEADER_BYTES + size
            if found != entry_id or end > size_of_view or crc32c(view[offset + 8 : end], seed) != stored:
                break
            if mac_bytes:
                try:
                    self.check(view, offset, end)
                except DigestMismatchError:
                    break
            add_start(offset + payload_at)
            add_end(end - mac_bytes)
            offset = end
            entry_id += 1
        return entry_id

    def _scan_block(self, view: memoryview, first: int, last: int, starts: array[int], ends: array[int]) -> int:
        """How many of these entries `block_scan` could verify, and has. The rest is for the loop."""
        if self._mac is not None or len(view) < HEADER_BYTES:
            return 0
        like_the_first = HEADER_BYTES + _HEAD.unpack_from(view)[0]
        if min(last - first + 1, len(view) // like_the_first) < _BLOCK_ENTRIES_MIN:
            return 0
        from bkpy.protocol.wire.block_scan import (
            scan_block,  # with numpy, which takes a tenth of a second the first time
        )

        return scan_block(view, first, last, self._seed, self._payload_at, starts, ends)


def is_explicit_lac(record: memoryview, ledger_id: int) -> bool:
    """Whether these bytes are a whole explicit last add confirmed of the ledger, as far as shows without its key."""
    if len(record) not in (HEADER_BYTES, HEADER_BYTES + MAC_BYTES):
        return False
    size, _, entry_id, _, _ = _HEADER.unpack_from(record)
    if entry_id != EXPLICIT_LAC_ENTRY or HEADER_BYTES + size != len(record):
        return False
    try:
        RecordCodec(ledger_id).check(record, 0, len(record))
    except DigestMismatchError:
        return False
    return True


def entry_id_at(buffer: Bytes, offset: int) -> int:
    """The entry id in the record header that begins at `offset`."""
    entry_id: int = _ENTRY_ID.unpack_from(buffer, offset)[0]
    return entry_id


def last_add_confirmed_at(buffer: Bytes, offset: int) -> int:
    """The last add confirmed in the record header that begins at `offset`."""
    lac: int = _LAST_ADD_CONFIRMED.unpack_from(buffer, offset)[0]
    return lac


def stamp_at(buffer: Bytes, start: int) -> int:
    """The time in the stamp of the entry whose payload starts there, as `RecordCodec.scan` tells: milliseconds since
    the epoch.
    """
    stamp: int = _STAMP.unpack_from(buffer, start - STAMP_BYTES)[0]
    return stamp


def number_at(buffer: Bytes, start: int) -> tuple[int, int]:
    """The producer's index and the number in the stamp, which is NUMBERED, of the entry whose payload starts there."""
    producer, sequence = _NUMBER.unpack_from(buffer, start - NUMBERED_STAMP_BYTES)
    return producer, sequence


def length_at(buffer: Bytes, start: int, stamp_format: int) -> int:
    """The ledger's length up to and including the entry whose payload starts there, behind a stamp of this format."""
    length: int = _LENGTH.unpack_from(buffer, start - STAMP_SIZES[stamp_format] - _LENGTH.size)[0]
    return length


def walk(buffer: Bytes, offset: int = 0) -> Iterator[EntryHeader]:
    """The headers of the records in `buffer` from `offset` on; `CorruptDataError` if they don't fill it exactly."""
    unpack, end = _HEADER.unpack_from, len(buffer)
    while offset < end:
        if end - offset < HEADER_BYTES:
            raise CorruptDataError(f"{end - offset} bytes at offset {offset} are too few for an entry record")
        size, _, entry_id, lac, length = unpack(buffer, offset)
        following = offset + HEADER_BYTES + size
        if following > end:
            raise CorruptDataError(f"the entry record at offset {offset} runs past its block", entry_id=entry_id)
        yield EntryHeader(entry_id, lac, length, offset, following)
        offset = following
