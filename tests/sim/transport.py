"""One end of a simulated connection: asyncio's transport above, segments in flight below.

What the process wrote waits in `_unsent` until the window has room, and is cut into segments that are in flight in the
peer's `_incoming`. Like uvloop's, `write` keeps a reference to the caller's buffer and sends at the end of the turn, so
that a buffer which is changed too early is noticed here.

Invariant: bytes sent and not yet read by the peer's protocol never exceed the window.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from asyncio import transports
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .loop import Incarnation
    from .net import SimNet

WINDOW_BYTES = 256 * 1024  # in flight or unread in one direction; the kernels' two socket buffers
_SEGMENT_BYTES_MAX = 64 * 1024
_FIN = b""
_BYTES_LIKE = (bytes, bytearray, memoryview)
_LATE_WRITES_MAX = 5  # that are not complained about

_log = logging.getLogger("asyncio")


class SimTransport(transports._FlowControlMixin, asyncio.Transport):
    """`asyncio.Transport` for plain and for buffered protocols."""

    def __init__(
        self, net: SimNet, sockname: tuple[str, int], peername: tuple[str, int], incarnation: Incarnation | None
    ) -> None:
        super().__init__({"sockname": sockname, "peername": peername, "socket": None}, net.loop)
        self._net = net
        self.sockname, self.peername = sockname, peername
        self.address, self.peer_address = sockname[0], peername[0]
        self.incarnation = incarnation
        self.name = f"{sockname[0]}:{sockname[1]}>{peername[0]}:{peername[1]}"
        self.owner = contextvars.Context()  # in which the protocol is called
        self.peer: SimTransport | None = None
        self.closed = False  # this end of the connection is gone; what still arrives is answered by a reset
        self._protocol: asyncio.BaseProtocol | None = None
        self._written: list[memoryview] = []  # since the end of the last turn
        self._unsent: deque[bytes] = deque()
        self._waiting_bytes = 0  # in the two above
        self._unread_bytes = 0  # of this end's, in flight or not yet read by the peer's protocol
        self._incoming: deque[tuple[float, bytes]] = deque()  # (time of arrival, segment)
        self._expected = False  # a timer or a block will call _arrive
        self._reading = False  # connection_made was called, and reading isn't paused
        self._paused = False
        self._closing = False
        self._eof_written = False
        self._eof_sent = False
        self._eof_received = False
        self._dropped_unread = False
        self._written_too_late = 0
        self.shadow: Shadow | None = None  # which repeats what this end sends

    @property
    def dead(self) -> bool:
        return self.incarnation is not None and self.incarnation.dead

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the protocol in its own context; an exception there ends the connection, as in asyncio."""
        if self.dead:
            return None
        try:
            return self.owner.run(function, *args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            if self.dead:
                return None  # it crashed in this very call
            self._loop.call_exception_handler(
                {"message": f"{self.name}: the protocol failed", "exception": error, "protocol": self._protocol}
            )
            self._force_close(error)
            return None

    def open(self, protocol: asyncio.BaseProtocol) -> None:
        """The connection exists for this end's process."""
        self._protocol = protocol
        self.call(protocol.connection_made, self)
        self._reading = True
        self._soon(self._arrive)

    def _soon(self, function: Callable[..., Any], *args: Any) -> None:
        self._loop.call_soon(function, *args, context=self._loop.outside)

    # --- asyncio's transport: the state ---------------------------------------------------------------------------

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._soon(self._arrive)

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes

    # --- writing ------------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, _BYTES_LIKE):
            raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__}")
        if self._eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data:
            return
        if self._closing:  # asyncio and uvloop complain from the fifth on
            self._written_too_late += 1
            if self._written_too_late > _LATE_WRITES_MAX:
                _log.warning("socket.send() raised exception.")
            return
        if not self._written:
            self._soon(self._end_of_turn)
        view = memoryview(data).cast("B")
        self._written.append(view)
        self._waiting_bytes += len(view)
        self._maybe_pause_protocol()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.write(data)

    def write_eof(self) -> None:
        if not self._closing and not self._eof_written:
            self._eof_written = True
            self._soon(self._end_of_turn)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._soon(self._end_of_turn)

    def abort(self) -> None:
        self._force_close(None)

    def _end_of_turn(self) -> None:
        if self._written:
            written, self._written = self._written, []
            self._unsent.append(b"".join(written))
        self._send()

    def _send(self) -> None:
        """Put into flight what the window admits."""
        if self.closed or self.dead or self.peer is None:
            return
        while self._unsent and (room := WINDOW_BYTES - self._unread_bytes) > 0:
            data = self._unsent.popleft()
            cut = min(room, len(data), self._segment_bytes())
            if cut < len(data):
                self._unsent.appendleft(data[cut:])
            self._waiting_bytes -= cut
            self._unread_bytes += cut
            self._launch(data[:cut])
        if not self._unsent and not self._written:
            if self._eof_written and not self._eof_sent:
                self._eof_sent = True
                self._launch(_FIN)
            if self._closing:
                self._soon(self._end, None)
        if self._protocol_paused:
            self.call(self._maybe_resume_protocol)

    def _segment_bytes(self) -> int:
        rng = self._net.rng
        return rng.randrange(1, 2000) if rng.random() < 0.1 else _SEGMENT_BYTES_MAX

    def _launch(self, segment: bytes) -> None:
        """Send a segment; it never overtakes the one before."""
        assert self.peer is not None
        if self.shadow is not None:
            self.shadow.repeat(segment)
        incoming = self.peer._incoming
        at = self._net.loop.now + self._net.delay(self.address, self.peer_address)
        incoming.append((max(at, incoming[-1][0]) if incoming else at, segment))
        self.peer._expect()

    # --- arriving -----------------------------------------------------------------------------------------------------

    def _expect(self) -> None:
        if self._incoming and not self._expected:
            self._expected = True
            self._loop.call_at(self._incoming[0][0], self._due, context=self._loop.outside)

    def _due(self) -> None:
        self._expected = False
        self._arrive()

    def _arrive(self) -> None:
        """Take what has arrived by now, as far as this end reads it."""
        while self._incoming and not self._expected:
            if self._incoming[0][0] > self._net.loop.now:
                self._expect()
            elif not self._net.passes(self.peer_address, self.address):
                self._expected = True
                self._net.hold(self.peer_address, self.address, self._due)
            elif self.closed or self.dead:
                self._incoming.clear()
                self._send_reset()
            elif self._closing:
                # This end doesn't listen any more, but still sends: the peer will learn by a reset at the end.
                self._dropped_unread = True
                self._credit(len(self._incoming.popleft()[1]))
            elif not self._reading or self._paused:
                return
            else:
                self._take(self._incoming.popleft()[1])

    def _take(self, segment: bytes) -> None:
        self._net.note("deliver" if segment else "eof", self, segment)
        if segment == _FIN:
            self._eof_received = True
            if not self.call(self.get_protocol().eof_received):
                self.close()
            return
        rest = memoryview(segment)
        while rest:
            count = self._feed(rest)
            rest = rest[count:]
            self._credit(count)
            if rest and (self._paused or self._closing or self.closed or self.dead):
                self._incoming.appendleft((self._net.loop.now, bytes(rest)))
                return

    def _feed(self, data: memoryview) -> int:
        protocol = self.get_protocol()
        if not isinstance(protocol, asyncio.BufferedProtocol):
            self.call(protocol.data_received, bytes(data))
            return len(data)
        buffer = self.call(protocol.get_buffer, -1)
        if buffer is None:
            return len(data)  # the protocol failed, the connection is gone
        count = min(len(buffer), len(data))
        if not count:
            self._force_close(RuntimeError("get_buffer() returned an empty buffer"))
            return len(data)
        memoryview(buffer).cast("B")[:count] = data[:count]
        self.call(protocol.buffer_updated, count)
        return count

    def _credit(self, count: int) -> None:
        """The peer may send that much more."""
        if self.peer is not None and count:
            self.peer._unread_bytes -= count
            self.peer._soon(self.peer._send)

    # --- ends -------------------------------------------------------------------------------------------------------

    def _force_close(self, error: BaseException | None) -> None:
        """Lose what isn't sent, and tell the protocol soon. The peer sees the end of the stream, or a reset."""
        if self.closed:
            return
        self._closing = True
        self._written.clear()
        self._unsent.clear()
        self._waiting_bytes = 0
        self._dropped_unread |= self._net.rng.random() < 0.5
        self._soon(self._end, error)

    def _end(self, error: BaseException | None) -> None:
        """The socket is closed: by FIN if all was read, else by a reset."""
        if self.closed:
            return
        self.closed = True
        self._net.connections.pop(self, None)
        if self.peer is not None and not self.peer.closed:
            if self._dropped_unread or self._incoming_now():
                self._send_reset()
            elif not self._eof_sent:
                self._launch(_FIN)
        if self._protocol is not None:
            self._net.note("lost", self)
            self.call(self._protocol.connection_lost, error)

    def _incoming_now(self) -> bool:
        return bool(self._incoming) and self._incoming[0][0] <= self._net.loop.now

    def _send_reset(self) -> None:
        peer = self.peer
        if peer is not None and not peer.closed:
            self._net.post(self.address, peer.address, peer._reset_arrived)

    def _reset_arrived(self) -> None:
        """What was in flight to this end is lost, and so is what it has not sent."""
        if self.closed:
            return
        self._incoming.clear()
        self._unsent.clear()
        self._written.clear()
        self._waiting_bytes = 0
        self._closing = True
        peer, self.peer = self.peer, None  # a reset isn't answered
        if peer is not None and peer.peer is self:
            peer._incoming.clear()
        self._end(ConnectionResetError(104, "Connection reset by peer"))

    def cut_off(self, delay: float) -> None:
        """The network resets the connection; this end learns it after `delay`."""
        self._net.at(delay, self._reset_arrived)

    def process_died(self, reset: bool) -> None:
        """What the kernel has taken is still sent; what the process had buffered is lost."""
        self._net.connections.pop(self, None)
        self.closed = True
        if self.peer is None or self.peer.closed:
            return
        if reset or self._incoming_now():
            self._send_reset()
        elif not self._eof_sent:
            self._launch(_FIN)

    def power_lost(self) -> None:
        """Some of the segments in flight had not left the host."""
        self._net.connections.pop(self, None)
        self.closed = True
        if self.peer is not None and self.peer._incoming:
            kept = self._net.rng.randrange(len(self.peer._incoming) + 1)
            while len(self.peer._incoming) > kept:
                self.peer._incoming.pop()


class Shadow(SimTransport):
    """The near end of a duplicated connection: all that the original sends arrives once more, `late_s` later.

    What the far end answers is lost. The original doesn't know of it, and may be gone before it.
    """

    def __init__(self, net: SimNet, original: SimTransport, port: int, late_s: float) -> None:
        super().__init__(net, (original.address, port), original.peername, None)
        self._late_s = late_s
        self.set_write_buffer_limits(1 << 40)  # nobody is told to write less, also before the far end has accepted

    def begin(self, error: OSError | None) -> None:
        """The far end has accepted, or refused."""
        if error is not None:
            self.abort()
            return
        self.open(asyncio.Protocol())
        self._soon(self._send)

    def repeat(self, segment: bytes) -> None:
        self._net.at(self._late_s, lambda: self._repeat_now(segment))

    def _repeat_now(self, segment: bytes) -> None:
        if not segment:
            self.close()
        elif not self._closing:
            self.write(segment)
