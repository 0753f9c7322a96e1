"""Sockets that a server has accepted: taking them from asyncio before it reads from them, and their kernel options."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Callable

Socket: TypeAlias = socket.socket

_ENDED_STATES: Final = (7, 8, 9)  # TCP_CLOSE, TCP_CLOSE_WAIT, TCP_LAST_ACK: the client closed it, or it broke


class Accepted(asyncio.Protocol):
    """Gives the socket, and its client's address, to `begin`, which owns the socket from then on."""

    def __init__(self, begin: Callable[[Socket, str], None]) -> None:
        self._begin = begin

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peername = transport.get_extra_info("peername")
        try:
            sock = taken_from(transport)
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
    """End the connection, even if other handles for the socket are open."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def say_last(sock: Socket, words: bytes) -> None:
    """Send these bytes and no more: without words, too, the other end need not wait for its time-out."""
    with contextlib.suppress(OSError):
        sock.send(words)
        sock.shutdown(socket.SHUT_WR)


async def read_out(sock: Socket, timeout_s: float) -> None:
    """Read until the other end closes, for `timeout_s` at most, so that it gets to `say_last`'s words.

    A socket that is closed with bytes unread, or before the next ones come, answers with a reset: then the other end's
    writes fail, or its kernel discards the words.
    """
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(timeout_s):
            while await loop.sock_recv(sock, 4096):
                pass


def taken_from(transport: asyncio.BaseTransport) -> Socket:
    """A handle of one's own for the transport's socket, whose connection outlives the transport. `OSError`."""
    taken: Socket = transport.get_extra_info("socket").dup()
    taken.setblocking(False)
    return taken


def detect_vanished_client(sock: Socket, keepalive_interval_s: int, vanished_timeout_s: float) -> None:
    """Let the kernel probe the client's machine, however idle the client is.

    The connection breaks when the machine has acknowledged nothing for `vanished_timeout_s` seconds. A client that is
    only silent, or suspended, keeps its connection: its kernel answers.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, keepalive_interval_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, keepalive_interval_s)
        milliseconds = max(1, int(vanished_timeout_s * 1000))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def closed_by_client(sock: Socket) -> bool:
    """Whether the client has closed a connection that the bookie doesn't read from. Only the kernel knows then.

    Also of a socket that is closed here: with TLS, `connection_lost` is called a turn of the loop later.
    """
    if not hasattr(socket, "TCP_INFO"):
        return False
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _ENDED_STATES
    except (OSError, ValueError):  # uvloop's has a negative descriptor then
        return True
