"""Bookies in memory that answer as those of Apache BookKeeper do, in its v3 protocol, and a cluster of them."""

from __future__ import annotations

import asyncio
import dataclasses
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from tests.in_process import ROOT, runtime_here

from bkpy.client.client import Client, open_client
from bkpy.config.client import client_settings
from bkpy.metadata.bookkeeper.cluster import new_cluster_nodes
from bkpy.metadata.bookkeeper.layout import HYBRID
from bkpy.metadata.bookkeeper.service_info import encode_service_info
from bkpy.metadata.store.memory import MemoryStore
from bkpy.metadata.store.store import Create, Put
from bkpy.protocol.bookkeeper import frames
from bkpy.protocol.bookkeeper import messages as b
from bkpy.protocol.bookkeeper.entries import DigestType, EntryCodec, master_key
from bkpy.protocol.bookkeeper.ledger_metadata import DIGEST_NAMES, BookKeeperLedgerMetadata
from bkpy.protocol.bookkeeper.statuses import StatusCode
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerState

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from bkpy.protocol.bookkeeper.messages import RequestHeader, Response


@dataclass
class TheirLedger:
    """What a bookie has of a ledger."""

    key: bytes
    entries: dict[int, bytes] = field(default_factory=dict)
    fenced: bool = False
    lac: int = -1
    explicit: bytes | None = None
    waiting: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)

    def raise_lac(self, lac: int) -> None:
        self.lac = max(self.lac, lac)
        for above, future in list(self.waiting):
            if lac > above and not future.done():
                future.set_result(None)


