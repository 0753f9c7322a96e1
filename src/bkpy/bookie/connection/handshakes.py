"""TLS at a bookie's port: accepted sockets shake hands here, and become connections only afterwards.

Invariants: before its handshake has succeeded, a client costs only the handshake: it takes no memory of the bookie's
budget, the bookie reads no request from it, and it has no place among the connections; there are at most
`tls_handshakes_max` handshakes at once, and none takes longer than `tls_handshake_timeout_s`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Status
from bkpy.runtime.accepted import Accepted, Socket, hang_up, read_out, say_last, second_handle
from bkpy.runtime.tls import Failure, explained, last_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.bookie.connection.connection import Connection
    from bkpy.bookie.service import BookieService
    from bkpy.runtime.tls import Certificates

_NO_TLS = "this bookie speaks TLS only, and the client does not: it needs tls_ca_file, and a certificate"


class Handshakes:
    """Makes a connection, by `accept`, for each client whose handshake succeeds."""

    def __init__(self, service: BookieService, certificates: Certificates, accept: Callable[[], Connection]) -> None:
        self._service = service
        self._settings = service.settings
        self._certificates = certificates
        self._accept = accept
        self._shaking_hands = service.shaking_hands

    def new_connection(self) -> asyncio.BaseProtocol:
        """The protocol of the next socket that is accepted."""
        return Accepted(self._begin)

    def _begin(self, sock: Socket, address: str) -> None:
        if self._service.stopping:
            sock.close()
            return
        mine = second_handle(sock)
        self._shaking_hands.begin(mine, address, lambda: hang_up(mine))
        self._service.spawn(self._shake_hands(sock, mine, address), f"handshake of {address}", mine.close)

    def stop(self) -> None:
        """End all handshakes that are under way."""
        self._shaking_hands.drop_all()

    async def _shake_hands(self, sock: Socket, mine: Socket, address: str) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _NewConnection(self._admit),
                sock,
                ssl=self._certificates.context,
                ssl_handshake_timeout=self._settings.tls_handshake_timeout_s,
                ssl_shutdown_timeout=self._settings.tls_handshake_timeout_s,
            )
        except OSError as error:
            if mine in self._shaking_hands:
                self._failed(error, mine, address)
                await read_out(mine, self._settings.tls_handshake_timeout_s)
        finally:
            self._shaking_hands.end(mine)
            mine.close()

    def _admit(self, transport: Any) -> None:
        """The handshake has succeeded, and no byte after it has been read yet."""
        if self._service.stopping:
            transport.abort()
            return
        self._service.metrics.handshake_done()
        connection = self._accept()
        transport.set_protocol(connection)
        connection.connection_made(transport)
        most = self._settings.tls_buffer_bytes_max
        transport.set_write_buffer_limits(high=most)
        transport.set_read_buffer_limits(high=most)

    def _failed(self, error: OSError, mine: Socket, address: str) -> None:
        failure, text = explained(error, "the client", self._certificates.files)
        self._service.refused_by_tls(failure, address, text)
        # TLS has closed its own handle by now, without a word. A client without TLS gets the reason in the clear.
        words = last_words(error)
        if failure is Failure.PLAIN:
            words = b"".join(wire.encode(wire.REPLY, 0, m.pack([int(Status.TLS_REQUIRED), _NO_TLS])))
        say_last(mine, words)


class _NewConnection(asyncio.Protocol):
    """Gives way to a connection as soon as the handshake is over."""

    def __init__(self, admit: Callable[[asyncio.BaseTransport], None]) -> None:
        self._admit = admit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._admit(transport)
