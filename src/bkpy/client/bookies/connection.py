"""One TCP connection to a bookie: bytes in, frames to the channel that made it.

A channel knows its connection as a `ChannelConnection`: in a BookKeeper cluster that is another one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol, cast

from bkpy.errors import BookKeeperError
from bkpy.protocol.wire.receive_buffer import ReceiveBuffer

if TYPE_CHECKING:
    from bkpy.buffers import Bytes
    from bkpy.client.bookies.dialling import Dialler
    from bkpy.protocol.wire import frame as wire
    from bkpy.protocol.wire.receive_buffer import ChunkPool

log = logging.getLogger("bkpy.client")


class FrameWriter(Protocol):
    """The part of a transport that a channel uses."""

    def is_closing(self) -> bool: ...

    def writelines(self, buffers: list[Bytes], /) -> None:
        """Send one frame."""

    def abort(self) -> None: ...


class Retaining(Protocol):
    """The part of a receive buffer that a channel uses."""

    def retain(self) -> None: ...


class ChannelConnection(Protocol):
    """What a channel knows of its connection. `transport` is None until it is connected."""

    lost: asyncio.Future[Any]

    @property
    def transport(self) -> FrameWriter | None: ...

    @property
    def receive(self) -> Retaining: ...

    async def open(self, dialler: Dialler, address: str) -> None: ...

    def abort(self, error: BookKeeperError) -> None: ...


class ChannelOwner(Protocol):
    """The channel that made the connection. It makes another one after this one is lost."""

    bookie_id: str

    def received(self, connection: ChannelConnection, frame: wire.Frame) -> None:
        """Take a received frame. A `BookKeeperError` closes the connection."""

    def connection_lost(self, connection: ChannelConnection, error: Exception | None) -> None:
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

    async def open(self, dialler: Dialler, address: str) -> None:
        """Connect to "host:port". Raises errors that `dialler.not_reached` translates. The caller sets a timeout."""
        await dialler.dial(self.itself, address)

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
