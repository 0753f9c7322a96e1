"""A TCP proxy in front of one bookie that makes connections go wrong on command.

    client --requests--> Proxy --requests--> bookie
    client <--replies--- Proxy <--replies--- bookie

Each direction is a `Flow` with faults of its own; others befall whole connections. All are switched while connections
are in use, and `heal` ends all of them. What is delivered is always a prefix of what was sent: a connection that has
lost bytes never delivers any again, because TCP doesn't know streams with a hole.
"""

from __future__ import annotations

import asyncio
import enum
import random
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING

from bkpy.local.process import free_port

if TYPE_CHECKING:
    from collections.abc import Collection

HOST = "127.0.0.1"

# Of one direction of a connection. What is on its way beyond that waits at the sender, whose own buffers fill up.
QUEUED_BYTES_MAX = 4 << 20


class _End(enum.Enum):
    """How a sender has ended a connection."""

    ORDERLY = enum.auto()
    RESET = enum.auto()


class Flow:
    """What happens to the bytes of one direction, on all connections of a proxy. Starts out as no fault at all."""

    def __init__(self, seed: str) -> None:
        self.bytes_passed = 0
        self._rng = random.Random(seed)
        self._pipes: dict[_Pipe, None] = {}
        self._delay_s = 0.0
        self._jitter_s = 0.0
        self._stopped = False
        self._dropping = False
        self._cut_at: int | None = None
        self._cut = asyncio.Event()

    def delay(self, delay_s: float, *, jitter_s: float = 0.0) -> None:
        """What is sent from now on arrives later by `delay_s` and up to `jitter_s` seconds, and in order."""
        self._delay_s, self._jitter_s = delay_s, jitter_s

    def stop(self) -> None:
        """Everything waits on the way, the end of a connection too, as while packets are lost and sent again."""
        self._stopped = True

    def drop(self) -> None:
        """Bytes vanish, those on their way too, and the end of a connection is not told."""
        self._dropping = True
        self._pump()

    def cut_after(self, count: int) -> asyncio.Event:
        """Let `count` more bytes pass, and reset the connection that carries the last of them. Set when it happened."""
        assert count > 0
        self._cut_at = self.bytes_passed + count
        self._cut = asyncio.Event()
        return self._cut

    def go_on(self) -> None:
        """No fault any more: what waited is delivered, except on connections that have lost bytes."""
        self._delay_s = self._jitter_s = 0.0
        self._stopped = self._dropping = False
        self._cut_at = None
        self._pump()

    # --- the pipes' calls -------------------------------------------------------------------------------------------

    @property
    def dropping(self) -> bool:
        return self._dropping

    @property
    def blocked(self) -> bool:
        return self._stopped or self._dropping

    def latency_s(self) -> float:
        return self._delay_s + self._jitter_s * self._rng.random()

    def passes(self, size: int) -> tuple[int, bool]:
        """How many of `size` bytes may pass, and whether the connection is cut behind them."""
        if self._cut_at is None or self.bytes_passed + size < self._cut_at:
            self.bytes_passed += size
            return size, False
        allowed = self._cut_at - self.bytes_passed
        self.bytes_passed += allowed
        self._cut_at = None
        self._cut.set()
        return allowed, True

    def add(self, pipe: _Pipe) -> None:
        self._pipes[pipe] = None

    def remove(self, pipe: _Pipe) -> None:
        self._pipes.pop(pipe, None)

    def _pump(self) -> None:
        for pipe in list(self._pipes):
            pipe.pump()


class Proxy:
    """`await start()`, then `address` leads to the server at `upstream_port` on this machine."""

    def __init__(self, upstream_port: int, *, seed: int = 0, taken: Collection[int] = ()) -> None:
        self.upstream_port = upstream_port
        self.port = free_port([upstream_port, *taken])
        self.requests = Flow(f"requests {upstream_port} {seed}")
        self.replies = Flow(f"replies {upstream_port} {seed}")
        self.accepted = 0  # connections so far
        self._silent = False
        self._server: asyncio.Server | None = None
        self._links: dict[_Link, None] = {}
        self._none_left = asyncio.Event()
        self._none_left.set()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def flows(self) -> tuple[Flow, Flow]:
        return self.requests, self.replies

    @property
    def connections(self) -> int:
        """How many are open, on either side."""
        return len(self._links)

    async def start(self) -> None:
        """Accept connections. No effect if it does."""
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(lambda: _Link(self).client, HOST, self.port, backlog=1024)

    async def stop(self) -> None:
        """Refuse connections, and reset those that are there; returns when they are gone."""
        self.refuse()
        self.reset()
        await self._none_left.wait()

    # --- faults -----------------------------------------------------------------------------------------------------

    def refuse(self) -> None:
        """New connections are refused, as by a host on which nothing listens. Present ones go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def silence(self) -> None:
        """New connections are accepted, and nothing more happens on them. Present ones go on."""
        self._silent = True

    def abandon(self) -> None:
        """Present connections are half open: each side keeps its socket, and the other one is gone without a word."""
        for link in self._links:
            link.abandoned = True

    def reset(self) -> None:
        """RST to both sides of every connection."""
        for link in list(self._links):
            link.reset()

    def cut(self) -> None:
        """Stop both directions: the network between the client and the bookie is cut."""
        for flow in self.flows:
            flow.stop()

    async def heal(self) -> None:
        """End every fault. Connections that can't go on are reset: half open ones, and those that have lost bytes."""
        self._silent = False
        for link in list(self._links):
            if link.abandoned or link.has_lost_bytes:
                link.reset()
        for flow in self.flows:
            flow.go_on()
        await self.start()

    # --- the links' calls -------------------------------------------------------------------------------------------

    @property
    def accepting(self) -> bool:
        return self._server is not None

    @property
    def silent(self) -> bool:
        return self._silent

    def opened(self, link: _Link) -> None:
        self.accepted += 1
        self._links[link] = None
        self._none_left.clear()

    def closed(self, link: _Link) -> None:
        self._links.pop(link, None)
        if not self._links:
            self._none_left.set()


