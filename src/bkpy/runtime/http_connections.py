"""The connections to a page over HTTP, bounded: strangers who hold them open take no files from the process.

Invariant: there are at most `connections_max`, including connections in their TLS handshake. For one more, the oldest
is closed, so that a new client gets an answer however many others only sit there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from bkpy.runtime.accepted import Accepted, Socket, hang_up, second_handle
from bkpy.runtime.process import TaskSpawner

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.runtime.tls import TlsContext


class HttpConnections:
    """`serve` makes a protocol for each connection. With `tls`, after a handshake of at most `handshake_s`."""

    def __init__(
        self,
        serve: Callable[[], asyncio.Protocol],
        connections_max: int,
        tls: TlsContext | None,
        handshake_s: float | None,
    ) -> None:
        self._serve = serve
        self._connections_max = connections_max
        self._secured: dict[str, Any] = {"ssl": None}
        if tls is not None:
            self._secured = {"ssl": tls, "ssl_handshake_timeout": handshake_s, "ssl_shutdown_timeout": handshake_s}
        self._here: dict[Socket, None] = {}  # in order of arrival
        self._spawn = TaskSpawner()

    def new_connection(self) -> asyncio.BaseProtocol:
        """The protocol of the next socket that is accepted."""
        return Accepted(self._begin)

    def stop(self) -> None:
        """Close all of them."""
        for sock in list(self._here):
            self._drop(sock)

    def _begin(self, sock: Socket, address: str) -> None:
        mine = second_handle(sock)
        self._here[mine] = None
        if len(self._here) > self._connections_max:
            self._drop(next(iter(self._here)))
        self._spawn(self._serve_connection(sock, mine), name=f"page for {address}")

    def _drop(self, mine: Socket) -> None:
        self._here.pop(mine, None)
        hang_up(mine)

    async def _serve_connection(self, sock: Socket, mine: Socket) -> None:
        connection = _HttpConnection(self._serve())
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock, **self._secured)
            await connection.gone.wait()
        except OSError:
            pass  # its handshake failed
        finally:
            self._here.pop(mine, None)
            mine.close()


class _HttpConnection(asyncio.Protocol):
    """Hands all events on to the protocol that serves the connection, and knows when it ends."""

    def __init__(self, served_by: asyncio.Protocol) -> None:
        self.gone = asyncio.Event()
        self._served_by = served_by

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._served_by.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._served_by.data_received(data)

    def eof_received(self) -> bool | None:
        return self._served_by.eof_received()

    def pause_writing(self) -> None:
        self._served_by.pause_writing()

    def resume_writing(self) -> None:
        self._served_by.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        try:
            self._served_by.connection_lost(exc)
        finally:
            self.gone.set()
