"""The bytes of journal files: file headers, commit frames and records (docs/reference/formats/journal.md).

Invariant: a header is decoded only after its own checksum, magic and version were found right; for a frame, the nonce
of its file as well.
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from bkpy.errors import CorruptDataError
from bkpy.protocol.wire.frame import KEEP_INTERPRETER
from bkpy.storage.file_names import number_of, numbered_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bkpy.buffers import Bytes

PAGE_BYTES: Final = 4096
BROKEN_SUFFIX: Final = ".broken"  # behind a journal file's name: a copy of what was cut off it
VERSION: Final = 1
FILE_MAGIC: Final = b"bkpyjrnl"
FRAME_MAGIC: Final = b"bkJF"
NONCE_BYTES: Final = 16
FRAME_NONCE_OFFSET: Final = 8  # in a frame's header
FRAME_HEADER_BYTES: Final = 52
FRAME_BYTES_MAX: Final = 1 << 31  # far above a group's limit: refuses a length that is nonsense before reading it
SUFFIX: Final = ".txn"

_FILE = struct.Struct("<8sHHIQ16sQI")
_FRAME = struct.Struct("<4sBBH16sQIIII")
_CRC = struct.Struct("<I")
_RECORD = struct.Struct("<B3xII")
RECORD_HEADER_BYTES: Final = _RECORD.size
_LEDGER = struct.Struct("<q")
_ZEROS = memoryview(bytes(PAGE_BYTES))


class FrameKind(enum.IntEnum):
    """Kinds of commit frames."""

    RECORDS = 1
    CLEAN_STOP = 2


class RecordKind(enum.IntEnum):
    """Kinds of records."""

    KEY = 1
    ADD = 2
    FENCE = 3
    EXPLICIT_LAC = 4
    DELETED = 5


class RunState(enum.IntFlag):
    """What a bookie knew of itself when it began a journal file. None of these: 0.2.0 or older software wrote it."""

    STATED = 1
    DATA_LOST = 2  # entries that it had acknowledged are lost, or may be: not all of its ledgers may be denied
    AT_RISK = 4  # its settings let it acknowledge what an unclean stop takes


class Mark(NamedTuple):
    """A place between two frames. Ordered, and compared across files, by sequence."""

    file_id: int
    offset: int
    sequence: int  # of the frame that begins here
    chain: int  # header checksum of the frame before


START: Final = Mark(0, 0, 1, 0)  # of a journal that was never written


class FileHeader(NamedTuple):
    journal: int  # this journal's number among the bookie's
    file_id: int
    nonce: bytes
    sequence: int  # of the first frame
    chain: int
    run: RunState = RunState(0)


class FrameHeader(NamedTuple):
    kind: int
    sequence: int
    chain: int
    records: int
    body_bytes: int
    body_checksum: int
    checksum: int  # of this header: the chain value of the next frame

    @property
    def frame_bytes(self) -> int:
        """Bytes from this frame's start to the next one's."""
        return padded(FRAME_HEADER_BYTES + self.body_bytes)


class Record(NamedTuple):
    """A record of a replayed frame; head and body are slices of it."""

    kind: int
    head: memoryview
    body: memoryview


def file_name(file_id: int) -> str:
    return numbered_name(file_id, SUFFIX)


def file_id_of(name: str) -> int | None:
    """The id of a journal file's name, None if it isn't one."""
    return number_of(name, SUFFIX)


def is_broken_copy(name: str) -> bool:
    """Whether it is the name of a copy of what a start cut off a journal file."""
    return name.endswith(BROKEN_SUFFIX) and file_id_of(name.removesuffix(BROKEN_SUFFIX)) is not None


def padded(size: int) -> int:
    """`size` rounded up to whole pages."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def encode_file_header(header: FileHeader) -> bytes:
    """The first page of a file."""
    packed = _FILE.pack(
        FILE_MAGIC, VERSION, header.journal, header.run, header.file_id, header.nonce, header.sequence, header.chain
    )
    return (packed + _CRC.pack(crc32c(packed))).ljust(PAGE_BYTES, b"\0")