class TheirBookie:
    """One bookie. `answer_by` gives a status in place of an answer, for requests that it chooses; None answers none."""

    def __init__(self, bookie_id: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.bookie_id = bookie_id
        self.port = port
        self.frame_bytes_max = 5 << 20
        self.ledgers: dict[int, TheirLedger] = {}
        self.asked: list[Any] = []
        self.answer_by: Callable[[Any], StatusCode | None] = lambda request: StatusCode.EOK
        self.seconds_each = 0.0  # for which it does nothing else than answer one request
        self.delay_s: Callable[[Any], float] = lambda request: 0.0  # of one answer, while it answers others
        self._turn = asyncio.Lock()
        self.tls = tls
        self.mangle: Callable[[bytes], bytes] = lambda frame: frame  # what somebody makes of an answer
        self.behind_start_tls = b""  # what somebody in between adds to the answer
        self._server: asyncio.Server | None = None
        self.connections: set[_Connection] = set()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", self.port)

    def kill(self) -> None:
        assert self._server is not None
        self._server.close()
        for connection in list(self.connections):
            connection.transport.abort()

    async def answer(self, header: RequestHeader, request: Any) -> Response | StatusCode | None:
        """The response, a bare status, or None for no answer."""
        self.asked.append(request)
        if self.seconds_each:
            async with self._turn:
                await asyncio.sleep(self.seconds_each)
        if delay_s := self.delay_s(request):
            await asyncio.sleep(delay_s)
        status = self.answer_by(request)
        if status != StatusCode.EOK:
            return status
        if isinstance(request, b.AddEntryRequest):
            return b.AddEntryResponse(self._add(request), request.ledger_id, request.entry_id)
        if isinstance(request, b.ReadEntryRequest):
            return await self._read(request)
        if isinstance(request, b.ReadLacRequest):
            return self._read_lac(request.ledger_id)
        if isinstance(request, b.WriteLacRequest):
            ledger = self.ledgers.setdefault(request.ledger_id, TheirLedger(request.key))
            if ledger.key != request.key:
                return b.WriteLacResponse(StatusCode.EUA, request.ledger_id)
            ledger.explicit = request.body
            ledger.raise_lac(request.last_add_confirmed)
            return b.WriteLacResponse(StatusCode.EOK, request.ledger_id)
        if isinstance(request, b.ForceLedgerRequest):
            return b.ForceLedgerResponse(StatusCode.EOK, request.ledger_id)
        if isinstance(request, b.StartTlsRequest) and self.tls is not None:
            return b.StartTlsResponse()
        return StatusCode.EBADREQ

    def _add(self, request: b.AddEntryRequest) -> StatusCode:
        ledger = self.ledgers.setdefault(request.ledger_id, TheirLedger(request.key))
        if ledger.key != request.key:
            return StatusCode.EUA
        if ledger.fenced and not request.recovery:
            return StatusCode.EFENCED
        ledger.entries[request.entry_id] = bytes(request.body)
        ledger.raise_lac(struct.unpack_from(">q", request.body, 16)[0])
        return StatusCode.EOK

    async def _read(self, request: b.ReadEntryRequest) -> b.ReadEntryResponse:
        ledger_id, entry_id = request.ledger_id, request.entry_id
        if request.fence:
            ledger = self.ledgers.setdefault(ledger_id, TheirLedger(request.key))
            if ledger.key != request.key:
                return b.ReadEntryResponse(StatusCode.EUA, ledger_id, entry_id)
            ledger.fenced = True
        found = self.ledgers.get(ledger_id)
        if found is None:
            return b.ReadEntryResponse(StatusCode.ENOLEDGER, ledger_id, entry_id)
        if request.previous_lac is not None and found.lac <= request.previous_lac:
            waiting = (request.previous_lac, asyncio.get_running_loop().create_future())
            found.waiting.append(waiting)
            await asyncio.wait([waiting[1]], timeout=(request.timeout_ms or 0) / 1000)
            found.waiting.remove(waiting)
        at = max(found.entries, default=-1) if entry_id == -1 else entry_id
        body = found.entries.get(at)
        if body is None:
            return b.ReadEntryResponse(StatusCode.ENOENTRY, ledger_id, entry_id)
        return b.ReadEntryResponse(StatusCode.EOK, ledger_id, entry_id, body, found.lac)

    def _read_lac(self, ledger_id: int) -> b.ReadLacResponse:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            return b.ReadLacResponse(StatusCode.ENOLEDGER, ledger_id)
        last = ledger.entries.get(max(ledger.entries, default=-1))
        if last is None and ledger.explicit is None:
            return b.ReadLacResponse(StatusCode.ENOENTRY, ledger_id)
        return b.ReadLacResponse(StatusCode.EOK, ledger_id, ledger.explicit, last)


class _Connection(asyncio.Protocol):
    def __init__(self, bookie: TheirBookie) -> None:
        self._bookie = bookie
        self._received = b""
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._bookie.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._bookie.connections.discard(self)
        for task in self._tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        received = self._received + data
        while len(received) >= frames.PREFIX_BYTES:
            size = frames.frame_bytes(received, 0, self._bookie.frame_bytes_max)
            if len(received) < size:
                break
            task = asyncio.get_running_loop().create_task(self._answer(received[frames.PREFIX_BYTES : size]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            received = received[size:]
        self._received = received

    async def _answer(self, frame: bytes) -> None:
        header, request = b.decode_request(frame)
        response = await self._bookie.answer(header, request)
        if response is None or self.transport.is_closing():
            return
        if isinstance(response, StatusCode):
            self.transport.writelines(b.encode_refusal(header, response))
            return
        behind = [self._bookie.behind_start_tls] if isinstance(response, b.StartTlsResponse) else []
        frame = self._bookie.mangle(b"".join(b.encode_response(header, response)))
        self.transport.writelines([frame, *behind])
        if isinstance(response, b.StartTlsResponse):
            assert self._bookie.tls is not None
            loop = asyncio.get_running_loop()
            secured = await loop.start_tls(self.transport, self, self._bookie.tls, server_side=True)
            assert secured is not None
            self.transport = secured


class TheirCluster:
    """A BookKeeper cluster with bookies a, b, c, ..., and what its Java clients have written."""

    def __init__(self) -> None:
        self.tree = MemoryStore(runtime_here())
        self.bookies: dict[str, TheirBookie] = {}
        self.clients: list[Client] = []

    async def start(self, names: str = "abc", ports: Sequence[int] = range(3181, 3200), **more: Any) -> None:
        self.tree.apply_all([Create(ROOT, b""), *new_cluster_nodes(ROOT, "an-instance")], 0)
        for name, port in zip(names, ports, strict=False):
            bookie = self.bookies[name] = TheirBookie(name, port, **more)
            await bookie.start()
            info = encode_service_info({"address": f"127.0.0.1:{port}"})
            self.tree.apply(Create(f"{ROOT}/available/{name}", info), 0)

    async def client(self, *, tls: ssl.SSLContext | None = None, **settings: Any) -> Client:
        client = await open_client(
            self.tree.session(), ROOT, runtime_here(), client_settings(**settings), tls=tls, of_bookkeeper=True
        )
        self.clients.append(client)
        return client

    async def stop(self) -> None:
        for client in self.clients:
            await client.close()
        for bookie in self.bookies.values():
            bookie.kill()

    def write(
        self,
        ledger_id: int,
        count: int,
        *,
        names: str = "abc",
        write_quorum: int = 3,
        ack_quorum: int = 2,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        closed: bool = True,
        unacknowledged: int = 0,
        at_once: bool = False,
        text: str = "entry",
        **more: Any,
    ) -> list[bytes]:
        """A ledger as a Java client leaves it: the payloads of its acknowledged entries.

        Some more are `unacknowledged`, each on the first bookie of its write set alone. If all were sent `at_once`, no
        entry has a last add confirmed.
        """
        payloads = [f"{text} {n} of {ledger_id}".encode() * (n % 5 + 1) for n in range(count + unacknowledged)]
        codec, key, length = EntryCodec(ledger_id, digest_type, password), master_key(password), 0
        lengths = []
        for n, payload in enumerate(payloads):
            length += len(payload)
            lengths.append(length)
            lac = -1 if at_once else min(n, count) - 1
            entry = codec.encode(n, lac, length, payload)
            for k in range(write_quorum if n < count else 1):
                bookie = self.bookies[names[(n + k) % len(names)]]
                ledger = bookie.ledgers.setdefault(ledger_id, TheirLedger(key))
                ledger.entries[n] = entry
                ledger.raise_lac(lac)
        metadata = BookKeeperLedgerMetadata(
            ledger_id=ledger_id,
            state=LedgerState.CLOSED if closed else LedgerState.OPEN,
            ensemble_size=len(names),
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=DIGEST_NAMES[digest_type],
            ledger_key=key,
            fragments=(Fragment(0, tuple(names)),),
            last_entry=count - 1 if closed else -1,
            length=lengths[count - 1] if closed and count else 0,
            password=password,
            **more,
        )
        path = HYBRID.path_of(ROOT, ledger_id)
        parts = path.split("/")
        for depth in range(3, len(parts)):
            parent = "/".join(parts[:depth])
            if parent not in self.tree.paths:
                self.tree.apply(Create(parent, b""), 0)
        self.tree.apply(Create(path, metadata.encode()), 0)
        return payloads[:count]

    def change(self, ledger_id: int, **changes: Any) -> None:
        """Somebody else changes the ledger's metadata."""
        path = HYBRID.path_of(ROOT, ledger_id)
        node = self.tree.node(path)
        changed = dataclasses.replace(BookKeeperLedgerMetadata.decode(ledger_id, node.data), **changes)
        self.tree.apply(Put(path, changed.encode(), node.version), 0)
