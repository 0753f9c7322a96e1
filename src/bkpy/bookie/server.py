"""The TCP server of a bookie: accepts connections, bounds them, and lets them finish at the end.

Invariants: there are no more than `connections_max` clients, and `new_connections_max` that have not yet shaken hands;
the server disconnects a client that stalls, in the middle of a frame or in reading its replies, and one that has
vanished without closing; after `finish` it has answered every request that it had accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, cast

from bkpy.bookie.connection.connection import Connection
from bkpy.bookie.connection.handshakes import Handshakes
from bkpy.config.address import split_address
from bkpy.errors import ConfigError
from bkpy.protocol.access import Right
from bkpy.protocol.wire.messages import Hello, Status

if TYPE_CHECKING:
    from bkpy.bookie.connection.served import NewConnection, ServedConnection
    from bkpy.bookie.credentials import Credentials
    from bkpy.bookie.service import BookieService


class BookieServer:
    """Owns the connections to `service`. `instance_id` is the cluster's; the server refuses clients that name another.

    With certificates among its `credentials` it speaks TLS only. `new_connection` makes connections of another
    protocol than bkpy's, which begin in the clear.
    """

    def __init__(
        self,
        service: BookieService,
        credentials: Credentials,
        *,
        instance_id: str,
        new_connection: NewConnection | None = None,
    ) -> None:
        self._service = service
        self._settings = service.settings
        self._instance_id = instance_id
        self._connections: dict[ServedConnection, None] = {}  # in order of arrival, so that simulated runs repeat
        self._new_connections: dict[ServedConnection, None] = {}  # they have not sent HELLO yet
        self._memory_full = False
        self._complain_of_new_connections = service.complaint()
        self._complain_of_clients = service.complaint()
        self._complain_of_rights = service.complaint()
        self._complain_of_silence = service.complaint()
        self._credentials = credentials
        self._handshakes: Handshakes | None = None
        self._connect = new_connection or Connection
        if credentials.certificates is not None and new_connection is None:
            self._handshakes = Handshakes(service, credentials.certificates, self._new_connection)
        credentials.on_rights.append(self._rights_changed)
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.TimerHandle | None = None
        service.metrics.watch(service.storage, lambda: len(self._connections), lambda: service.read_only)
        service.storage.on_space.append(self._space)
        service.storage.ledgers.on_key_void.append(self._key_void)
        service.storage.ledgers.writable = self._writable

    async def start(self) -> int:
        """Listen; returns the port. `ConfigError` if the address can't be listened at."""
        host, port = split_address(self._settings.listen)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._new_connection if self._handshakes is None else self._handshakes.new_connection,
                host,
                port,
                backlog=self._settings.listen_backlog,
            )
        except OSError as e:
            raise ConfigError(f"can't listen at {self._settings.listen}: {e.strerror or e}") from e
        self._ticker = loop.call_later(self._settings.tick_s, self._tick)
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def _new_connection(self) -> Connection:
        return cast("Connection", self._connect(self._service, self))

    async def finish(self, timeout_s: float) -> None:
        """Stop accepting and reading, answer accepted requests for at most `timeout_s`, and close all connections."""
        self._service.wind_down()
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.pause("stopping")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                # Requests of connections that are gone use the storage as well.
                while self._service.requests_in_flight or any(c.busy for c in self._connections):
                    self._service.request_end.clear()
                    await self._service.request_end.wait()
        for connection in list(self._connections):
            connection.close()
        await asyncio.sleep(0)
        self.stop()

    def stop(self) -> None:
        """Close at once."""
        if self._server is not None:
            self._server.close()
        if self._handshakes is not None:
            self._handshakes.stop()
        if self._ticker is not None:
            self._ticker.cancel()

    # --- the connections' calls -------------------------------------------------------------------------------------

    def opened(self, connection: ServedConnection) -> None:
        """Keep it. When too many connections have not sent HELLO yet, refuse the oldest of them."""
        if self._service.stopping:
            connection.abort()
            return
        self._connections[connection] = None
        self._new_connections[connection] = None
        if len(self._new_connections) > self._settings.new_connections_max:
            oldest = next(iter(self._new_connections))
            del self._new_connections[oldest]
            self._service.metrics.connection_refused()
            self._complain_of_new_connections(
                "refused %s: %d newer connections have not sent HELLO either (new_connections_max)",
                oldest.address,
                self._settings.new_connections_max,
            )
            oldest.abort()

    def rights_of(self, names: tuple[str, ...]) -> Right:
        return self._credentials.rights_of(names)

    def _rights_changed(self) -> None:
        for connection in list(self._connections):
            connection.know_rights()

    def greet(self, connection: ServedConnection, hello: Hello) -> tuple[Status, str]:
        """Whether the client has reached the bookie that it meant, and may stay."""
        bookie_id = self._service.bookie_id
        if not self.rights_of(connection.names) & (Right.READ | Right.WRITE):
            reason = connection.no_right("read or write")
            self._service.metrics.connection_refused()
            self._complain_of_rights("refused %s: %s", connection.address, reason)
            return Status.FORBIDDEN, reason
        if hello.instance_id and hello.instance_id != self._instance_id:
            return Status.WRONG_BOOKIE, f"this bookie belongs to cluster {self._instance_id}, not {hello.instance_id}"
        if hello.bookie_id and hello.bookie_id != bookie_id:
            return Status.WRONG_BOOKIE, f"this is bookie {bookie_id}, not {hello.bookie_id}"
        clients = len(self._connections) - len(self._new_connections)
        if clients >= self._settings.connections_max:
            reason = f"{clients} clients are connected, which is the bookie's connections_max"
            self._service.metrics.connection_refused()
            self._complain_of_clients("refused %s: %s", connection.address, reason)
            return Status.TOO_MANY_REQUESTS, reason
        self._new_connections.pop(connection, None)
        return Status.OK, ""

    def closed(self, connection: ServedConnection) -> None:
        self._connections.pop(connection, None)
        self._new_connections.pop(connection, None)
        self._service.request_ended()

    def memory_full(self) -> None:
        """Read from no client that writes until there is memory again."""
        if not self._memory_full:
            self._memory_full = True
            for connection in list(self._connections):
                if len(connection.keys):
                    connection.pause("memory")

    def _key_void(self, ledger_id: int) -> None:
        """From now on, appends to the ledger need its state first."""
        for connection in self._connections:
            connection.keys.withdraw(ledger_id)

    def _writable(self, ledger_ids: set[int]) -> set[int]:
        """The ledgers among these that some client may append to without a look at their state."""
        return set().union(*(ledger_ids & connection.keys.authorised for connection in self._connections))

    # --- bounds -----------------------------------------------------------------------------------------------------

    def _space(self) -> None:
        self._memory_full = False
        for connection in list(self._connections):
            connection.resume("memory")

    def _tick(self) -> None:
        """Count how long each stalled client has made no progress, and disconnect those at their timeout.

        Counts ticks and not the clock's time: clients are not to blame when this process itself was stopped for a
        while.
        """
        self._service.storage.memory.measure()
        for connection in list(self._connections):
            allowed_s = connection.count_idle_tick()
            # One tick more than these has passed since the client last made progress.
            if allowed_s is not None and connection.stalls.ticks >= allowed_s / self._settings.tick_s:
                self._complain_of_silence(
                    "closing the connection from %s: it stalled, in sending or in reading, for longer than %g s",
                    connection.address,
                    allowed_s,
                )
                connection.abort()
        self._ticker = asyncio.get_running_loop().call_later(self._settings.tick_s, self._tick)
