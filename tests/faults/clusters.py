"""Clusters whose clients reach every bookie through a proxy of its own.

`ProxiedNodes` has its bookies and its metadata in this process: quick, for what connections can do. `ProxiedCluster`
has a real ZooKeeper and a process for each bookie, which can be killed, suspended and started again. The client is
led through the proxies by the address that each bookie advertises; bookies themselves know nothing of them.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import bkpy
from bkpy.bookie.node import BookieNode
from bkpy.client.client import Client, open_client
from bkpy.config.client import client_settings
from bkpy.config.loading import load_bookie_settings
from bkpy.local import LocalBookie, LocalCluster
from bkpy.local.process import free_port
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.store.memory import MemoryStore
from bkpy.runtime.system import real_runtime
from tests.hooks import pool_of
from tests.waiting import eventually

from .proxy import HOST, Proxy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType

ROOT = "/ledgers"


class ProxiedNodes:
    """Bookies a, b, c ... in this process, behind `proxies`, on a metadata store in memory; and clients of them.

    `async with ProxiedNodes(directory, bookies=4, **settings of the bookies) as cluster`.
    """

    def __init__(self, directory: Path, *, bookies: int = 3, seed: int = 0, **settings: Any) -> None:
        self.tree = MemoryStore(real_runtime())
        self.proxies: dict[str, Proxy] = {}
        self.nodes: dict[str, BookieNode] = {}
        self.clients: list[Client] = []
        self._directory = directory
        self._settings = settings
        ports: list[int] = []
        for i in range(bookies):
            proxy = Proxy(free_port(ports), seed=seed, taken=ports)
            self.proxies["abcdefghijklmnopqrstuvwxyz"[i]] = proxy
            ports += (proxy.upstream_port, proxy.port)

    async def start(self) -> None:
        await init_cluster(self.tree.session(), ROOT)
        for bookie_id, proxy in self.proxies.items():
            await proxy.start()
            await self.start_bookie(bookie_id)

    async def stop(self) -> None:
        for client in self.clients:
            await client.close()
        await asyncio.gather(*(proxy.stop() for proxy in self.proxies.values()))
        for bookie_id in list(self.nodes):
            await self.stop_bookie(bookie_id)

    async def client(self, **settings: Any) -> Client:
        """One more client, closed at the end."""
        client = await open_client(self.tree.session(), ROOT, real_runtime(), client_settings(**settings))
        self.clients.append(client)
        return client

    async def start_bookie(self, bookie_id: str) -> None:
        """Start one that was stopped, with its data and at its address."""
        proxy = self.proxies[bookie_id]
        flags = {
            "metadata_uri": f"zk://127.0.0.1:1{ROOT}",  # for the settings to be valid; the store is handed over
            "bookie_id": bookie_id,
            "listen": f"{HOST}:{proxy.upstream_port}",
            "advertised_address": proxy.address,
            "journal_directories": str(self._directory / bookie_id / "journal"),
            "ledger_directories": str(self._directory / bookie_id / "ledgers"),
            "journal_max_size_mb": "1",  # files are allocated in full, for every bookie of every test
            **{name: str(value) for name, value in self._settings.items()},
        }
        node = BookieNode(load_bookie_settings(None, {}, flags), self.tree.session(), ROOT, real_runtime())
        await node.start()
        self.nodes[bookie_id] = node

    async def stop_bookie(self, bookie_id: str) -> None:
        """A clean stop: what is in flight is answered, the bookie is no longer registered."""
        await self.nodes.pop(bookie_id).stop()

    async def heal(self) -> None:
        """End the faults of all proxies."""
        for proxy in self.proxies.values():
            await proxy.heal()

    async def __aenter__(self) -> ProxiedNodes:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class ProxiedCluster(LocalCluster):
    """A local cluster whose bookies advertise the address of a proxy. Bound to the event loop that starts it."""

    def __init__(
        self, directory: Path, bookies: int = 4, config: Mapping[str, Any] | None = None, *, seed: int = 0
    ) -> None:
        super().__init__(directory, bookies, config)
        self.proxies: dict[str, Proxy] = {}
        self._seed = seed

    def bookie(self, bookie_id: str) -> LocalBookie:
        return next(bookie for bookie in self.bookies if bookie.id == bookie_id)

    async def start(self) -> None:
        await super().start()
        await self._start_proxies()

    async def add_bookie(self) -> LocalBookie:
        bookie = await super().add_bookie()
        await self._start_proxies()
        return bookie

    async def stop(self) -> None:
        await self._stop_proxies()
        await super().stop()

    async def kill(self) -> None:
        """SIGKILL to everything; the proxies refuse connections from then on."""
        await self._stop_proxies()
        await super().kill()

    def write_config(self, bookie: LocalBookie) -> Path:
        path = super().write_config(bookie)
        if bookie.id not in self.proxies:
            taken = [port for proxy in self.proxies.values() for port in (proxy.port, proxy.upstream_port)]
            taken += [other.port for other in self.bookies]
            self.proxies[bookie.id] = Proxy(bookie.port, seed=self._seed, taken=taken)
        with path.open("a") as file:
            file.write(f"advertised_address = {json.dumps(self.proxies[bookie.id].address)}\n")
        return path

    async def heal(self) -> None:
        """End the faults of all proxies."""
        for proxy in self.proxies.values():
            await proxy.heal()

    async def mend(self) -> None:
        """Everything runs again, and every bookie can be reached."""
        for bookie in self.bookies:
            bookie.resume()
            await bookie.start()
        await self.heal()

    async def _start_proxies(self) -> None:
        for proxy in self.proxies.values():
            await proxy.start()

    async def _stop_proxies(self) -> None:
        await asyncio.gather(*(proxy.stop() for proxy in self.proxies.values()))


async def reached(client: bkpy.Client, bookie: LocalBookie) -> None:
    """Wait until the client is connected to the bookie."""
    channel = pool_of(client).channel(bookie.id)

    async def connected() -> bool:
        await channel.connect()
        return channel.up

    await eventually(connected, f"{bookie.id} is reached", meanwhile=bkpy.BookieUnavailableError)