def decode_file_header(page: Bytes) -> FileHeader | None:
    """The header, or None if this isn't a valid one."""
    if len(page) < PAGE_BYTES or crc32c(page[: _FILE.size]) != _CRC.unpack_from(page, _FILE.size)[0]:
        return None
    magic, version, journal, run, file_id, nonce, sequence, chain = _FILE.unpack_from(page)
    if magic != FILE_MAGIC:
        return None
    if version != VERSION:
        raise CorruptDataError(f"a journal file of version {version}; this software reads version {VERSION}")
    return FileHeader(journal, file_id, nonce, sequence, chain, RunState(run))


def encode_frame(
    kind: FrameKind, nonce: bytes, sequence: int, chain: int, records: int, body: Sequence[Bytes]
) -> tuple[list[Bytes], int, int]:
    """(buffers in whole pages, their bytes, header checksum) of a frame; `body` is not copied."""
    checksum = 0
    size = 0
    for part in body:
        checksum = crc32c(part, checksum, KEEP_INTERPRETER)
        size += len(part)
    header = _FRAME.pack(FRAME_MAGIC, VERSION, kind, 0, nonce, sequence, chain, records, size, checksum)
    own = crc32c(header)
    total = padded(FRAME_HEADER_BYTES + size)
    buffers: list[Bytes] = [header + _CRC.pack(own), *body, _ZEROS[: total - FRAME_HEADER_BYTES - size]]
    return buffers, total, own


def decode_frame_header(buffer: Bytes, offset: int, nonce: bytes | None) -> FrameHeader | None:
    """The header at `offset`, or None if no valid one of this file is there. Any nonce is right if it is None."""
    if len(buffer) - offset < FRAME_HEADER_BYTES:
        return None
    magic, version, kind, _, its_nonce, sequence, chain, records, size, body = _FRAME.unpack_from(buffer, offset)
    if magic != FRAME_MAGIC or version != VERSION or (nonce is not None and its_nonce != nonce):
        return None
    own = _CRC.unpack_from(buffer, offset + _FRAME.size)[0]
    if own != crc32c(buffer[offset : offset + _FRAME.size]) or size > FRAME_BYTES_MAX:
        return None
    return FrameHeader(kind, sequence, chain, records, size, body, own)


def frame_nonce(page: Bytes) -> bytes:
    """The nonce of the file in the frame header that the page begins with, if it is one."""
    return bytes(page[FRAME_NONCE_OFFSET : FRAME_NONCE_OFFSET + NONCE_BYTES])


def looks_like_frame(page: Bytes, nonce: bytes) -> bool:
    """Whether a page begins like a frame of this file, valid or not. (The magic alone may be a recycled file's.)"""
    return frame_nonce(page) == nonce


def encode_record(kind: RecordKind, head: Bytes, body: Bytes) -> bytes:
    """A record's header; head and body follow as buffers of their own."""
    return _RECORD.pack(kind, len(head), len(body))


def encode_ledger(ledger_id: int) -> bytes:
    """The head of records of a single ledger."""
    return _LEDGER.pack(ledger_id)


def decode_ledger(head: Bytes) -> int:
    if len(head) != _LEDGER.size:
        raise CorruptDataError(f"a journal record's head has {len(head)} bytes instead of {_LEDGER.size}")
    ledger_id: int = _LEDGER.unpack(head)[0]
    return ledger_id


def decode_records(body: memoryview, count: int) -> Iterator[Record]:
    """The records of a frame's body, whose checksum was right; `CorruptDataError` if they don't fill it."""
    for record in split_records(body, count):
        if record.kind not in _KINDS:
            raise CorruptDataError(f"a journal record of kind {record.kind}, which this version doesn't know")
        yield record


def split_records(body: memoryview, count: int) -> Iterator[Record]:
    """The same with kinds that this version doesn't know."""
    offset = 0
    for _ in range(count):
        if len(body) - offset < _RECORD.size:
            raise CorruptDataError("a journal frame's records run past its end")
        kind, head_bytes, body_bytes = _RECORD.unpack_from(body, offset)
        middle = offset + _RECORD.size + head_bytes
        end = middle + body_bytes
        if end > len(body):
            raise CorruptDataError("a journal frame's records run past its end")
        yield Record(kind, body[offset + _RECORD.size : middle], body[middle:end])
        offset = end
    if offset != len(body):
        raise CorruptDataError("a journal frame is longer than its records")


_KINDS: Final = frozenset(RecordKind)
