"""What the kernel is to do for an accepted connection. Imports `socket`: the loop has no words for these options."""

from __future__ import annotations

import socket


def watch_over(sock: socket.socket, keepalive_interval_s: int, vanished_timeout_s: float) -> None:
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
