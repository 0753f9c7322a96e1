"""Gathers what all writers append in one turn of the event loop and sends it, one ADD frame per write set.

    append() ...   ->  writers marked dirty  ->  one turn: batches -> routes -> flights -> bookies
    replies        ->  counted per flight    ->  batches complete -> writers resolve their futures

Invariants: the frame of a flight is packed once and the same bytes go to every bookie of the write set; a route is not
fed while one of its bookies owes too much (`Peer.congested`), so that a slow bookie costs time and not memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol

from bkpy.client.peer import Peer
from bkpy.client.pool import BookiePool
from bkpy.errors import BookieUnavailableError, BookKeeperError
from bkpy.protocol import frame as wire
from bkpy.protocol import messages as m
from bkpy.protocol.acks import Batch, Flight, Verdict
from bkpy.protocol.messages import Op, Status

# What is appended in one turn of the loop leaves in pieces of this size, so that bookies are at work on the first while
# the rest is still being appended. Each append counts for some bytes more, because it takes time whatever its size.
LAUNCH_BYTES: Final = 256 << 10
APPEND_BYTES: Final = 256
PART_BYTES_MIN: Final = 4096  # what is smaller, on average, is joined before it is sent


class Writer(Protocol):
    """What a flight needs of a ledger writer."""

    def gather(self) -> None:
        """Hand all that is unsent to routes, in batches."""

    def blocked(self) -> bool:
        """Whether one of its bookies owes too much."""

    def completed(self, batch: Batch) -> None: ...

    def failed(self, error: BookKeeperError) -> None: ...

    def publish_lac(self) -> None:
        """Tell the bookies what is confirmed; called when nothing was appended for a while."""


class SentFlight:
    """A flight on its way: the pure count, the bytes, and the bookies."""

    __slots__ = ("_retried", "body_bytes", "buffers", "correlation_id", "flight", "flights", "ledger_ids", "peers")

    def __init__(
        self,
        flights: Flights,
        flight: Flight,
        peers: list[Peer],
        correlation_id: int,
        buffers: list[wire.Bytes],
        body_bytes: int,
        ledger_ids: set[int],
    ) -> None:
        self.flights = flights
        self.flight = flight
        self.peers = peers
        self.correlation_id = correlation_id
        self.buffers = buffers
        self.body_bytes = body_bytes
        self.ledger_ids = ledger_ids
        self._retried = 0

    def replied(self, index: int, head: memoryview) -> None:
        statuses = m.decode_add_reply(head, len(self.flight.batches))
        if statuses != Status.OK and self._key_required(statuses) and not self._retried >> index & 1:
            self._retried |= 1 << index
            self.peers[index].add_again(self, index)
            return
        self._decide(self.flight.reply(index, statuses), index, None)

    @staticmethod
    def _key_required(statuses: int | list[int]) -> bool:
        return Status.KEY_REQUIRED in statuses if isinstance(statuses, list) else statuses == Status.KEY_REQUIRED

    def failed(self, index: int, error: BookKeeperError) -> None:
        self._decide(self.flight.fail(index), index, error)

    def _decide(self, verdict: Verdict, index: int, error: BookKeeperError | None) -> None:
        for batch in verdict.completed:
            batch.owner.completed(batch)
        if verdict.refused:
            for batch, status in verdict.refused:
                refused = m.error_of(status, ledger_id=batch.ledger_id, bookie=self.peers[index].bookie_id)
                batch.owner.failed(refused)
        for batch in verdict.hopeless:
            batch.owner.failed(self._unavailable(batch, index, error))
        if self.flight.settled:
            self.buffers = []  # nothing can need them any more
        self.flights.settle()

    def _unavailable(self, batch: Batch, index: int, error: BookKeeperError | None) -> BookieUnavailableError:
        reason = error.message if error is not None else "it refused the entry"
        return BookieUnavailableError(
            f"fewer than {self.flight.ack_quorum} bookies could acknowledge; the last to fail: {reason}",
            ledger_id=batch.ledger_id,
            entry_id=batch.first_id,
            bookie=self.peers[index].bookie_id,
            outcome_unknown=True,
        )


class Route:
    """One write set with one ack quorum: collects the batches of a turn, of any number of ledgers, in columns."""

    __slots__ = (
        "_bytes_max",
        "_counts",
        "_flights",
        "_parts",
        "_size",
        "_sizes",
        "_strides",
        "ack_quorum",
        "batches",
        "peers",
    )

    def __init__(self, flights: Flights, peers: list[Peer], ack_quorum: int, bytes_max: int) -> None:
        self.peers = peers
        self.ack_quorum = ack_quorum
        self._flights = flights
        self._bytes_max = bytes_max
        self._clear()

    def _clear(self) -> None:
        self.batches: list[Batch] = []
        self._counts: list[int] = []
        self._strides: list[int] = []
        self._sizes: list[int] = []
        self._parts: list[wire.Bytes] = []
        self._size = 0

    def blocked(self) -> bool:
        return any(peer.congested for peer in self.peers)

    def add(self, batch: Batch, count: int, stride: int, size: int) -> list[wire.Bytes]:
        """Take one batch of `size` bytes; the caller appends its parts to the result, now."""
        if not self.batches:
            self._flights.loaded(self)
        elif self._size + size > self._bytes_max:
            self.launch()
            self._flights.loaded(self)
        self.batches.append(batch)
        self._counts.append(count)
        self._strides.append(stride)
        self._sizes.append(size)
        self._size += size
        return self._parts

    def launch(self) -> None:
        """Send what was collected as one frame."""
        batches, size, strides = self.batches, self._size, self._strides
        if not batches:
            return
        ledger_ids = [batch.ledger_id for batch in batches]
        first_ids = [batch.first_id for batch in batches]
        stride = strides[0] if strides.count(strides[0]) == len(strides) else strides
        head = m.pack([0, ledger_ids, first_ids, self._counts, stride, self._sizes])
        parts = self._parts
        body: list[wire.Bytes] = parts if size >= PART_BYTES_MIN * len(parts) else [b"".join(parts)]
        self._clear()
        correlation_id = self._flights.next_id()
        sent = SentFlight(
            self._flights,
            Flight(batches, len(self.peers), self.ack_quorum),
            self.peers,
            correlation_id,
            wire.encode(Op.ADD, correlation_id, head, body),
            size,
            set(ledger_ids),
        )
        for index, peer in enumerate(self.peers):
            peer.add(sent, index)


class Flights:
    """All routes of one client, and the turn that feeds them."""

    def __init__(self, pool: BookiePool, *, batch_bytes_max: int, lac_interval_s: float) -> None:
        self._pool = pool
        self._batch_bytes_max = batch_bytes_max
        self._lac_interval_s = lac_interval_s
        self._routes: dict[tuple[tuple[str, ...], int], Route] = {}
        self._dirty: list[Writer] = []
        self._held: list[Writer] = []
        self._loaded: list[Route] = []
        self._scheduled = False
        self.gathered_bytes = 0  # of appends since the last launch: writers count here, see LAUNCH_BYTES
        self._moved: dict[Writer, None] = {}  # sets that keep their order, so that simulated runs repeat
        self._idle: dict[Writer, None] = {}
        self._ticker: asyncio.TimerHandle | None = None
        self.next_id = pool.next_id

    def route(self, bookie_ids: Iterable[str], ack_quorum: int) -> Route:
        """The route to these bookies. Their order is of no account: each of them gets every batch."""
        key = (tuple(sorted(bookie_ids)), ack_quorum)
        route = self._routes.get(key)
        if route is None:
            peers = [self._pool.peer(bookie_id) for bookie_id in key[0]]
            route = self._routes[key] = Route(self, peers, ack_quorum, self._batch_bytes_max)
        return route

    def mark(self, writer: Writer) -> None:
        """The writer has something to send, this turn."""
        self._dirty.append(writer)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def loaded(self, route: Route) -> None:
        """The route has batches to launch at the end of the turn."""
        self._loaded.append(route)

    def _turn(self) -> None:
        self._scheduled = False
        self.launch()

    def launch(self) -> None:
        """Send what all writers have, now."""
        self.gathered_bytes = 0
        dirty, self._dirty = self._dirty, []
        if self._pool.congested:
            self._held += [writer for writer in dirty if writer.blocked()]
            dirty = [writer for writer in dirty if not writer.blocked()]
        for writer in dirty:
            writer.gather()
        loaded, self._loaded = self._loaded, []
        for route in loaded:
            route.launch()

    def settle(self) -> None:
        """A bookie has answered: writers that waited for it may go on."""
        if self._held:
            self._dirty += self._held
            self._held.clear()
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._turn)

    # --- explicit last add confirmed --------------------------------------------------------------------------------

    def moved(self, writer: Writer) -> None:
        """The writer's last add confirmed has moved; if nothing more is appended soon, it must be published."""
        self._moved[writer] = None
        if self._ticker is None and self._lac_interval_s > 0:
            self._ticker = asyncio.get_running_loop().call_later(self._lac_interval_s, self._tick)

    def _tick(self) -> None:
        self._ticker = None
        idle = [writer for writer in self._idle if writer not in self._moved]
        self._idle, self._moved = self._moved, {}
        for writer in idle:
            writer.publish_lac()
        if self._idle:
            self._ticker = asyncio.get_running_loop().call_later(self._lac_interval_s, self._tick)

    def forget(self, writer: Writer) -> None:
        """The writer is closed."""
        self._moved.pop(writer, None)
        self._idle.pop(writer, None)

    def close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
