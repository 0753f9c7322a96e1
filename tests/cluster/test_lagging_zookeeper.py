"""Three real ZooKeeper servers, one of which hears nothing from its leader for a while."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from tests.cluster.test_metadata_ledgers import builder, created
from tests.hooks import change_members

from bkpy.local.process import free_port
from bkpy.local.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from bkpy.metadata.cluster import init_cluster, open_cluster
from bkpy.metadata.connect import connect_store
from bkpy.runtime.system import real_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from bkpy.metadata.store.store import MetadataStore

DEADLINE_S = 60.0


class Link:
    """A TCP proxy to one port of a server; what comes back from there can be held up."""

    def __init__(self, upstream_port: int) -> None:
        self.port = free_port([upstream_port])
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.connections = 0
        self._upstream_port = upstream_port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        except OSError:
            writer.close()
            return
        self.connections += 1
        for source, sink, held in ((reader, forth, False), (back, writer, True)):
            task = asyncio.create_task(self._pump(source, sink, held))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, held: bool) -> None:
        try:
            while data := await source.read(65536):
                if held:
                    await self.flowing.wait()
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()


class Lagging:
    """An ensemble whose first server reaches the others, as their follower, through `links`."""

    def __init__(self, directory: Path) -> None:
        self.ensemble = ZooKeeperEnsemble(directory)
        first = self.ensemble.servers[0]
        self.links: list[Link] = []

        def linked(lines: list[str]) -> list[str]:
            for index in (1, 2):  # server.N=host:peer port:election port
                host, peer, election = lines[index].rsplit(":", 2)
                link = Link(int(peer))
                self.links.append(link)
                lines[index] = f"{host}:{link.port}:{election}"
            return lines

        change_members(first, linked)

    @property
    def follower(self) -> ZooKeeperServer:
        return self.ensemble.servers[0]

    def hold(self) -> None:
        for link in self.links:
            link.flowing.clear()

    def release(self) -> None:
        for link in self.links:
            link.flowing.set()


@asynccontextmanager
async def session(server: ZooKeeperServer) -> AsyncIterator[MetadataStore]:
    store, _ = await connect_store(f"zk://{server.connect_string}/x", real_runtime(), session_timeout_s=30.0)
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def lagging(tmp_path: Path) -> AsyncIterator[Lagging]:
    made = Lagging(tmp_path)
    for link in made.links:
        await link.start()
    try:
        # The others first: a majority, of which one becomes the leader.
        for server in made.ensemble.servers[1:]:
            server.launch()
        for server in made.ensemble.servers[1:]:
            await server.wait_ready()
        await made.follower.start()
        assert any(link.connections for link in made.links)
        yield made
    finally:
        made.release()
        await made.ensemble.stop()
        for link in made.links:
            await link.stop()


@pytest.mark.exhaustive
async def test_a_server_that_lags_behind_denies_a_ledger_only_when_it_has_caught_up(lagging: Lagging) -> None:
    async with session(lagging.ensemble.servers[2]) as ahead, session(lagging.follower) as behind:
        catalog = (await init_cluster(ahead, "/ledgers")).catalog
        late = (await open_cluster(behind, "/ledgers")).catalog
        await created(catalog, builder("first"))
        lagging.hold()
        metadata, version = await created(catalog, builder("second"))
        assert not await behind.exists(catalog.path_of(metadata.ledger_id))  # the server says so, and is wrong
        catching_up = asyncio.Event()
        sync = behind.sync

        async def seen(path: str) -> None:
            catching_up.set()
            await sync(path)

        behind.sync = seen  # type: ignore[method-assign]
        reading = asyncio.create_task(late.read(metadata.ledger_id))
        asked = asyncio.create_task(catching_up.wait())
        await asyncio.wait([reading, asked], return_when=asyncio.FIRST_COMPLETED, timeout=DEADLINE_S)
        assert not reading.done()
        lagging.release()
        async with asyncio.timeout(DEADLINE_S):
            assert await reading == (metadata, version)
