"""Real bookies and real clients in one process, on the metadata store in memory."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import shutil
from typing import TYPE_CHECKING, Any, cast

from bkpy.bookie.node import BookieNode
from bkpy.client.client import Client, open_client
from bkpy.config.client import client_settings
from bkpy.config.loading import load_bookie_settings
from bkpy.local.process import free_port
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.store.memory import MemoryStore
from bkpy.metadata.store.outcome import Done, PutOutcome
from bkpy.metadata.store.resolve import create_certainly, ensure_path
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op
from bkpy.replication.integrity import IntegrityCheck
from bkpy.runtime.system import SystemRuntime, real_runtime
from tests.hooks import cluster_of, connections_of, server_of, service_of, storage_of
from tests.sim.disk import SimDisk, SimWorker
from tests.sim.loop import SimLoop
from tests.sim.net import SimNet
from tests.sim.runtime import SimClock, sim_runtime

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from prometheus_client import CollectorRegistry

    from bkpy.bookie.background_services import NewBackgroundService
    from bkpy.bookie.connection.connection import Connection
    from bkpy.bookie.server import BookieServer
    from bkpy.bookie.service import BookieService
    from bkpy.client.bookies.channel import BookieChannel
    from bkpy.errors import BookKeeperError
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.runtime.interfaces import Files
    from bkpy.storage.engine import LedgerStorage
    from bkpy.storage.losses import Losses

ROOT = "/ledgers"
DEADLINE_S = 30  # generous: only what never happens takes so long
_TURN_S = 20e-6  # about what a turn of a real loop takes


def virtual_loop() -> SimLoop:
    """A loop in virtual time, which also goes on for a test that looks at each turn."""
    loop = SimLoop(_TURN_S)
    loop.set_exception_handler(None)  # errors that nobody handled are logged, as by a real loop
    return loop


def virtual() -> bool:
    """Whether the test runs in virtual time."""
    return isinstance(asyncio.get_running_loop(), SimLoop)


def runtime_here(disk: SimDisk | None = None) -> SystemRuntime:
    """What a process takes from outside: in virtual time a simulated network, and `disk` if there is one.

    Otherwise real disks: in virtual time without threads.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SimLoop):
        return real_runtime()
    if loop.net is None:
        SimNet(loop, latency_s=(0.0, 0.0))  # as on loopback: what is sent arrives at the next turn
    if disk is not None:
        return sim_runtime(loop, disk, loop.next_number())
    real = real_runtime()
    rng = random.Random(loop.next_number())
    return dataclasses.replace(real, clock=SimClock(loop), files=cast("Files", DirectFiles(real.files)), rng=rng)


