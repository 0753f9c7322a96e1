"""The receive side of a connection: a buffer that the socket fills and whole frames are sliced out of, without a copy.

Bytes are received into a chunk; frames are slices of it. A chunk whose frames somebody keeps (`retain`) is left to them
and a new one is begun when it is full; otherwise it is filled again from the start. Chunks start small and double while
they fill up, so that an idle connection costs little and a busy one makes few system calls.

Invariants: memory held here is at most one chunk; a chunk is at most the pool's `bytes_max` or one frame, if that is
larger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from bkpy.protocol import frame as wire


class ChunkPool:
    """Chunks for receive buffers. Those of the largest size are used again once nobody keeps a slice of them.

    A connection begins with a chunk of `bytes_min` bytes and comes to have one of `bytes_max`; what is left of a chunk
    is used while it is `room_bytes_min` or more. All of them, and `chunks_max`, work with one (`chunks_max` with none).

    Memory that is new to the process costs more than receiving into it. Keeps at most `chunks_max` chunks from being
    given back to the system; those are looked at in the order in which they were handed out, which is about the order
    in which a memtable lets go of them.
    """

    def __init__(
        self,
        chunks_max: int,
        *,
        bytes_min: int = 16 << 10,
        bytes_max: int = 1 << 20,
        room_bytes_min: int = 4 << 10,
    ) -> None:
        self.bytes_min = bytes_min
        self.bytes_max = max(bytes_min, bytes_max)
        self.room_bytes_min = room_bytes_min
        self._handed_out: deque[bytearray] = deque(maxlen=chunks_max)

    def take(self, size: int) -> bytearray:
        """A chunk of `size` bytes that nobody else has, whatever is in it."""
        if size != self.bytes_max:
            return bytearray(size)
        if not self._handed_out or not _unused(self._handed_out[0]):
            chunk = bytearray(size)
        else:
            chunk = self._handed_out.popleft()
        self._handed_out.append(chunk)
        return chunk


def _unused(chunk: bytearray) -> bool:
    """Whether there is no memoryview of the chunk: only then can its size be changed."""
    try:
        last = chunk.pop()
    except BufferError:
        return False
    chunk.append(last)
    return True


class ReceiveBuffer:
    """Turns received bytes into frames. `frame_bytes_max` bounds a frame, and may be changed by a handshake.

    `chunks`: where chunks come from; by default they are used once.
    """

    __slots__ = ("_chunk", "_chunks", "_end", "_retained", "_size", "_start", "_view", "_wanted", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int, chunks: ChunkPool | None = None) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._chunks = chunks = chunks or ChunkPool(0)
        self._size = chunks.bytes_min
        self._chunk = bytearray()
        self._view = memoryview(self._chunk)
        self._start = 0  # of the first byte that is not part of a frame handed out
        self._end = 0  # of what was received
        self._wanted = 0  # bytes of the frame that begins at _start, once its prefix is there
        self._retained = False

    @property
    def partial(self) -> bool:
        """Whether part of a frame has arrived, but not all of it."""
        return self._end > self._start

    def retain(self) -> None:
        """Slices handed out by now are kept by somebody: never receive over them."""
        self._retained = True

    def get_buffer(self) -> memoryview:
        """Where to receive the next bytes; never empty."""
        if self._start == self._end and not self._retained:
            self._start = self._end = 0
        free = len(self._chunk) - self._end
        needed = self._wanted - (self._end - self._start)
        if free < max(needed, self._chunks.room_bytes_min):
            self._renew()
        return self._view[self._end :]

    def _renew(self) -> None:
        chunks = self._chunks
        rest = self._view[self._start : self._end]
        if self._start:
            self._size = min(self._size * 2, chunks.bytes_max)
        size = max(self._size, self._wanted, len(rest) + chunks.room_bytes_min)
        chunk = chunks.take(size)
        chunk[: len(rest)] = rest
        self._end = len(rest)
        self._start = 0
        self._chunk = chunk
        self._view = memoryview(chunk)
        self._retained = False

    def received(self, count: int) -> Iterator[wire.Frame]:
        """`count` bytes were received into the buffer: the frames that are now whole.

        Raises `ProtocolError` or `FrameTooLargeError` at the first byte that can't be right: the connection is lost.
        """
        self._end += count
        while (have := self._end - self._start) > 0:
            if have < wire.PREFIX_BYTES:
                wire.check_magic(self._view, self._start, self._end)
                self._wanted = wire.PREFIX_BYTES
                return
            if have < self._wanted:
                return
            self._wanted = wanted = wire.frame_bytes(self._view, self._start, self.frame_bytes_max)
            if have < wanted:
                return
            frame = wire.take(self._view, self._start, self._start + wanted)
            self._start += wanted
            self._wanted = 0
            yield frame
