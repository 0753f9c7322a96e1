"""Writes that a ZooKeeper server refuses or does not answer are sent once, and the error says if they may be done."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import TYPE_CHECKING

import pytest
from aiozk import protocol
from tests.in_process import DEADLINE_S

from bkpy.errors import MetadataUnavailableError
from bkpy.metadata.store.zookeeper.store import ZooKeeperStore
from bkpy.runtime.system import real_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.real("a server on a socket of the kernel")

SESSION_EXPIRED, THROTTLED = -112, -127
PAYLOAD = struct.Struct("!i")
REQUEST = struct.Struct("!ii")  # xid, operation
HANDSHAKE = struct.Struct("!iiqi16s")  # version, timeout, session, password
REPLY = struct.Struct("!iqi")  # xid, transaction, error


class Server:
    """Shakes hands, gives each connection a session of its own, and answers writes with `code`, or not at all."""

    def __init__(self, code: int | None) -> None:
        self.code = code
        self.sessions = 0
        self.writes: list[int] = []  # the sessions in which they came

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            await self._receive(reader)
            self.sessions += 1
            session = self.sessions
            self._send(writer, HANDSHAKE.pack(0, 10_000, session, 16, bytes(16)))
            while True:
                xid, operation = REQUEST.unpack_from(await self._receive(reader))
                if operation == protocol.DeleteRequest.opcode:
                    self.writes.append(session)
                    if self.code is not None:
                        self._send(writer, REPLY.pack(xid, 1, self.code))
                else:
                    self._send(writer, REPLY.pack(xid, 1, 0) + PAYLOAD.pack(1) + b"/")
        writer.close()

    async def _receive(self, reader: asyncio.StreamReader) -> bytes:
        (length,) = PAYLOAD.unpack(await reader.readexactly(PAYLOAD.size))
        return await reader.readexactly(length)

    def _send(self, writer: asyncio.StreamWriter, payload: bytes) -> None:
        writer.write(PAYLOAD.pack(len(payload)) + payload)


@contextlib.asynccontextmanager
async def store_on(server: Server, call_timeout_s: float) -> AsyncIterator[ZooKeeperStore]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    store = ZooKeeperStore([("127.0.0.1", port)], real_runtime(), call_timeout_s=call_timeout_s)
    async with listening:
        await store.start(DEADLINE_S)
        try:
            yield store
        finally:
            await store.close()


async def test_a_write_that_a_server_refuses_as_of_a_session_that_is_over_is_not_sent_in_the_next_session() -> None:
    server = Server(SESSION_EXPIRED)
    async with store_on(server, DEADLINE_S) as store:
        with pytest.raises(MetadataUnavailableError) as refused:
            await store.delete("/node", 0)
        assert not refused.value.outcome_unknown
        await store.sync("/")  # on the next connection
        assert (server.sessions, server.writes) == (2, [1])


async def test_a_write_that_a_server_does_not_answer_in_time_may_have_been_done() -> None:
    server = Server(None)
    async with store_on(server, 0.05) as store:
        with pytest.raises(MetadataUnavailableError) as late:
            await store.delete("/node", 0)
        assert late.value.outcome_unknown
        assert server.writes == [1]


async def test_a_write_that_a_busy_server_throttles_was_not_done_and_may_be_repeated() -> None:
    server = Server(THROTTLED)
    async with store_on(server, DEADLINE_S) as store:
        with pytest.raises(MetadataUnavailableError) as refused:
            await store.delete("/node", 0)
        assert refused.value.retriable
        assert not refused.value.outcome_unknown
