"""Both metadata stores behind one set of controls, so that one contract is tested on both."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from typing import TYPE_CHECKING

import pytest
from aiozk import protocol
from tests.cluster.zookeeper_proxy import WRITES, Fault, ZooKeeperProxy
from tests.hooks import session_of, session_password
from tests.waiting import eventually

from bkpy.metadata.store.memory import MemorySession, MemoryStore
from bkpy.metadata.store.resolve import ensure_path
from bkpy.metadata.store.store import MetadataStore, SessionState
from bkpy.metadata.store.zookeeper.connection import ZooKeeperConnection
from bkpy.metadata.store.zookeeper.store import ZooKeeperStore
from bkpy.runtime.system import real_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bkpy.local.zookeeper import ZooKeeperServer
    from bkpy.runtime.interfaces import Runtime

# No session ends by accident: a machine that stands still for seconds must not fail a test.
SESSION_TIMEOUT_S = 30.0
DEADLINE_S = 30.0  # of waits that should end much sooner
_roots = itertools.count()


class ArmedFaults:
    """Fault points that happen once each when armed."""

    def __init__(self) -> None:
        self.armed: list[str] = []

    def sometimes(self, point: str) -> bool:
        if point in self.armed:
            self.armed.remove(point)
            return True
        return False


class Harness:
    """Sessions on one tree, and what can happen to them. `root` is a node of this test's own."""

    name: str

    def __init__(self) -> None:
        self.faults = ArmedFaults()
        self.runtime: Runtime = dataclasses.replace(real_runtime(), faults=self.faults)
        self.root = f"/test-{next(_roots)}"
        self.stores: list[MetadataStore] = []

    async def open(
        self, *, session_timeout_s: float = SESSION_TIMEOUT_S, call_timeout_s: float = DEADLINE_S
    ) -> MetadataStore:
        store = await self._open(session_timeout_s, call_timeout_s)
        self.stores.append(store)
        return store

    async def _open(self, session_timeout_s: float, call_timeout_s: float) -> MetadataStore:
        raise NotImplementedError

    async def suspend(self, store: MetadataStore) -> None:
        raise NotImplementedError

    async def resume(self, store: MetadataStore) -> None:
        raise NotImplementedError

    async def expire(self, store: MetadataStore) -> None:
        """The server forgets the session."""
        raise NotImplementedError

    def lose_request(self, store: MetadataStore) -> None:
        """The next write is never carried out, and the connection is lost."""
        raise NotImplementedError

    def lose_reply(self, store: MetadataStore) -> None:
        """The next write is carried out, and the connection is lost before the reply."""
        raise NotImplementedError

    async def close(self) -> None:
        for store in self.stores:
            await store.close()


class MemoryHarness(Harness):
    name = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.tree = MemoryStore(self.runtime)

    async def _open(self, session_timeout_s: float, call_timeout_s: float) -> MetadataStore:
        return self.tree.session(session_timeout_s=session_timeout_s, call_timeout_s=call_timeout_s)

    async def suspend(self, store: MetadataStore) -> None:
        assert isinstance(store, MemorySession)
        store.suspend()

    async def resume(self, store: MetadataStore) -> None:
        assert isinstance(store, MemorySession)
        store.resume()

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, MemorySession)
        store.expire()

    def lose_request(self, store: MetadataStore) -> None:
        self.faults.armed.append("metadata.request_lost")

    def lose_reply(self, store: MetadataStore) -> None:
        self.faults.armed.append("metadata.reply_lost")

    async def close(self) -> None:
        self.tree.check_invariants()
        await super().close()


async def end_session(store: ZooKeeperStore, port: int) -> None:
    """End the session of a store that is not connected, at the server with that port."""
    request = protocol.ConnectRequest(
        protocol_version=0,
        last_seen_zxid=0,
        timeout=2000,
        session_id=session_of(store).session_id,
        password=session_password(store),
        read_only=False,
    )
    connection = await ZooKeeperConnection.open(
        "127.0.0.1", port, request, tls=None, on_event=lambda event: None, reply_bytes_max=1 << 20
    )
    reading = asyncio.create_task(connection.read())
    await connection.send(protocol.CloseRequest())
    await reading


class ZooKeeperHarness(Harness):
    name = "zookeeper"

    def __init__(self, server: ZooKeeperServer) -> None:
        super().__init__()
        self.server = server
        self.proxies: dict[MetadataStore, ZooKeeperProxy] = {}

    async def _open(self, session_timeout_s: float, call_timeout_s: float) -> MetadataStore:
        proxy = ZooKeeperProxy(self.server.port)
        await proxy.start()
        store = ZooKeeperStore(
            [("127.0.0.1", proxy.port)],
            self.runtime,
            session_timeout_s=session_timeout_s,
            call_timeout_s=call_timeout_s,
        )
        self.proxies[store] = proxy
        await store.start(DEADLINE_S)
        return store

    async def suspend(self, store: MetadataStore) -> None:
        await self.proxies[store].cut()
        await eventually(lambda: store.state is not SessionState.CONNECTED, "the store notices the cut")

    async def resume(self, store: MetadataStore) -> None:
        await self.proxies[store].start()
        await eventually(lambda: store.state is SessionState.CONNECTED, "the store connects again")

    async def expire(self, store: MetadataStore) -> None:
        # Whoever knows a session's id and password may end it: at once, where its timeout would take seconds.
        assert isinstance(store, ZooKeeperStore)
        proxy = self.proxies[store]
        was_cut = not proxy.serving
        await proxy.cut()  # else the client would take its session back in the middle of this
        await end_session(store, self.server.port)
        if not was_cut:
            await proxy.start()

    def lose_request(self, store: MetadataStore) -> None:
        self.proxies[store].on(Fault.LOSE_REQUEST, *WRITES)

    def lose_reply(self, store: MetadataStore) -> None:
        self.proxies[store].on(Fault.LOSE_REPLY, *WRITES)

    async def close(self) -> None:
        await super().close()
        for proxy in self.proxies.values():
            await proxy.stop()


@pytest.fixture(params=["memory", "zookeeper"])
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """A harness of each kind, with its root node made."""
    made: Harness = (
        MemoryHarness() if request.param == "memory" else ZooKeeperHarness(request.getfixturevalue("zookeeper"))
    )
    try:
        await ensure_path(await made.open(), made.root, attempts_max=5)
        yield made
    finally:
        await made.close()


@pytest.fixture
async def store(harness: Harness) -> MetadataStore:
    """The harness's first session."""
    return harness.stores[0]
