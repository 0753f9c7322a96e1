"""One client's connection in Apache BookKeeper's protocols, v2 and v3: frames in, requests to the storage, replies out.

Each frame says by its first byte which protocol it is of. There is no handshake: a connection is a client's with its
first frame that makes sense.

Invariants: the bookie bounds the pending requests of a connection by not reading from the socket; a request that makes
no sense gets EBADREQ where its protocol can say whose answer that is; all other nonsense, and unknown opcodes, close
the connection, as Java's does; with certificates, nothing but START_TLS and AUTH is answered in the clear.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from bkpy.bookie.bookkeeper.adds import EntryAdds
from bkpy.bookie.bookkeeper.lac import LacRequests
from bkpy.bookie.bookkeeper.ledger_keys import OpenedLedgers
from bkpy.bookie.bookkeeper.reads import EntryReads
from bkpy.bookie.bookkeeper.tasks import RequestTasks
from bkpy.bookie.connection.client_socket import ClientSocket
from bkpy.errors import BookKeeperError, ProtocolError
from bkpy.protocol.access import Right, describe_names, forbidden_ops, names_in
from bkpy.protocol.bookkeeper import frames
from bkpy.protocol.bookkeeper import messages as m
from bkpy.protocol.bookkeeper import packets as p
from bkpy.protocol.bookkeeper.statuses import PACKET_CODES, StatusCode
from bkpy.protocol.wire.messages import Hello, Op, Status
from bkpy.runtime.accepted import hang_up, read_out, say_last, taken_from
from bkpy.runtime.tls import Failure, explained, last_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bkpy.bookie.connection.served import ConnectionOwner, DiskSpace
    from bkpy.bookie.service import BookieService
    from bkpy.protocol.bookkeeper.messages import RequestHeader
    from bkpy.runtime.tls import Certificates

_ADD: Final = int(p.PacketOp.ADD)
_ALL_OPS: Final = forbidden_ops(Right.NONE)
_NO_TLS: Final = (
    "it sends requests without TLS, which this bookie asks for: the client needs certificates, for START_TLS"
)
_AUTH_DISABLED: Final = m.AuthExchange(m.AUTH_DISABLED, b"")


class BookKeeperConnection(ClientSocket):
    """Made for each accepted socket. A client may be silent at first: Java's connect ahead of use."""

    def __init__(
        self,
        service: BookieService,
        owner: ConnectionOwner,
        *,
        disk: DiskSpace,
        certificates: Certificates | None,
    ) -> None:
        super().__init__(service, owner, service.settings.frame_bytes_max, frames)
        self.keys = OpenedLedgers(service.settings.presented_ledgers_max, service.key_memory)
        self.adds = EntryAdds(service, self, self.keys)
        self.tasks = RequestTasks(service, self)
        self.reads = EntryReads(service, self.tasks)
        self.lac = LacRequests(service, self.tasks, self.reads, self.adds)
        self._parts = (self.tasks, self.adds, self.keys)
        self._disk = disk
        self._certificates = certificates
        self._handshaking = False  # from the answer to START_TLS until TLS reads from the socket
        self._early: list[bytes] | None = None  # frames that came with TLS before `_start_tls` went on
        self._secure = certificates is None
        self._refused = False  # a request, for it came in the clear

    # --- the transport's calls --------------------------------------------------------------------------------------

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return  # asyncio's TLS hands on what it has decrypted
        self.received_bytes += nbytes
        if self._early is not None:
            self._hold(nbytes, self._early)
            return
        self._take_received(nbytes)

    def _take_received(self, nbytes: int) -> None:
        self._take_all(self._received(nbytes))
        if not self._closing and not self._receive.ready():
            self.pause("receiving")

    def _received(self, nbytes: int) -> Iterator[memoryview]:
        """The whole frames, without most adds of v2: these are taken at once. It ends where too many requests wait."""
        receive = self._receive
        frames_left = receive.received(nbytes)
        while True:
            if self.greeted and self._secure and not self.forbidden:
                receive.skip_to(self.adds.packets(*receive.unread))
            if (frame := next(frames_left, None)) is None:
                self.resume("frames")
                return
            yield frame
            if "backlog" in self._pauses or self.tasks.have_enough(self.reads.taken):
                self.pause("frames")
                return

    def resume(self, reason: str) -> None:
        super().resume(reason)
        if self._pauses == {"frames"}:
            asyncio.get_running_loop().call_soon(self._take_rest)

    def _take_rest(self) -> None:
        """Take frames that were received before, when too many requests waited."""
        if self._pauses == {"frames"} and not self._closing:
            self._take_received(0)

    def _take_all(self, received: Iterable[memoryview]) -> None:
        try:
            for frame in received:
                self._take(frame)
                if self._closing:
                    break
                if self._handshaking:
                    if self._receive.partial:
                        raise ProtocolError("bytes in the clear after START_TLS")
                    break
        except BookKeeperError as e:
            self.adds.end_turn()  # first: asyncio's TLS receives while it closes, over the frames that these are of
            self.refuse(e)
        self.adds.end_turn()
        self.reads.end_turn()

    def _hold(self, nbytes: int, early: list[bytes]) -> None:
        """Keep what comes with TLS before its transport is here, which the answers need; there are few bytes of it."""
        try:
            if self._handshaking:
                raise ProtocolError("bytes in the clear after START_TLS")
            early += map(bytes, self._receive.received(nbytes))
        except BookKeeperError as e:
            self.refuse(e)

    def pause_writing(self) -> None:
        # The client isn't reading its replies: stop taking requests, or they would pile up in memory.
        self.pause("writing")
        self.tasks.answers.pause_writing()

    def resume_writing(self) -> None:
        self.resume("writing")
        self.tasks.answers.resume_writing()

    @property
    def busy(self) -> bool:
        return self.adds.busy or self.tasks.in_flight > 0

    def refuse(self, error: BookKeeperError) -> None:
        """The client broke the protocol, which has no answer to that: close the connection."""
        self.service.metrics.frame_refused()
        self.service.complain_of_frames("closing the connection from %s: %s", self.address, str(error))
        self.close()

    # --- requests ---------------------------------------------------------------------------------------------------

    def _take(self, frame: memoryview) -> None:
        if not self._secure:
            self._take_in_the_clear(frame)
            return
        if frames.is_packet(frame):
            self.service.metrics.packets += 1
            if not self.greeted:
                self._greet()
            if not self.forbidden and len(frame) > 1 and frame[1] == _ADD:
                self.adds.packet(frame)
            else:
                self._take_packet(p.decode_request(frame))
            return
        header, request = m.decode_request(frame)
        self.service.metrics.messages += 1
        if not self.greeted:
            self._greet()
        if isinstance(request, m.AddEntryRequest) and not self.forbidden:
            self.adds.request(header, request)
        else:
            self._take_message(header, request)

    def _greet(self) -> None:
        status, message = self._owner.greet(self, Hello("", "", ""))
        if status != Status.OK:
            raise ProtocolError(message)
        self.greeted = True
        if self.service.storage.full:
            self.pause("memory")

    def _take_in_the_clear(self, frame: memoryview) -> None:
        """A request before START_TLS, to a bookie with certificates."""
        if frames.is_packet(frame):
            packet = p.decode_request(frame)
            self.forbidden = _ALL_OPS
            if not isinstance(packet, p.AuthPacket):
                self._refused_in_the_clear()
            self._take_packet(packet)
            return
        header, request = m.decode_request(frame)
        match request:
            case m.StartTlsRequest():
                self._handshaking, self._early = True, []
                self.send(m.encode_response(header, m.StartTlsResponse()))
                self.flush()
                self.service.spawn(self._start_tls(), f"TLS handshake of {self.address}", self.abort)
            case m.AuthExchange() | m.MalformedRequest():
                self._take_message(header, request)
            case _:
                self._refused_in_the_clear()
                self.send(m.encode_refusal(header, StatusCode.EUA))

    def _refused_in_the_clear(self) -> None:
        """Count and log the client with its first request that is refused because it came without TLS."""
        if not self._refused:
            self._refused = True
            self.service.refused_by_tls(Failure.PLAIN, self.address, _NO_TLS)

    async def _start_tls(self) -> None:
        certificates, transport = self._certificates, self._transport
        if transport is None or certificates is None:
            return
        settings = self._settings
        try:
            mine = taken_from(transport)  # TLS closes its own without a word
        except OSError:  # no files are left
            self.abort()
            return
        self._handshaking = False  # the loop hands over to TLS at once: no further byte comes in the clear

        def drop() -> None:
            self.abort()
            hang_up(mine)

        self.service.shaking_hands.begin(self, self.address, drop)
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                self,
                certificates.context,
                server_side=True,
                ssl_handshake_timeout=settings.tls_handshake_timeout_s,
                ssl_shutdown_timeout=settings.tls_handshake_timeout_s,
            )
        except OSError as error:
            failure, text = explained(error, "the client", certificates.files)
            self.service.refused_by_tls(failure, self.address, text)
            transport.abort()
            self._end()
            say_last(mine, last_words(error))
            if self in self.service.shaking_hands:  # else another client has its place
                await read_out(mine, settings.tls_handshake_timeout_s)
            return
        finally:
            self.service.shaking_hands.end(self)
            mine.close()
        if secured is None or transport.is_closing():  # aborted meanwhile
            self._end()
            return
        self.service.metrics.handshake_done()
        self._transport = secured
        secured.set_write_buffer_limits(high=settings.tls_buffer_bytes_max)
        self.names = names_in(secured.get_extra_info("peercert"))
        self.know_rights()
        early, self._early, self._secure = self._early, None, True
        if self._pauses:
            secured.pause_reading()
        self._take_all(map(memoryview, early or ()))

    def _end(self) -> None:
        """The connection is lost in its handshake. Whether the loop says so differs from one to another."""
        if not self.lost:
            self.connection_lost(None)

    def _take_packet(self, packet: p.AddPacket | p.ReadPacket | p.BatchReadPacket | p.AuthPacket) -> None:
        refused = PACKET_CODES[StatusCode.EUA]
        match packet:
            case p.AddPacket():
                self.send(p.encode_add_reply(refused, packet.ledger_id, packet.entry_id))
            case p.ReadPacket(flags, ledger_id, entry_id, key):
                fences = bool(flags & p.PacketFlags.FENCE)
                if not self._may_read(fences):
                    self.send(p.encode_read_reply(refused, ledger_id, entry_id))
                else:
                    self.reads.read(ledger_id, entry_id, key if fences else None, None)
            case p.BatchReadPacket():
                if not self._may_read(bool(packet.flags & p.PacketFlags.FENCE)):
                    self.send(p.encode_batch_read_reply(refused, packet.ledger_id, packet.first, packet.request_id))
                else:
                    self.reads.batch(packet)
            case p.AuthPacket():
                self._complain_of_authentication(m.decode_auth_message(packet.message).plugin)
                self.send(p.encode_auth(m.encode_auth_message(_AUTH_DISABLED)))

    def _complain_of_authentication(self, plugin: str) -> None:
        """The client takes the answer for success, and its operator may take it for security."""
        self.service.complain_of_authentication(
            "client %s asks for authentication by plugin %s, which bkpy doesn't have: it is served without",
            self.address,
            describe_names((plugin,)),
        )

    def _may_read(self, fences: bool) -> bool:
        return (Op.ADD if fences else Op.READ) not in self.forbidden

    def _take_message(self, header: RequestHeader, request: m.Request) -> None:
        match request:
            case m.AuthExchange():
                self._complain_of_authentication(request.plugin)
                self.send(m.encode_response(header, _AUTH_DISABLED))
            case m.MalformedRequest(reason):
                self.service.metrics.request_refused()
                self.service.complain_of_frames("bad request from %s: %s", self.address, reason)
                self.send(m.encode_refusal(header, StatusCode.EBADREQ))
            case m.StartTlsRequest() | m.EntryListRequest():
                self.send(m.encode_refusal(header, StatusCode.EBADREQ))
            case _ if not self._may(request):
                self.send(m.encode_refusal(header, StatusCode.EUA))
            case m.ReadEntryRequest(ledger_id, entry_id, key, fence):
                if request.previous_lac is not None and not fence:
                    self.lac.poll(header, request)
                else:
                    self.reads.read(ledger_id, entry_id, key if fence else None, header)
            case m.AddEntryRequest():
                self.adds.request(header, request)
            case m.ReadLacRequest():
                self.lac.read_lac(header, request)
            case m.WriteLacRequest():
                self.lac.write_lac(header, request)
            case m.ForceLedgerRequest():
                self.lac.force(header, request)
            case m.BookieInfoRequest(parts):
                self._answer_info(header, parts)

    def _may(self, request: m.Request) -> bool:
        """Whether the client has the right to this."""
        match request:
            case m.ReadEntryRequest():
                return self._may_read(request.fence)
            case m.AddEntryRequest() | m.WriteLacRequest() | m.ForceLedgerRequest():
                return Op.ADD not in self.forbidden
            case _:
                return Op.READ not in self.forbidden

    def _answer_info(self, header: RequestHeader, parts: int) -> None:
        disk = self._disk
        response = m.BookieInfoResponse(
            StatusCode.EOK,
            disk.total_bytes if parts & m.InfoParts.TOTAL_DISK_CAPACITY else None,
            disk.free_bytes if parts & m.InfoParts.FREE_DISK_SPACE else None,
        )
        self.send(m.encode_response(header, response))
