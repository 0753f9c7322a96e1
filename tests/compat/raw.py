"""Frames as docs/formats/wire.md has them, made without bkpy's code, which may change.

`add` is what an old writer does that has not heard of its ledger's recovery: it goes on, with the right key.
"""

from __future__ import annotations

import asyncio
import hmac
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgpack
from crc32c import crc32c

HELLO, PRESENT, ADD, READ_LAC = 1, 2, 3, 5
OK, FENCED, UNAUTHORIZED = 0, 1, 2
TIMEOUT_S = 30.0


def ledger_key(password: bytes) -> bytes:
    return hmac.digest(password, b"ledger", "sha256")


def record(ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    """An entry record with the crc32c digest."""
    fields = struct.pack("<qqq", entry_id, entry_id - 1, len(payload))
    checksum = crc32c(struct.pack("<q", ledger_id) + fields + payload)
    return struct.pack("<II", len(payload), checksum) + fields + payload


def frame(opcode: int, head: list[Any], body: bytes = b"") -> bytes:
    packed = msgpack.packb(head)
    prefix = struct.pack("<2sBBIIQ", b"bk", 1, opcode, len(packed), len(body), 7)
    return prefix + struct.pack("<I", crc32c(prefix + packed + body)) + packed + body


class Connection:
    """To one bookie, which has been greeted."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, opcode: int, head: list[Any], body: bytes = b"") -> None:
        self._writer.write(frame(opcode, head, body))

    async def reply(self) -> tuple[Any, bytes]:
        prefix = await self._reader.readexactly(24)
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
