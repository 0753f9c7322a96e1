"""However a session ends, its users are told: what they have in it, as a lock, is theirs no longer."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import TYPE_CHECKING

import pytest
from aiozk import protocol
from tests.hooks import present_later
from tests.in_process import DEADLINE_S
from tests.waiting import eventually

from bkpy.errors import MetadataUnavailableError, UnauthorizedError
from bkpy.metadata.store.store import SessionState
from bkpy.metadata.store.zookeeper.store import ZooKeeperStore
from bkpy.runtime.system import real_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.real("a server on a socket of the kernel")

AUTH_FAILED = -115
PAYLOAD = struct.Struct("!i")
REQUEST = struct.Struct("!ii")  # xid, operation
HANDSHAKE = struct.Struct("!iiqi16s")  # version, timeout, session, password
REPLY = struct.Struct("!iqi")  # xid, transaction, error


class Server:
    """Shakes hands, refuses credentials, hangs up where it is asked for a path, and answers nothing else.

    `sessions`: whether it gives any.
    """

    def __init__(self, *, sessions: bool = True) -> None:
        self.asked: list[int] = []
        self._session = 1 if sessions else 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            await self._receive(reader)
            self._send(writer, HANDSHAKE.pack(0, 10_000, self._session, 16, bytes(16)))
            while True:
                xid, operation = REQUEST.unpack_from(await self._receive(reader))
                self.asked.append(operation)
                if operation == protocol.AuthRequest.opcode:
                    self._send(writer, REPLY.pack(xid, 0, AUTH_FAILED))
                elif operation == protocol.SyncRequest.opcode:
                    break
        writer.close()

    async def _receive(self, reader: asyncio.StreamReader) -> bytes:
        (length,) = PAYLOAD.unpack(await reader.readexactly(PAYLOAD.size))
        return await reader.readexactly(length)

    def _send(self, writer: asyncio.StreamWriter, payload: bytes) -> None:
        writer.write(PAYLOAD.pack(len(payload)) + payload)


@contextlib.asynccontextmanager
async def store_on(server: Server) -> AsyncIterator[tuple[ZooKeeperStore, list[SessionState]]]:
    """A store that is connected, and the states that its session comes to have."""
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    store = ZooKeeperStore(
        [("127.0.0.1", listening.sockets[0].getsockname()[1])], real_runtime(), call_timeout_s=DEADLINE_S
    )
    async with listening:
        await store.start(DEADLINE_S)
        states: list[SessionState] = []
        store.session_events.subscribe(states.append)
        try:
            yield store, states
        finally:
            await store.close()


async def test_a_session_whose_credentials_are_refused_later_has_ended() -> None:
    async with store_on(Server()) as (store, states):
        present_later(store, [("digest", b"somebody:secret")])
        with pytest.raises(UnauthorizedError):
            await store.sync("/")
        assert states == [SessionState.SUSPENDED, SessionState.EXPIRED]
        assert store.state is SessionState.EXPIRED


async def test_a_session_whose_close_is_cancelled_has_ended() -> None:
    server = Server()
    async with store_on(server) as (store, states):
        closing = asyncio.ensure_future(store.close())
        await eventually(lambda: protocol.CloseRequest.opcode in server.asked)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert states == [SessionState.EXPIRED]


async def test_a_server_that_gives_no_session_is_asked_with_pauses_and_named() -> None:
    listening = await asyncio.start_server(Server(sessions=False).serve, "127.0.0.1", 0)
    servers = [("127.0.0.1", listening.sockets[0].getsockname()[1])]
    async with listening:
        for limit_s in (0.3, 5.0):  # a machine may be too busy for one answer in the shorter time
            with pytest.raises(MetadataUnavailableError) as refused:
                await ZooKeeperStore(servers, real_runtime()).start(limit_s)
            if "no server was tried yet" not in refused.value.message:
                break
    assert "the server gave no session" in refused.value.message
