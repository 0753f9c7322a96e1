"""Bookies and clients in one process, on the in-memory store: real sockets and disks, and faults on command."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bkpy.bookie.connection import Connection
from bkpy.bookie.node import BookieNode
from bkpy.client.connect import Client
from bkpy.config import client_settings, load_bookie_settings
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.memory import MemoryStore
from bkpy.runtime import real_runtime

ROOT = "/ledgers"
DEADLINE_S = 30


class InProcess:
    """Bookies by name, and clients of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tree = MemoryStore(real_runtime())
        self.nodes: list[BookieNode] = []
        self.clients: list[Client] = []
        self._settings: dict[str, Any] = {}
        self._ports: dict[str, int] = {}

    async def start(self, names: Sequence[str] = ("a", "b", "c"), **settings: Any) -> None:
        self._settings = settings
        await init_cluster(self.tree.session(), ROOT)
        for name in names:
            await self.add(name)

    async def add(self, name: str) -> BookieNode:
        """Start a bookie; one of that name that has ended before is started again."""
        flags = {
            "metadata_uri": f"zk://127.0.0.1:1{ROOT}",
            "bookie_id": name,
            "listen": f"127.0.0.1:{self._ports.get(name, 0)}",
            "journal_directories": str(self.directory / name / "journal"),
            "ledger_directories": str(self.directory / name / "ledgers"),
            **{key: str(value) for key, value in self._settings.items()},
        }
        node = BookieNode(load_bookie_settings(None, {}, flags), self.tree.session(), ROOT, real_runtime())
        await node.start()
        self._ports[name] = int(node.address.rpartition(":")[2])
        self.nodes = [other for other in self.nodes if other.settings.bookie_id != name] + [node]
        return node

    def node(self, name: str) -> BookieNode:
        return next(node for node in self.nodes if node.settings.bookie_id == name)

    def connections(self, name: str) -> list[Connection]:
        server = self.node(name)._server
        assert server is not None
        return list(server._connections)

    def kill(self, name: str) -> None:
        """The bookie is gone at once, as far as clients can tell; its registration is still there."""
        server = self.node(name)._server
        assert server is not None
        server.stop()
        for connection in self.connections(name):
            connection.abort()

    def hang(self, name: str) -> None:
        """Connections stay open, and nothing that comes by them is read; nor is anything by new ones."""
        for connection in self.connections(name):
            connection.pause("hung")
        server = self.node(name)._server
        assert server is not None
        opened = server.opened

        def open_and_hang(connection: Connection) -> None:
            opened(connection)
            connection.pause("hung")

        server.opened = open_and_hang  # type: ignore[method-assign]

    def refuse(self, name: str) -> None:
        """New connections are closed at once, until `admit`."""
        server = self.node(name)._server
        assert server is not None
        server.opened = lambda connection: connection.abort()  # type: ignore[method-assign]

    def admit(self, name: str) -> None:
        server = self.node(name)._server
        assert server is not None
        vars(server).pop("opened", None)

    async def client(self, **settings: Any) -> Client:
        client = await Client.on_store(self.tree.session(), ROOT, real_runtime(), client_settings(**settings))
        self.clients.append(client)
        return client

    async def stop(self) -> None:
        for client in self.clients:
            await client.close()
        for node in self.nodes:
            await node.stop()


async def contents(client: Client, ledger_id: int, password: bytes = b"") -> list[bytes]:
    reader = await client.open_ledger(ledger_id, password=password)
    return [entry.data async for entry in reader.read()]


async def eventually(condition: Any) -> None:
    """Return once `condition()` is true."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)
