"""The simulated network keeps TCP's promises to a connection, and breaks what TCP may break."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import TYPE_CHECKING, Any

import pytest

from .loop import EscapeError
from .transport import WINDOW_BYTES
from .world import Host, HostDied, World

if TYPE_CHECKING:
    from collections.abc import Coroutine


class Peer(asyncio.Protocol):
    """Keeps everything that happens to it."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.events: list[str] = []
        self.transport: asyncio.Transport
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.keep_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keep_open

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")
        self.lost.set_result(exc)


class BufferedPeer(asyncio.BufferedProtocol):
    """Takes bytes through a small buffer of its own."""

    def __init__(self) -> None:
        self.buffer = bytearray(777)
        self.received = bytearray()
        self.events: list[str] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.buffer[:nbytes]

    def eof_received(self) -> None:
        self.events.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")


class Pair:
    """Two hosts, `a` connected to a server on `b`."""

    def __init__(self, seed: int = 0, server: type[Any] = Peer) -> None:
        self.world = World(seed)
        self.a, self.b = self.world.add_host("a"), self.world.add_host("b")
        self.accepted: list[Any] = []
        self.server_class = server
        self.near: Any = None

    @property
    def far(self) -> Any:
        return self.accepted[-1]

    def accept(self) -> Any:
        self.accepted.append(self.server_class())
        return self.accepted[-1]

    async def listen(self) -> Any:
        return await asyncio.get_running_loop().create_server(self.accept, "0.0.0.0", 3181)

    async def connect(self, factory: type[Any] = Peer) -> Any:
        _, protocol = await asyncio.get_running_loop().create_connection(factory, self.b.address, 3181)
        return protocol

    async def up(self, client: type[Any] = Peer) -> None:
        self.a.boot()
        self.b.boot()
        await self.b.start(self.listen())
        self.near = await self.a.start(self.connect(client))

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        return self.world.run(main)


@pytest.mark.parametrize("kind", [Peer, BufferedPeer])
@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_whole_and_in_order(kind: type[Any], seed: int) -> None:
    pair = Pair(seed, server=kind)
    rng = random.Random(seed)
    sent = bytearray()

    async def main() -> None:
        await pair.up()
        for _ in range(50):
            data = rng.randbytes(rng.randrange(60_000))
            sent.extend(data)
            pair.near.transport.writelines([data[:100], memoryview(data)[100:]])
            await asyncio.sleep(rng.random() * 0.001)
        pair.near.transport.write_eof()
        await asyncio.sleep(5)
        assert pair.far.received == sent
        assert pair.far.events[-2:] == ["eof", "lost"]
        assert pair.near.events[-1] == "lost"
        assert pair.near.lost.result() is None

    pair.run(main())


def test_addresses() -> None:
    pair = Pair()

    async def main() -> None:
        await pair.up()
        near, far = pair.near.transport, pair.far.transport
        assert near.get_extra_info("peername") == far.get_extra_info("sockname") == (pair.b.address, 3181)
        assert near.get_extra_info("sockname") == far.get_extra_info("peername")
        assert near.get_extra_info("socket") is None
        with pytest.raises(socket.gaierror):
            await asyncio.get_running_loop().create_connection(Peer, "elsewhere.example", 1)
        with pytest.raises(ConnectionRefusedError):
            await pair.a.start(asyncio.get_running_loop().create_connection(Peer, "127.0.0.1", 3181))
        with pytest.raises(OSError, match="isn't an address"):
            await pair.a.start(asyncio.get_running_loop().create_server(Peer, pair.b.address, 1))

    pair.run(main())


def test_a_server_listens_until_it_is_closed() -> None:
    pair = Pair()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        pair.a.boot()
        pair.b.boot()
        server = await pair.b.start(pair.listen())
        assert server.sockets[0].getsockname() == (pair.b.address, 3181)
        assert server.is_serving()
        with pytest.raises(OSError, match="in use"):
            await pair.b.start(pair.listen())
        other = await pair.b.start(loop.create_server(Peer, None, 0, start_serving=False))
        port = other.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            await pair.a.start(loop.create_connection(Peer, pair.b.address, port))
        await other.start_serving()
        await pair.a.start(loop.create_connection(Peer, pair.b.address, port))
        near = await pair.a.start(pair.connect())
        server.close()
        await server.wait_closed()
        assert server.sockets == ()
        with pytest.raises(ConnectionRefusedError):
            await pair.a.start(pair.connect())
        near.transport.write(b"still here")
        await asyncio.sleep(1)
        assert pair.far.received == b"still here"
        with pytest.raises(EscapeError):
            await server.serve_forever()

    pair.run(main())


