"""One TCP connection to a bookie of a BookKeeper cluster: protocol v3, behind the interface of a `BookieConnection`.

A channel writes bkpy's frames to `transport`; a `Translator` makes requests of them, which this sends, and a frame of
the answers, which the channel receives. With TLS, the connection begins in the clear, and START_TLS comes first.

Invariants: a response goes to the request with its transaction id, or is ignored; one that names another operation,
ledger or entry than its request ends the connection, and says nothing; a request is forgotten when it has been answered
or its time is up; a frame over `reply_bytes_max` ends the connection before it is received.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, NamedTuple, cast

from bkpy.client.bookkeeper.translator import Translator
from bkpy.errors import BookieUnavailableError, BookKeeperError, FrameTooLargeError, ProtocolError, TlsError
from bkpy.protocol.bookkeeper import frames
from bkpy.protocol.bookkeeper.messages import (
    AddEntryRequest,
    Operation,
    StartTlsRequest,
    decode_response,
    encode_request,
    operation_of,
)
from bkpy.protocol.bookkeeper.statuses import StatusCode
from bkpy.runtime.tls import is_tls_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.buffers import Bytes
    from bkpy.client.bookies.connection import ChannelOwner
    from bkpy.client.bookies.dialling import Dialler
    from bkpy.client.bookkeeper.ledgers import UsedLedgers
    from bkpy.config.client import ClientSettings
    from bkpy.protocol.bookkeeper.messages import Request, ResponseMessage
    from bkpy.protocol.wire import frame as wire
    from bkpy.runtime.interfaces import Runtime
    from bkpy.runtime.tls import TlsContext

log = logging.getLogger("bkpy.client")


class _Sent(NamedTuple):
    """A request without an answer. `ledger_id`, `entry_id`: None where it names none."""

    operation: Operation
    ledger_id: int | None
    entry_id: int | None
    answered: Callable[[ResponseMessage], None]
    expires_at: float

    def is_answered_by(self, response: ResponseMessage) -> bool:
        """Whether the response is to this request, and not only has its transaction id."""
        found = response.response
        if response.operation != self.operation:
            return False
        if found is None:
            return response.status != StatusCode.EOK or self.operation == Operation.START_TLS
        return (
            getattr(found, "ledger_id", self.ledger_id) == self.ledger_id
            and getattr(found, "entry_id", self.entry_id) == self.entry_id
        )


class NativeFrames:
    """What a channel has for a transport: takes its frames, and gives them to the translator."""

    def __init__(self, transport: asyncio.Transport, translator: Translator) -> None:
        self._transport = transport
        self._translator = translator

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def writelines(self, buffers: list[Bytes]) -> None:
        self._translator.take(buffers)

    def abort(self) -> None:
        self._transport.abort()


class NothingReceived:
    """In place of a receive buffer: the frames of a translator are bytes of their own."""

    def retain(self) -> None:
        pass


class TranslatingConnection(asyncio.Protocol):
    """A connection that takes replies of up to `reply_bytes_max` bytes; `lost` is done when it has ended."""

    def __init__(self, owner: ChannelOwner, ledgers: UsedLedgers, settings: ClientSettings, runtime: Runtime) -> None:
        self.transport: NativeFrames | None = None
        self.receive = NothingReceived()
        self.lost = asyncio.get_running_loop().create_future()
        self._owner = owner
        self._settings = settings
        self._now = runtime.clock.monotonic
        self._raw: asyncio.Transport | None = None
        self._translator = Translator(owner.bookie_id, ledgers, settings, self._now, self.send, self._hand_up)
        self._received = bytearray()
        self._next_id = itertools.count(1).__next__
        self._sent: dict[int, _Sent] = {}
        self._unsent: list[Bytes] = []
        self._reason: BookKeeperError | None = None
        self._in_doubt = False  # whether the bookie has taken this side's certificate: it has answered nothing by TLS

    # --- connecting -------------------------------------------------------------------------------------------------

    async def open(self, dialler: Dialler, address: str) -> None:
        """Connect to "host:port", and begin TLS if the client has certificates. The caller sets a timeout."""
        host, context = await dialler.dial_in_clear(self.itself, address)
        if context is not None:
            await self._start_tls(context, host)

    def itself(self) -> TranslatingConnection:
        return self

    async def _start_tls(self, context: TlsContext, host: str) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[ResponseMessage] = loop.create_future()
        self.send(StartTlsRequest(), ready.set_result)
        await asyncio.wait((ready, self.lost), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            raise ConnectionResetError("closed")
        if ready.result().status != StatusCode.EOK:
            raise TlsError("the bookie has no TLS", bookie=self._owner.bookie_id)
        assert self._raw is not None
        self._raw.pause_reading()
        if self._received:  # nothing in the clear may become a part of what is read by TLS
            raise TlsError("bytes in the clear follow the bookie's answer to START_TLS", bookie=self._owner.bookie_id)
        secured = await loop.start_tls(self._raw, self, context, server_hostname=host)
        if secured is None:
            raise ConnectionResetError("closed")
        self._in_doubt = True
        self._begin(secured)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._begin(cast("asyncio.Transport", transport))  # uvloop's is one only by its methods

    def _begin(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(0)  # as for a `BookieConnection`
        self._raw = transport
        self.transport = NativeFrames(transport, self._translator)

    # --- requests ---------------------------------------------------------------------------------------------------

    def send(
        self,
        request: Request,
        answered: Callable[[ResponseMessage], None],
        *,
        priority: int = 0,
        wait_s: float = 0.0,
    ) -> None:
        """Send a request, which the bookie may hold for `wait_s`; `answered` follows, unless its time is up before.

        `FrameTooLargeError`, and nothing is sent: the bookie takes no such frame, and would end the connection.
        """
        transaction_id = self._next_id()
        frame = encode_request(request, transaction_id, priority)
        limit = self._settings.bookkeeper_frame_bytes_max
        if isinstance(request, AddEntryRequest) and (size := sum(map(len, frame))) > limit:
            raise FrameTooLargeError(f"the bookie takes frames of {limit} bytes, and this append needs {size}")
        now = self._now()
        while self._sent:  # the oldest first; one that waits on purpose may keep others a little longer
            oldest, sent = next(iter(self._sent.items()))
            if sent.expires_at > now:
                break
            del self._sent[oldest]
        patience_s = max(self._settings.read_timeout_s, self._settings.add_timeout_s) + wait_s
        ledger_id, entry_id = getattr(request, "ledger_id", None), getattr(request, "entry_id", None)
        self._sent[transaction_id] = _Sent(operation_of(request), ledger_id, entry_id, answered, now + patience_s)
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._write)
        self._unsent += frame

    def _write(self) -> None:
        """Send the requests of this turn together."""
        unsent, self._unsent = self._unsent, []
        if self._raw is not None and not self._raw.is_closing():
            self._raw.writelines(unsent)

    # --- responses --------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        at, end, limit = 0, len(received), self._settings.reply_bytes_max
        try:
            while end - at >= frames.PREFIX_BYTES:
                size = frames.frame_bytes(received, at, limit)
                if end - at < size:
                    break
                frame = bytes(received[at + frames.PREFIX_BYTES : at + size])
                at += size
                self._answered(frame)
        except BookKeeperError as e:
            self.abort(e)
        del received[:at]

    def _answered(self, frame: bytes) -> None:
        if not frame or frames.is_packet(frame):
            raise ProtocolError("the bookie has answered by a packet of protocol v2", bookie=self._owner.bookie_id)
        response = decode_response(frame)
        self._in_doubt = False
        sent = self._sent.pop(response.transaction_id, None)
        if sent is None:
            return
        if not sent.is_answered_by(response):
            raise ProtocolError(
                f"the bookie answers {sent.operation.name} of entry {sent.entry_id} by operation {response.operation} "
                f"with status {response.status} and {type(response.response).__name__}, of something else",
                ledger_id=sent.ledger_id,
                bookie=self._owner.bookie_id,
            )
        sent.answered(response)

    def _hand_up(self, frame: wire.Frame) -> None:
        """Give the channel a reply, but never while it sends the request."""
        asyncio.get_running_loop().call_soon(self._reply, frame)

    def _reply(self, frame: wire.Frame) -> None:
        if self.lost.done():
            return
        try:
            self._owner.received(self, frame)
        except BookKeeperError as e:
            self.abort(e)

    # --- the end ----------------------------------------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(exc)
        self._sent.clear()
        error = exc or self._reason
        if self._in_doubt and not isinstance(error, BookKeeperError) and not is_tls_error(error):
            # With TLS 1.3 the handshake has succeeded by then, and the alert is lost if a request came behind it.
            error = BookieUnavailableError(
                f"{error or 'closed'}, before any answer by TLS: the bookie may refuse this side's certificate, and "
                "its log knows why"
            )
        self._owner.connection_lost(self, error)

    def abort(self, error: BookKeeperError) -> None:
        self._reason = error
        log.warning("closing the connection to bookie %s: %s", self._owner.bookie_id, error)
        if self._raw is not None:
            self._raw.abort()
