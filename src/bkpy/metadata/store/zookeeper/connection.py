"""One TCP connection to one ZooKeeper server, from the handshake to its end.

It sends each request once and never again. When it ends, for whatever reason, every call in flight fails with
`ConnectionLost` in the same tick of the event loop; it never comes back to life.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any

from aiozk import exc, protocol

from bkpy.errors import FrameTooLargeError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

# ZooKeeper's own limit (jute.maxbuffer): it closes the connection on a longer request, without an answer.
REQUEST_BYTES_MAX = 0xFFFFF
XID_MAX = 0x7FFFFFFF

_LENGTH = struct.Struct("!i")
_HEADER = struct.Struct("!iqi")


class ConnectionLost(Exception):  # noqa: N818 - a fact about the connection; callers translate it
    """The connection ended. A request that was in flight may or may not have been carried out."""


class ZooKeeperConnection:
    """`on_event` gets every watch event, in order with the replies. `last_zxid` is the newest change that was seen."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        handshake: Any,
        on_event: Callable[[Any], None],
        last_zxid: int,
        reply_bytes_max: int,
    ) -> None:
        self.handshake = handshake
        self.last_zxid = last_zxid
        self.ended = asyncio.get_running_loop().create_future()
        self.last_received_at = self.last_sent_at = asyncio.get_running_loop().time()
        self._loop = asyncio.get_running_loop()
        self._reader = reader
        self._writer = writer
        self._on_event = on_event
        self._reply_bytes_max = reply_bytes_max
        self._xid = 0
        self._pending: dict[int, tuple[Any, asyncio.Future[Any]]] = {}

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        request: Any,
        *,
        tls: ssl.SSLContext | None,
        on_event: Callable[[Any], None],
        reply_bytes_max: int,
    ) -> ZooKeeperConnection:
        """Connect and shake hands. The caller puts one timeout round the whole of it. Raises `OSError`."""
        reader, writer = await asyncio.open_connection(host, port, ssl=tls)
        try:
            payload = request.serialize()
            writer.write(_LENGTH.pack(len(payload)) + payload)
            answer = protocol.ConnectResponse.deserialize(await _read_frame(reader, reply_bytes_max))
        except asyncio.IncompleteReadError as error:
            writer.transport.abort()
            raise ConnectionResetError(f"{host}:{port} closed the connection during the handshake") from error
        except struct.error as error:
            writer.transport.abort()
            raise ConnectionResetError(f"{host}:{port} does not speak ZooKeeper's protocol") from error
        except BaseException:
            writer.transport.abort()
            raise
        return cls(reader, writer, answer, on_event, request.last_seen_zxid, reply_bytes_max)

    def usable(self) -> bool:
        """Whether a request can be sent. The transport may be closed some ticks before `read` has noticed."""
        if self._writer.is_closing():
            self.abort(ConnectionLost("the connection was closed"))
        return not self.ended.done()

    def send(self, request: Any) -> asyncio.Future[Any]:
        """Send once; the future gets the response, a ZooKeeper error (`aiozk.exc.ResponseError`), or `ConnectionLost`.

        Only on a connection that is `usable()`. Raises `FrameTooLargeError` for a request that no server would take.
        """
        if request.special_xid is not None:
            xid = request.special_xid
        else:
            self._xid = xid = 1 if self._xid == XID_MAX else self._xid + 1
        payload = request.serialize(xid)
        if len(payload) > REQUEST_BYTES_MAX:
            raise FrameTooLargeError(
                f"a metadata request of {len(payload)} bytes is over ZooKeeper's limit of {REQUEST_BYTES_MAX}"
            )
        self._writer.write(_LENGTH.pack(len(payload)) + payload)
        future = self._loop.create_future()
        self._pending[xid] = (request, future)
        self.last_sent_at = self._loop.time()
        return future

    def ping(self) -> None:
        """Ask for a sign of life; it shows in `last_received_at`."""
        payload = protocol.PingRequest().serialize(protocol.PING_XID)
        self._writer.write(_LENGTH.pack(len(payload)) + payload)
        self.last_sent_at = self._loop.time()

    async def read(self) -> None:
        """Read replies and events until the connection ends. Runs once, as a task."""
        reason: BaseException = ConnectionLost("the connection was given up")
        try:
            while True:
                self._receive(await _read_frame(self._reader, self._reply_bytes_max))
        except asyncio.IncompleteReadError:
            reason = ConnectionLost("the server closed the connection")
        except (OSError, struct.error, KeyError, UnicodeDecodeError) as error:
            reason = ConnectionLost(f"the connection failed: {error!r}")
        finally:
            self.abort(reason)

    def _receive(self, frame: bytes) -> None:
        self.last_received_at = self._loop.time()
        xid, zxid, code = _HEADER.unpack_from(frame)
        if xid == protocol.WATCH_XID:
            self._on_event(protocol.WatchEvent.deserialize(frame[_HEADER.size :]))
            return
        if zxid > 0:
            self.last_zxid = max(self.last_zxid, zxid)
        if xid == protocol.PING_XID:
            return
        request, future = self._pending.pop(xid)
        if future.done():  # its caller gave up waiting
            return
        # A refused transaction says so in its body, operation by operation, and may have a code in its head as well.
        if code != 0 and not (request.opcode == protocol.TransactionRequest.opcode and len(frame) > _HEADER.size):
            future.set_exception(_error_of(code))
        else:
            future.set_result(protocol.response_xref[request.opcode].deserialize(frame[_HEADER.size :]))

    def abort(self, reason: BaseException) -> None:
        """End the connection now and fail everything that is in flight."""
        if self.ended.done():
            return
        self.ended.set_result(reason)
        self._writer.transport.abort()
        pending, self._pending = self._pending, {}
        for _, future in pending.values():
            if not future.done():
                future.set_exception(ConnectionLost(str(reason)))


async def _read_frame(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if not 0 <= length <= bytes_max:
        raise ConnectionResetError(f"this is no ZooKeeper server: its answer would have {length} bytes")
    return await reader.readexactly(length)


def _error_of(code: int) -> Any:
    # aiozk's own lookup prints unknown codes to standard output.
    error = exc.response_error_xref.get(code, exc.APIError)()
    error.error_code = code
    return error
