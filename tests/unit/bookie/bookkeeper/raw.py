"""A client of BookKeeper's two protocols that says what it likes, frame by frame."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from tests.in_process import DEADLINE_S, InProcess
from tests.waiting import eventually

from bkpy.metadata.ledgers.metadata_probe import ProbeResult
from bkpy.protocol.bookkeeper import frames
from bkpy.protocol.bookkeeper import messages as m
from bkpy.protocol.bookkeeper import packets as p
from bkpy.protocol.bookkeeper.entries import DigestType, EntryCodec, master_key
from bkpy.protocol.bookkeeper.statuses import PacketCode, StatusCode
from bkpy.protocol.repair.garbage_collection import ProbeState
from bkpy.protocol.wire.receive_buffer import ReceiveBuffer

if TYPE_CHECKING:
    import pytest

    from bkpy.bookie.bookkeeper.connection import BookKeeperConnection
    from bkpy.buffers import Bytes

LEDGER = 7
PASSWORD = b"secret"
KEY = master_key(PASSWORD)
V2, V3 = "v2", "v3"


def entry(entry_id: int, data: bytes = b"data", *, ledger_id: int = LEDGER, lac: int | None = None) -> bytes:
    """An entry of a ledger with CRC32C, as its writer packs it."""
    codec = EntryCodec(ledger_id, DigestType.CRC32C, PASSWORD)
    return codec.encode(entry_id, entry_id - 1 if lac is None else lac, len(data) * (entry_id % 1000 + 1), data)


class Authority:
    """Stands for the metadata: what the keys of ledgers are."""

    def __init__(self, cluster: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: dict[int, bytes] = {}
        authority = cluster.service("a").key_authority
        monkeypatch.setattr(authority, "metadata", self)

    async def look(self, ledger_id: int) -> Any:
        return ProbeResult(ProbeState.NAMED, ledger_key=self.keys[ledger_id])


class Answer(NamedTuple):
    """What came for one request. `code` as in v3; of v2, that with the same meaning."""

    code: int
    entry: bytes | None = None
    entry_id: int = -1
    lac: int | None = None


V3_OF_V2 = {
    PacketCode.OK: StatusCode.EOK,
    PacketCode.NO_LEDGER: StatusCode.ENOLEDGER,
    PacketCode.NO_ENTRY: StatusCode.ENOENTRY,
    PacketCode.BAD_REQUEST: StatusCode.EBADREQ,
    PacketCode.IO_ERROR: StatusCode.EUNKNOWNLEDGERSTATE,
    PacketCode.UNAUTHORIZED: StatusCode.EUA,
    PacketCode.FENCED: StatusCode.EFENCED,
    PacketCode.READ_ONLY: StatusCode.EREADONLY,
    PacketCode.TOO_MANY_REQUESTS: StatusCode.ETOOMANYREQUESTS,
}


class RawBookKeeper:
    """One connection. `near` is the bookie's side of it. `speaks`: V2 or V3, for what both have."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        near: BookKeeperConnection | None,
        speaks: str,
    ) -> None:
        self.near: Any = near  # None: the bookie is another host's
        self.writer = writer
        self.speaks = speaks
        self._reader = reader
        self._buffer = ReceiveBuffer(64 << 20, framing=frames)
        self._transactions = 0
        self._messages: dict[int, m.ResponseMessage] = {}
        self._packets: list[p.ReplyPacket] = []

    @classmethod
    async def connect(cls, cluster: InProcess, name: str = "a", speaks: str = V3) -> Self:
        before = cluster.connections(name)
        host, port = cluster.node(name).address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        await eventually(lambda: len(set(cluster.connections(name)) - set(before)) == 1)
        (near,) = set(cluster.connections(name)) - set(before)
        return cls(reader, writer, cast("BookKeeperConnection", near), speaks)

    # --- sending ----------------------------------------------------------------------------------------------------

    def send(self, *buffers: list[Bytes]) -> None:
        """All at once, so that the bookie receives it at once."""
        self.writer.write(b"".join(part for each in buffers for part in each))

    def message(self, request: m.Request) -> tuple[int, list[Bytes]]:
        """(its transaction, its frame)."""
        self._transactions += 1
        return self._transactions, m.encode_request(request, self._transactions)

    def close(self) -> None:
        self.writer.close()

    def stop_reading(self) -> None:
        """Let what the bookie sends pile up."""
        cast("asyncio.Transport", self.writer.transport).pause_reading()

    def resume_reading(self) -> None:
        cast("asyncio.Transport", self.writer.transport).resume_reading()

    # --- receiving --------------------------------------------------------------------------------------------------

    async def response(self, transaction: int) -> m.ResponseMessage:
        """`EOFError` if the bookie has hung up."""
        async with asyncio.timeout(DEADLINE_S):
            while transaction not in self._messages:
                await self._receive()
        return self._messages.pop(transaction)

    def has_response(self, transaction: int) -> bool:
        """Whether it came with what was waited for."""
        return transaction in self._messages

    async def packet(self) -> p.ReplyPacket:
        """The next reply of v2."""
        async with asyncio.timeout(DEADLINE_S):
            while not self._packets:
                await self._receive()
        return self._packets.pop(0)

    async def hung_up(self) -> bool:
        """Whether the bookie closes the connection, whatever it sends before."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                while True:
                    await self._receive()
            except (EOFError, ConnectionError):
                return True

    async def _receive(self) -> None:
        data = await self._reader.read(65536)
        if not data:
            raise EOFError
        while data:
            room = self._buffer.get_buffer()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            data = data[count:]
            for frame in self._buffer.received(count):
                whole = memoryview(bytes(frame))
                if frames.is_packet(whole):
                    self._packets.append(p.decode_reply(whole))
                else:
                    response = m.decode_response(whole)
                    self._messages[response.transaction_id] = response

    # --- requests that both protocols have ----------------------------------------------------------------------------

    async def ask(self, request: m.Request) -> Any:
        """The response's message, or its status alone if it has none."""
        transaction, frame = self.message(request)
        self.send(frame)
        found = await self.response(transaction)
        return found.status if found.response is None else found.response

    async def add(
        self,
        entry_id: int,
        body: bytes | None = None,
        *,
        key: bytes = KEY,
        recovery: bool = False,
        ledger: int = LEDGER,
    ) -> StatusCode:
        body = entry(entry_id, ledger_id=ledger) if body is None else body
        if self.speaks == V2:
            self.send(p.encode_add(key, body, p.PacketFlags.RECOVERY if recovery else 0))
            reply = await self.packet()
            assert (reply.op, reply.ledger_id, reply.entry_id) == (p.PacketOp.ADD, ledger, entry_id)
            return V3_OF_V2[PacketCode(reply.code)]
        found = await self.ask(m.AddEntryRequest(ledger, entry_id, key, body, recovery))
        if isinstance(found, int):
            return StatusCode(found)
        assert found[1:] == (ledger, entry_id)
        return StatusCode(found.status)

    async def read(self, entry_id: int, *, fence: bool = False, key: bytes = KEY, ledger: int = LEDGER) -> Answer:
        if self.speaks == V2:
            self.send(p.encode_read(ledger, entry_id, p.PacketFlags.FENCE if fence else 0, key if fence else b""))
            return self.answer_of(await self.packet(), ledger)
        found = await self.ask(m.ReadEntryRequest(ledger, entry_id, key if fence else b"", fence))
        return Answer(found.status, found.body, found.entry_id, found.max_lac)

    @staticmethod
    def answer_of(reply: p.ReplyPacket, ledger: int = LEDGER) -> Answer:
        assert (reply.op, reply.ledger_id) == (p.PacketOp.READ, ledger)
        body = bytes(reply.body) or None
        return Answer(V3_OF_V2[PacketCode(reply.code)], body, reply.entry_id)

    async def batch(
        self, first: int, entries_max: int = 100, bytes_max: int = 1 << 20, *, fence: bool = False, key: bytes = KEY
    ) -> tuple[int, list[bytes]]:
        """(code as in v3, entries)."""
        flags = p.PacketFlags.FENCE if fence else 0
        self.send(p.encode_batch_read(LEDGER, first, 99, entries_max, bytes_max, flags, key if fence else b""))
        reply = await self.packet()
        assert reply[2:5] == (LEDGER, first, 99)
        return V3_OF_V2[PacketCode(reply.code)], [bytes(one) for one in p.batch_entries(reply.body)]
