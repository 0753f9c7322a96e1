"""One client's connection: frames in, requests to the storage, replies out.

ADD and PRESENT are taken in the order in which they arrived. The fast path decides a whole ADD frame with two set
operations; whatever it can't decide goes to the backlog, and so does everything behind it.

Invariants: nothing is answered before HELLO; an ADD is answered OK only from the storage's own callback, after the
sync, unless its client asked for less; what is pending for a connection is bounded, by not reading from the socket; a
request that makes no sense is answered so, and only bytes that are no frames cost the connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from bkpy.bookie.backlog import Backlog
from bkpy.bookie.keys import Keys
from bkpy.bookie.requests import Requests
from bkpy.bookie.sockets import Socket, has_ended, watch_over
from bkpy.errors import BookKeeperError, FrameTooLargeError, ProtocolError
from bkpy.protocol import frame as wire
from bkpy.protocol import messages as m
from bkpy.protocol.messages import Flags, Op, Status
from bkpy.protocol.receive_buffer import ReceiveBuffer

if TYPE_CHECKING:
    from bkpy.bookie.server import BookieServer
    from bkpy.buffers import Bytes

_UNORDERED: Final = frozenset((Op.READ, Op.READ_LAC, Op.WRITE_LAC, Op.WAIT_LAC, Op.FORCE))
_DEFERRED: Final = int(Flags.DEFERRED_SYNC)
_OK_HEAD: Final = m.pack(int(Status.OK))


class Connection(asyncio.BufferedProtocol):
    """Created by the server for each accepted socket."""

    def __init__(self, server: BookieServer) -> None:
        self.server = server
        self.metrics = server.metrics
        self.keys = Keys(server.settings.presented_ledgers_max)
        self.backlog = Backlog(self)
        self.requests = Requests(self)
        self.peer = "?"
        self.adds_in_flight = 0
        self.greeted = False
        self.idle_ticks = 0
        self.received_bytes = 0
        self._storage = server.storage
        self._settings = server.settings
        # A stranger gets no more memory than it takes to introduce oneself.
        self._receive = ReceiveBuffer(m.HELLO_BYTES_MAX, server.chunks, server.receiving, self._room)
        self._transport: asyncio.Transport | None = None
        self._socket: Socket | None = None
        self._closing = False
        self._authorised = self.keys.authorised
        self._out: list[Bytes] = []
        self._pauses: set[str] = set()
        self._progress = (-1, 0)  # bytes received, bytes that the client has yet to read

    # --- the transport's calls --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one only by its methods
        peer = self._transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        sock = self._transport.get_extra_info("socket")
        if sock is not None:  # a simulated network has none
            watch_over(sock, self._settings.keepalive_interval_s, self._settings.vanished_timeout_s)
            self._socket = sock
        self.server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._socket = None
        self._closing = True
        self.requests.close()
        self.backlog.clear()
        self._receive.close()
        self._out.clear()
        self.server.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receive.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        try:
            for frame in self._receive.received(nbytes):
                self._take(frame)
                if self._closing:
                    return
        except BookKeeperError as e:
            self.refuse(e)
            return
        if not self._receive.ready():
            self.pause("receiving")

    def eof_received(self) -> bool:
        return False  # closes; replies to a client that has stopped listening would be for nobody

    def pause_writing(self) -> None:
        # The client isn't reading its replies: stop taking requests, or they would pile up in memory.
        self.pause("writing")
        self.requests.pause_writing()

    def resume_writing(self) -> None:
        self.resume("writing")
        self.requests.resume_writing()

    # --- flow control and closing -----------------------------------------------------------------------------------

    def pause(self, reason: str) -> None:
        """Stop reading from the socket until every reason has been taken back."""
        if not self._pauses and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._pauses.add(reason)

    def resume(self, reason: str) -> None:
        if reason in self._pauses:
            self._pauses.discard(reason)
            if not self._pauses and self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def _room(self) -> None:
        self.resume("receiving")

    def look(self) -> float | None:
        """Count the ticks in which a client that owes something made no progress; how many seconds it may, if it owes.

        It owes the rest of what it has begun to send, and to read what it is sent. Who owes nothing and is silent gives
        back what it receives into.
        """
        settings, transport = self._settings, self._transport
        unread = 0 if transport is None or "writing" not in self._pauses else transport.get_write_buffer_size()
        progress = (self.received_bytes, unread)
        silent, self._progress = progress == self._progress, progress
        allowed_s: float | None = None
        if unread:
            allowed_s = settings.reply_stall_timeout_s
        elif self._pauses:
            if self._socket is not None and has_ended(self._socket):
                self.abort()  # while a disk stalls, clients come again and again, and would take all places
        elif not self.greeted:
            partial = self._receive.partial
            allowed_s = settings.first_frame_stall_timeout_s if partial else settings.handshake_timeout_s
        elif self._receive.partial:
            crowded = self._receive.charged and self.server.receiving.wanted
            allowed_s = settings.crowded_stall_timeout_s if crowded else settings.frame_stall_timeout_s
        elif silent:
            self._receive.rest()
        self.idle_ticks = self.idle_ticks + 1 if silent and allowed_s is not None else 0
        return allowed_s

    @property
    def lost(self) -> bool:
        return self._transport is None

    @property
    def mid_frame(self) -> bool:
        return self._receive.partial

    @property
    def busy(self) -> bool:
        """Whether a request that was taken is still to be answered."""
        return self.adds_in_flight > 0 or self.requests.in_flight > 0 or self.backlog.busy

    def ended(self) -> None:
        """A request was answered."""
        if self.server.draining:
            self.server.answered()

    def close(self) -> None:
        """Send what is buffered, then close."""
        self.flush()
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def refuse(self, error: BookKeeperError) -> None:
        """The peer broke the protocol: say why, once, and hang up."""
        self.metrics.frame_refused()
        self.server.complain_of_frames("closing the connection from %s: %s", self.peer, error)
        status = Status.TOO_LARGE if isinstance(error, FrameTooLargeError) else Status.BAD_REQUEST
        self.reply(0, 0, m.pack([int(status), str(error)]))
        self.close()

    def bad_request(self, frame: wire.Frame, error: ProtocolError) -> None:
        """A whole frame that is no request: that is answered, and costs nobody else of this client anything."""
        self.metrics.request_refused()
        self.server.complain_of_frames("a bad request from %s: %s", self.peer, error)
        status = int(Status.BAD_REQUEST)
        head = m.pack(status if frame.opcode == Op.ADD else [status, str(error)])
        self.reply(frame.opcode, frame.correlation_id, head)

    # --- replies ----------------------------------------------------------------------------------------------------

    def reply(self, op: int, correlation_id: int, head: bytes, body: list[Bytes] | tuple[()] = ()) -> None:
        if self._transport is None:
            return
        if not self._out:
            asyncio.get_running_loop().call_soon(self.flush)
        self._out += wire.encode(op | wire.REPLY, correlation_id, head, body)

    def flush(self) -> None:
        """Send what was replied, now."""
        out, self._out = self._out, []
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(out)

    # --- requests ---------------------------------------------------------------------------------------------------

    def _take(self, frame: wire.Frame) -> None:
        op = frame.opcode
        if not self.greeted:
            self._hello(frame)
            return
        try:
            if op == Op.ADD:
                if self.backlog.busy or not self._add_fast(frame):
                    self.backlog.add(frame, len(frame.head) + len(frame.body))
                self._receive.retain()
            elif op == Op.PRESENT:
                present = m.decode_present(frame.head)
                self.keys.arrive(present)
                self.backlog.add(present, len(frame.head))
            elif op in _UNORDERED:
                self.requests.start(frame)
            elif 0 < op < wire.REPLY:
                raise ProtocolError("HELLO was answered before" if op == Op.HELLO else f"unknown opcode {op}")
            else:
                self.refuse(ProtocolError(f"opcode {op} is no request's"))
        except ProtocolError as e:
            self.bad_request(frame, e)

    def _hello(self, frame: wire.Frame) -> None:
        if frame.opcode != Op.HELLO:
            raise ProtocolError("the first frame of a connection must be HELLO")
        server, settings = self.server, self._settings
        status, message = server.greet(self, m.decode_hello(frame.head))
        limits = (settings.frame_bytes_max, settings.entry_bytes_max)
        self.reply(Op.HELLO, frame.correlation_id, m.pack([int(status), message, server.bookie_id, *limits]))
        if status != Status.OK:
            self.close()
            return
        self.greeted = True
        self._receive.frame_bytes_max = settings.frame_bytes_max
        if self._storage.full:
            self.pause("memory")

    def _add_fast(self, frame: wire.Frame) -> bool:
        """Accept the frame as it is, if all its ledgers are known to be this connection's and none is fenced."""
        if self.server.read_only:
            return False
        columns = m.decode_add(frame.head, len(frame.body))
        ids = set(columns.ledger_ids)
        if columns.flags and columns.flags != _DEFERRED:
            return False
        if not self._authorised.issuperset(ids) or not self._storage.fenced.isdisjoint(ids):
            return False
        self.accept(frame, columns, frame.head, frame.body)
        return True

    def accept(
        self, frame: wire.Frame, columns: m.AddColumns, head: Bytes, body: Bytes, answer: bytes | None = None
    ) -> None:
        """Store these batches, of ledgers that are known, and answer when they are durable (by default OK)."""
        correlation_id = frame.correlation_id
        metrics = self.metrics
        began = metrics.add_started(columns, len(body))
        waiters = self.server.waiters
        self.adds_in_flight += 1

        def done() -> None:
            metrics.add_done(began)
            self.reply(Op.ADD, correlation_id, answer or _OK_HEAD)
            if waiters.by_ledger:
                waiters.wake(columns.ledger_ids)
            self.adds_in_flight -= 1
            self.ended()

        storage = self._storage
        unsynced_max = self._settings.deferred_sync_bytes_max
        if columns.flags & _DEFERRED and storage.unsynced_bytes < unsynced_max and not storage.failed.done():
            storage.add(columns, head, body, _nothing)
            done()
        else:
            storage.add(columns, head, body, done)
        if storage.full:
            self.pause("memory")
            self.server.memory_full()


def _nothing() -> None:
    pass
