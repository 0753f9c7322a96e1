"""One TCP connection to a bookie: bytes in, frames to the channel that made it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol, cast

from bkpy.errors import BookKeeperError
from bkpy.protocol.wire.receive_buffer import ReceiveBuffer

if TYPE_CHECKING:
    from bkpy.protocol.wire import frame as wire
    from bkpy.protocol.wire.receive_buffer import ChunkPool

log = logging.getLogger("bkpy.client")


class ChannelOwner(Protocol):
    """The channel that made the connection. It makes another one after this one is lost."""

    bookie_id: str

    def received(self, connection: BookieConnection, frame: wire.Frame) -> None:
        """Take a received frame. A `BookKeeperError` closes the connection."""

    def connection_lost(self, connection: BookieConnection, error: Exception | None) -> None:
        """The connection has ended, because of `error` if that is known."""


class BookieConnection(asyncio.BufferedProtocol):
    """Takes replies of up to `reply_bytes_max` bytes, into `chunks`; `lost` is done when it has ended."""

    def __init__(self, owner: ChannelOwner, reply_bytes_max: int, chunks: ChunkPool | None) -> None:
        self.transport: asyncio.Transport | None = None
        self.receive = ReceiveBuffer(reply_bytes_max, chunks)
        self.lost = asyncio.get_running_loop().create_future()
        self._owner = owner
        self._reason: BookKeeperError | None = None

    def itself(self) -> BookieConnection:
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Flow control is by `congested`: the transport takes whatever it is given. With no buffer allowed, it writes at
        # once, and not only when everything else in this tick of the event loop has run.
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one only by its methods
        self.transport.set_write_buffer_limits(0)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.receive.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self.receive.received(nbytes):
                self._owner.received(self, frame)
        except BookKeeperError as e:
            self.abort(e)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(exc)
        self._owner.connection_lost(self, exc or self._reason)

    def abort(self, error: BookKeeperError) -> None:
        self._reason = error
        log.warning("closing the connection to bookie %s: %s", self._owner.bookie_id, error)
        if self.transport is not None:
            self.transport.abort()
