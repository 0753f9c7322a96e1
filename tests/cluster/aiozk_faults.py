"""The same connection faults on aiozk's own session and on ours, as a table: `python -m tests.cluster.aiozk_faults`.

Not a test: it records why the session is ours (docs/explanation/decisions/002-own-zookeeper-session.md). It takes about
five minutes, most of which is aiozk waiting for something.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import aiozk
from tests.cluster.zookeeper_proxy import (
    AUTH,
    CREATE,
    CREATE2,
    GET_DATA,
    HANDSHAKE,
    SET_DATA,
    SET_WATCHES,
    Fault,
    ZooKeeperProxy,
)
from tests.hooks import try_first

from bkpy.local.zookeeper import ZooKeeperServer
from bkpy.metadata.store.zookeeper.store import ZooKeeperStore
from bkpy.runtime.system import real_runtime

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

SESSION_S = 10.0
PATIENCE_S = 25.0  # two and a half session timeouts: whatever has not happened by then counts as never


class Aiozk:
    name = "aiozk 0.32"

    def __init__(self, ports: Sequence[int], policy: Any = None, auth: bool = False) -> None:
        servers = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.client = aiozk.ZKClient(servers, session_timeout=SESSION_S, retry_policy=policy)
        self.auth = auth

    async def start(self) -> None:
        await self.client.start()
        if self.auth:
            request = aiozk.protocol.AuthRequest(type=0, scheme="digest", auth=b"bookie:secret")
            await self.client.session.conn.send(request)

    @property
    def session_id(self) -> int:
        return self.client.session.session_id or 0

    async def create(self, path: str, *, ephemeral: bool = False, sequential: bool = False) -> str:
        acl = [aiozk.protocol.AUTHED_UNRESTRICTED] if self.auth else None
        return await self.client.create(path, data=b"", acl=acl, ephemeral=ephemeral, sequential=sequential)

    async def put(self, path: str, version: int) -> None:
        await self.client.set_data(path, b"x", version)

    async def get(self, path: str) -> bytes:
        return await self.client.get_data(path)

    async def children(self, path: str) -> list[str]:
        return await self.client.get_children(path)

    async def delete(self, path: str) -> None:
        await self.client.delete(path)

    async def watch(self, path: str) -> Callable[[], Awaitable[None]]:
        """Set a watch; the result waits for the node's deletion."""
        deleted = self.client.wait_for_events([aiozk.WatchEvent.DELETED], path)
        await self.client.exists(path, watch=True)
        return lambda: deleted

    async def watch_missing(self, path: str) -> None:
        self.client.wait_for_events([aiozk.WatchEvent.CREATED], path)
        await self.client.exists(path, watch=True)

    async def close(self) -> None:
        session = self.client.session
        session.closing = True
        for task in (session.repair_loop_task, session.heartbeat_task):
            if task is not None:
                task.cancel()
        if session.conn is not None:
            session.conn.closing = True
            if session.conn.read_loop_task is not None:
                session.conn.read_loop_task.cancel()
            if session.conn.writer is not None:
                session.conn.writer.transport.abort()
        if session.heartbeat_handle is not None:
            session.heartbeat_handle.cancel()


class Ours:
    name = "bkpy"

    def __init__(self, ports: Sequence[int], policy: Any = None, auth: bool = False) -> None:
        hosts = [("127.0.0.1", port) for port in ports]
        credentials = [("digest", b"bookie:secret")] if auth else []
        self.store = ZooKeeperStore(hosts, real_runtime(), session_timeout_s=SESSION_S, auth=credentials)

    async def start(self) -> None:
        await self.store.start(PATIENCE_S)

    @property
    def session_id(self) -> int:
        return self.store.session_id

    async def create(self, path: str, *, ephemeral: bool = False, sequential: bool = False) -> str:
        return await self.store.create(path, b"", ephemeral=ephemeral, sequential=sequential)

    async def put(self, path: str, version: int) -> None:
        await self.store.put(path, b"x", version)

    async def get(self, path: str) -> bytes:
        return (await self.store.get(path))[0]

    async def children(self, path: str) -> list[str]:
        return await self.store.children(path)

    async def delete(self, path: str) -> None:
        await self.store.delete(path)

    async def watch(self, path: str) -> Callable[[], Awaitable[None]]:
        watch = self.store.watch(path)
        await anext(watch)

        async def deleted() -> None:
            while await self.store.exists(path):
                await anext(watch)

        return deleted

    async def watch_missing(self, path: str) -> None:
        await anext(self.store.watch(path))

    async def close(self) -> None:
        await self.store.close()