class DirectFiles:
    """The real file system, whose workers run calls as callbacks of the loop."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def worker(self, name: str) -> SimWorker:
        return SimWorker(SimDisk(name), name)


class InProcess:
    """Bookies a, b, c, ..., and clients of them."""

    def __init__(self, directory: Path, *, real_disks: bool = False, of_bookkeeper: bool = False) -> None:
        self.directory = directory
        self.root = ROOT
        self.real_disks = real_disks or not virtual()
        self.of_bookkeeper = of_bookkeeper  # the cluster's metadata are, and the bookies speak its protocol
        self.disks: dict[str, SimDisk] = {}
        self.tree = MemoryStore(runtime_here())
        self.nodes: list[BookieNode] = []
        self.clients: list[Client] = []
        self.settings: dict[str, Any] = {}
        self._ports: dict[str, int] = {}

    async def start(self, names: str = "abc", **settings: Any) -> None:
        if self.of_bookkeeper:
            await init_bookkeeper(self.tree.session(), self.root)
            settings = {"protocol": "bookkeeper", **settings}
        else:
            await init_cluster(self.tree.session(), self.root)
        self.settings = settings
        for name in names:
            await self.start_node(name)

    def new_node(
        self,
        name: str,
        *,
        mending: bool = False,
        rebuild: bool = False,
        background_service: NewBackgroundService | None = None,
    ) -> BookieNode:
        """A bookie that is still to be started, on the directories and at the port of that name.

        `mending`: with an integrity check; `rebuild`: on directories that may be empty.
        """
        flags = {
            "metadata_uri": f"zk://127.0.0.1:1{self.root}",
            "bookie_id": name,
            "listen": f"127.0.0.1:{self._port(name)}",
            "journal_directories": str(self.directory / name / "journal"),
            "ledger_directories": str(self.directory / name / "ledgers"),
            "journal_max_size_mb": "4",  # what is reserved on the disk, for each bookie of each test
            **{key: str(value) for key, value in self.settings.items()},
        }
        settings, session, runtime = load_bookie_settings(None, {}, flags), self.tree.session(), self.runtime(name)

        def check(losses: Losses, registry: CollectorRegistry) -> IntegrityCheck:
            return IntegrityCheck(settings, session, self.root, runtime, name, losses, registry)

        integrity_checker = check if mending else None
        return BookieNode(
            settings,
            session,
            self.root,
            runtime,
            background_service=background_service,
            integrity_checker=integrity_checker,
            rebuild=rebuild,
        )

    async def start_node(self, name: str, *, mending: bool = False, rebuild: bool = False) -> BookieNode:
        """Start a bookie; one of that name that has ended before comes back on its directories, at its port."""
        node = self.new_node(name, mending=mending, rebuild=rebuild)
        await node.start()
        names = [other.settings.bookie_id for other in self.nodes]
        if name in names:
            self.nodes[names.index(name)] = node
        else:
            self.nodes.append(node)
        return node

    def runtime(self, name: str) -> SystemRuntime:
        """What the bookie takes from outside. Its simulated disk outlives it, as a real one does."""
        return runtime_here(None if self.real_disks else self.disks.setdefault(name, SimDisk(name)))

    def _port(self, name: str) -> int:
        # Not one of those that the kernel hands out: while the bookie is away, a client that tries to connect again
        # could be given it for its own end, and be connected to itself.
        if name not in self._ports:
            taken = list(self._ports.values())
            self._ports[name] = 3181 + len(taken) if virtual() else free_port(taken)
        return self._ports[name]

    async def client(self, *, tls: ssl.SSLContext | None = None, **settings: Any) -> Client:
        client = await open_client(
            self.tree.session(),
            self.root,
            runtime_here(),
            client_settings(**settings),
            tls=tls,
            of_bookkeeper=self.of_bookkeeper,
        )
        self.clients.append(client)
        return client

    def lose_disks(self, name: str, part: str = "") -> None:
        """Remove all that the bookie, which is stopped, has stored; of one of its directories, with `part`."""
        where = self.directory / name / part
        if name not in self.disks:
            shutil.rmtree(where)
            return
        directories = self.disks[name].directories
        for path in [path for path in directories if f"{path}/".startswith(f"{where}/")]:
            del directories[path]

    def rewrite_disks(self, name: str, old: bytes, new: bytes, *, files: str = "") -> int:
        """Put `new`, as long, for `old` in the bookie's files whose names end so; how many files changed."""
        disk, changed = self.disks[name], 0
        for at, directory in disk.directories.items():
            for path in [f"{at}/{file}" for file in directory.view if file.endswith(files)]:
                data = disk.contents(path)
                if old in data:
                    disk.replace(path, data.replace(old, new))
                    changed += 1
        return changed

    async def restart(self, name: str) -> BookieNode:
        """Stop the bookie and start it again."""
        await self.node(name).stop()
        return await self.start_node(name)

    async def stop(self) -> None:
        for client in self.clients:
            await client.close()
        for node in self.nodes:
            await node.stop()

    def node(self, name: str) -> BookieNode:
        return next(node for node in self.nodes if node.settings.bookie_id == name)

    def storage(self, name: str) -> LedgerStorage:
        return storage_of(self.node(name))

    def server(self, name: str) -> BookieServer:
        return server_of(self.node(name))

    def service(self, name: str) -> BookieService:
        return service_of(self.node(name))

    def connections(self, name: str) -> list[Connection]:
        return connections_of(self.node(name))

    # --- faults -----------------------------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """The bookie is gone at once, as far as clients can tell; its registration is still there."""
        self.server(name).stop()
        for connection in self.connections(name):
            connection.abort()

    def hang(self, name: str) -> None:
        """Connections stay open, and nothing that comes by them is read; nor is anything by new ones."""
        for connection in self.connections(name):
            connection.pause("hung")
        server = self.server(name)
        opened = server.opened

        def open_and_hang(connection: Connection) -> None:
            opened(connection)
            connection.pause("hung")

        server.opened = open_and_hang  # type: ignore[method-assign]

    def refuse(self, name: str) -> None:
        """New connections are closed at once, until `admit`."""
        self.server(name).opened = lambda connection: connection.abort()  # type: ignore[method-assign]

    def admit(self, name: str) -> None:
        vars(self.server(name)).pop("opened", None)


