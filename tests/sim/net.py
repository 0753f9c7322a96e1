"""A simulated network: hosts, streams with TCP's order and flow control, and what can happen to them.

Bytes of one direction of a connection arrive in order, cut into segments at random. A blocked link holds segments back
until it heals, as retransmission does. A reset loses what is in flight. A host that lost power answers nothing, and
resets old connections once it is up again; a process that died has its connections closed by its kernel.

Invariants: a protocol is only called in the context of the incarnation that created it, and never after that one's
death; `connection_lost` comes exactly once, last.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
import socket
import zlib
from typing import TYPE_CHECKING, Any

from .loop import CURRENT, EscapeError, Incarnation, SimLoop
from .transport import Shadow, SimTransport

if TYPE_CHECKING:
    from collections.abc import Callable

_EPHEMERAL_PORTS_FROM = 40_000
_LOCAL_NAMES = ("127.0.0.1", "localhost", "::1")
_ANY_NAMES = (None, "", "0.0.0.0", "::", *_LOCAL_NAMES)


class SimNet:
    """The network of one loop. Hosts are known by their addresses; code that belongs to no host is at `127.0.0.1`."""

    def __init__(
        self, loop: SimLoop, seed: int | str = 0, *, latency_s: tuple[float, float] = (0.00005, 0.0005)
    ) -> None:
        self.loop = loop
        self.rng = random.Random(f"net-{seed}")
        self.latency_s = latency_s
        self.connect_timeout_s = 127.0  # Linux gives up after seven tries
        self.retransmit_s = (0.0, 1.0)  # how long after a link has healed a lost packet is sent again
        self.observer: Callable[[str, str], None] | None = None
        self.connections: dict[SimTransport, None] = {}  # every end that is not closed yet, in order of creation
        self._slow: dict[tuple[str, str], float] = {}
        self._duplicated: dict[tuple[str, str], float] = {}  # source and target, and how late the second copy is
        self._listeners: dict[tuple[str, int], SimServer] = {}
        self._ports: dict[str, int] = {}
        self._blocked: set[tuple[str, str]] = set()
        self._down: set[str] = set()
        self._refusing: set[str] = set()
        self._held: list[tuple[str, str, Callable[[], None]]] = []  # packets that wait for a link or a host
        loop.net = self

    # --- what a test does to it -----------------------------------------------------------------------------------

    def block(self, source: str, target: str) -> None:
        """Let nothing pass from `source` to `target` until `heal`; the other way stays open."""
        self._blocked.add((source, target))

    def partition(self, one: str, other: str) -> None:
        self.block(one, other)
        self.block(other, one)

    def heal(self) -> None:
        """End all blocks, refusals, slowness and duplicates."""
        self._blocked.clear()
        self._refusing.clear()
        self._slow.clear()
        for source, target in list(self._duplicated):
            self._end_duplicates(source, target)
        self._send_held()

    def mend(self, one: str, other: str) -> None:
        """End blocks, slowness and duplicates between two hosts."""
        for link in ((one, other), (other, one)):
            self._blocked.discard(link)
            self._slow.pop(link, None)
            if link in self._duplicated:
                self._end_duplicates(*link)
        self._send_held()

    def slow(self, source: str, target: str, extra_s: float) -> None:
        """Add to the latency of the packets from `source` to `target`."""
        self._slow[source, target] = extra_s

    def duplicate(self, source: str, target: str, late_s: float) -> None:
        """Let each new connection reach the target twice, the second time with all bytes `late_s` late."""
        self._duplicated[source, target] = late_s

    def _end_duplicates(self, source: str, target: str) -> None:
        del self._duplicated[source, target]
        for end in [end for end in self.connections if isinstance(end, Shadow)]:
            if (end.address, end.peer_address) == (source, target):
                end.abort()

    def refuse(self, address: str) -> None:
        """Refuse new connections to the host."""
        self._refusing.add(address)

    def reset(self, one: str, other: str) -> None:
        """Reset all connections between two hosts; each end learns it after its own delay, bytes in flight are lost."""
        for end in list(self.connections):
            if (end.address, end.peer_address) in ((one, other), (other, one)):
                end.cut_off(self.delay(end.peer_address, end.address))

    def process_died(self, incarnation: Incarnation) -> None:
        """The kernel closes the connections of a dead process: what it had taken is still sent, unread bytes reset."""
        self._forget_listeners(incarnation)
        for end in [end for end in self.connections if end.incarnation is incarnation]:
            end.process_died(reset=self.rng.random() < 0.3)

    def power_lost(self, incarnation: Incarnation) -> None:
        """The host is silent from now on. Of what it was sending, a part may have left it."""
        self._forget_listeners(incarnation)
        self._down.add(incarnation.address)
        for end in [end for end in self.connections if end.incarnation is incarnation]:
            end.power_lost()

    def power_restored(self, address: str) -> None:
        self._down.discard(address)
        self._send_held()

    def _forget_listeners(self, incarnation: Incarnation) -> None:
        for key in [key for key, server in self._listeners.items() if server.incarnation is incarnation]:
            del self._listeners[key]

    # --- packets ------------------------------------------------------------------------------------------------------

    def delay(self, source: str, target: str) -> float:
        shortest, longest = self.latency_s
        latency = shortest + (longest - shortest) * self.rng.random()  # as `Random.uniform` draws it
        return latency + self._slow.get((source, target), 0.0) if self._slow else latency

    def passes(self, source: str, target: str) -> bool:
        return (source, target) not in self._blocked and target not in self._down

    def hold(self, source: str, target: str, arrive: Callable[[], None]) -> None:
        """Try again when the link or the host is back."""
        self._held.append((source, target, arrive))

    def post(self, source: str, target: str, arrive: Callable[[], None], delay: float | None = None) -> None:
        """Run `arrive` outside of any host after the latency, or when the link lets it pass."""

        def arrived() -> None:
            if self.passes(source, target):
                arrive()
            else:
                self.hold(source, target, arrive)

        self.at(self.delay(source, target) if delay is None else delay, arrived)

    def at(self, delay: float, callback: Callable[[], None]) -> None:
        self.loop.call_later(delay, callback, context=self.loop.outside)

    def _send_held(self) -> None:
        held, self._held = self._held, []
        for source, target, arrive in held:
            if self.passes(source, target):
                self.post(source, target, arrive, self.rng.uniform(*self.retransmit_s))
            else:
                self._held.append((source, target, arrive))

    def note(self, event: str, end: SimTransport, data: bytes | None = None) -> None:
        if self.observer is not None:
            detail = f"{end.name}" if data is None else f"{end.name} {len(data)} bytes {zlib.crc32(data):08x}"
            self.observer(event, detail)

    # --- connecting ---------------------------------------------------------------------------------------------------

    def here(self) -> tuple[str, Incarnation | None]:
        incarnation = CURRENT.get()
        return ("127.0.0.1" if incarnation is None else incarnation.address), incarnation

    def _port(self, address: str) -> int:
        port = self._ports.get(address, _EPHEMERAL_PORTS_FROM)
        self._ports[address] = port + 1
        return port

    def listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str | None, port: int) -> SimServer:
        address, incarnation = self.here()
        if host not in (*_ANY_NAMES, address):
            raise OSError(errno.EADDRNOTAVAIL, f"{host} isn't an address of {address}")
        return SimServer(self, factory, (address, port or self._port(address)), incarnation)

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[SimTransport, asyncio.BaseProtocol]:
        address, incarnation = self.here()
        target = address if host in _LOCAL_NAMES else host
        if not target.replace(".", "").isdigit():
            raise socket.gaierror(socket.EAI_NONAME, f"no address of {target}")
        # The whole handshake happens outside; the two ends exist only for those who know of them.
        near = SimTransport(self, (address, self._port(address)), (target, port), incarnation)
        near.owner = contextvars.copy_context()
        answer = self.loop.create_future()

        def settle(error: OSError | None) -> None:
            if not answer.done():
                answer.set_result(error)

        self.note("connect", near)
        self.post(address, target, lambda: self._syn(near, settle))
        timer = self.loop.call_later(
            self.connect_timeout_s,
            settle,
            TimeoutError(errno.ETIMEDOUT, f"connecting to {target}:{port} timed out"),
            context=self.loop.outside,
        )
        try:
            error = await answer
        except asyncio.CancelledError:
            near.abort()
            raise
        finally:
            timer.cancel()
        if error is not None:
            near.abort()
            raise error
        protocol = factory()
        near.open(protocol)
        return near, protocol

    def _syn(self, near: SimTransport, settle: Callable[[OSError | None], None]) -> None:
        """A connection request has reached its host."""
        source, target = near.address, near.peer_address
        server = self._listeners.get(near.peername)
        if near.closed or near.dead or near.peer is not None:
            return
        if server is None or target in self._refusing:
            refused = ConnectionRefusedError(errno.ECONNREFUSED, f"{target}:{near.peername[1]} refused the connection")
            self.post(target, source, lambda: settle(refused))
            return
        far = SimTransport(self, near.peername, near.sockname, server.incarnation)
        far.owner = server.context.copy()
        near.peer, far.peer = far, near
        self.connections[near] = self.connections[far] = None
        self.note("accept", far)
        self.post(target, source, lambda: settle(None))
        far.open(far.owner.run(server.factory))
        if (source, target) in self._duplicated and not isinstance(near, Shadow):
            late_s = self._duplicated[source, target]
            near.shadow = shadow = Shadow(self, near, self._port(source), late_s)
            self.post(source, target, lambda: self._syn(shadow, shadow.begin), late_s)

    def listening(self, server: SimServer) -> None:
        if server.sockname in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{server.sockname} is in use")
        self._listeners[server.sockname] = server

    def stop_listening(self, server: SimServer) -> None:
        if self._listeners.get(server.sockname) is server:
            del self._listeners[server.sockname]


class _Socket:
    """As much of a listening socket as callers ask for."""

    def __init__(self, sockname: tuple[str, int]) -> None:
        self._sockname = sockname

    def getsockname(self) -> tuple[str, int]:
        return self._sockname


class SimServer(asyncio.AbstractServer):
    """What `create_server` returns. Closing it stops accepting; connections live on, as with asyncio's."""

    def __init__(
        self,
        net: SimNet,
        factory: Callable[[], asyncio.BaseProtocol],
        sockname: tuple[str, int],
        incarnation: Incarnation | None,
    ) -> None:
        self._net = net
        self.factory = factory
        self.sockname = sockname
        self.incarnation = incarnation
        self.context = contextvars.copy_context()
        self._serving = False
        self._closed = False

    @property
    def sockets(self) -> tuple[Any, ...]:
        return () if self._closed else (_Socket(self.sockname),)

    def is_serving(self) -> bool:
        return self._serving

    def get_loop(self) -> SimLoop:
        return self._net.loop

    async def start_serving(self) -> None:
        if not self._serving:
            self._net.listening(self)
            self._serving = True

    async def serve_forever(self) -> None:
        raise EscapeError("serve_forever isn't simulated")

    def close(self) -> None:
        self._closed = True
        if self._serving:
            self._serving = False
            self._net.stop_listening(self)

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)
