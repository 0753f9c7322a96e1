"""One client's connection: frames in, requests to the storage, replies out.

Invariants: the bookie answers nothing before HELLO; it bounds the pending requests of a connection by not reading from
the socket; it answers BAD_REQUEST to a request that makes no sense, and closes the connection only for bytes that are
not a frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bkpy.bookie.connection.add_handler import AddHandler
from bkpy.bookie.connection.client_socket import ClientSocket
from bkpy.bookie.connection.keys import Keys
from bkpy.bookie.connection.request_handler import RequestHandler
from bkpy.errors import BookKeeperError, FrameTooLargeError, ProtocolError
from bkpy.protocol.access import Right, forbidden_ops
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status
from bkpy.runtime.slow_requests import client_id_in

if TYPE_CHECKING:
    from bkpy.bookie.connection.served import ConnectionOwner
    from bkpy.bookie.service import BookieService
    from bkpy.buffers import Bytes

_UNORDERED: Final = frozenset((Op.READ, Op.READ_LAC, Op.WRITE_LAC, Op.WAIT_LAC, Op.FORCE))


class Connection(ClientSocket):
    """Made for each accepted socket. `keys` is empty until its client has presented one."""

    def __init__(self, service: BookieService, owner: ConnectionOwner) -> None:
        # A stranger gets no more memory than an introduction takes.
        super().__init__(service, owner, m.HELLO_BYTES_MAX)
        self.keys = Keys(service.settings.presented_ledgers_max, service.key_memory)
        self.adds = AddHandler(service, self, self.keys)
        self.requests = RequestHandler(service, self, self.keys)
        self.client_id = ""  # for people, as the client says; empty if it says none
        self._parts = (self.requests, self.adds, self.keys)

    # --- the transport's calls --------------------------------------------------------------------------------------

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return  # asyncio's TLS hands on what it has decrypted
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

    def pause_writing(self) -> None:
        # The client isn't reading its replies: stop taking requests, or they would pile up in memory.
        self.pause("writing")
        self.requests.answers.pause_writing()

    def resume_writing(self) -> None:
        self.resume("writing")
        self.requests.answers.resume_writing()

    def disown(self) -> None:
        self.reply(0, 0, m.pack([int(Status.FORBIDDEN), self.no_right("read or write")]))
        self.close()

    def greeting_timeout_s(self) -> float | None:
        if self.greeted:
            return None
        settings = self._settings
        return settings.first_frame_stall_timeout_s if self._receive.partial else settings.handshake_timeout_s

    # --- what its requests ask of it, and replies -------------------------------------------------------------------

    @property
    def mid_frame(self) -> bool:
        return self._receive.partial

    @property
    def busy(self) -> bool:
        return self.adds.busy or self.requests.in_flight > 0

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

    def reply(self, op: int, correlation_id: int, head: bytes, body: list[Bytes] | tuple[()] = ()) -> None:
        self.send(wire.encode(op | wire.REPLY, correlation_id, head, body))

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
