"""The receive side of a connection: a buffer that the socket fills and whole frames are sliced out of, without a copy.

The socket writes into a chunk; frames are slices of it. When a chunk is full and its frames are still in use
(`retain`), the buffer takes a new one; otherwise it fills the chunk again from the start. Chunks start small and double
while they fill up, so that an idle connection costs little and a busy one makes few system calls.

Invariants: a buffer holds at most one chunk; a chunk is at most the pool's `bytes_max` or one frame, if that is larger.
Buffers that share a budget hold at most the budget together, and one frame, and a small chunk each.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from bkpy.protocol.wire import frame as wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Framing(Protocol):
    """How frames follow each other, and what is handed out as one. `bkpy.protocol.wire.frame` is bkpy's own."""

    @property
    def PREFIX_BYTES(self) -> int:  # noqa: N802 - a module's constant
        """Bytes that begin each frame, and say how long it is."""

    def check_magic(self, buffer: memoryview, offset: int, end: int) -> None:
        """Refuse a part of these bytes that can't begin a frame."""

    def frame_bytes(self, buffer: memoryview, offset: int, frame_bytes_max: int) -> int:
        """Bytes of the frame that begins at `offset`."""

    def take(self, view: memoryview, offset: int, end: int) -> Any:
        """The frame at offset..end, which may be a slice of it."""


class Chunks(Protocol):
    """Where a receive buffer gets its memory.

    It starts with a chunk of `bytes_min` bytes and grows to one of `bytes_max`; it uses the rest of a chunk as long as
    that is `room_bytes_min` or more. All of these work with 1.
    """

    bytes_min: int
    bytes_max: int
    room_bytes_min: int

    def take(self, size: int) -> bytearray:
        """A chunk of `size` bytes for this caller alone; its contents are arbitrary."""


class ChunkPool:
    """Chunks for receive buffers. It reuses those of the largest size once no slice of them is in use.

    Memory that is new to the process costs more than receiving into it. The pool keeps at most `chunks_max` chunks, and
    looks at them in the order in which it handed them out, which is about the order in which a memtable releases them.
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
        if size != self.bytes_max:
            return bytearray(size)
        if not self._handed_out or not is_unused(self._handed_out[0]):
            chunk = bytearray(size)
        else:
            chunk = self._handed_out.popleft()
        self._handed_out.append(chunk)
        return chunk


def is_unused(chunk: bytearray) -> bool:
    """Whether there is no memoryview of the chunk: only then can its size be changed."""
    try:
        last = chunk.pop()
    except BufferError:
        return False
    chunk.append(last)
    return True


class ReceiveBudget:
    """The bytes that all receive buffers of a process may hold beyond a small chunk each.

    A buffer that can't go on without more waits in line, and keeps what it has. When only waiting buffers hold any, the
    first in line goes on nevertheless, since nothing else will make room. So the budget is exceeded by one frame at
    most, and every buffer gets its turn, as long as the buffers with memory use it or are closed.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self._held = 0  # by the buffers in line
        self._line: dict[ReceiveBuffer, int] = {}

    @property
    def wanted(self) -> bool:
        """Whether a buffer waits."""
        return bool(self._line)

    @property
    def exhausted(self) -> bool:
        return self.used >= self.bytes_max

    def exchange(self, had: int, size: int) -> bool:
        """Exchange `had` bytes for `size`, if that needs no wait; whether it did."""
        if self._line or self.used - had + size > self.bytes_max:
            return False
        self.change(size - had)
        return True

    def change(self, by: int) -> None:
        """Add to `used`: for bytes that are in memory already, or no longer are."""
        self.used += by
        if by < 0:
            self._go_on()

    def wait(self, buffer: ReceiveBuffer, had: int, size: int) -> bool:
        """Wait for `size` bytes in place of `had`; then call `buffer.granted`. True if it has been called already."""
        self._line[buffer] = size
        self._held += had
        self._go_on()
        return buffer not in self._line

    def leave(self, buffer: ReceiveBuffer, had: int) -> None:
        """Leave the line. There may be room for the next buffer, which needs less."""
        self._take_out(buffer, had)
        self._go_on()

    def _take_out(self, buffer: ReceiveBuffer, had: int) -> None:
        if self._line.pop(buffer, None) is not None:
            self._held -= had

    def _go_on(self) -> None:
        while self._line:
            buffer, size = next(iter(self._line.items()))
            had = buffer.charged
            if self.used - had + size > self.bytes_max and self.used > self._held:
                return
            self._take_out(buffer, had)
            self.used += size - had
            buffer.granted(size)


