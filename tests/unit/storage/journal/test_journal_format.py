"""Headers of journal files and frames: every bit counts."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from tests.unit.storage.support import KEY

from bkpy.errors import CorruptDataError
from bkpy.storage.journal.format import (
    FRAME_HEADER_BYTES,
    PAGE_BYTES,
    FileHeader,
    FrameKind,
    RecordKind,
    RunState,
    decode_file_header,
    decode_frame_header,
    decode_ledger,
    decode_records,
    encode_file_header,
    encode_frame,
    encode_ledger,
    encode_record,
)


def test_every_bit_of_a_file_header_is_covered_by_its_checksum() -> None:
    header = FileHeader(3, 0x1234, bytes(range(16)), 77, 0xDEADBEEF, RunState.STATED | RunState.AT_RISK)
    page = encode_file_header(header)
    assert decode_file_header(page) == header
    for bit in range(56 * 8):
        bad = bytearray(page)
        bad[bit // 8] ^= 1 << bit % 8
        assert decode_file_header(bytes(bad)) is None
    assert decode_file_header(page[:-1]) is None


def test_every_bit_of_a_frame_header_is_covered_by_its_checksum() -> None:
    nonce = bytes(range(16))
    buffers, size, checksum = encode_frame(FrameKind.RECORDS, nonce, 9, 5, 2, [b"abc", b"defg"])
    frame = b"".join(buffers)
    assert (len(frame), size) == (PAGE_BYTES, PAGE_BYTES)
    header = decode_frame_header(frame, 0, nonce)
    assert header is not None
    assert (header.sequence, header.chain, header.records, header.body_bytes, header.checksum) == (9, 5, 2, 7, checksum)
    assert decode_frame_header(frame, 0, bytes(16)) is None
    for bit in range(FRAME_HEADER_BYTES * 8):
        bad = bytearray(frame)
        bad[bit // 8] ^= 1 << bit % 8
        assert decode_frame_header(bytes(bad), 0, nonce) is None


def test_a_page_of_another_kind_is_no_header_though_its_checksum_is_right() -> None:
    page = bytearray(encode_file_header(FileHeader(3, 7, bytes(16), 0, 0, RunState.STATED)))
    covered = struct.calcsize("<8sHHIQ16sQI")
    page[0] ^= 1
    struct.pack_into("<I", page, covered, crc32c(page[:covered]))
    assert decode_file_header(bytes(page)) is None
    page[0] ^= 1
    page[8] = 99
    struct.pack_into("<I", page, covered, crc32c(page[:covered]))
    with pytest.raises(CorruptDataError, match="version 99"):
        decode_file_header(bytes(page))


@pytest.mark.parametrize("head", [b"", bytes(7), bytes(9)])
def test_a_head_that_is_no_ledger_id_is_refused(head: bytes) -> None:
    assert decode_ledger(encode_ledger(77)) == 77
    with pytest.raises(CorruptDataError, match=f"{len(head)} bytes instead of 8"):
        decode_ledger(head)


def test_a_frame_has_as_many_records_as_it_says_and_nothing_behind_them() -> None:
    body = encode_record(RecordKind.FENCE, encode_ledger(1), KEY) + encode_ledger(1) + KEY
    assert [record.kind for record in decode_records(memoryview(body), 1)] == [RecordKind.FENCE]
    for wrong, records in ((body + b"!", 1), (body, 2), (body[:-1], 1), (body, 0)):
        with pytest.raises(CorruptDataError):
            list(decode_records(memoryview(wrong), records))
