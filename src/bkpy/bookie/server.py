"""The TCP server of a bookie: accepts connections, bounds them, and drains them at the end.

Invariants: no more than `connections_max` clients, and `newcomers_max` who have yet to introduce themselves; who owes
something, the rest of a frame or to read what it is sent, and makes no progress is closed, and so is who has vanished
without a word; what all connections receive into, and their answers in memory, are bounded; after `drain` every request
that was taken has been answered; while `read_only` is set, no entries are taken but those that a recovery writes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from bkpy.bookie.complaint import Complaint
from bkpy.bookie.connection import Connection
from bkpy.bookie.waiters import Waiters
from bkpy.config.address import split_address
from bkpy.errors import ConfigError
from bkpy.protocol.messages import Hello, Status
from bkpy.protocol.receive_buffer import ChunkPool, ReceiveBudget

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from bkpy.bookie.metrics import BookieMetrics
    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import Runtime
    from bkpy.storage.engine import LedgerStorage


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
        self.receiving = ReceiveBudget(settings.receive_bytes_max)
        self.answers = asyncio.Semaphore(settings.answers_at_once)
        self.requests = 0  # of all connections, but for appends
        self.waiters = Waiters()
        self.bookie_id = settings.bookie_id
        self.draining = False
        self.read_only = False
        self.log = logging.getLogger("bkpy.bookie")
        self._runtime = runtime
        self._instance_id = instance_id
        self._connections: dict[Connection, None] = {}  # in order of arrival, so that simulated runs repeat
        self._newcomers: dict[Connection, None] = {}  # those that have not introduced themselves
        self._memory_full = False
        (
            self.complain_of_frames,
            self._complain_of_newcomers,
            self._complain_of_clients,
            self._complain_of_silence,
        ) = (Complaint(self.log, runtime.clock, settings.complaint_interval_s) for _ in range(4))
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
        """A connection was accepted. Those that never introduced themselves go first when they are too many."""
        if self.draining:
            connection.abort()
            return
        self._connections[connection] = None
        self._newcomers[connection] = None
        if len(self._newcomers) > self.settings.newcomers_max:
            oldest = next(iter(self._newcomers))
            del self._newcomers[oldest]
            self.metrics.connection_refused()
            self._complain_of_newcomers(
                "refusing %s: %d others have not introduced themselves either", oldest.peer, self.settings.newcomers_max
            )
            oldest.abort()

    def closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._newcomers.pop(connection, None)
        self._answered.set()

    def answered(self) -> None:
        """A request has ended; only told while draining."""
        self._answered.set()

    def greet(self, connection: Connection, hello: Hello) -> tuple[Status, str]:
        """Whether the client has reached whom it meant, and may stay."""
        if hello.instance_id and hello.instance_id != self._instance_id:
            return Status.WRONG_BOOKIE, f"this bookie belongs to cluster {self._instance_id}, not {hello.instance_id}"
        if hello.bookie_id and hello.bookie_id != self.bookie_id:
            return Status.WRONG_BOOKIE, f"this is bookie {self.bookie_id}, not {hello.bookie_id}"
        clients = len(self._connections) - len(self._newcomers)
        if clients >= self.settings.connections_max:
            reason = f"{clients} clients are connected, which is the bookie's connections_max"
            self.metrics.connection_refused()
            self._complain_of_clients("refusing %s: %s", connection.peer, reason)
            return Status.TOO_MANY_REQUESTS, reason
        self._newcomers.pop(connection, None)
        return Status.OK, ""

    def spawn(self, coro: Coroutine[Any, Any, None], name: str, owner: Connection) -> None:
        """Run a request of `owner`; a defect in serving it costs that connection, not the bookie."""

        def died(error: BaseException) -> None:
            self.log.error("%s failed", name, exc_info=error)
            owner.abort()

        self._runtime.spawn(coro, name=name, on_death=died)

    # --- bounds -----------------------------------------------------------------------------------------------------

    def memory_full(self) -> None:
        """The storage takes no more for now: whoever writes is not read from."""
        if not self._memory_full:
            self._memory_full = True
            for connection in list(self._connections):
                if len(connection.keys):
                    connection.pause("memory")

    def _space(self) -> None:
        self._memory_full = False
        for connection in list(self._connections):
            connection.resume("memory")

    def _tick(self) -> None:
        """Count how long each connection has made no progress where it owes some.

        Counted in ticks and not by the clock: when this process itself was stopped for a while, nobody is to blame.
        """
        for connection in list(self._connections):
            allowed_s = connection.look()
            # One tick more than these has passed since it last made progress.
            if allowed_s is not None and connection.idle_ticks >= allowed_s / self.settings.tick_s:
                self._complain_of_silence(
                    "closing the connection from %s: nothing came, or was read, for too long", connection.peer
                )
                connection.abort()
        self._ticker = asyncio.get_running_loop().call_later(self.settings.tick_s, self._tick)