def test_a_paused_reader_stops_the_writer() -> None:
    pair = Pair()
    total = WINDOW_BYTES * 3

    async def main() -> None:
        await pair.up()
        pair.near.transport.set_write_buffer_limits(high=1000, low=100)
        pair.far.transport.pause_reading()
        assert not pair.far.transport.is_reading()
        for _ in range(3):
            pair.near.transport.write(bytes(WINDOW_BYTES))
            await asyncio.sleep(1)
        assert pair.far.received == b""
        assert pair.near.transport.get_write_buffer_size() == total - WINDOW_BYTES
        assert pair.near.events[-1] == "pause"
        pair.far.transport.resume_reading()
        await asyncio.sleep(1)
        assert len(pair.far.received) == total
        assert pair.near.events[-1] == "resume"
        assert pair.near.transport.get_write_buffer_size() == 0

    pair.run(main())


def test_close_sends_what_was_written_and_abort_does_not_wait() -> None:
    pair = Pair()

    async def main() -> None:
        await pair.up()
        pair.near.transport.write(bytes(WINDOW_BYTES * 2))
        pair.near.transport.close()
        assert pair.near.transport.is_closing()
        pair.near.transport.write(b"after close")
        assert await pair.near.lost is None
        await asyncio.sleep(1)
        assert pair.far.received == bytes(WINDOW_BYTES * 2)
        assert pair.far.lost.result() is None

        near = await pair.a.start(pair.connect())
        pair.far.transport.pause_reading()
        near.transport.write(bytes(WINDOW_BYTES * 2))
        await asyncio.sleep(1)
        near.transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert near.events[-1] == "lost"
        pair.far.transport.resume_reading()
        await asyncio.sleep(1)
        assert pair.far.events[-1] == "lost"
        assert len(pair.far.received) <= WINDOW_BYTES

    pair.run(main())


def test_a_buffer_that_is_changed_in_the_same_turn_is_sent_changed() -> None:
    pair = Pair()

    async def main() -> None:
        await pair.up()
        data = bytearray(b"before")
        pair.near.transport.write(data)
        data[:] = b"after!"
        await asyncio.sleep(1)
        assert pair.far.received == b"after!"

    pair.run(main())


def test_an_end_that_is_closed_answers_with_a_reset() -> None:
    pair = Pair()

    async def main() -> None:
        await pair.up()
        pair.near.keep_open = True
        pair.far.transport.close()
        await asyncio.sleep(1)
        assert pair.near.events == ["made", "eof"]
        pair.near.transport.write(b"are you there?")
        await asyncio.sleep(1)
        assert isinstance(pair.near.lost.result(), ConnectionResetError)

    pair.run(main())


@pytest.mark.parametrize("seed", range(5))
def test_a_reset_loses_what_is_in_flight_and_reaches_both_ends(seed: int) -> None:
    pair = Pair(seed)

    async def main() -> None:
        await pair.up()
        for i in range(100):
            pair.near.transport.write(bytes([i]) * 1000)
            await asyncio.sleep(0.00005)
        pair.world.net.reset(pair.a.address, pair.b.address)
        await asyncio.sleep(1)
        assert isinstance(pair.near.lost.result(), ConnectionResetError)
        assert isinstance(pair.far.lost.result(), ConnectionResetError)
        whole = b"".join(bytes([i]) * 1000 for i in range(100))
        assert whole.startswith(pair.far.received)
        assert len(pair.far.received) < len(whole)

    pair.run(main())


def test_a_partition_delays_and_a_one_way_block_stops_one_way() -> None:
    pair = Pair()

    async def main() -> None:
        await pair.up()
        pair.world.net.block(pair.a.address, pair.b.address)
        pair.near.transport.write(b"question")
        pair.far.transport.write(b"answer")
        await asyncio.sleep(60)
        assert pair.near.received == b"answer"
        assert pair.far.received == b""
        pair.world.net.heal()
        await asyncio.sleep(2)
        assert pair.far.received == b"question"

    pair.run(main())


def test_connecting_across_a_partition_times_out_or_waits_for_its_end() -> None:
    pair = Pair()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        await pair.up()
        pair.world.net.partition(pair.a.address, pair.b.address)
        start = loop.time()
        with pytest.raises(TimeoutError):
            await pair.a.start(pair.connect())
        assert loop.time() - start == pytest.approx(pair.world.net.connect_timeout_s)
        waiting = pair.a.start(pair.connect())
        given_up = pair.a.start(pair.connect())
        await asyncio.sleep(30)
        given_up.cancel()
        pair.world.net.heal()
        await waiting
        assert len(pair.accepted) == 2  # nobody sees the one that was given up
        # With the answers lost, the server has a connection of which the client never hears.
        pair.world.net.block(pair.b.address, pair.a.address)
        with pytest.raises(TimeoutError):
            await pair.a.start(pair.connect())
        assert len(pair.accepted) == 3
        await asyncio.sleep(1)
        assert pair.far.events[-1] == "lost"

    pair.run(main())