class ReceiveBuffer:
    """Turns received bytes into frames. `frame_bytes_max` bounds a frame; a handshake may change it.

    `chunks`: where chunks come from; by default each is used once. With a `budget`, call `ready` before you receive
    more; after it has returned False, the buffer calls `on_room` when there is room. `framing`: of what protocol.
    """

    __slots__ = (
        "_budget",
        "_chunk",
        "_chunks",
        "_end",
        "_framing",
        "_on_room",
        "_retained",
        "_size",
        "_small",
        "_start",
        "_view",
        "_wanted",
        "charged",
        "frame_bytes_max",
    )

    def __init__(
        self,
        frame_bytes_max: int,
        chunks: Chunks | None = None,
        budget: ReceiveBudget | None = None,
        on_room: Callable[[], None] = lambda: None,
        framing: Framing = wire,
    ) -> None:
        self.frame_bytes_max = frame_bytes_max
        self.charged = 0  # bytes of the chunk, if they are of the budget
        self._chunks = chunks = chunks or ChunkPool(0)
        self._budget = budget
        self._on_room = on_room
        self._framing = framing
        self._small = max(chunks.bytes_min, framing.PREFIX_BYTES + chunks.room_bytes_min)  # every buffer may have that
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
        """The slices handed out so far stay in use: never receive over them."""
        self._retained = True

    def get_buffer(self) -> memoryview:
        """Where to receive the next bytes; never empty."""
        if self._start == self._end and not self._retained:
            self._start = self._end = 0
        free = len(self._chunk) - self._end
        needed = self._wanted - (self._end - self._start)
        if free < max(needed, self._chunks.room_bytes_min if needed <= 0 else 1):
            self._renew()
        return self._view[self._end :]

    def ready(self) -> bool:
        """Whether there is room for more. If not, the budget has none: receive nothing until `on_room` is called."""
        budget = self._budget
        if budget is None:
            return True
        if self._end == self._start:
            if self.charged and budget.wanted:
                self.release_idle()
            return True
        if self._wanted <= self._small or self._start + self._wanted <= len(self._chunk):
            return True
        size = max(self._grown(), self._wanted)
        if budget.exchange(self.charged, size):
            self._begin(size, size)
            return True
        return budget.wait(self, self.charged, self._wanted)

    def granted(self, size: int) -> None:
        """The budget grants `size` bytes."""
        self._begin(size, size)
        self._on_room()

    def release_idle(self) -> None:
        """Release the chunk, if it counts towards the budget and no frame has begun in it."""
        if self._budget is not None and self.charged and self._end == self._start:
            self._drop(self._budget)

    def close(self) -> None:
        """Release everything. The last call."""
        if self._budget is not None:
            self._budget.leave(self, self.charged)
            self._drop(self._budget)
        self._on_room = lambda: None  # breaks the reference to the owner, which has this buffer

    def _drop(self, budget: ReceiveBudget) -> None:
        charged, self.charged = self.charged, 0
        self._size = self._chunks.bytes_min
        self._chunk = bytearray()
        self._view = memoryview(self._chunk)
        self._start = self._end = self._wanted = 0
        budget.change(-charged)

    def _grown(self) -> int:
        return min(self._size * 2, self._chunks.bytes_max) if self._start else self._size

    def _renew(self) -> None:
        rest = self._end - self._start
        size = max(self._grown(), self._wanted, rest + self._chunks.room_bytes_min)
        if self._budget is None:
            self._begin(size, 0)
        elif size > self._small and self._budget.exchange(self.charged, size):
            self._begin(size, size)
        else:  # a buffer that needs more has got it from `ready`
            charged = self.charged
            self._begin(self._small, 0)
            self._budget.change(-charged)

    def _begin(self, size: int, charged: int) -> None:
        rest = self._view[self._start : self._end]
        self._size = min(self._grown(), size)
        self.charged = charged
        chunk = self._chunks.take(size)
        chunk[: len(rest)] = rest
        self._end = len(rest)
        self._start = 0
        self._chunk = chunk
        self._view = memoryview(chunk)
        self._retained = False

    @property
    def unread(self) -> tuple[memoryview, int, int]:
        """(the chunk, and where in it the bytes begin and end that aren't handed out), between two frames."""
        return self._view, self._start, self._end

    def skip_to(self, start: int) -> None:
        """The caller has taken whole frames out of `unread` itself, up to there."""
        if start != self._start:
            self._start, self._wanted = start, 0

    def received(self, count: int) -> Iterator[Any]:
        """The socket has received `count` bytes into the buffer: yields the frames that are now whole.

        Raises `ProtocolError` or `FrameTooLargeError` at the first invalid byte: the connection is lost.
        """
        self._end += count
        return self._frames()

    def _frames(self) -> Iterator[Any]:
        framing = self._framing
        while (have := self._end - self._start) > 0:
            if have < framing.PREFIX_BYTES:
                framing.check_magic(self._view, self._start, self._end)
                self._wanted = framing.PREFIX_BYTES
                return
            if have < self._wanted:
                return
            self._wanted = wanted = framing.frame_bytes(self._view, self._start, self.frame_bytes_max)
            if have < wanted:
                return
            frame = framing.take(self._view, self._start, self._start + wanted)
            self._start += wanted
            self._wanted = 0
            yield frame
