"""One TCP connection to a bookie: bytes in, frames to the `Peer` that it is one of."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from bkpy.errors import BookKeeperError
from bkpy.protocol.receive_buffer import ReceiveBuffer

if TYPE_CHECKING:
    from bkpy.client.bookies.channel import Peer

log = logging.getLogger("bkpy.client")


class PeerConnection(asyncio.BufferedProtocol):
    """One TCP connection of a peer; `lost` is done when it has ended."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.transport: asyncio.Transport | None = None
        self.receive = ReceiveBuffer(peer.reply_bytes_max, peer.chunks)
        self.lost = asyncio.get_running_loop().create_future()
        self._reason: Exception | None = None

    def itself(self) -> PeerConnection:
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Flow control is by `congested`: the transport takes whatever it is given. With no buffer allowed, it writes at
        # once, and not only when everything else in this turn of the loop has run.
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one only by its methods
        self.transport.set_write_buffer_limits(0)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.receive.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self.receive.received(nbytes):
                self.peer.received(self, frame)
        except BookKeeperError as e:
            self.abort(e)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(exc)
        self.peer.connection_lost(self, exc or self._reason)

    def abort(self, error: BookKeeperError) -> None:
        self._reason = Exception(error.message)
        log.warning("closing the connection to bookie %s: %s", self.peer.bookie_id, error)
        if self.transport is not None:
            self.transport.abort()
