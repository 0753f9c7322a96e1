"""Bad bytes on the bookie's port: an error or a close soon, and no harm to anybody else."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

import bkpy
from bkpy.local import LocalCluster
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status
from bkpy.protocol.wire.receive_buffer import ReceiveBuffer

DEADLINE_S = 60  # only what never happens takes so long


def frame(op: int, head: object, body: bytes = b"", correlation_id: int = 7) -> bytes:
    return b"".join(wire.encode(op, correlation_id, m.pack(head), [body]))


HELLO = frame(Op.HELLO, ["test", "", ""])


def with_length(data: bytes, length: int) -> bytes:
    return data[:8] + length.to_bytes(4, "little") + data[12:]


def with_wrong_checksum(data: bytes) -> bytes:
    return data[:20] + bytes([data[20] ^ 1]) + data[21:]


def raw_head(op: int, head: bytes) -> bytes:
    return b"".join(wire.encode(op, 7, head))


# What is sent, each on a connection of its own.
BAD: dict[str, Callable[[], bytes]] = {
    "random bytes": lambda: os.urandom(1000),
    "random bytes after a handshake": lambda: HELLO + os.urandom(1000),
    "an http request": lambda: b"GET / HTTP/1.1\r\n\r\n",
    "a length of 2^31": lambda: with_length(HELLO, 1 << 31),
    "a length of 2^31 after a handshake": lambda: HELLO + with_length(frame(Op.READ, [0, 1, 0, 0, 1]), 1 << 31),
    "half a frame": lambda: HELLO[: len(HELLO) // 2],
    "a wrong checksum": lambda: with_wrong_checksum(HELLO),
    "a wrong checksum after a handshake": lambda: HELLO + with_wrong_checksum(frame(Op.READ, [0, 1, 0, 0, 1])),
    "a reply's opcode": lambda: HELLO + frame(Op.READ | wire.REPLY, []),
    "no handshake": lambda: frame(Op.READ, [0, 1, 0, 0, 1]),
    "a newer version": lambda: b"bk\x09" + HELLO[3:],
}

# Whole frames that are no requests: the answer is under their own id, and the connection goes on.
SENSELESS: dict[str, Callable[[], bytes]] = {
    "an unknown opcode": lambda: HELLO + frame(99, []),
    "two handshakes": lambda: HELLO + HELLO,
    "a head that is no msgpack": lambda: HELLO + raw_head(Op.READ, b"\xc1\xc1"),
    "a head that is cut off": lambda: HELLO + raw_head(Op.READ, msgpack.packb([0, 1, 0, 0, 1])[:-1]),
    "a head that is nested deeply": lambda: HELLO + raw_head(Op.READ, b"\x91" * 5000 + b"\x90"),
    "text where numbers belong": lambda: HELLO + frame(Op.READ, ["0", "1", "0", "0", "1"]),
    "a map where an array belongs": lambda: HELLO + frame(Op.READ, {"ledger": 1}),
    "numbers where columns belong": lambda: HELLO + frame(Op.ADD, [0, 1, 1, 1, 1, 1], b"x" * 32),
    "columns that differ in length": lambda: HELLO + frame(Op.ADD, [0, [1], [0, 1], [1], 1, [32]], b"x" * 32),
    "sizes that are not the body's": lambda: HELLO + frame(Op.ADD, [0, [1], [0], [1], 1, [64]], b"x" * 32),
    "an entry id below zero": lambda: HELLO + frame(Op.READ, [0, 1, -1, 0, 1]),
    "a range that is upside down": lambda: HELLO + frame(Op.READ, [0, 1, 5, 4, 1]),
    "a ledger id of 64 bits": lambda: HELLO + frame(Op.READ, [0, 2**64 - 1, 0, 0, 1]),
    "a long poll for less than nothing": lambda: HELLO + frame(Op.WAIT_LAC, [1, -2, False, 1000]),
    "a long poll of negative time": lambda: HELLO + frame(Op.WAIT_LAC, [1, -1, False, -1]),
    "a long poll with a number for a truth": lambda: HELLO + frame(Op.WAIT_LAC, [1, -1, 0, 1000]),
    "a force without a ledger": lambda: HELLO + frame(Op.FORCE, []),
    "a key that is too short": lambda: HELLO + frame(Op.PRESENT, [[1], [b"short"]]),
}


async def answer(address: str, data: bytes) -> bytes:
    """Everything the bookie answers until it hangs up, which it must soon."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        async with asyncio.timeout(DEADLINE_S):
            return await reader.read()
    except ConnectionError:
        return b""  # hung up before everything was sent
    finally:
        writer.close()


