"""Whether a ZooKeeper server that hangs up on a plain connection wants TLS: one that isn't ready hangs up, too."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

# The kinds of TLS records that a server answers a greeting with, a refusal or a greeting, and the version before it.
_ALERT, _HANDSHAKE, _MAJOR = 0x15, 0x16, 0x03


class SpeaksTlsError(ConnectionResetError):
    """The server speaks TLS at this port, and this side does not."""

    def __init__(self) -> None:
        super().__init__("the server speaks TLS at this port: give zookeeper_tls_ca_file")


async def speaks_tls(host: str, port: int) -> bool:
    """Whether a greeting in TLS is answered in TLS. Nothing else is sent. The caller puts a timeout round it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing that the server says here is used
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    try:
        writer.write(outgoing.read())
        kind, major = await reader.readexactly(2)
    except (OSError, asyncio.IncompleteReadError):
        return False
    finally:
        writer.transport.abort()
    return kind in (_ALERT, _HANDSHAKE) and major == _MAJOR
