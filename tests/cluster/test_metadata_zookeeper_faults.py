"""The ZooKeeper session under connection faults, on a real server behind a proxy that makes them.

The tests are named after the defects D1 to D10 of docs/explanation/decisions/002-own-zookeeper-session.md. Where a
fault must be noticed *soon*, the session timeout is made so long that noticing it late would miss the test's deadline.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import uvloop
from tests.cluster.metadata_harness import DEADLINE_S, end_session
from tests.cluster.zookeeper_proxy import (
    AUTH,
    CREATE,
    DELETE,
    GET_DATA,
    HANDSHAKE,
    MULTI,
    SET_DATA,
    SET_WATCHES,
    Fault,
    ZooKeeperProxy,
)
from tests.conftest import all_threads_stopped
from tests.hooks import pretend_seen
from tests.waiting import eventually

from bkpy.errors import FrameTooLargeError, MetadataUnavailableError, UnauthorizedError
from bkpy.metadata.store.store import Create, SessionState
from bkpy.metadata.store.zookeeper.store import ZooKeeperStore
from bkpy.runtime.system import real_runtime

if TYPE_CHECKING:
    from bkpy.local.zookeeper import ZooKeeperServer
    from bkpy.runtime.interfaces import Runtime

LONG_SESSION_S = 60.0  # twice the deadline of any wait
SOME_TRIES_S = 2.0  # in which a busy machine gets as far as one failed try as well
TLS = Path(__file__).parent / "tls"

ENDS = [Fault.LOSE_REQUEST, Fault.LOSE_REPLY, Fault.END_BEFORE_REPLY, Fault.END_MID_REPLY]

OpenStore = Callable[..., Awaitable[ZooKeeperStore]]


@pytest.fixture
async def proxy(zookeeper: ZooKeeperServer) -> AsyncIterator[ZooKeeperProxy]:
    proxy = ZooKeeperProxy(zookeeper.port)
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
async def open_store() -> AsyncIterator[OpenStore]:
    """Opens stores through proxies or servers, and closes them at the end."""
    stores: list[ZooKeeperStore] = []

    async def open_(
        *through: ZooKeeperProxy | ZooKeeperServer,
        session_timeout_s: float = LONG_SESSION_S,
        auth: Sequence[tuple[str, bytes]] = (),
    ) -> ZooKeeperStore:
        hosts = [("127.0.0.1", one.port) for one in through]
        store = ZooKeeperStore(hosts, in_order(), session_timeout_s=session_timeout_s, auth=auth)
        stores.append(store)
        await store.start(DEADLINE_S)
        return store

    yield open_
    for store in stores:
        await store.close()


class _InOrder:
    """Randomness that leaves the order of the servers as it is."""

    def __init__(self) -> None:
        self._rng = real_runtime().rng

    def sample(self, population: Sequence[object], k: int) -> list[object]:
        return list(population)[:k]

    def __getattr__(self, name: str) -> object:
        return getattr(self._rng, name)


def in_order() -> Runtime:
    return dataclasses.replace(real_runtime(), rng=_InOrder())


async def connected(store: ZooKeeperStore) -> None:
    await eventually(lambda: store.state is SessionState.CONNECTED, "connected")


async def new_node(store: ZooKeeperStore, data: bytes = b"") -> str:
    return await store.create("/fault-", data, sequential=True)


# --- D1 -------------------------------------------------------------------------------------------------------


@pytest.mark.scenario(64)
@pytest.mark.parametrize("fault", ENDS)
async def test_d1_the_end_of_a_connection_fails_its_writes_and_reconnects_at_once(
    proxy: ZooKeeperProxy, open_store: OpenStore, fault: Fault
) -> None:
    store = await open_store(proxy)
    node = await new_node(store)
    session = store.session_id
    proxy.on(fault, SET_DATA)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(MetadataUnavailableError) as lost:
            await store.put(node, b"x", 0)
        assert lost.value.outcome_unknown
        await store.get(node)
    assert store.session_id == session
    assert proxy.accepted == 2


@pytest.mark.scenario(64)
async def test_d1_all_calls_in_flight_end_when_the_server_is_killed(
    proxy: ZooKeeperProxy, zookeeper: ZooKeeperServer, open_store: OpenStore
) -> None:
    store = await open_store(proxy)
    node = await store.create("/in-flight-", b"", ephemeral=True, sequential=True)
    session = store.session_id
    zookeeper.suspend()  # so that the calls are in flight when it dies
    try:
        await eventually(lambda: all_threads_stopped(zookeeper.pid), "the server has stopped")
        writes = [asyncio.create_task(store.put(node, b"x", 0)) for _ in range(20)]
        read = asyncio.create_task(store.get(node))
        await eventually(lambda: proxy.requests[SET_DATA] == 20, "the writes are on their way")
        await zookeeper.kill()
        async with asyncio.timeout(DEADLINE_S):
            for error in await asyncio.gather(*writes, return_exceptions=True):
                assert isinstance(error, MetadataUnavailableError)
                assert error.outcome_unknown
        await eventually(lambda: store.state is SessionState.SUSPENDED, "suspended")
    finally:
        await zookeeper.kill()
        await zookeeper.start()
    value, version = await read  # a read is simply made again
    assert (value, version) in [(b"", 0), (b"x", 1)]
    assert store.session_id == session


# --- D2 -------------------------------------------------------------------------------------------------------


@pytest.mark.scenario(64)
@pytest.mark.parametrize("fault", ENDS)
async def test_d2_a_drop_while_watches_are_set_again_is_survived(
    proxy: ZooKeeperProxy, open_store: OpenStore, fault: Fault
) -> None:
    store = await open_store(proxy)
    node = await new_node(store)
    watch = store.watch(node)
    await anext(watch)
    dropped = [proxy.on(fault, SET_WATCHES) for _ in range(3)]
    await proxy.reset()
    for event in dropped:
        async with asyncio.timeout(DEADLINE_S):
            await event.wait()
    await connected(store)
    assert proxy.requests[SET_WATCHES] == 4
    await store.put(node, b"x", 0)
    async with asyncio.timeout(DEADLINE_S):
        await anext(watch)


@pytest.mark.scenario(64)
async def test_d2_a_server_that_never_answers_while_watches_are_set_again_is_given_up(
    proxy: ZooKeeperProxy, open_store: OpenStore
) -> None:
    store = await open_store(proxy, session_timeout_s=4.0)
    node = await new_node(store)
    watch = store.watch(node)
    await anext(watch)
    stalled = proxy.on(Fault.STALL_MID_REPLY, SET_WATCHES)
    await proxy.reset()
    async with asyncio.timeout(DEADLINE_S):
        await stalled.wait()
    await connected(store)
    await store.put(node, b"x", 0)
    async with asyncio.timeout(DEADLINE_S):
        await anext(watch)


@pytest.mark.scenario(64)
async def test_d2_watches_over_a_mebibyte_are_set_again_in_pieces(proxy: ZooKeeperProxy, open_store: OpenStore) -> None:
    store = await open_store(proxy)
    parent = await new_node(store)
    watched = [f"{parent}/{'long' * 175}-{number}" for number in range(2000)]
    assert sum(map(len, watched)) > 1 << 20
    watches = [store.watch(path) for path in watched]
    await asyncio.gather(*map(anext, watches))
    await store.create(watched[0], b"")
    await anext(watches[0])  # now it waits for a change of a node that is there
    await proxy.reset()
    await eventually(lambda: proxy.accepted == 2, "another connection")
    await connected(store)
    assert proxy.requests[SET_WATCHES] > 4
    assert proxy.largest_request < 1 << 20
    for number in (1, 1000, 1999):
        waiting = asyncio.create_task(anext(watches[number]))
        await store.create(watched[number], b"")
        async with asyncio.timeout(DEADLINE_S):
            await waiting
    await store.delete(watched[0])
    async with asyncio.timeout(DEADLINE_S):
        await anext(watches[0])


# --- D3 -------------------------------------------------------------------------------------------------------


@pytest.mark.scenario(64)
async def test_d3_no_write_is_sent_twice(proxy: ZooKeeperProxy, open_store: OpenStore) -> None:
    store = await open_store(proxy)
    parent = await new_node(store)
    proxy.requests.clear()
    calls = {
        CREATE: lambda: store.create(f"{parent}/n-", b"", sequential=True),
        SET_DATA: lambda: store.put(parent, b"x", 0),
        MULTI: lambda: store.multi([Create(f"{parent}/m", b"")]),
        DELETE: lambda: store.delete(f"{parent}/m"),
    }
    for opcode, call in calls.items():
        proxy.on(Fault.LOSE_REPLY, opcode)
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(MetadataUnavailableError) as lost:
                await call()
            assert lost.value.outcome_unknown
            await store.sync("/")
    assert {opcode: proxy.requests[opcode] for opcode in calls} == dict.fromkeys(calls, 1)
    assert await store.children(parent) == ["n-0000000000"]
    assert await store.get(parent) == (b"x", 1)


# --- D4, D5 ---------------------------------------------------------------------------------------------------


@pytest.mark.scenario(64)
@pytest.mark.parametrize("fault", ENDS)
async def test_d4_d5_a_session_survives_many_broken_handshakes(
    proxy: ZooKeeperProxy, open_store: OpenStore, fault: Fault
) -> None:
    # Six tries with pauses of less than a second. Doubling from two seconds on, they would outlast the session.
    store = await open_store(proxy)
    node = await store.create("/ephemeral-", b"", ephemeral=True, sequential=True)
    session = store.session_id
    broken = [proxy.on(fault, HANDSHAKE) for _ in range(5)]
    await proxy.reset()
    async with asyncio.timeout(DEADLINE_S):
        for event in broken:
            await event.wait()
        await store.sync("/")
        assert await store.exists(node)
    assert store.session_id == session
    assert proxy.accepted == 7


@pytest.mark.scenario(64)
async def test_d5_a_reconnect_carries_the_session_and_the_newest_change_seen(
    proxy: ZooKeeperProxy, open_store: OpenStore
) -> None:
    store = await open_store(proxy)
    await new_node(store)
    await proxy.reset()
    await store.sync("/")
    await new_node(store)
    await proxy.reset()
    await store.sync("/")
    (zxid_1, session_1), (zxid_2, session_2), (zxid_3, session_3) = proxy.handshakes
    assert (zxid_1, session_1) == (0, 0)
    assert session_2 == session_3 == store.session_id
    assert 0 < zxid_2 < zxid_3


@pytest.mark.scenario(64)
async def test_d5_a_server_that_lags_behind_is_refused_and_the_session_kept(
    proxy: ZooKeeperProxy, open_store: OpenStore
) -> None:
    store = await open_store(proxy)
    session = store.session_id
    newest = pretend_seen(store, 1 << 60)  # as if another server had shown us more than this one has
    await proxy.reset()
    await eventually(lambda: proxy.accepted >= 4, "several tries")
    assert store.state is SessionState.SUSPENDED
    pretend_seen(store, newest)
    await connected(store)
    assert store.session_id == session


async def test_an_expired_session_is_replaced_and_its_nodes_are_gone(
    proxy: ZooKeeperProxy, zookeeper: ZooKeeperServer, open_store: OpenStore
) -> None:
    store = await open_store(proxy)
    witness = await open_store(zookeeper)
    seen: list[SessionState] = []
    store.session_events.subscribe(seen.append)
    node = await store.create("/ephemeral-", b"", ephemeral=True, sequential=True)
    session = store.session_id
    watch = store.watch("/")
    await anext(watch)
    await proxy.cut()
    await end_session(store, zookeeper.port)  # as when it expires, which no pause of this process can bring about here
    assert not await witness.exists(node)
    assert store.session_id == session  # only the server's word counts
    await proxy.start()
    await connected(store)
    assert store.session_id != session
    assert seen == ["suspended", "expired", "connected"]
    async with asyncio.timeout(DEADLINE_S):
        await anext(watch)


# --- D6 -------------------------------------------------------------------------------------------------------


@pytest.mark.scenario(64)
async def test_d6_a_silent_host_delays_but_does_not_stop_the_first_connect(
    proxy: ZooKeeperProxy, zookeeper: ZooKeeperServer, open_store: OpenStore
) -> None:
    proxy.silent = True
    store = await open_store(proxy, zookeeper, session_timeout_s=3.0)
    assert await store.exists("/")
    assert proxy.accepted >= 1


@pytest.mark.scenario(64)
@pytest.mark.parametrize("how", ["silent", "black hole"])
async def test_d6_a_host_that_goes_silent_is_left_before_the_session_ends(
    proxy: ZooKeeperProxy, zookeeper: ZooKeeperServer, open_store: OpenStore, how: str
) -> None:
    other = ZooKeeperProxy(zookeeper.port)
    await other.start()
    store = await open_store(proxy, other, session_timeout_s=9.0)
    node = await store.create("/ephemeral-", b"", ephemeral=True, sequential=True)
    session = store.session_id
    proxy.silent = True
    if how == "silent":
        await proxy.reset()
    else:
        proxy.black_hole()
    await eventually(lambda: other.accepted == 1, "fail-over")
    await connected(store)
    assert await store.exists(node)
    assert store.session_id == session
    await store.close()
    await other.stop()


@pytest.mark.scenario(64)
async def test_d6_every_connection_starts_with_the_handshake_and_nothing_else(
    proxy: ZooKeeperProxy, open_store: OpenStore
) -> None:
    store = await open_store(proxy)
    for _ in range(3):
        await proxy.reset()
        await store.sync("/")
    assert proxy.accepted == proxy.requests[HANDSHAKE] == 4


# --- D7 -------------------------------------------------------------------------------------------------------


@pytest.mark.scenario(64)
async def test_d7_failures_of_earlier_calls_leave_nothing_behind(proxy: ZooKeeperProxy, open_store: OpenStore) -> None:
    store = await open_store(proxy)
    node = await new_node(store)
    for _ in range(5):
        proxy.on(Fault.LOSE_REQUEST, GET_DATA)
    assert await store.get(node) == (b"", 0)  # five times lost, asked for six times
    assert proxy.requests[GET_DATA] == 6
    proxy.on(Fault.LOSE_REPLY, SET_DATA)
    with pytest.raises(MetadataUnavailableError):
        await store.put(node, b"x", 0)
    for version in range(1, 200):
        assert await store.put(node, b"y", version) == version + 1
    values = await asyncio.gather(*(store.get(node) for _ in range(3000)))  # more than may be in flight at once
    assert set(values) == {(b"y", 200)}


# --- D8 -------------------------------------------------------------------------------------------------------


@pytest.mark.scenario(64)
@pytest.mark.parametrize("fault", [Fault.END_MID_REPLY, Fault.STALL_MID_REPLY])
async def test_d8_half_a_frame_neither_blocks_the_loop_nor_the_call(
    proxy: ZooKeeperProxy, open_store: OpenStore, fault: Fault
) -> None:
    # Half a frame and then nothing is noticed within two thirds of the session timeout, an end at once.
    session_timeout_s = 6.0 if fault is Fault.STALL_MID_REPLY else LONG_SESSION_S
    store = await open_store(proxy, session_timeout_s=session_timeout_s)
    node = await new_node(store, bytes(100_000))
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            turns += 1

    ticking = asyncio.create_task(tick())
    hit = proxy.on(fault, GET_DATA)
    reading = asyncio.create_task(store.get(node))
    async with asyncio.timeout(DEADLINE_S):
        await hit.wait()
        before = turns
        assert await reading == (bytes(100_000), 0)
        await eventually(lambda: turns >= before + 10, "the loop runs")
    ticking.cancel()
    assert proxy.accepted == 2


# --- D9 -------------------------------------------------------------------------------------------------------


@pytest.mark.scenario(64)
async def test_d9_a_wait_for_deletion_survives_any_number_of_reconnects(
    proxy: ZooKeeperProxy, zookeeper: ZooKeeperServer, open_store: OpenStore
) -> None:
    store = await open_store(proxy)
    other = await open_store(zookeeper)
    node = await new_node(store)

    seen = asyncio.Event()

    async def deleted() -> int:
        turns = 0
        async for _ in store.watch(node):
            turns += 1
            if not await store.exists(node):
                return turns
            seen.set()
        raise AssertionError("the watch ended")

    waiting = asyncio.create_task(deleted())
    async with asyncio.timeout(DEADLINE_S):
        await seen.wait()  # else a slow first turn could come so late that it finds the node deleted
    for _ in range(3):
        await proxy.reset()
        await connected(store)
        await store.sync(node)
    assert not waiting.done()
    await other.delete(node)
    async with asyncio.timeout(DEADLINE_S):
        assert await waiting >= 2


# --- D10 ------------------------------------------------------------------------------------------------------


@pytest.mark.scenario(64)
async def test_d10_credentials_are_presented_on_every_connection(
    proxy: ZooKeeperProxy, open_store: OpenStore, zookeeper: ZooKeeperServer
) -> None:
    store = await open_store(proxy, auth=[("digest", b"bookie:secret")])
    stranger = await open_store(zookeeper)
    node = await new_node(store)
    await proxy.reset()
    await store.sync("/")
    assert await store.put(node, b"x", 0) == 1
    assert proxy.requests[AUTH] == 2
    with pytest.raises(UnauthorizedError, match=node):
        await stranger.get(node)
    with pytest.raises(UnauthorizedError):
        await stranger.put(node, b"", 1)


@pytest.mark.scenario(64)
async def test_d10_credentials_that_are_refused_end_the_start(proxy: ZooKeeperProxy, open_store: OpenStore) -> None:
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(UnauthorizedError):
            await open_store(proxy, auth=[("no-such-scheme", b"x")])


@pytest.mark.scenario(64)
async def test_d10_tls(zookeeper: ZooKeeperServer) -> None:
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    proxy = ZooKeeperProxy(zookeeper.port, tls=server_side)
    await proxy.start()
    trusting = ssl.create_default_context(cafile=TLS / "certificate.pem")
    store = ZooKeeperStore([("127.0.0.1", proxy.port)], real_runtime(), session_timeout_s=10.0, tls=trusting)
    await store.start(DEADLINE_S)
    assert await store.exists("/")
    await proxy.reset()
    assert await store.exists("/")
    await store.close()
    distrusting = ZooKeeperStore(
        [("127.0.0.1", proxy.port)], real_runtime(), session_timeout_s=10.0, tls=ssl.create_default_context()
    )
    with pytest.raises(MetadataUnavailableError, match="certificate"):
        await distrusting.start(SOME_TRIES_S)
    await proxy.stop()


# --- deadlines, limits -----------------------------------------------------------------------------


async def test_no_server_is_an_error_that_says_where_it_looked(proxy: ZooKeeperProxy) -> None:
    await proxy.cut()
    store = ZooKeeperStore([("127.0.0.1", proxy.port)], real_runtime(), session_timeout_s=1.0)
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(MetadataUnavailableError, match=f"127.0.0.1:{proxy.port}"):
            await store.start(SOME_TRIES_S)


async def test_a_call_that_a_silent_server_swallows_ends_at_its_deadline(
    proxy: ZooKeeperProxy, open_store: OpenStore
) -> None:
    store = await open_store(proxy, session_timeout_s=2.0)
    node = await new_node(store)
    proxy.black_hole()
    async with asyncio.timeout(DEADLINE_S):
        write, read = await asyncio.gather(store.put(node, b"x", 0), store.get(node), return_exceptions=True)
    assert isinstance(write, MetadataUnavailableError)
    assert write.outcome_unknown
    assert isinstance(read, MetadataUnavailableError)
    assert not read.outcome_unknown


async def test_closing_does_not_hang_on_a_silent_server(proxy: ZooKeeperProxy, open_store: OpenStore) -> None:
    store = await open_store(proxy)
    proxy.black_hole()
    async with asyncio.timeout(DEADLINE_S):
        await store.close()


async def test_a_request_over_the_servers_limit_is_refused_here(proxy: ZooKeeperProxy, open_store: OpenStore) -> None:
    store = await open_store(proxy)
    with pytest.raises(FrameTooLargeError, match="1048575"):
        await store.create("/large", bytes(1 << 20))
    assert await store.exists("/")
    assert proxy.accepted == 1


def test_it_runs_on_uvloop(zookeeper: ZooKeeperServer) -> None:
    async def run() -> None:
        proxy = ZooKeeperProxy(zookeeper.port)
        await proxy.start()
        store = ZooKeeperStore([("127.0.0.1", proxy.port)], real_runtime(), session_timeout_s=LONG_SESSION_S)
        await store.start(DEADLINE_S)
        node = await new_node(store)
        watch = store.watch(node)
        await anext(watch)
        proxy.on(Fault.END_MID_REPLY, SET_DATA)
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(MetadataUnavailableError):
                await store.put(node, b"x", 0)
            await anext(watch)
            assert await store.get(node) == (b"x", 1)
        await proxy.reset()
        assert await store.get(node) == (b"x", 1)
        await store.close()
        await proxy.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
