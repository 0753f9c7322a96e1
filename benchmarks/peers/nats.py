"""NATS JetStream on this machine: built with Go, three clustered servers on loopback, and a Go client.

Every process dies with this one. README.md says why the settings are these.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING, Any, Final

from peer import HERE, HOST, Peer, PeerError, Setting, cache_directory, run, until_serving

from bkpy.local.process import ManagedProcess, accepts_connections, free_port

if TYPE_CHECKING:
    from pathlib import Path

    from rows import Row

SERVERS: Final = 3
VERSION: Final = "2.15.2"
SYNCED: Final = Setting("nats synced", "NATS, synced", "sync_interval: always, R3: every write is synced")

SERVER_CONFIG: Final = """\
server_name: {name}
listen: 127.0.0.1:{port}
jetstream {{
  store_dir: "{directory}/data"
  max_memory_store: 64MB
  max_file_store: 16GB
  sync_interval: always
}}
cluster {{
  name: bench
  listen: 127.0.0.1:{cluster_port}
  routes: [{routes}]
}}
"""


def fetch() -> tuple[Path, Path]:
    """The server and our client for it, built on the first call."""
    go = shutil.which("go")
    if go is None:
        raise PeerError("go is missing: NATS and its client are built with Go, 1.26 or newer")
    home = cache_directory() / f"nats-{VERSION}"
    server, client = home / "nats-server", home / "natsbench"
    home.mkdir(parents=True, exist_ok=True)
    if not server.exists():
        run([go, "install", f"github.com/nats-io/nats-server/v2@v{VERSION}"], env={**os.environ, "GOBIN": str(home)})
    run([go, "build", "-o", str(client), "."], cwd=HERE / "natsbench")
    return server, client


class Server:
    """One server process; its ports and directory are its own."""

    def __init__(self, name: str, base: Path) -> None:
        self.name = name
        self.port = free_port()
        self.cluster_port = free_port((self.port,))
        self.directory = base / name
        self.process = ManagedProcess(self.directory / "nats.log")

    def start(self, program: Path, routes: str) -> None:
        self.directory.mkdir(parents=True)
        config = self.directory / "nats.conf"
        values = {"name": self.name, "directory": self.directory, "routes": routes}
        config.write_text(SERVER_CONFIG.format(port=self.port, cluster_port=self.cluster_port, **values))
        self.process.spawn([str(program), "--config", str(config)])

    async def until_serving(self) -> None:
        await until_serving(self.process, lambda: accepts_connections(HOST, self.port))


class Nats(Peer):
    """Three servers, and one client process that measures them."""

    settings = (SYNCED,)

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._server, self._client = fetch()
        self.versions = {"nats-server": VERSION}
        self._servers = [Server(f"nats-{i}", directory) for i in range(1, SERVERS + 1)]

    async def start(self) -> None:
        routes = ", ".join(f"nats://{HOST}:{server.cluster_port}" for server in self._servers)
        for server in self._servers:
            server.start(self._server, routes)
        for server in self._servers:
            await server.until_serving()
        addresses = [f"{server.name}=nats://{HOST}:{server.port}" for server in self._servers]
        await self.client.start([str(self._client), *addresses])

    def server_pids(self) -> list[int | None]:
        return [server.process.pid for server in self._servers]

    def ways(self, row: Row) -> tuple[str, ...]:
        return ("PublishAsync",)

    def stand_in(self, row: Row) -> str | None:
        return None if row.ledgers == 1 else f"one stream of {row.ledgers} subjects"

    async def open(self, row: Row, setting: Setting) -> None:
        await self.command("open", 1, row.ledgers)

    async def append(self, row: Row, way: str, seconds: float) -> dict[str, Any]:
        return await self.command("append", row.size, row.outstanding, seconds)

    async def kill_servers(self) -> None:
        await asyncio.gather(*(server.process.kill() for server in self._servers))
