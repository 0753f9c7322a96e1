"""A client's socket at a bookie: when it is read, what is sent to it and its end, whichever protocol it speaks."""

from __future__ import annotations

import abc
import asyncio
from typing import TYPE_CHECKING, Protocol, cast

from bkpy.bookie.connection.served import StallWatch
from bkpy.protocol.access import NO_OPS, Right, describe_names, forbidden_ops, names_in
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire.receive_buffer import ReceiveBuffer
from bkpy.runtime.accepted import closed_by_client, detect_vanished_client

if TYPE_CHECKING:
    from bkpy.bookie.connection.served import ConnectionOwner, ServedKeys
    from bkpy.bookie.service import BookieService
    from bkpy.buffers import Bytes
    from bkpy.protocol.wire.receive_buffer import Framing
    from bkpy.runtime.accepted import Socket


class ConnectionPart(Protocol):
    """A part of a connection, which may refer back to it until it is closed."""

    def close(self) -> None: ...


class ClientSocket(asyncio.BufferedProtocol, abc.ABC):
    """What connections of both protocols share. Each of them adds `buffer_updated`, and sets `_parts`.

    Invariant: one that is lost is freed without the cycle collector, which runs too seldom: its parts release it.
    """

    keys: ServedKeys

    def __init__(
        self, service: BookieService, owner: ConnectionOwner, frame_bytes_max: int, framing: Framing = wire
    ) -> None:
        self.service = service
        self.address = "?"  # the client's
        self.names: tuple[str, ...] = ()  # of its certificate
        self.forbidden = NO_OPS  # requests that these names may not send
        self.greeted = False
        self.stalls = StallWatch(service)
        self.received_bytes = 0
        self._owner = owner
        self._settings = service.settings
        self._receive = ReceiveBuffer(frame_bytes_max, service.chunks, service.receive_budget, self._room, framing)
        self._transport: asyncio.Transport | None = None
        self._socket: Socket | None = None
        self._closing = False
        self._out: list[Bytes] = []
        self._pauses: set[str] = set()
        self._parts: tuple[ConnectionPart, ...] = ()

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
        for part in self._parts:
            part.close()
        self._receive.close()
        self._out.clear()
        self._owner.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receive.get_buffer()

    def eof_received(self) -> bool:
        return False  # closes: the client would not read further replies

    def know_rights(self) -> None:
        """Look up the client's rights again. A client that has lost all of them is disconnected."""
        rights = self._owner.rights_of(self.names)
        self.forbidden = forbidden_ops(rights)
        if self.greeted and not rights & (Right.READ | Right.WRITE):
            self.disown()

    def no_right(self, to: str) -> str:
        """The message for a client without the right to do this."""
        holder = describe_names(self.names)
        return f"the file of rights of bookie {self.service.bookie_id} does not give {holder} the right to {to}"

    def disown(self) -> None:
        """Disconnect a client without any rights."""
        self.close()

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
        transport = self._transport
        unread = 0 if transport is None or "writing" not in self._pauses else transport.get_write_buffer_size()
        if not unread and self._pauses and self._socket is not None and closed_by_client(self._socket):
            self.abort()  # clients reconnect again and again while a disk stalls, and would take all places
        paused = bool(self._pauses)
        return self.stalls.tick(
            self._receive, self.received_bytes, unread, paused=paused, greeting_s=self.greeting_timeout_s()
        )

    def greeting_timeout_s(self) -> float | None:
        """For how many seconds a client may be silent now before its first request. None: as long as it likes."""
        return None

    @property
    @abc.abstractmethod
    def busy(self) -> bool:
        """Whether an accepted request has no answer yet."""

    @property
    def lost(self) -> bool:
        return self._transport is None

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

    # --- replies ----------------------------------------------------------------------------------------------------

    def send(self, buffers: list[Bytes]) -> None:
        """Send a reply at the end of this turn of the loop."""
        if self._transport is None:
            return
        if not self._out:
            asyncio.get_running_loop().call_soon(self.flush)
        self._out += buffers

    def flush(self) -> None:
        """Send what was replied, now."""
        out, self._out = self._out, []
        if out and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(out)
