"""Goes through a journal file that is kept as a log, without an index that names the batches in it.

Invariants: a batch is handed out only from a commit frame whose checksums were found right; frames of what the file was
before it was recycled aren't taken for its own. Everything here blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from bkpy.errors import ProtocolError
from bkpy.protocol.wire.messages import decode_add
from bkpy.storage.index.index import KeptBatch
from bkpy.storage.journal.format import (
    FRAME_HEADER_BYTES,
    FRAME_NONCE_OFFSET,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    RecordKind,
    decode_file_header,
    decode_frame_header,
    decode_records,
    looks_like_frame,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bkpy.protocol.wire.messages import AddColumns
    from bkpy.runtime.interfaces import File
    from bkpy.storage.journal.format import FrameHeader, Record


class FoundBatch(NamedTuple):
    """A batch with consecutive ids, and where it is in the file."""

    ledger_id: int
    batch: KeptBatch
    offset: int
    length: int


class KeptFileScan:
    """Iterates over the batches in their order of arrival; `damages`, (offset, what), are final when that has ended."""

    def __init__(self, file: File, *, read_bytes: int) -> None:
        self._file = file
        self._read_bytes = read_bytes
        self.damages: list[tuple[int, str]] = []

    def __iter__(self) -> Iterator[FoundBatch]:
        for record, at in self.records():
            if record.kind == RecordKind.ADD:
                try:
                    columns = decode_add(record.head, len(record.body))
                except ProtocolError:
                    continue  # no checkpoint could have read it either
                yield from _of_add(columns, record.body, at)

    def records(self) -> Iterator[tuple[Record, int]]:
        """All records of sound frames, of every kind, and where the body of each is in the file."""
        header = decode_file_header(self._read(PAGE_BYTES, 0) or b"")
        if header is None:
            self.damages.append(
                (0, "the file's header isn't valid, so its frames can't be distinguished from older ones")
            )
            return
        offset: int | None = PAGE_BYTES
        while offset is not None:
            page = self._read(PAGE_BYTES, offset)
            frame = None if page is None else decode_frame_header(page, 0, header.nonce)
            body = None if frame is None else self._read(frame.body_bytes, offset + FRAME_HEADER_BYTES)
            if frame is not None and body is not None and crc32c(body) == frame.body_checksum:
                yield from _records(frame, body, offset + FRAME_HEADER_BYTES)
                offset += frame.frame_bytes
                continue
            following = self._following(offset + PAGE_BYTES, header.nonce)
            if following is not None or page is None or looks_like_frame(page, header.nonce):
                self.damages.append((offset, "a commit frame that can't be read"))
            offset = following

    def _following(self, start: int, nonce: bytes) -> int | None:
        """Where the next frame begins, None if there is none."""
        end = self._file.size()
        while start < end:
            chunk = self._read(self._read_bytes, start) or self._read(PAGE_BYTES, start)
            if chunk is None:
                self.damages.append((start, "a page that can't be read"))
                start += PAGE_BYTES
                continue
            at = chunk.find(nonce)
            while at >= 0:
                page = at - FRAME_NONCE_OFFSET
                if page >= 0 and page % PAGE_BYTES == 0 and decode_frame_header(chunk, page, nonce) is not None:
                    return start + page
                at = chunk.find(nonce, at + 1)
            start += len(chunk)
        return None

    def _read(self, length: int, offset: int) -> bytes | None:
        """None where the disk can't read."""
        try:
            return self._file.pread(length, offset)
        except OSError:
            return None


def _records(frame: FrameHeader, body: bytes, at: int) -> Iterator[tuple[Record, int]]:
    """The records of a frame whose body begins at that offset."""
    for record in decode_records(memoryview(body), frame.records):
        data = at + RECORD_HEADER_BYTES + len(record.head)
        at = data + len(record.body)
        yield record, data


def batches_of(record: Record, at: int) -> Iterator[tuple[int, int, int]]:
    """(ledger, offset, length) of each batch of an add record whose body is at that offset; none of a damaged one."""
    try:
        columns = decode_add(record.head, len(record.body))
    except ProtocolError:
        return
    for ledger_id, size in zip(columns.ledger_ids, columns.sizes, strict=True):
        yield ledger_id, at, size
        at += size


def _of_add(columns: AddColumns, body: memoryview, at: int) -> Iterator[FoundBatch]:
    _, ledger_ids, first_ids, counts, strides, sizes = columns
    start = 0
    for i, (ledger_id, first, count, size) in enumerate(zip(ledger_ids, first_ids, counts, sizes, strict=True)):
        stride = strides[i] if isinstance(strides, list) else strides
        if stride == 1 or count == 1:
            checksum = crc32c(body[start : start + size])
            yield FoundBatch(ledger_id, KeptBatch(first, count, checksum), at + start, size)
        start += size
