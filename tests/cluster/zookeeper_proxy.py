"""A TCP proxy in front of one ZooKeeper server that makes connections go wrong on command.

It reads the client's requests and the server's replies frame by frame, so that a fault can be tied to a request: "lose
the reply of the next create", "cut the connection when SetWatches arrives".
"""

from __future__ import annotations

import asyncio
import enum
import socket
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bkpy.local.process import free_port

if TYPE_CHECKING:
    import ssl

CREATE, DELETE, GET_DATA, SET_DATA, MULTI, CREATE2, AUTH, SET_WATCHES = 1, 2, 4, 5, 14, 15, 100, 101
HANDSHAKE = 0  # the first frame of a connection has no opcode; this stands for it
WRITES = frozenset({CREATE, DELETE, SET_DATA, MULTI})


class Fault(enum.Enum):
    """What happens when a certain request comes by."""

    LOSE_REQUEST = enum.auto()  # reset, the server never sees the request
    LOSE_REPLY = enum.auto()  # the server carries it out, then reset instead of the reply
    END_BEFORE_REPLY = enum.auto()  # the server carries it out, then an orderly end of stream instead of the reply
    END_MID_REPLY = enum.auto()  # half of the reply's frame, then an orderly end of stream
    STALL_MID_REPLY = enum.auto()  # half of the reply's frame, then nothing on an open connection


@dataclass
class _Rule:
    opcodes: frozenset[int]
    fault: Fault
    hit: asyncio.Event = field(default_factory=asyncio.Event)


class ZooKeeperProxy:
    """`await start()`, then `connect_string` leads to the server at `upstream_port`."""

    def __init__(self, upstream_port: int, *, tls: ssl.SSLContext | None = None) -> None:
        self.upstream_port = upstream_port
        # Not one of those that the kernel hands out: while nobody listens there, a client that tries to connect again
        # could be given it for its own end, and be connected to itself.
        self.port = free_port()
        self.accepted = 0  # connections so far
        self.requests: Counter[int] = Counter()  # opcodes that arrived, HANDSHAKE among them
        self.largest_request = 0
        self.handshakes: list[tuple[int, int]] = []  # (last zxid seen, session id) of each
        self.silent = False  # accept new connections and never answer
        self._tls = tls
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._rules: list[_Rule] = []
        self._server: asyncio.Server | None = None
        self._connections: set[_Link] = set()

    @property
    def connect_string(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def serving(self) -> bool:
        return self._server is not None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self._tls)

    async def stop(self) -> None:
        self.refuse()
        await self.reset()

    # --- faults -----------------------------------------------------------------------------------------------------

    def on(self, fault: Fault, *opcodes: int) -> asyncio.Event:
        """Apply the fault once, to the next request with one of the opcodes. The event is set when it happened."""
        rule = _Rule(frozenset(opcodes), fault)
        self._rules.append(rule)
        return rule.hit

    async def reset(self) -> None:
        """RST on every connection."""
        links = list(self._connections)
        for link in links:
            link.reset()
        await asyncio.gather(*(link.ended.wait() for link in links))

    def refuse(self) -> None:
        """Take no new connections; `await start()` takes them again, on the same port."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def cut(self) -> None:
        """Refuse new connections and reset the present ones."""
        self.refuse()
        await self.reset()

    def black_hole(self) -> None:
        """Swallow everything in both directions, on connections that stay open."""
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

    # --- the flow ---------------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.serving:  # it was accepted in the moment in which that ended
            _make_reset(writer)
            writer.transport.abort()
            return
        self.accepted += 1
        link = _Link(self, reader, writer)
        self._connections.add(link)
        try:
            await link.run()
        finally:
            self._connections.discard(link)
            link.ended.set()

    def fault_of(self, opcode: int) -> Fault | None:
        self.requests[opcode] += 1
        for rule in self._rules:
            if opcode in rule.opcodes:
                self._rules.remove(rule)
                rule.hit.set()
                return rule.fault
        return None

    async def flowing(self) -> None:
        await self._flowing.wait()


class _Link:
    """One client connection and its counterpart at the server."""

    def __init__(self, proxy: ZooKeeperProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ended = asyncio.Event()
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._server_writer: asyncio.StreamWriter | None = None
        self._stop = asyncio.Event()
        self._first_bytes = b""
        self._replies: dict[int, Fault] = {}  # by xid; the handshake's is 0

    def reset(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        tasks = [asyncio.create_task(self._relay()), asyncio.create_task(self._stop.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._stop.is_set():
                _make_reset(self._writer)
            self._writer.transport.abort() if self._stop.is_set() else self._writer.close()
            if self._server_writer is not None:
                self._server_writer.transport.abort()

    async def _relay(self) -> None:
        if self._proxy.silent:
            await self._stop.wait()
        reader, self._server_writer = await asyncio.open_connection("127.0.0.1", self._proxy.upstream_port)
        if await self._relay_command(reader):
            return
        directions = [asyncio.create_task(self._requests()), asyncio.create_task(self._answers(reader))]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in directions:
                task.cancel()
            await asyncio.gather(*directions, return_exceptions=True)

    async def _relay_command(self, reader: asyncio.StreamReader) -> bool:
        """Pass on a four-letter command (aiozk sends one before every connect) and its answer, if it is one."""
        assert self._server_writer is not None
        self._first_bytes = await self._reader.readexactly(4)
        if not self._first_bytes.isalpha():
            return False
        self._server_writer.write(self._first_bytes)
        self._writer.write(await reader.read())
        await self._writer.drain()
        return True

    async def _requests(self) -> None:
        assert self._server_writer is not None
        first = True
        while True:
            frame = await _frame(self._reader, self._first_bytes if first else b"")
            await self._proxy.flowing()
            self._proxy.largest_request = max(self._proxy.largest_request, len(frame) - 4)
            if first:
                xid, opcode = 0, HANDSHAKE
                zxid, _, session_id = struct.unpack_from("!qiq", frame, 8)
                self._proxy.handshakes.append((zxid, session_id))
            else:
                xid, opcode = struct.unpack_from("!ii", frame, 4)
            first = False
            fault = self._proxy.fault_of(opcode)
            if fault is Fault.LOSE_REQUEST:
                self.reset()
                await asyncio.Event().wait()
            if fault is not None:
                self._replies[xid] = fault
            self._server_writer.write(frame)
            await self._server_writer.drain()

    async def _answers(self, reader: asyncio.StreamReader) -> None:
        first = True
        while True:
            frame = await _frame(reader)
            await self._proxy.flowing()
            xid = 0 if first else struct.unpack_from("!i", frame, 4)[0]
            first = False
            fault = self._replies.pop(xid, None)
            if fault is Fault.LOSE_REPLY:
                self.reset()
                await asyncio.Event().wait()
            if fault is Fault.END_BEFORE_REPLY:
                return
            if fault in (Fault.END_MID_REPLY, Fault.STALL_MID_REPLY):
                self._writer.write(frame[: 4 + (len(frame) - 4) // 2])
                await self._writer.drain()
                if fault is Fault.END_MID_REPLY:
                    return
                await asyncio.Event().wait()
            self._writer.write(frame)
            await self._writer.drain()


async def _frame(reader: asyncio.StreamReader, read_already: bytes = b"") -> bytes:
    head = read_already or await reader.readexactly(4)
    return head + await reader.readexactly(struct.unpack("!i", head)[0])


def _make_reset(writer: asyncio.StreamWriter) -> None:
    """With a linger time of zero, closing sends RST and forgets what was not sent."""
    connection = writer.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