Client = Aiozk | Ours
Kind = type[Aiozk] | type[Ours]


async def outcome(call: Awaitable[Any]) -> str:
    """What became of the call, and after how long."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(PATIENCE_S):
            await call
        what = "done"
    except TimeoutError:
        return f"nothing in {PATIENCE_S:.0f} s"
    except Exception as error:
        what = f"{type(error).__name__}{' (outcome unknown)' if getattr(error, 'outcome_unknown', False) else ''}"
    return f"{what} after {time.monotonic() - began:.2f} s"


async def d1(kind: Kind, proxy: ZooKeeperProxy) -> str:
    client = await started(kind([proxy.port]))
    node = await client.create("/d1-", sequential=True)
    proxy.on(Fault.END_BEFORE_REPLY, SET_DATA)
    first = await outcome(client.put(node, 0))
    return f"put: {first}; next get: {await outcome(client.get(node))}"


async def d2(kind: Kind, proxy: ZooKeeperProxy) -> str:
    client = await started(kind([proxy.port]))
    node = await client.create("/d2-", sequential=True)
    await client.watch_missing(f"{node}/missing")
    hit = proxy.on(Fault.LOSE_REQUEST, SET_WATCHES)
    await proxy.reset()
    get = asyncio.create_task(outcome(client.get(node)))
    await asyncio.wait([asyncio.create_task(hit.wait())], timeout=PATIENCE_S)
    await get
    return f"get after it: {await outcome(client.get(node))}"


async def d2_large(kind: Kind, proxy: ZooKeeperProxy) -> str:
    client = await started(kind([proxy.port]))
    node = await client.create("/d2-", sequential=True)
    for number in range(10_000):
        await client.watch_missing(f"{node}/{'long' * 35}-{number}")
    await proxy.reset()
    return f"get after the reconnect: {await outcome(client.get(node))}"


async def d3(kind: Kind, proxy: ZooKeeperProxy) -> str:
    client = await started(kind([proxy.port]))
    node = await client.create("/d3-", sequential=True)
    proxy.on(Fault.LOSE_REPLY, CREATE, CREATE2)
    create = await outcome(client.create(f"{node}/n-", sequential=True))
    names = len(await client.children(node))
    proxy.on(Fault.LOSE_REPLY, SET_DATA)
    put = await outcome(client.put(node, 0))
    return f"create: {create}, {names} node(s); put: {put}"


async def d4(kind: Kind, proxy: ZooKeeperProxy) -> str:
    client = await started(kind([proxy.port]))
    node = await client.create("/d4-", ephemeral=True, sequential=True)
    session = client.session_id
    proxy.black_hole()
    in_flight = asyncio.create_task(outcome(client.get(node)))  # else aiozk doesn't even notice the cut
    await asyncio.sleep(0.1)
    await proxy.cut()
    proxy.flow()
    await asyncio.sleep(5.0)
    await proxy.start()
    began, gets = time.monotonic(), 1
    while not (await outcome(client.get(node))).startswith("done") and time.monotonic() - began < PATIENCE_S:
        gets += 1
        await asyncio.sleep(0.1)
    await in_flight
    return (
        f"server away for 5 s of 10; connected {time.monotonic() - began:.2f} s later, {gets} tries; "
        f"session {'kept' if client.session_id == session else 'lost'}"
    )


async def d5(kind: Kind, proxy: ZooKeeperProxy) -> str:
    client = await started(kind([proxy.port]))
    node = await client.create("/d5-", ephemeral=True, sequential=True)
    session = client.session_id
    proxy.on(Fault.LOSE_REQUEST, HANDSHAKE)
    await proxy.reset()
    get = await outcome(client.get(node))
    return f"get: {get}; session {'kept' if client.session_id == session else 'abandoned'}"


async def d6(kind: Kind, proxy: ZooKeeperProxy) -> str:
    silent = ZooKeeperProxy(proxy.upstream_port)
    await silent.start()
    silent.silent = True
    shuffle, random.sample = random.sample, lambda population, k: list(population)[:k]  # the silent one first
    client = kind([silent.port, proxy.port])
    if isinstance(client, Ours):
        try_first(client.store, silent.port)
    start = await outcome(client.start())
    random.sample = shuffle
    await client.close()
    await silent.stop()
    return f"connect with a silent host first: {start}; {proxy.accepted} connections to the other"


async def d7(kind: Kind, proxy: ZooKeeperProxy) -> str:
    client = await started(kind([proxy.port], aiozk.RetryPolicy.n_times(2)))
    node = await client.create("/d7-", sequential=True)
    for _ in range(20):
        proxy.on(Fault.LOSE_REQUEST, GET_DATA)
        await outcome(client.get(node))
    refused = 0
    for _ in range(2000):
        try:
            async with asyncio.timeout(PATIENCE_S):
                await client.get(node)
        except Exception:
            refused += 1
    return f"{refused} of 2000 healthy gets refused"


async def d8(kind: Kind, proxy: ZooKeeperProxy) -> str:
    client = await started(kind([proxy.port]))
    node = await client.create("/d8-", sequential=True)
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - before)

    ticking = asyncio.create_task(tick())
    proxy.on(Fault.END_MID_REPLY, GET_DATA)
    processor = time.process_time()
    get = await outcome(client.get(node))
    processor = time.process_time() - processor
    ticking.cancel()
    return f"get: {get}, {processor:.2f} s of processor time, loop blocked for up to {longest:.2f} s"


async def d9(kind: Kind, proxy: ZooKeeperProxy) -> str:
    client, other = await started(kind([proxy.port])), await started(Ours([proxy.upstream_port]))
    node = await other.create("/d9-", sequential=True)
    deleted = await client.watch(node)
    await proxy.reset()
    await outcome(client.get(node))
    await other.delete(node)
    return f"wait for the deletion: {await outcome(deleted())}"


async def d10(kind: Kind, proxy: ZooKeeperProxy) -> str:
    client = await started(kind([proxy.port], auth=True))
    node = await client.create("/d10-", sequential=True)
    await proxy.reset()
    get = await outcome(client.get(node))
    return f"get of its own node after a reconnect: {get}; {proxy.requests[AUTH]} AUTH requests"


_started: list[Client] = []


async def started(client: Client) -> Any:
    _started.append(client)
    async with asyncio.timeout(PATIENCE_S):
        await client.start()
    return client


SCENARIOS = {
    "D1": d1,
    "D2 drop": d2,
    "D2 large": d2_large,
    "D3": d3,
    "D4": d4,
    "D5": d5,
    "D6": d6,
    "D7": d7,
    "D8": d8,
    "D9": d9,
    "D10": d10,
}


async def main() -> None:
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as directory:
        async with ZooKeeperServer(directory) as server:
            for name, scenario in SCENARIOS.items():
                if len(sys.argv) > 1 and name.split()[0] not in sys.argv[1:]:
                    continue
                for kind in (Aiozk, Ours):
                    proxy = ZooKeeperProxy(server.port)
                    await proxy.start()
                    try:
                        result = await scenario(kind, proxy)
                    except Exception as error:
                        result = f"failed: {error!r}"
                    print(f"{name:9} {kind.name:11} {result}", flush=True)
                    while _started:
                        await _started.pop().close()
                    await proxy.stop()


if __name__ == "__main__":
    asyncio.run(main())
