"""Entries of Apache BookKeeper: their bytes and digests, and how one becomes a record of bkpy and back.

    offset  size  field, all big-endian
    0       8     ledger id (i64)
    8       8     entry id (i64)
    16      8     last add confirmed when the entry was sent (i64)
    24      8     length: data bytes of the ledger up to and including this entry (i64)
    32      d     digest of the 32 bytes before it and the data
    32 + d        data

    digest type   d     value
    CRC32         8     CRC-32 of zlib, as a u64
    HMAC          20    HMAC-SHA1 with the key SHA1("mac" + password); clients call the type MAC
    CRC32C        4     CRC-32C
    DUMMY         0     nothing

An *explicit last add confirmed* is ledger id, last add confirmed and the digest of these 16 bytes. It has no length.

One entry is one record (`bkpy.protocol.wire.records`), with the same entry id, last add confirmed and length in its
header. Its payload is digest and data, so nothing is lost and it takes no byte more than a record of bkpy's own. The
record of an explicit last add confirmed has entry id -1, length 0, and the digest as its payload.

Invariants: `decode` and `decode_lac` alone turn bytes into entries, and never bytes whose digest doesn't match.
`to_record` and `to_entry` look at no digest: bookies don't know the password, and keep what they are given.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import struct
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from bkpy.errors import ConfigError, CorruptDataError, DigestMismatchError, ProtocolError
from bkpy.protocol.wire.records import EXPLICIT_LAC_ENTRY, HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bkpy.buffers import Bytes

ENTRY_HEADER_BYTES: Final = 32
LAC_HEADER_BYTES: Final = 16
MASTER_KEY_BYTES: Final = 20
ENTRY_ID_MAX: Final = 1 << 62  # far above any, so that columns of records never leave the range of i64

_ENTRY = struct.Struct(">qqqq")
_SIZED_ENTRY = struct.Struct(">Iqqqq")
_LAC = struct.Struct(">qq")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
# The header of a record, see bkpy.protocol.wire.records.
_RECORD_HEAD = struct.Struct("<II")
_RECORD_TAIL = struct.Struct("<qqq")
_RECORD = struct.Struct("<IIqqq")
_SEED = struct.Struct("<q")


class DigestType(enum.IntEnum):
    """How a ledger's entries are checked, with the number that its metadata have."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


DIGEST_BYTES: Final = {DigestType.CRC32: 8, DigestType.HMAC: 20, DigestType.CRC32C: 4, DigestType.DUMMY: 0}


def master_key(password: bytes) -> bytes:
    """The 20 bytes that open a ledger at bookies."""
    return hashlib.sha1(b"ledger" + _checked(password)).digest()


def _mac_key(password: bytes) -> bytes:
    return hashlib.sha1(b"mac" + _checked(password)).digest()


def _checked(password: bytes) -> bytes:
    if not isinstance(password, bytes):
        raise ConfigError(f"a password is bytes, not {type(password).__name__}")
    return password


class VerifiedEntry(NamedTuple):
    """An entry whose digest matches. `data` is a slice of the bytes it was decoded from."""

    entry_id: int
    last_add_confirmed: int
    length: int
    data: memoryview


