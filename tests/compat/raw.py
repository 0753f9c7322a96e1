"""Frames as docs/reference/formats/wire.md has them, made without bkpy's code, which may change.

`add` is what an old writer does that has not heard of its ledger's recovery: it goes on, with the right key.
"""

from __future__ import annotations

import asyncio
import hmac
import struct
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgpack
from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HELLO, PRESENT, ADD, READ, READ_LAC = 1, 2, 3, 4, 5
REPLY = 0x80
PREFIX_BYTES = 24
RECORD_HEADER_BYTES = 32
OK, FENCED, UNAUTHORIZED, READ_ONLY = 0, 1, 2, 4
TIMEOUT_S = 30.0


def ledger_key(password: bytes) -> bytes:
    return hmac.digest(password, b"ledger", "sha256")


def record(ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    """An entry record with the crc32c digest."""
    fields = struct.pack("<qqq", entry_id, entry_id - 1, len(payload))
    checksum = crc32c(struct.pack("<q", ledger_id) + fields + payload)
    return struct.pack("<II", len(payload), checksum) + fields + payload


def frame(opcode: int, head: Any, body: bytes = b"", correlation_id: int = 7) -> bytes:
    packed = msgpack.packb(head)
    prefix = struct.pack("<2sBBIIQ", b"bk", 1, opcode, len(packed), len(body), correlation_id)
    return prefix + struct.pack("<I", crc32c(prefix + packed + body)) + packed + body


class Connection:
    """To one bookie, which has been greeted."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, opcode: int, head: list[Any], body: bytes = b"") -> None:
        self._writer.write(frame(opcode, head, body))

    async def reply(self) -> tuple[Any, bytes]:
        prefix = await self._reader.readexactly(PREFIX_BYTES)
        head_bytes, body_bytes = struct.unpack_from("<II", prefix, 4)
        head = msgpack.unpackb(await self._reader.readexactly(head_bytes))
        return head, await self._reader.readexactly(body_bytes)


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Connection]:
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            connection = Connection(reader, writer)
            connection.send(HELLO, ["frames by hand", "", ""])
            head, _ = await connection.reply()
            assert head[0] == OK, head
            yield connection
        finally:
            writer.close()


async def add(address: str, ledger_id: int, entry_id: int, payload: bytes, *, password: bytes = b"") -> int:
    """Send one entry to the bookie; the status that it answers."""
    async with connected(address) as connection:
        body = record(ledger_id, entry_id, payload)
        connection.send(PRESENT, [[ledger_id], [ledger_key(password)]])
        connection.send(ADD, [0, [ledger_id], [entry_id], [1], 1, [len(body)]], body)
        status, _ = await connection.reply()
    answer: int = status[0] if isinstance(status, list) else status
    return answer


async def last_entries(address: str, ledger_id: int) -> tuple[int, int]:
    """The highest entry that the bookie has, and the last add confirmed that the writer has told it; -1 for none."""
    async with connected(address) as connection:
        connection.send(READ_LAC, [0, ledger_id])
        (_, entry_bytes, _), body = await connection.reply()
    highest, explicit = body[:entry_bytes], body[entry_bytes:]
    return (
        struct.unpack_from("<q", highest, 8)[0] if highest else -1,
        struct.unpack_from("<q", explicit, 16)[0] if explicit else -1,
    )


async def read(address: str, ledger_id: int, last: int) -> tuple[dict[int, bytes], set[int]]:
    """(payload by id, ids of which the bookie can't tell) of the entries up to `last`, as the bookie answers."""
    found: dict[int, bytes] = {}
    unknown: set[int] = set()
    at = 0
    async with connected(address) as connection:
        while at <= last:
            connection.send(READ, [0, ledger_id, at, last, 1 << 20])
            (status, examined_to, ranges, _), body = await connection.reply()
            assert status == OK, status
            offset = 0
            while offset < len(body):
                size, _, entry_id = struct.unpack_from("<IIq", body, offset)
                found[entry_id] = body[offset + RECORD_HEADER_BYTES : offset + RECORD_HEADER_BYTES + size]
                offset += RECORD_HEADER_BYTES + size
            unknown.update(i for low, high in ranges for i in range(low, high + 1))
            at = examined_to + 1
    return found, unknown - found.keys()


class FromTheFuture:
    """Stands in front of a bookie, and answers some requests with a status that nobody has heard of yet."""

    STATUS = 99

    def __init__(self, port: int, bookie: str) -> None:
        self.address = f"127.0.0.1:{port}"
        self.opcodes: set[int] = set()  # of the requests that are answered so
        self.answered: Counter[int] = Counter()  # by opcode
        self._port = port
        self._bookie = bookie
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> FromTheFuture:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._bookie.rpartition(":")
        try:
            upstream, requests = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._copy(reader, requests))
                both.create_task(self._answer(upstream, writer))
        except* (OSError, asyncio.IncompleteReadError):
            pass  # one side has gone, and the other goes with it
        finally:
            requests.close()
            writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            prefix = await reader.readexactly(PREFIX_BYTES)
            head_bytes, body_bytes, correlation_id = struct.unpack_from("<IIQ", prefix, 4)
            rest = await reader.readexactly(head_bytes + body_bytes)
            opcode = prefix[3] & ~REPLY
            if opcode in self.opcodes:
                self.answered[opcode] += 1
                head: Any = self.STATUS if opcode == ADD else [self.STATUS, "you will understand some day"]
                writer.write(frame(opcode | REPLY, head, correlation_id=correlation_id))
            else:
                writer.write(prefix + rest)
            await writer.drain()