class _Link:
    """A connection of a client and its continuation to the bookie."""

    def __init__(self, proxy: Proxy) -> None:
        self.abandoned = False
        self._proxy = proxy
        self._requests = _Pipe(self, proxy.requests)
        self._replies = _Pipe(self, proxy.replies)
        self.client = _Socket(self, self._requests, self._replies)
        self._bookie = _Socket(self, self._replies, self._requests)
        self._requests.target, self._replies.target = self._bookie, self.client
        self._requests.source, self._replies.source = self.client, self._bookie
        self._connecting: asyncio.Task[None] | None = None

    @property
    def has_lost_bytes(self) -> bool:
        return self._requests.has_lost_bytes or self._replies.has_lost_bytes

    def made(self, end: _Socket) -> None:
        if end is not self.client:
            self._requests.pump()
            return
        if not self._proxy.accepting:  # it was accepted in the moment in which that ended
            self._bookie.lost = True
            self.client.finish(_End.RESET)
            return
        self._proxy.opened(self)
        if self._proxy.silent:
            self.abandoned = True
            self._bookie.lost = True
        else:
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(self._connected)

    async def _connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self._bookie, HOST, self._proxy.upstream_port)
        except OSError:
            # A connection can't be refused after it was accepted; the client learns as much from a reset.
            self._bookie.lost = True
            self.client.finish(_End.RESET)
            self.ended()

    def _connected(self, connecting: asyncio.Task[None]) -> None:
        # Not in the task itself: one that is cancelled before its first step never learns of it.
        if connecting.cancelled():
            self._bookie.lost = True
            self.ended()

    def reset(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        for end in (self.client, self._bookie):
            end.finish(_End.RESET)

    def ended(self) -> None:
        """An end is lost; when both are, nothing is left to do."""
        if self.client.lost and self._bookie.lost:
            self._requests.close()
            self._replies.close()
            self._proxy.closed(self)


class _Socket(asyncio.Protocol):
    """One end of a link: what it receives goes into one pipe, what it sends comes out of the other."""

    def __init__(self, link: _Link, received: _Pipe, to_send: _Pipe) -> None:
        self.lost = False
        self.writable = False
        self.transport: asyncio.Transport | None = None
        self._link = link
        self._received = received
        self._to_send = to_send

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.writable = True
        self._link.made(self)

    def data_received(self, data: bytes) -> None:
        self._received.put(data)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        # Not at once: a transport that is closed during this call reports its end twice.
        asyncio.get_running_loop().call_soon(self._to_send.pump)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self.writable = False
        self._received.put(_End.ORDERLY if error is None else _End.RESET)
        self._link.ended()

    def finish(self, end: _End) -> None:
        if self.transport is None or self.lost:
            return
        if end is _End.ORDERLY:
            self.transport.close()
            return
        # With a linger time of zero, closing sends RST and forgets what was not sent.
        connection = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


class _Pipe:
    """One direction of one link: what its source has sent and its target has not received yet."""

    def __init__(self, link: _Link, flow: Flow) -> None:
        self.source: _Socket
        self.target: _Socket
        self.has_lost_bytes = False
        self._link = link
        self._flow = flow
        self._queue: deque[tuple[float, bytes | _End]] = deque()  # each with the time at which it arrives
        self._queued_bytes = 0
        self._last_due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        flow.add(self)

    def close(self) -> None:
        self._flow.remove(self)
        self._clear()

    def put(self, what: bytes | _End) -> None:
        if self._link.abandoned:
            return
        if isinstance(what, bytes):
            if self._flow.dropping or self.has_lost_bytes:
                self.has_lost_bytes = True
                return
            self._queued_bytes += len(what)
        elif self.has_lost_bytes:
            what = _End.RESET
        self._last_due = max(self._last_due, asyncio.get_running_loop().time() + self._flow.latency_s())
        self._queue.append((self._last_due, what))
        self.pump()

    def pump(self) -> None:
        """Deliver what is due, as far as faults and the target let it through."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flow.dropping and self._queued_bytes:
            self.has_lost_bytes = True
            end = self._queue[-1] if isinstance(self._queue[-1][1], _End) else None
            self._clear()
            if end is not None:
                self._queue.append((end[0], _End.RESET))
        loop = asyncio.get_running_loop()
        while self._queue and self.target.writable and not self._flow.blocked and not self._link.abandoned:
            due, what = self._queue[0]
            if due > loop.time():
                self._timer = loop.call_at(due, self.pump)
                break
            self._queue.popleft()
            self._deliver(what)
        self._hold_the_source(self._queued_bytes > QUEUED_BYTES_MAX)

    def _deliver(self, what: bytes | _End) -> None:
        if isinstance(what, _End):
            self.target.finish(what)
            return
        self._queued_bytes -= len(what)
        if self.target.transport is None or self.target.transport.is_closing():
            return
        allowed, cut = self._flow.passes(len(what))
        self.target.transport.write(what[:allowed])
        if cut:
            self._link.reset()

    def _hold_the_source(self, hold: bool) -> None:
        transport = self.source.transport
        if transport is not None and not transport.is_closing():
            transport.pause_reading() if hold else transport.resume_reading()

    def _clear(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
