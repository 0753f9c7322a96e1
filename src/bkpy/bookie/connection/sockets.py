"""What the kernel is to do for an accepted connection. Imports `socket`: asyncio doesn't cover these options."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bkpy.runtime.accepted import Socket

_HAS_ENDED: Final = (7, 8, 9)  # TCP_CLOSE, TCP_CLOSE_WAIT, TCP_LAST_ACK: the client closed it, or it broke


def watch_over(sock: Socket, keepalive_interval_s: int, vanished_timeout_s: float) -> None:
    """Let the kernel find out whether the client's machine is still there, however idle the client is.

    The connection breaks when that machine has acknowledged nothing for `vanished_timeout_s` seconds; a client that is
    merely silent, or suspended, is not harmed, since its kernel answers for it.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, keepalive_interval_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, keepalive_interval_s)
        milliseconds = max(1, int(vanished_timeout_s * 1000))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


def has_ended(sock: Socket) -> bool:
    """Whether the client has closed the connection. For one that isn't read from: nothing else tells of its end."""
    return hasattr(socket, "TCP_INFO") and sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _HAS_ENDED
