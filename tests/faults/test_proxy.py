"""The proxy's faults on real sockets: what each side of a connection notices of them, and that they end."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.waiting import eventually

from .proxy import HOST, QUEUED_BYTES_MAX, Flow, Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DEADLINE_S = 30.0
QUIET_S = 0.2  # for which nothing must happen; much longer than anything takes without a fault


class Peer(asyncio.Protocol):
    """Keeps everything that happens to its end of a connection."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)

    async def has(self, data: bytes) -> None:
        """Wait for that many bytes; they are these and no others."""
        await eventually(lambda: len(self.received) >= len(data))
        assert self.received == data

    async def was_reset(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            assert isinstance(await self.lost, ConnectionResetError)

    async def was_closed(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            assert await self.lost is None


class Server:
    """What the proxy leads to."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []

    def accept(self) -> Peer:
        self.peers.append(Peer())
        return self.peers[-1]


class World:
    """A server behind a proxy, and connections to it."""

    def __init__(self) -> None:
        self.upstream = Server()
        self.proxy: Proxy
        self.clients: list[Peer] = []
        self._server: asyncio.Server

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self.upstream.accept, HOST, 0)
        self.proxy = Proxy(self._server.sockets[0].getsockname()[1], seed=1)
        await self.proxy.start()

    async def stop(self) -> None:
        for peer in self.clients:
            peer.transport.abort()
        await self.proxy.stop()
        self.stop_server()

    def stop_server(self) -> None:
        self._server.close()

    async def client(self) -> Peer:
        _, peer = await asyncio.get_running_loop().create_connection(Peer, HOST, self.proxy.port)
        self.clients.append(peer)
        return peer

    async def pair(self) -> tuple[Peer, Peer]:
        """Both ends of a new connection, over which a greeting has gone both ways."""
        known = len(self.upstream.peers)
        client = await self.client()
        client.transport.write(b"hello ")
        await eventually(lambda: len(self.upstream.peers) > known)
        server = self.upstream.peers[known]
        await server.has(b"hello ")
        server.transport.write(b"welcome ")
        await client.has(b"welcome ")
        client.received.clear()
        server.received.clear()
        return client, server


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.start()
    yield made
    await made.stop()


Ends = tuple[Peer, Peer, Flow]


@pytest.fixture(params=["requests", "replies"])
async def ends(request: pytest.FixtureRequest, world: World) -> Ends:
    """(sender, receiver, the flow between them), in one direction and in the other."""
    client, server = await world.pair()
    return (
        (client, server, world.proxy.requests) if request.param == "requests" else (server, client, world.proxy.replies)
    )


async def test_without_faults_large_streams_pass_both_ways_unchanged(world: World) -> None:
    client, server = await world.pair()
    rng = random.Random(1)
    there, back = rng.randbytes(3 * QUEUED_BYTES_MAX), rng.randbytes(2 * QUEUED_BYTES_MAX)
    client.transport.write(there)
    server.transport.write(back)
    await asyncio.gather(server.has(there), client.has(back))
    assert (world.proxy.accepted, world.proxy.connections) == (1, 1)
    assert world.proxy.requests.bytes_passed == len(b"hello " + there)


async def test_the_end_of_a_connection_passes_behind_the_bytes(ends: Ends) -> None:
    sender, receiver, _ = ends
    sender.transport.write(b"last words" * 10_000)
    sender.transport.close()
    await receiver.was_closed()
    assert receiver.received == b"last words" * 10_000


async def test_a_reset_passes(ends: Ends) -> None:
    sender, receiver, _ = ends
    sender.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    sender.transport.abort()
    await receiver.was_reset()


async def test_connections_that_ended_are_forgotten(world: World) -> None:
    for _ in range(5):
        client, server = await world.pair()
        client.transport.close()
        await server.was_closed()
    await eventually(lambda: world.proxy.connections == 0)
    assert world.proxy.accepted == 5


async def test_delayed_bytes_arrive_late_whole_and_in_order(ends: Ends) -> None:
    sender, receiver, flow = ends
    loop = asyncio.get_running_loop()
    flow.delay(0.2, jitter_s=0.2)
    begun = loop.time()
    for i in range(50):
        sender.transport.write(b"%05d" % i)
        await asyncio.sleep(0.001)
    await eventually(lambda: bool(receiver.received))
    assert loop.time() - begun >= 0.2
    await receiver.has(b"".join(b"%05d" % i for i in range(50)))
    flow.go_on()
    sender.transport.write(b"!")
    await eventually(lambda: receiver.received.endswith(b"!"))


async def test_the_jitter_is_the_same_for_a_seed() -> None:
    def latencies(seed: str) -> list[float]:
        flow = Flow(seed)
        flow.delay(1.0, jitter_s=0.5)
        return [flow.latency_s() for _ in range(10)]

    assert latencies("1") == latencies("1") != latencies("2")
    assert all(1.0 <= latency <= 1.5 for latency in latencies("3"))


async def test_a_stopped_direction_delivers_everything_later_and_the_other_one_goes_on(ends: Ends) -> None:
    sender, receiver, flow = ends
    flow.stop()
    sender.transport.write(b"delayed")
    receiver.transport.write(b"not delayed")
    await sender.has(b"not delayed")
    sender.transport.write(b" words")
    sender.transport.close()
    await asyncio.sleep(QUIET_S)
    assert not receiver.received
    assert not receiver.lost.done()
    flow.go_on()
    await receiver.was_closed()
    assert receiver.received == b"delayed words"


async def test_a_stopped_direction_takes_a_bounded_amount(ends: Ends) -> None:
    sender, receiver, flow = ends
    flow.stop()
    data = random.Random(2).randbytes(16 * QUEUED_BYTES_MAX)
    sender.transport.write(data)
    await asyncio.sleep(QUIET_S)
    # Less than all has left the sender: the rest waits for the proxy to read on.
    assert sender.transport.get_write_buffer_size() > len(data) // 4
    flow.go_on()
    await receiver.has(data)


async def test_dropped_bytes_never_arrive_and_the_connection_never_delivers_again(ends: Ends) -> None:
    sender, receiver, flow = ends
    flow.drop()
    sender.transport.write(b"lost")
    receiver.transport.write(b"unharmed")
    await sender.has(b"unharmed")
    await asyncio.sleep(QUIET_S)
    flow.go_on()
    sender.transport.write(b"behind the hole")
    await asyncio.sleep(QUIET_S)
    assert not receiver.received
    assert not receiver.lost.done()
    sender.transport.close()
    await receiver.was_reset()  # it has not been sent everything, so it is not told of an orderly end


async def test_dropping_takes_what_is_on_its_way_too(ends: Ends) -> None:
    sender, receiver, flow = ends
    flow.stop()
    sender.transport.write(b"on its way")
    sender.transport.close()
    await asyncio.sleep(QUIET_S)
    flow.drop()
    flow.go_on()
    await receiver.was_reset()
    assert not receiver.received


async def test_the_end_of_a_connection_is_not_told_while_bytes_are_dropped(ends: Ends) -> None:
    sender, receiver, flow = ends
    flow.drop()
    sender.transport.close()
    await asyncio.sleep(QUIET_S)
    assert not receiver.lost.done()
    flow.go_on()
    await receiver.was_closed()  # nothing was lost


async def test_after_dropping_new_connections_work(world: World) -> None:
    await world.pair()
    world.proxy.requests.drop()
    silent = await world.client()
    silent.transport.write(b"?")
    await asyncio.sleep(QUIET_S)
    world.proxy.requests.go_on()
    await world.pair()
    await world.proxy.heal()
    await silent.was_reset()  # it had lost bytes


async def test_a_connection_is_cut_behind_a_byte(ends: Ends) -> None:
    sender, receiver, flow = ends
    happened = flow.cut_after(10)
    sender.transport.write(b"1234567")
    await receiver.has(b"1234567")
    assert not happened.is_set()
    sender.transport.write(b"890abcdef")
    await receiver.was_reset()
    await sender.was_reset()
    assert happened.is_set()
    assert receiver.received == b"1234567890"


async def test_a_cut_is_called_off(ends: Ends) -> None:
    sender, receiver, flow = ends
    happened = flow.cut_after(10)
    flow.go_on()
    sender.transport.write(bytes(20))
    await receiver.has(bytes(20))
    assert not happened.is_set()


async def test_a_cut_is_for_one_connection(world: World) -> None:
    first, second = await world.pair(), await world.pair()
    world.proxy.requests.cut_after(1)
    first[0].transport.write(b"x")
    await first[0].was_reset()
    second[0].transport.write(b"unharmed")
    await second[1].has(b"unharmed")


async def test_half_open_connections_are_silent_until_the_fault_ends(world: World) -> None:
    client, server = await world.pair()
    closing, closed = await world.pair()
    world.proxy.abandon()
    client.transport.write(b"anybody there?")
    server.transport.write(b"nobody")
    closing.transport.close()
    await asyncio.sleep(QUIET_S)
    assert not client.received
    assert not server.received
    assert not any(peer.lost.done() for peer in (client, server, closed))
    await world.pair()  # new ones are not affected
    await world.proxy.heal()
    await asyncio.gather(client.was_reset(), server.was_reset(), closed.was_reset())
    await eventually(lambda: world.proxy.connections == 1)


async def test_a_reset_reaches_both_sides_and_new_connections_work(world: World) -> None:
    pairs = [await world.pair() for _ in range(3)]
    world.proxy.reset()
    await asyncio.gather(*(peer.was_reset() for pair in pairs for peer in pair))
    await world.pair()


async def test_a_reset_in_the_turn_in_which_a_connection_comes_leaves_nothing_open(world: World) -> None:
    """The one to the server has not been begun then."""
    opened = world.proxy.opened

    def open_and_reset(link: Any) -> None:
        opened(link)
        asyncio.get_running_loop().call_soon(world.proxy.reset)

    world.proxy.opened = open_and_reset  # type: ignore[method-assign]
    await (await world.client()).was_reset()
    await eventually(lambda: world.proxy.connections == 0)
    assert not world.upstream.peers


async def test_a_refusal_is_for_new_connections_and_ends(world: World) -> None:
    client, server = await world.pair()
    world.proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await world.client()
    client.transport.write(b"still here")
    await server.has(b"still here")
    port = world.proxy.port
    await world.proxy.heal()
    assert world.proxy.port == port
    await world.pair()


async def test_a_silent_proxy_accepts_and_says_nothing(world: World) -> None:
    client, server = await world.pair()
    world.proxy.silence()
    stranger = await world.client()
    stranger.transport.write(b"hello?")
    client.transport.write(b"still here")
    await server.has(b"still here")
    await asyncio.sleep(QUIET_S)
    assert len(world.upstream.peers) == 1
    assert not stranger.lost.done()
    await world.proxy.heal()
    await stranger.was_reset()
    await world.pair()


async def test_a_cut_network_delays_both_directions_and_loses_nothing(world: World) -> None:
    client, server = await world.pair()
    world.proxy.cut()
    client.transport.write(b"there")
    server.transport.write(b"back")
    new = await world.client()  # the proxy accepts, and what is sent waits
    new.transport.write(b"new")
    await asyncio.sleep(QUIET_S)
    assert not client.received
    assert not server.received
    await world.proxy.heal()
    await asyncio.gather(server.has(b"there"), client.has(b"back"), world.upstream.peers[1].has(b"new"))


async def test_a_server_that_is_not_there_is_a_reset(world: World) -> None:
    world.stop_server()
    stranger = await world.client()
    await stranger.was_reset()
    await eventually(lambda: world.proxy.connections == 0)


async def test_stop_leaves_nothing_open(world: World) -> None:
    client, server = await world.pair()
    connecting = asyncio.create_task(world.client())
    await asyncio.sleep(0)
    await world.proxy.stop()
    await asyncio.gather(client.was_reset(), server.was_reset())
    late = await asyncio.gather(connecting, return_exceptions=True)
    if isinstance(late[0], Peer):
        await late[0].was_reset()
    assert world.proxy.connections == 0
    with pytest.raises(ConnectionRefusedError):
        await world.client()


async def test_stop_does_not_wait_for_a_receiver_that_reads_nothing(world: World) -> None:
    """Even if the sender has ended the connection in order, and the proxy still has something to deliver."""
    client, server = await world.pair()
    client.transport.pause_reading()
    server.transport.write(bytes(4 * QUEUED_BYTES_MAX))
    await eventually(lambda: server.transport.get_write_buffer_size() == 0 or world.proxy.replies.bytes_passed > 1000)
    server.transport.close()
    await asyncio.sleep(QUIET_S)
    async with asyncio.timeout(DEADLINE_S):
        await world.proxy.stop()
    client.transport.resume_reading()
    await client.was_reset()
