"""The TCP server of a bookie: accepts connections, bounds them, and drains them at the end.

Invariants: no more than `connections_max` connections; one that neither introduces itself nor finishes the frame it has
begun is closed; after `drain` every request that was taken has been answered; while `read_only` is set, no entries are
taken but those that a recovery writes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

from bkpy.bookie.connection import Connection
from bkpy.bookie.metrics import BookieMetrics
from bkpy.bookie.waiters import Waiters
from bkpy.config import BookieSettings, split_address
from bkpy.errors import ConfigError
from bkpy.protocol.messages import Hello, Status
from bkpy.protocol.receive_buffer import ChunkPool
from bkpy.runtime import Runtime
from bkpy.storage.ledger_storage import LedgerStorage


class BookieServer:
    """Serves `storage` to clients. `instance_id` is the cluster's; clients that name another one are refused."""

    def __init__(
        self,
        settings: BookieSettings,
        storage: LedgerStorage,
        runtime: Runtime,
        *,
        instance_id: str,
        metrics: BookieMetrics,
    ) -> None:
        self.settings = settings
        self.storage = storage
        self.metrics = metrics
        # The memtable's two generations are what keeps most of them.
        self.chunks = ChunkPool(
            2 * settings.memtable_bytes_max // settings.receive_chunk_bytes_max + settings.receive_spare_chunks,
            bytes_min=settings.receive_chunk_bytes_min,
            bytes_max=settings.receive_chunk_bytes_max,
            room_bytes_min=settings.receive_room_bytes_min,
        )
        self.waiters = Waiters()
        self.bookie_id = settings.bookie_id
        self.draining = False
        self.read_only = False
        self.log = logging.getLogger("bkpy.bookie")
        self._runtime = runtime
        self._instance_id = instance_id
        self._connections: dict[Connection, None] = {}  # in order of arrival, so that simulated runs repeat
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._answered = asyncio.Event()
        metrics.watch(storage, lambda: len(self._connections), lambda: self.read_only)
        storage.on_space.append(self._space)

    async def start(self) -> int:
        """Listen; returns the port. `ConfigError` if the address can't be listened at."""
        host, port = split_address(self.settings.listen)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Connection(self), host, port, backlog=self.settings.listen_backlog
            )
        except OSError as e:
            raise ConfigError(f"can't listen at {self.settings.listen}: {e.strerror or e}") from e
        self._ticker = loop.call_later(self.settings.tick_s, self._tick)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def drain(self, timeout_s: float) -> None:
        """Stop accepting and reading, wait until what was taken is answered (or the time is up), close everything."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.pause("draining")
        self.waiters.end_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while any(c.busy for c in self._connections):
                    self._answered.clear()
                    await self._answered.wait()
        for connection in list(self._connections):
            connection.close()
        await asyncio.sleep(0)
        self.stop()

    def stop(self) -> None:
        """Close at once."""
        if self._server is not None:
            self._server.close()
        if self._ticker is not None:
            self._ticker.cancel()

    # --- the connections' calls -------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        if len(self._connections) >= self.settings.connections_max or self.draining:
            self.log.warning("refusing %s: %d connections are open", connection.peer, len(self._connections))
            connection.abort()
            return
        self._connections[connection] = None

    def closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._answered.set()

    def answered(self) -> None:
        """A request has ended; only told while draining."""
        self._answered.set()

    def greet(self, hello: Hello) -> tuple[Status, str]:
        """Whether the client has reached whom it meant."""
        if hello.instance_id and hello.instance_id != self._instance_id:
            return Status.WRONG_BOOKIE, f"this bookie belongs to cluster {self._instance_id}, not {hello.instance_id}"
        if hello.bookie_id and hello.bookie_id != self.bookie_id:
            return Status.WRONG_BOOKIE, f"this is bookie {self.bookie_id}, not {hello.bookie_id}"
        return Status.OK, ""

    def spawn(self, coro: Coroutine[Any, Any, None], name: str, owner: Connection) -> None:
        """Run a request of `owner`; a defect in serving it costs that connection, not the bookie."""

        def died(error: BaseException) -> None:
            self.log.error("%s failed", name, exc_info=error)
            owner.abort()

        self._runtime.spawn(coro, name=name, on_death=died)

    # --- bounds -----------------------------------------------------------------------------------------------------

    def _space(self) -> None:
        for connection in list(self._connections):
            connection.resume("memory")

    def _tick(self) -> None:
        """Count how long each connection has made no progress where it owes some.

        Counted in ticks and not by the clock: when this process itself was stopped for a while, nobody is to blame.
        """
        settings = self.settings
        for connection in list(self._connections):
            if not connection.owes_progress():
                continue
            if connection.greeted:
                allowed_s = settings.frame_stall_timeout_s
            else:
                allowed_s = (
                    settings.first_frame_stall_timeout_s if connection.mid_frame else settings.handshake_timeout_s
                )
            # One tick more than these has passed since it last sent something.
            if connection.idle_ticks >= allowed_s / settings.tick_s:
                self.log.warning("closing the connection from %s: nothing came for too long", connection.peer)
                connection.abort()
        self._ticker = asyncio.get_running_loop().call_later(settings.tick_s, self._tick)