async def init_bookkeeper(store: MetadataStore, root: str) -> None:
    """Make an empty cluster of Apache BookKeeper's."""
    from bkpy.metadata.bookkeeper.cluster import new_cluster_nodes  # needs a package that no other test does

    assert isinstance(await ensure_path(store, root, attempts_max=1), Done)
    first, *others = new_cluster_nodes(root, "11111111-2222-3333-4444-555555555555")
    assert isinstance(await create_certainly(store, first, *others, attempts_max=1), Done)


async def contents(client: Client, ledger_id: int, password: bytes = b"") -> list[bytes]:
    reader = await client.open_ledger(ledger_id, password=password)
    return [entry.data async for entry in reader.read()]


async def rewrite(client: Client, ledger_id: int, **changes: Any) -> LedgerMetadata:
    """Change a ledger's metadata as somebody else would: re-replication, a recovering client."""
    catalog = cluster_of(client).catalog
    metadata, version = await catalog.read(ledger_id)
    metadata = dataclasses.replace(metadata, **changes)
    stored(await catalog.write(metadata, version))
    return metadata


def stored(outcome: PutOutcome) -> int:
    """The version that the write has made."""
    assert isinstance(outcome, Done), outcome
    return outcome.version


async def lag_behind(store: MetadataStore, path: str, monkeypatch: Any) -> None:
    """The store's server answers reads of `path` with what is there now, until it is told to catch up (`sync`)."""
    get, sync = store.get, store.sync
    old = await get(path)
    lagging = True

    async def get_old(wanted: str) -> tuple[bytes, int]:
        return old if lagging and wanted == path else await get(wanted)

    async def catch_up(wanted: str) -> None:
        nonlocal lagging
        lagging = lagging and wanted != path
        await sync(wanted)

    monkeypatch.setattr(store, "get", get_old)
    monkeypatch.setattr(store, "sync", catch_up)


async def add(channel: BookieChannel, columns: list[Any], body: bytes, pool: Any) -> int | list[int]:
    """Send one ADD frame to one bookie."""
    answered: asyncio.Future[int | list[int]] = asyncio.get_running_loop().create_future()

    class OneAdd:
        correlation_id = pool.next_id()
        body_bytes = len(body)
        ledger_ids = frozenset(columns[1])
        buffers = wire.encode(Op.ADD, correlation_id, m.pack(columns), (body,))

        def replied(self, index: int, head: memoryview) -> None:
            answered.set_result(m.decode_add_reply(head, len(columns[1])))

        def failed(self, index: int, error: BookKeeperError) -> None:
            answered.set_exception(error)

    channel.add(OneAdd(), 0)  # type: ignore[arg-type]
    async with asyncio.timeout(DEADLINE_S):
        return await answered
