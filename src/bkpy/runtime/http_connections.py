"""The connections to a page over HTTP, bounded: strangers who hold them open take no files from the process.

Invariant: there are no more than so many, those that are at their TLS handshake among them; for one more, the oldest
is closed, so that whoever asks gets an answer however many others only sit there.
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
    """Each is served by a protocol that `serve` makes. With `tls`, after a handshake of at most `handshake_s`."""

    def __init__(
        self, serve: Callable[[], asyncio.Protocol], most: int, tls: TlsContext | None, handshake_s: float | None
    ) -> None:
        self._serve = serve
        self._most = most
        self._secured: dict[str, Any] = {"ssl": None}
        if tls is not None:
            self._secured = {"ssl": tls, "ssl_handshake_timeout": handshake_s, "ssl_shutdown_timeout": handshake_s}
        self._here: dict[Socket, None] = {}  # in order of arrival
        self._spawn = TaskSpawner()

    def new_connection(self) -> asyncio.BaseProtocol:
        """The protocol of the next socket that is accepted."""
        return Accepted(self._begin)

    def stop(self) -> None:
        """Hang up on all of them."""
        for sock in list(self._here):
            self._drop(sock)

    def _begin(self, sock: Socket, address: str) -> None:
        mine = second_handle(sock)
        self._here[mine] = None
        if len(self._here) > self._most:
            self._drop(next(iter(self._here)))
        self._spawn(self._look_after(sock, mine), name=f"page for {address}")

    def _drop(self, mine: Socket) -> None:
        self._here.pop(mine, None)
        hang_up(mine)

    async def _look_after(self, sock: Socket, mine: Socket) -> None:
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
    """Hands everything on to the protocol that serves it, and knows its end."""

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
