"""Wire frames: the fixed prefix, its checksum, and a parser that finds whole frames in a receive buffer.

    offset  size  field
    0       2     magic "bk"
    2       1     version (1)
    3       1     opcode; replies have the high bit set
    4       4     bytes of the head, a msgpack value (u32, little-endian)
    8       4     bytes of the body, raw (u32)
    12      8     correlation id (u64), chosen by the client, echoed by the reply
    20      4     CRC32C of the 20 bytes before it, the head and the body
    24            head, then body

Invariant: a frame is handed out only after its checksum was found right, and a length over the limit is refused before
anything is allocated for it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from bkpy.errors import FrameTooLargeError, ProtocolError

if TYPE_CHECKING:
    from bkpy.buffers import Bytes

PREFIX_BYTES: Final = 24
VERSION: Final = 1
REPLY: Final = 0x80
MAGIC: Final = b"bk"
_TLS: Final = (b"\x15\x03", b"\x16\x03")  # how an alert and a handshake begin

# For crc32c, which lets other threads have the interpreter for anything above 32 KiB, while it works for microseconds
# and waits for them much longer.
KEEP_INTERPRETER: Final = 0

_PREFIX = struct.Struct("<2sBBIIQ")
_CRC = struct.Struct("<I")


class Frame(NamedTuple):
    """A received frame. `head` and `body` are slices of the receive buffer."""

    opcode: int
    correlation_id: int
    head: memoryview
    body: memoryview


def encode(opcode: int, correlation_id: int, head: bytes, body: list[Bytes] | tuple[Bytes, ...] = ()) -> list[Bytes]:
    """The buffers of one frame, for one vectored write; `body` is not copied, and the last buffer is not empty."""
    size = sum(map(len, body))
    prefix = _PREFIX.pack(MAGIC, VERSION, opcode, len(head), size, correlation_id)
    crc = crc32c(head, crc32c(prefix))
    for part in body:
        crc = crc32c(part, crc, KEEP_INTERPRETER)
    buffers = [prefix + _CRC.pack(crc) + head, *body]
    while not buffers[-1]:  # asyncio's transports, from Python 3.12 on, never get rid of empty ones at the end
        buffers.pop()
    return buffers


def parts(buffers: list[Bytes]) -> tuple[int, int, memoryview, list[Bytes]]:
    """(opcode, correlation id, head, buffers of the body) of what `encode` has made."""
    first = memoryview(buffers[0])
    _, _, opcode, _, _, correlation_id = _PREFIX.unpack_from(first)
    return opcode, correlation_id, first[PREFIX_BYTES:], buffers[1:]


def check_magic(buffer: Bytes, offset: int, end: int) -> None:
    """Refuse bytes that can't begin a frame as soon as the first of them is there."""
    got = bytes(buffer[offset : min(end, offset + 3)])
    if got != (MAGIC + bytes([VERSION]))[: len(got)]:
        if got[:2] == MAGIC:
            raise ProtocolError(f"frame version {got[2]} is not supported; this side speaks version {VERSION}")
        if got[:2] in _TLS:
            raise ProtocolError("these bytes are TLS, which this side doesn't speak: it has no tls_ca_file")
        raise ProtocolError(f"not a bkpy frame: it begins with {got!r}")


def frame_bytes(buffer: Bytes, offset: int, frame_bytes_max: int) -> int:
    """Bytes of the frame at `offset`, whose prefix is all there. Doesn't check the CRC: the frame may be partial."""
    magic, version, _, head_bytes, body_bytes, _ = _PREFIX.unpack_from(buffer, offset)
    if magic != MAGIC or version != VERSION:
        check_magic(buffer, offset, offset + PREFIX_BYTES)
    size: int = PREFIX_BYTES + head_bytes + body_bytes
    if size > frame_bytes_max:
        raise FrameTooLargeError(f"a frame of {size} bytes is over the limit of {frame_bytes_max}")
    return size


def take(view: memoryview, offset: int, end: int) -> Frame:
    """The frame at offset..end, all of which is in `view`; `ProtocolError` if its checksum is wrong."""
    _, _, opcode, head_bytes, _, correlation_id = _PREFIX.unpack_from(view, offset)
    start = offset + PREFIX_BYTES
    crc = crc32c(view[start:end], crc32c(view[offset : offset + 20]), KEEP_INTERPRETER)
    if crc != _CRC.unpack_from(view, offset + 20)[0]:
        raise ProtocolError(f"the frame's checksum doesn't match its bytes (opcode {opcode})")
    middle = start + head_bytes
    return Frame(opcode, correlation_id, view[start:middle], view[middle:end])