def test_refusal_and_slowness() -> None:
    pair = Pair()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        await pair.up()
        pair.world.net.refuse(pair.b.address)
        with pytest.raises(ConnectionRefusedError):
            await pair.a.start(pair.connect())
        pair.world.net.heal()
        pair.world.net.slow(pair.a.address, pair.b.address, 5.0)
        start = loop.time()
        await pair.a.start(pair.connect())
        assert 5.0 < loop.time() - start < 5.1

    pair.run(main())


def test_a_duplicated_connection_brings_all_bytes_once_more_and_late() -> None:
    pair = Pair()

    async def main() -> None:
        await pair.up()
        net = pair.world.net
        net.duplicate(pair.a.address, pair.b.address, 0.5)
        near = await pair.a.start(pair.connect())
        pair.a.do(near.transport.write, b"add")
        await asyncio.sleep(0.1)
        assert [bytes(peer.received) for peer in pair.accepted] == [b"", b"add"]
        pair.b.do(pair.far.transport.write, b"done")
        await asyncio.sleep(0.1)
        pair.a.power_cut()  # what is under way doesn't care
        await asyncio.sleep(0.6)
        first, original, duplicate = pair.accepted
        assert (bytes(first.received), bytes(original.received), bytes(duplicate.received)) == (b"", b"add", b"add")
        assert bytes(near.received) == b"done"
        pair.b.do(duplicate.transport.write, b"done")
        await asyncio.sleep(0.1)
        assert duplicate.events == ["made"]
        net.mend(pair.a.address, pair.b.address)
        await duplicate.lost
        assert bytes(near.received) == b"done"

    pair.run(main())


def test_a_duplicate_that_the_far_end_has_not_accepted_yet_takes_any_number_of_bytes() -> None:
    pair = Pair()

    async def main() -> None:
        await pair.up()
        net = pair.world.net
        net.duplicate(pair.a.address, pair.b.address, 0.001)
        near = await pair.a.start(pair.connect())
        net.partition(pair.a.address, pair.b.address)
        pair.a.do(near.transport.write, bytes(WINDOW_BYTES))
        await asyncio.sleep(1.0)
        assert len(pair.accepted) == 2

    pair.run(main())


@pytest.mark.parametrize("seed", range(10))
def test_the_kernel_closes_the_connections_of_a_dead_process(seed: int) -> None:
    pair = Pair(seed)

    async def main() -> None:
        await pair.up()
        pair.far.transport.write(b"last words")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        pair.b.crash()
        await asyncio.sleep(1)
        assert pair.near.received in (b"last words", b"")
        assert pair.near.events[-1] == "lost"
        assert pair.far.events == ["made"]  # it died, it has not been told
        with pytest.raises(ConnectionRefusedError):
            await pair.a.start(pair.connect())

    pair.run(main())


def test_a_host_without_power_is_silent_and_resets_old_connections_when_it_is_back() -> None:
    pair = Pair()

    async def main() -> None:
        await pair.up()
        pair.b.power_cut()
        pair.near.transport.write(b"hello?")
        await asyncio.sleep(60)
        assert pair.near.events == ["made"]
        pair.b.boot()
        await asyncio.sleep(2)
        assert isinstance(pair.near.lost.result(), ConnectionResetError)

    pair.run(main())


def test_a_protocol_that_fails_loses_its_connection() -> None:
    class Failing(Peer):
        def data_received(self, data: bytes) -> None:
            raise ValueError("no")

    pair = Pair(server=Failing)

    async def main() -> None:
        await pair.up()
        pair.near.transport.write(b"x")
        await asyncio.sleep(1)
        assert pair.near.events[-1] == "lost"
        errors, pair.world.loop.errors = pair.world.loop.errors, []
        assert [str(error["exception"]) for error in errors] == ["no"]
        assert str(pair.far.lost.result()) == "no"

    pair.run(main())


def test_streams_work() -> None:
    world = World(0)
    server_host, client_host = world.add_host("server"), world.add_host("client")

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper())
            await writer.drain()
        writer.close()

    async def client(host: Host) -> bytes:
        reader, writer = await asyncio.open_connection(host.address, 7)
        writer.write(b"one\ntwo\n")
        writer.write_eof()
        return await reader.read()

    async def main() -> bytes:
        server_host.boot()
        client_host.boot()
        await server_host.start(asyncio.start_server(echo, "0.0.0.0", 7))
        return await client_host.start(client(server_host))

    assert world.run(main()) == b"ONE\nTWO\n"


def test_a_call_on_a_host_that_dies_fails() -> None:
    world = World(0)
    host = world.add_host("a")

    async def main() -> None:
        host.boot()
        call = host.start(asyncio.sleep(10))
        await asyncio.sleep(1)
        host.crash()
        with pytest.raises(HostDied):
            await call
        assert not host.up

    world.run(main())