def statuses(data: bytes) -> list[int]:
    """The statuses of the error frames in `data`."""
    buffer = ReceiveBuffer(1 << 20)
    found = []
    while data:
        room = buffer.get_buffer()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        data = data[count:]
        found += [m.decode_error(f.head).status for f in buffer.received(count) if f.opcode == wire.REPLY]
    return found


async def replies_to(reader: asyncio.StreamReader, count: int) -> dict[int, Any]:
    """The heads of that many replies, by correlation id; of those with the same, the last."""
    buffer = ReceiveBuffer(1 << 20)
    replies: dict[int, Any] = {}
    got = 0
    async with asyncio.timeout(DEADLINE_S):
        while got < count:
            data = await reader.read(4096)
            assert data
            buffer.get_buffer()[: len(data)] = data
            for reply in buffer.received(len(data)):
                replies[reply.correlation_id] = msgpack.unpackb(reply.head)
                got += 1
    return replies


@pytest.fixture
async def victim(cluster: LocalCluster):
    """A writer that must not notice anything."""
    async with bkpy.connect(cluster.connect_string) as client:
        writer = await client.create_ledger(ack_quorum=3)  # no bookie may fail
        await writer.append(b"before")
        yield writer
        assert await writer.append(b"after") == writer.last_add_confirmed
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        assert [e.data async for e in reader.read()][-1] == b"after"


@pytest.mark.scenario(68)
@pytest.mark.parametrize("name", BAD)
async def test_bad_bytes_are_answered_or_the_connection_is_closed(
    cluster: LocalCluster, victim: bkpy.LedgerWriter, name: str
) -> None:
    told = statuses(await answer(cluster.bookies[0].address, BAD[name]()))
    assert set(told) <= {Status.BAD_REQUEST, Status.TOO_LARGE}
    assert len(told) <= 1
    if "length" in name:
        assert told == [Status.TOO_LARGE]


@pytest.mark.scenario(68)
@pytest.mark.parametrize("name", SENSELESS)
async def test_a_frame_that_is_no_request_is_answered_and_the_connection_goes_on(
    cluster: LocalCluster, victim: bkpy.LedgerWriter, name: str
) -> None:
    host, port = cluster.bookies[0].address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(SENSELESS[name]() + frame(Op.READ, [0, 2**50, 0, 0, 100], correlation_id=9))
    replies = await replies_to(reader, 3)
    bad = replies[7]
    assert bad == Status.BAD_REQUEST if isinstance(bad, int) else bad[0] == Status.BAD_REQUEST
    assert replies[9] == [Status.OK, 0, [], -1]
    writer.close()


@pytest.mark.scenario(68)
async def test_half_a_frame_and_then_the_end(cluster: LocalCluster, victim: bkpy.LedgerWriter) -> None:
    host, port = cluster.bookies[0].address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(HELLO + frame(Op.ADD, [0, [1], [0], [1], 1, [32]], b"x" * 32)[:40])
    writer.write_eof()
    async with asyncio.timeout(DEADLINE_S):
        assert len(await reader.read()) > 0  # the handshake was answered, nothing else
    writer.close()


@pytest.mark.scenario(68)
async def test_an_add_without_a_key_is_refused_and_the_connection_goes_on(
    cluster: LocalCluster, victim: bkpy.LedgerWriter
) -> None:
    """A stranger can neither write to somebody's ledger nor make one up by writing."""
    host, port = cluster.bookies[0].address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    body = b"\0" * 32
    columns = [0, [victim.ledger_id, 2**50], [7, 0], [1, 1], 1, [32, 32]]
    writer.write(
        HELLO
        + frame(Op.PRESENT, [[victim.ledger_id], [b"k" * 32]])
        + frame(Op.ADD, columns, body * 2, 8)
        + frame(Op.READ, [0, 2**50, 0, 0, 100], correlation_id=9)
    )
    replies = await replies_to(reader, 3)
    assert replies[8] == [Status.UNAUTHORIZED, Status.KEY_REQUIRED]
    assert replies[9] == [Status.OK, 0, [], -1]
    writer.close()


@pytest.mark.exhaustive
@pytest.mark.scenario(68)
async def test_thousands_of_idle_connections_do_no_harm(cluster: LocalCluster, victim: bkpy.LedgerWriter) -> None:
    host, port = cluster.bookies[0].address.rsplit(":", 1)
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(1500)]
    try:
        assert await victim.append(b"meanwhile") == victim.last_add_confirmed
        async with asyncio.timeout(DEADLINE_S):  # none of them has said a word: all are closed in the end
            for reader, _ in opened:
                try:
                    assert await reader.read() == b""
                except ConnectionError:
                    continue
    finally:
        for _, writer in opened:
            writer.close()
