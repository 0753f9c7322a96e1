"""Frames of BookKeeper's protocols: a length and that many bytes, which are a v3 message or a v2 packet.

    offset  size  field
    0       4     bytes of what follows (u32, big-endian)
    4             a message of v3, which begins with 0x0A (field 1), or a packet of v2, which begins with its version

Both protocols share one port, and START_TLS is always a v3 message. So the first byte tells them apart frame by frame.
There is no handshake: the largest frame is a setting on both sides, as Java's `nettyMaxFrameSizeBytes` is, and counts
the four bytes of the length.

Invariant: a length over the limit is refused before anything is allocated for it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from bkpy.errors import FrameTooLargeError, ProtocolError

if TYPE_CHECKING:
    from bkpy.buffers import Bytes

PREFIX_BYTES: Final = 4
PACKET_VERSION: Final = 2
_MESSAGE_BEGIN: Final = 0x0A

LENGTH: Final = struct.Struct(">I")


def frame_bytes(buffer: Bytes, offset: int, frame_bytes_max: int) -> int:
    """Bytes of the frame at `offset`, whose length is all there: these four and what follows."""
    size: int = PREFIX_BYTES + LENGTH.unpack_from(buffer, offset)[0]
    if size > frame_bytes_max:
        raise FrameTooLargeError(f"a frame of {size} bytes is over the limit of {frame_bytes_max}")
    return size


def check_magic(buffer: Bytes, offset: int, end: int) -> None:
    """A part of a length, which may be any."""


def take(view: memoryview, offset: int, end: int) -> memoryview:
    """The frame at offset..end, all of which is in `view`, without its length."""
    return view[offset + PREFIX_BYTES : end]


def is_packet(frame: Bytes) -> bool:
    """Whether the frame, without its length, is a packet of v2 rather than a message of v3."""
    first = frame[0] if len(frame) else -1
    if first == PACKET_VERSION:
        return True
    if first == _MESSAGE_BEGIN:
        return False
    raise ProtocolError(f"not a frame of BookKeeper's v2 or v3 protocol: it begins with {bytes(frame[:4])!r}")


def encode(*parts: Bytes) -> list[Bytes]:
    """The buffers of one frame, for one vectored write."""
    return [LENGTH.pack(sum(map(len, parts))), *parts]
