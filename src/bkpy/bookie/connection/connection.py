"""One client's connection: frames in, requests to the storage, replies out.

Invariants: a connection that is lost is freed without the cycle collector, which runs too seldom: its parts
release it; the bookie answers nothing before HELLO; it bounds the pending requests of a connection by not reading from
the socket; it answers BAD_REQUEST to a request that makes no sense, and closes the connection only for bytes that are
not a frame.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from bkpy.bookie.connection.add_handler import AddHandler
from bkpy.bookie.connection.keys import Keys
from bkpy.bookie.connection.request_handler import RequestHandler
from bkpy.bookie.connection.served import StallWatch
from bkpy.errors import BookKeeperError, FrameTooLargeError, ProtocolError
from bkpy.protocol.access import NO_OPS, Right, describe_names, forbidden_ops, names_in
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status
from bkpy.protocol.wire.receive_buffer import ReceiveBuffer
from bkpy.runtime.accepted import closed_by_client, detect_vanished_client
from bkpy.runtime.slow_requests import client_id_in

if TYPE_CHECKING:
    from bkpy.bookie.connection.served import ConnectionOwner
    from bkpy.bookie.service import BookieService
    from bkpy.buffers import Bytes
    from bkpy.runtime.accepted import Socket

_UNORDERED: Final = frozenset((Op.READ, Op.READ_LAC, Op.WRITE_LAC, Op.WAIT_LAC, Op.FORCE))


class Connection(asyncio.BufferedProtocol):
    """Made for each accepted socket. `keys` is empty until its client has presented one."""

    def __init__(self, service: BookieService, owner: ConnectionOwner) -> None:
        self.service = service
        self.keys = Keys(service.settings.presented_ledgers_max, service.key_memory)
        self.adds = AddHandler(service, self, self.keys)
        self.requests = RequestHandler(service, self, self.keys)
        self.address = "?"  # the client's
        self.client_id = ""  # for people, as the client says; empty if it says none
        self.names: tuple[str, ...] = ()  # of its certificate
        self.forbidden = NO_OPS  # requests that these names may not send
        self.greeted = False
        self.stalls = StallWatch(service)
        self.received_bytes = 0
        self._owner = owner
        self._settings = service.settings
        # A stranger gets no more memory than an introduction takes.
        self._receive = ReceiveBuffer(m.HELLO_BYTES_MAX, service.chunks, service.receive_budget, self._room)
        self._transport: asyncio.Transport | None = None
        self._socket: Socket | None = None
        self._closing = False
        self._out: list[Bytes] = []
        self._pauses: set[str] = set()

    # --- the transport's calls --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one only by its methods
        peername = self._transport.get_extra_info("peername")
        self.address = f"{peername[0]}:{peername[1]}" if peername else "?"
        sock = self._transport.get_extra_info("socket")
        if sock is not None:  # a simulated network has none
            detect_vanished_client(sock, self._settings.keepalive_interval_s, self._settings.vanished_timeout_s)
            self._socket = sock
        self.names = names_in(self._transport.get_extra_info("peercert"))
        self.know_rights()
        self._owner.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = self._socket = None
        self._closing = True
        self.requests.close()
        self.adds.close()
        self.keys.close()
        self._receive.close()
        self._out.clear()
        self._owner.closed(self)

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
        return False  # closes: the client would not read further replies

    def pause_writing(self) -> None:
        # The client isn't reading its replies: stop taking requests, or they would pile up in memory.
        self.pause("writing")
        self.requests.answers.pause_writing()

    def resume_writing(self) -> None:
        self.resume("writing")
        self.requests.answers.resume_writing()

    def know_rights(self) -> None:
        """Look up the client's rights again. A client that has lost all of them gets FORBIDDEN, and is disconnected."""
        rights = self._owner.rights_of(self.names)
        self.forbidden = forbidden_ops(rights)
        if self.greeted and not rights & (Right.READ | Right.WRITE):
            self.reply(0, 0, m.pack([int(Status.FORBIDDEN), self.no_right("read or write")]))
            self.close()

    def no_right(self, to: str) -> str:
        """The message for a client without the right to do this."""
        holder = describe_names(self.names)
        return f"the file of rights of bookie {self.service.bookie_id} does not give {holder} the right to {to}"

    # --- flow control and closing -----------------------------------------------------------------------------------

    def pause(self, reason: str) -> None:
        """Stop reading from the socket until every reason is withdrawn."""
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

    def count_idle_tick(self) -> float | None:
        """Count a tick: returns how many seconds a stall may last, None for an idle client."""
        settings, transport = self._settings, self._transport
        unread = 0 if transport is None or "writing" not in self._pauses else transport.get_write_buffer_size()
        if not unread and self._pauses and self._socket is not None and closed_by_client(self._socket):
            self.abort()  # clients reconnect again and again while a disk stalls, and would take all places
        greeting_s = None
        if not self.greeted:
            partial = self._receive.partial
            greeting_s = settings.first_frame_stall_timeout_s if partial else settings.handshake_timeout_s
        paused = bool(self._pauses)
        return self.stalls.tick(self._receive, self.received_bytes, unread, paused=paused, greeting_s=greeting_s)

    @property
    def lost(self) -> bool:
        return self._transport is None

    @property
    def mid_frame(self) -> bool:
        return self._receive.partial

    @property
    def busy(self) -> bool:
        """Whether an accepted request has no answer yet."""
        return self.adds.busy or self.requests.in_flight > 0

    def request_ended(self) -> None:
        """A request was answered or dropped."""
        if self.service.stopping:
            self._owner.answered()

    def memory_full(self) -> None:
        """The storage has no memory for further entries: stop reading from this client, and from others that write."""
        self.pause("memory")
        self._owner.memory_full()

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
        """The client broke the protocol: answer with the reason and close the connection."""
        self.service.metrics.frame_refused()
        self.service.complain_of_frames("closing the connection from %s: %s", self.address, str(error))
        status = Status.TOO_LARGE if isinstance(error, FrameTooLargeError) else Status.BAD_REQUEST
        self.reply(0, 0, m.pack([int(status), str(error)]))
        self.close()

    def bad_request(self, frame: wire.Frame, error: ProtocolError) -> None:
        """Answer that this frame is no valid request. The client's other requests go on."""
        self.service.metrics.request_refused()
        self.service.complain_of_frames("bad request from %s: %s", self.address, str(error))
        status = int(Status.BAD_REQUEST)
        head = m.pack(status if frame.opcode == Op.ADD else [status, str(error)])
        self.reply(frame.opcode, frame.correlation_id, head)

    def request_id(self, correlation_id: int) -> str:
        """The request's id in log lines, here and at the client."""
        return f"{self.client_id or self.address}-{correlation_id}"

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
        if op in self.forbidden:
            self._forbid(frame)
            return
        try:
            if op == Op.ADD:
                self.adds.add(frame)
                self._receive.retain()
            elif op == Op.PRESENT:
                self.adds.present(frame.head)
                if self.service.storage.full:  # now that the client is known to write
                    self.pause("memory")
            elif op in _UNORDERED:
                self.requests.start(frame)
            elif 0 < op < wire.REPLY:
                raise ProtocolError("HELLO was answered before" if op == Op.HELLO else f"unknown opcode {op}")
            else:
                self.refuse(ProtocolError(f"opcode {op} is no request's"))
        except ProtocolError as e:
            self.bad_request(frame, e)

    def _forbid(self, frame: wire.Frame) -> None:
        op, status = frame.opcode, int(Status.FORBIDDEN)
        if op == Op.PRESENT:
            return  # it has no reply; and a key that isn't known opens nothing
        why = self.no_right("write" if op in forbidden_ops(Right.READ) else "read")
        self.reply(op, frame.correlation_id, m.pack(status if op == Op.ADD else [status, why]))

    def _hello(self, frame: wire.Frame) -> None:
        if frame.opcode != Op.HELLO:
            raise ProtocolError("the first frame of a connection must be HELLO")
        settings = self._settings
        hello = m.decode_hello(frame.head)
        self.client_id = client_id_in(hello.software)
        status, message = self._owner.greet(self, hello)
        limits = (settings.frame_bytes_max, settings.entry_bytes_max)
        self.reply(Op.HELLO, frame.correlation_id, m.pack([int(status), message, self.service.bookie_id, *limits]))
        if status != Status.OK:
            self.close()
            return
        self.greeted = True
        self._receive.frame_bytes_max = settings.frame_bytes_max
