"""Sockets that a server has accepted, taken from it before anything is read from them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Callable

Socket: TypeAlias = socket.socket


class Accepted(asyncio.Protocol):
    """Gives the socket, and its client's address, to `begin`, whose own it is then."""

    def __init__(self, begin: Callable[[Socket, str], None]) -> None:
        self._begin = begin

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peername = transport.get_extra_info("peername")
        try:
            sock = _taken_from(transport)
            self._begin(sock, f"{peername[0]}:{peername[1]}" if peername else "?")
        except OSError:  # no files are left, or the client is gone already
            pass
        finally:
            cast("asyncio.Transport", transport).abort()


def second_handle(sock: Socket) -> Socket:
    """For a socket that is about to become TLS's, which closes its own. `OSError`: then the socket is closed."""
    try:
        return sock.dup()
    except OSError:
        sock.close()
        raise


def hang_up(sock: Socket) -> None:
    """End the connection, whoever else has a handle for the socket."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _taken_from(transport: asyncio.BaseTransport) -> Socket:
    """A handle of one's own for the transport's socket, whose connection outlives the transport. `OSError`."""
    taken: Socket = transport.get_extra_info("socket").dup()
    taken.setblocking(False)
    return taken