class EntryCodec:
    """Makes and checks the entries of one ledger."""

    __slots__ = ("_ledger_id", "_mac", "digest_bytes", "digest_type")

    def __init__(self, ledger_id: int, digest_type: DigestType, password: bytes = b"") -> None:
        self.digest_type = digest_type
        self.digest_bytes = DIGEST_BYTES[digest_type]
        self._ledger_id = ledger_id
        self._mac = hmac.new(_mac_key(password), digestmod="sha1") if digest_type == DigestType.HMAC else None

    def encode(self, entry_id: int, last_add_confirmed: int, length: int, data: Bytes) -> bytes:
        """The bytes of an entry. `length` counts its own data, too."""
        head = _ENTRY.pack(self._ledger_id, entry_id, last_add_confirmed, length)
        return b"".join((head, self._digest(head, data), data))

    def decode(self, entry: Bytes) -> VerifiedEntry:
        """The entry, if it is whole and this ledger's. `DigestMismatchError` else."""
        data_at = ENTRY_HEADER_BYTES + self.digest_bytes
        if len(entry) < data_at:
            raise self._mismatch(f"{len(entry)} bytes are too few for an entry of digest {self.digest_type.name}")
        ledger_id, entry_id, last_add_confirmed, length = _ENTRY.unpack_from(entry)
        view = memoryview(entry)
        if ledger_id != self._ledger_id:
            raise self._mismatch(f"the entry is of ledger {ledger_id}", entry_id)
        digest = self._digest(view[:ENTRY_HEADER_BYTES], view[data_at:])
        if not hmac.compare_digest(digest, view[ENTRY_HEADER_BYTES:data_at]):
            raise self._mismatch(f"the entry's {self.digest_type.name} doesn't match its bytes", entry_id)
        return VerifiedEntry(entry_id, last_add_confirmed, length, view[data_at:])

    def encode_lac(self, last_add_confirmed: int) -> bytes:
        """The bytes of an explicit last add confirmed."""
        head = _LAC.pack(self._ledger_id, last_add_confirmed)
        return head + self._digest(head, b"")

    def decode_lac(self, body: Bytes) -> int:
        """The last add confirmed that these bytes prove. `DigestMismatchError` if they prove none."""
        if len(body) != LAC_HEADER_BYTES + self.digest_bytes:
            raise self._mismatch(f"{len(body)} bytes are no explicit last add confirmed of {self.digest_type.name}")
        ledger_id, last_add_confirmed = _LAC.unpack_from(body)
        view = memoryview(body)
        if ledger_id != self._ledger_id:
            raise self._mismatch(f"the last add confirmed is of ledger {ledger_id}")
        if not hmac.compare_digest(self._digest(view[:LAC_HEADER_BYTES], b""), view[LAC_HEADER_BYTES:]):
            raise self._mismatch(f"the last add confirmed's {self.digest_type.name} doesn't match its bytes")
        found: int = last_add_confirmed
        return found

    def _digest(self, head: Bytes, data: Bytes) -> bytes:
        if self._mac is not None:
            mac = self._mac.copy()
            mac.update(head)
            mac.update(data)
            return mac.digest()
        if self.digest_type == DigestType.CRC32C:
            return _U32.pack(crc32c(data, crc32c(head)))
        if self.digest_type == DigestType.CRC32:
            return _U64.pack(zlib.crc32(data, zlib.crc32(head)))
        return b""

    def _mismatch(self, message: str, entry_id: int | None = None) -> DigestMismatchError:
        return DigestMismatchError(message, ledger_id=self._ledger_id, entry_id=entry_id)


# --- entries and records --------------------------------------------------------------------------------------------


def check_entry(entry: Bytes) -> tuple[int, int]:
    """(ledger id, entry id) of bytes that a bookie may store as an entry; `ProtocolError` for others."""
    if len(entry) < ENTRY_HEADER_BYTES:
        raise ProtocolError(f"{len(entry)} bytes are too few for an entry")
    ledger_id, entry_id, _, _ = _ENTRY.unpack_from(entry)
    if ledger_id < 0 or not 0 <= entry_id <= ENTRY_ID_MAX:
        raise ProtocolError(f"an entry can't have id {entry_id} in ledger {ledger_id}")
    return ledger_id, entry_id


def check_lac(body: Bytes) -> tuple[int, int]:
    """(ledger id, last add confirmed) of bytes that a bookie may store as an explicit last add confirmed.

    `ProtocolError` for others.
    """
    if not LAC_HEADER_BYTES <= len(body) <= LAC_HEADER_BYTES + max(DIGEST_BYTES.values()):
        raise ProtocolError(f"{len(body)} bytes are no explicit last add confirmed")
    ledger_id, last_add_confirmed = _LAC.unpack_from(body)
    if ledger_id < 0 or last_add_confirmed < -1:
        raise ProtocolError(f"last add confirmed can't be {last_add_confirmed} in ledger {ledger_id}")
    return ledger_id, last_add_confirmed


