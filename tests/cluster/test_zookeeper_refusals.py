"""ZooKeeper addresses at which nobody listens: said soon by whoever connects, waited for by whoever has a session."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING

import pytest
from tests.cluster.metadata_harness import DEADLINE_S
from tests.cluster.zookeeper_proxy import ZooKeeperProxy
from tests.hooks import take_failure
from tests.waiting import eventually

import bkpy
from bkpy.config.client import client_settings
from bkpy.errors import MetadataUnavailableError
from bkpy.local.process import free_port
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.connect import connect_store
from bkpy.metadata.store.zookeeper.session import is_refusal
from bkpy.metadata.store.zookeeper.store import ZooKeeperStore
from bkpy.runtime.system import real_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bkpy.local.zookeeper import ZooKeeperServer

NEVER_S = 100 * DEADLINE_S  # what a test would wait for in vain


@pytest.fixture
async def proxy(zookeeper: ZooKeeperServer) -> AsyncIterator[ZooKeeperProxy]:
    made = ZooKeeperProxy(zookeeper.port)
    yield made
    await made.stop()


async def test_where_nobody_listens_that_is_said_soon() -> None:
    first = free_port()
    second = free_port([first])
    with pytest.raises(MetadataUnavailableError) as refused:
        async with asyncio.timeout(DEADLINE_S):
            await connect_store(
                f"zk://127.0.0.1:{first},127.0.0.1:{second}/x", real_runtime(), connect_timeout_s=NEVER_S
            )
    hosts = ", ".join(f"127.0.0.1:{port}" for port in sorted((first, second)))
    assert str(refused.value) == f"no ZooKeeper server is running at {hosts}: the connection is refused"
    assert not refused.value.outcome_unknown


async def test_a_client_says_so_too_and_may_be_told_how_long_to_wait() -> None:
    with pytest.raises(MetadataUnavailableError, match=r"no ZooKeeper server is running at 127\.0\.0\.1"):
        async with asyncio.timeout(DEADLINE_S):
            await bkpy.connect(
                f"zk://127.0.0.1:{free_port()}/x", metadata_timeout_s=NEVER_S, metadata_refused_timeout_s=0.001
            )


async def test_whoever_waits_for_servers_that_are_still_to_be_started_finds_them(proxy: ZooKeeperProxy) -> None:
    store = ZooKeeperStore([("127.0.0.1", proxy.port)], real_runtime())
    starting = asyncio.create_task(store.start(NEVER_S, None))
    await eventually(lambda: "refused" in take_failure(store).lower(), "the connection is refused")
    await proxy.start()
    async with asyncio.timeout(DEADLINE_S):
        await starting
    assert await store.exists("/")
    await store.close()


async def test_servers_that_go_away_later_are_waited_for(proxy: ZooKeeperProxy) -> None:
    await proxy.start()
    store = ZooKeeperStore([("127.0.0.1", proxy.port)], real_runtime(), session_timeout_s=DEADLINE_S)
    await store.start(DEADLINE_S, 0.001)
    await proxy.cut()
    refused = 0
    while refused < 3:  # at least two rounds later than a first connection would be given up
        await eventually(lambda: "refused" in take_failure(store).lower(), "the connection is refused")
        refused += 1
    await proxy.start()
    assert await store.exists("/")
    await store.close()


async def test_one_server_that_is_silent_is_reason_to_wait(zookeeper: ZooKeeperServer, proxy: ZooKeeperProxy) -> None:
    await proxy.start()
    proxy.silent = True
    store = ZooKeeperStore(
        [("127.0.0.1", free_port([proxy.port])), ("127.0.0.1", proxy.port)], real_runtime(), session_timeout_s=1.0
    )
    starting = asyncio.create_task(store.start(NEVER_S, 0.001))
    await eventually(lambda: proxy.accepted >= 3, "it is tried again and again")
    assert not starting.done()
    proxy.silent = False
    async with asyncio.timeout(DEADLINE_S):
        await starting
    await store.close()


async def test_a_call_waits_as_long_as_its_client_says(zookeeper: ZooKeeperServer, proxy: ZooKeeperProxy) -> None:
    await proxy.start()
    store, root = await connect_store(f"zk://{zookeeper.connect_string}/waits", real_runtime())
    await init_cluster(store, root)
    await store.close()
    client = await bkpy.connect(
        f"zk://127.0.0.1:{proxy.port}{root}", session_timeout_s=2 * DEADLINE_S, metadata_timeout_s=3.0
    )
    await proxy.cut()
    with pytest.raises(MetadataUnavailableError, match="did not answer within 3"):
        async with asyncio.timeout(DEADLINE_S):
            await client.ledger_metadata(0)
    await client.close()


async def test_one_request_at_a_time_is_enough(zookeeper: ZooKeeperServer) -> None:
    smallest = client_settings(metadata_requests_in_flight_max=1, metadata_write_attempts_max=1)
    uri = f"zk://{zookeeper.connect_string}/one-at-a-time"
    store, root = await connect_store(uri, real_runtime(), settings=smallest)
    await init_cluster(store, root, settings=smallest)
    watch = store.watch(f"{root}/available", children=True)
    async with asyncio.timeout(DEADLINE_S):
        await anext(watch)
        await asyncio.gather(*(store.exists(root) for _ in range(50)))
        await store.create(f"{root}/available/b", b"")
        await anext(watch)
    watch.close()
    await store.close()


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), True),
        (
            OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 111] Connect call failed"),
            True,
        ),
        (OSError("Multiple exceptions: [Errno 99] no such address, [Errno 111] Connect call failed"), True),
        (OSError("Multiple exceptions: [Errno 113] No route to host, [Errno 111] Connect call failed"), False),
        (OSError(errno.EHOSTUNREACH, "no route"), False),
        (ConnectionResetError("the server closed the connection during the handshake"), False),
        (TimeoutError(), False),
    ],
)
def test_what_counts_as_refused(error: Exception, refusal: bool) -> None:
    assert is_refusal(error) == refusal
