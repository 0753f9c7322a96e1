"""A client that says what it likes, frame by frame."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self, cast

import msgpack
from tests.hooks import cluster_of
from tests.in_process import DEADLINE_S, InProcess
from tests.waiting import eventually

from bkpy.metadata.ledgers.catalog import Created
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op
from bkpy.protocol.wire.receive_buffer import ReceiveBuffer
from bkpy.protocol.wire.records import RecordCodec

if TYPE_CHECKING:
    import ssl

    from bkpy.bookie.connection.connection import Connection


def frame(op: int, head: object, body: bytes = b"", correlation_id: int = 7) -> bytes:
    return b"".join(wire.encode(op, correlation_id, m.pack(head), [body]))


def hello(software: str = "test") -> bytes:
    return frame(Op.HELLO, [software, "", ""], correlation_id=1)


def record(ledger_id: int, entry_id: int = 0, payload: bytes = b"x") -> bytes:
    parts: list[Any] = []
    RecordCodec(ledger_id).encode(parts, [payload], entry_id, 1, entry_id - 1, [len(payload)])
    return b"".join(parts)


def add(ledger_id: int, entry_id: int = 0, *, flags: int = 0, payload: bytes = b"x", correlation_id: int = 7) -> bytes:
    body = record(ledger_id, entry_id, payload)
    return frame(Op.ADD, [flags, [ledger_id], [entry_id], [1], 1, [len(body)]], body, correlation_id)


async def make_ledger(cluster: InProcess, key: bytes) -> int:
    """Store the metadata of a new ledger with that key, on bookie a; returns its id. They ascend from 0."""
    catalog = cluster_of(await cluster.client()).catalog
    fragments = (Fragment(0, ("a",)),)

    def build(ledger_id: int) -> LedgerMetadata:
        token = f"token-{ledger_id}"
        return LedgerMetadata(
            ledger_id, LedgerState.OPEN, 1, 1, 1, "crc32c", key, fragments=fragments, owner_token=token
        )

    created = await catalog.create(build)
    assert isinstance(created, Created), created
    return created.metadata.ledger_id


class Raw:
    """One connection. `near` is the bookie's side of it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, near: Connection) -> None:
        self.near = near
        self.writer = writer
        self._reader = reader
        self._buffer = ReceiveBuffer(64 << 20)
        self._replies: dict[int, tuple[int, Any]] = {}

    @classmethod
    async def connect(
        cls, cluster: InProcess, name: str = "a", *, greet: bool = True, tls: ssl.SSLContext | None = None
    ) -> Self:
        """A new connection to that bookie, greeted by it."""
        before = cluster.connections(name)
        host, port = cluster.node(name).address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
        await eventually(lambda: len(set(cluster.connections(name)) - set(before)) == 1)
        (near,) = set(cluster.connections(name)) - set(before)
        raw = cls(reader, writer, near)
        if greet:
            raw.send(hello())
            assert (await raw.reply(1))[1][0] == m.Status.OK
        return raw

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def reply(self, correlation_id: int) -> tuple[int, Any]:
        """(opcode, head) of the reply to that request. `EOFError` if the bookie has hung up."""
        async with asyncio.timeout(DEADLINE_S):
            while correlation_id not in self._replies:
                await self._receive()
        return self._replies.pop(correlation_id)

    async def rest(self) -> dict[int, tuple[int, Any]]:
        """All that comes until the bookie hangs up, by correlation id."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                while True:
                    await self._receive()
            except (EOFError, ConnectionError):
                return self._replies

    async def _receive(self) -> None:
        data = await self._reader.read(65536)
        if not data:
            raise EOFError
        while data:
            room = self._buffer.get_buffer()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            data = data[count:]
            for got in self._buffer.received(count):
                self._replies[got.correlation_id] = (got.opcode, msgpack.unpackb(got.head))

    def has_reply(self, correlation_id: int) -> bool:
        """Whether the reply to that request came with what was waited for."""
        return correlation_id in self._replies

    def forget_replies(self) -> None:
        """Those that came and that nobody asks for."""
        self._replies.clear()

    def stop_reading(self) -> None:
        """Let what the bookie sends pile up."""
        cast("asyncio.Transport", self.writer.transport).pause_reading()

    def close(self) -> None:
        self.writer.close()