def record_seed(ledger_id: int) -> int:
    """What the checksums of a ledger's records begin with."""
    seed: int = crc32c(_SEED.pack(ledger_id))
    return seed


def add_record(parts: list[Bytes], entry: Bytes, seed: int) -> int:
    """Append the record of an entry, which `check_entry` allows, to `parts`; returns the record's size."""
    _, entry_id, last_add_confirmed, length = _ENTRY.unpack_from(entry)
    payload = entry[ENTRY_HEADER_BYTES:]
    tail = _RECORD_TAIL.pack(entry_id, last_add_confirmed, length)
    size = len(payload)
    parts.append(_RECORD_HEAD.pack(size, crc32c(payload, crc32c(tail, seed))) + tail)
    parts.append(payload)
    return HEADER_BYTES + size


def to_record(entry: Bytes) -> bytes:
    """The record of an entry that `check_entry` allows."""
    parts: list[Bytes] = []
    add_record(parts, entry, record_seed(_ENTRY.unpack_from(entry)[0]))
    return b"".join(parts)


def to_entry(ledger_id: int, record: Bytes) -> bytes:
    """The entry of a record, byte for byte as it was before."""
    _, _, entry_id, last_add_confirmed, length = _RECORD.unpack_from(record)
    return b"".join((_ENTRY.pack(ledger_id, entry_id, last_add_confirmed, length), record[HEADER_BYTES:]))


def sized_entries(ledger_id: int, segments: Iterable[Bytes], first: int, bytes_max: int) -> tuple[list[Bytes], int]:
    """(buffers, their bytes): the entries of records from `first` on, each behind its size, a u32.

    Up to the first gap, and no more than fit into `bytes_max`, but at least one if it is there. `CorruptDataError` if
    the records don't fill a segment exactly, as far as they were looked at. Payloads are not copied.
    """
    buffers: list[Bytes] = []
    add, unpack, pack = buffers.append, _RECORD.unpack_from, _SIZED_ENTRY.pack
    wanted, used = first, 0
    for segment in segments:
        records, offset = memoryview(segment), 0
        end = len(records)
        while offset < end:
            if end - offset < HEADER_BYTES:
                raise CorruptDataError(f"{end - offset} bytes are too few for a record", ledger_id=ledger_id)
            size, _, entry_id, last_add_confirmed, length = unpack(records, offset)
            payload, offset = offset + HEADER_BYTES, offset + HEADER_BYTES + size
            if offset > end:
                raise CorruptDataError("the record runs past its block", ledger_id=ledger_id, entry_id=entry_id)
            used += _SIZED_ENTRY.size + size
            if entry_id != wanted or (used > bytes_max and buffers):
                return buffers, used - _SIZED_ENTRY.size - size
            add(pack(ENTRY_HEADER_BYTES + size, ledger_id, entry_id, last_add_confirmed, length))
            add(records[payload:offset])
            wanted += 1
    return buffers, used


def lac_to_record(body: Bytes) -> bytes:
    """The record of an explicit last add confirmed that `check_lac` allows."""
    ledger_id, last_add_confirmed = _LAC.unpack_from(body)
    rest = _RECORD_TAIL.pack(EXPLICIT_LAC_ENTRY, last_add_confirmed, 0) + body[LAC_HEADER_BYTES:]
    return _RECORD_HEAD.pack(len(body) - LAC_HEADER_BYTES, crc32c(rest, record_seed(ledger_id))) + rest


def record_to_lac(ledger_id: int, record: Bytes) -> bytes:
    """The explicit last add confirmed of its record, byte for byte as it was before."""
    if len(record) < HEADER_BYTES:
        raise CorruptDataError(f"{len(record)} bytes are too few for a record", ledger_id=ledger_id)
    _, _, _, last_add_confirmed, _ = _RECORD.unpack_from(record)
    return b"".join((_LAC.pack(ledger_id, last_add_confirmed), record[HEADER_BYTES:]))
