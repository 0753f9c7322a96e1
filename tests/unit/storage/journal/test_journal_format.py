"""Headers of journal files and frames: every bit counts."""

from __future__ import annotations

from bkpy.storage.journal.format import (
    FRAME_HEADER_BYTES,
    PAGE_BYTES,
    FileHeader,
    FrameKind,
    RunState,
    decode_file_header,
    decode_frame_header,
    encode_file_header,
    encode_frame,
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
