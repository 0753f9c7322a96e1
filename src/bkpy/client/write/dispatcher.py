"""Gathers what all writers append in one turn of the event loop and sends it, one ADD frame per write set.

    append() ...   ->  writers marked dirty  ->  one turn: batches -> routes -> flights -> bookies
    replies        ->  counted per flight    ->  batches complete -> writers resolve their futures

Invariants: the frame of a flight is packed once and the same bytes go to every bookie of the write set; a route is not
fed while one of its bookies owes too much (`Peer.congested`), so that a slow bookie costs time and not memory.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import WeakValueDictionary

from bkpy.client.write.progress import Watched
from bkpy.errors import BookKeeperError
from bkpy.protocol import frame as wire
from bkpy.protocol import messages as m
from bkpy.protocol.acks import AckOutcome, Batch, Flight
from bkpy.protocol.messages import Op, Status
from bkpy.protocol.records import walk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bkpy.buffers import Bytes
    from bkpy.client.bookies.channel import Peer
    from bkpy.client.bookies.pool import BookiePool
    from bkpy.config.client import ClientSettings


class Writer(Watched, Protocol):
    """What a flight needs of a ledger writer."""

    def gather(self) -> None:
        """Hand all that is unsent to routes, in batches."""

    def blocked(self) -> bool:
        """Whether one of its bookies owes too much."""

    def completed(self, batch: Batch) -> None:
        """The batch is on its ack quorum."""

    def accepted(self, batch: Batch, bookie_id: str) -> None:
        """A bookie has a batch that is no longer counted by its flight (see `SentFlight.release`)."""

    def bookie_failed(self, bookie_id: str, error: BookKeeperError, entry_id: int) -> None:
        """A bookie does not take batches, the first of which begins with that entry."""

    def failed(self, error: BookKeeperError) -> None:
        """A bookie has refused a batch for good."""

    def publish_lac(self) -> None:
        """Tell the bookies what is confirmed; called when nothing was appended for a while."""

    def rest(self) -> None:
        """Let go of what only a busy writer needs."""


class SentFlight:
    """A flight on its way: the pure count, the bytes, and the bookies. Lives as long as a batch of it may be needed."""

    __slots__ = (
        "_places",
        "_released",
        "_retried",
        "body_bytes",
        "buffers",
        "correlation_id",
        "flight",
        "flights",
        "ledger_ids",
        "peers",
    )

    def __init__(
        self,
        flights: Flights,
        flight: Flight,
        peers: list[Peer],
        correlation_id: int,
        buffers: list[Bytes],
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
        self._released: set[Batch] | None = None
        self._places: dict[tuple[int, int], Piece] | None = None

    def replied(self, index: int, head: memoryview) -> None:
        statuses = m.decode_add_reply(head, len(self.flight.batches))
        if statuses != Status.OK and _key_required(statuses) and not self._retried >> index & 1:
            self._retried |= 1 << index
            self.peers[index].add_again(self, index)
            return
        self._decide(self.flight.reply(index, statuses), index, statuses)

    def failed(self, index: int, error: BookKeeperError) -> None:
        self._decide(self.flight.fail(index), index, error)

    def _decide(self, verdict: AckOutcome, index: int, answer: int | list[int] | BookKeeperError) -> None:
        if self._released is None:
            for batch in verdict.completed:
                batch.owner.completed(batch)
        else:
            self._decide_released(verdict, index, self._released)
        if verdict.refused or verdict.failed:
            self._decide_failed(verdict, index, answer)
        if self.flight.settled:
            self.flight.settle()
        self.flights.settle()

    def _decide_released(self, verdict: AckOutcome, index: int, released: set[Batch]) -> None:
        name = self.peers[index].bookie_id
        for batch in verdict.completed:
            if batch not in released:
                batch.owner.completed(batch)
        for batch in self.flight.batches:
            if batch in released and self.flight.accepted(batch) >> index & 1:
                batch.owner.accepted(batch, name)

    def _decide_failed(self, verdict: AckOutcome, index: int, answer: int | list[int] | BookKeeperError) -> None:
        name = self.peers[index].bookie_id
        for batch, status in verdict.refused:
            batch.owner.failed(m.error_of(status, ledger_id=batch.ledger_id, bookie=name))
        if isinstance(answer, BookKeeperError):
            # The last one to be taken over is the first batch of its owner.
            for owner, entry_id in {batch.owner: batch.first_id for batch in reversed(verdict.failed)}.items():
                owner.bookie_failed(name, answer, entry_id)
            return
        statuses = answer if isinstance(answer, list) else [answer] * len(self.flight.batches)
        failed = set(verdict.failed)
        for batch, code in zip(self.flight.batches, statuses, strict=True):
            if batch in failed:
                error = m.refusal(code, ledger_id=batch.ledger_id, bookie=name)
                batch.owner.bookie_failed(name, error, batch.first_id)

    # --- batches whose bookies have changed -------------------------------------------------------------------------

    def release(self, batch: Batch) -> set[str]:
        """Stop counting the batch: its owner is told of each bookie that accepts it. Returns those that have."""
        if self._released is None:
            self._released = set()
        self._released.add(batch)
        bits = self.flight.accepted(batch)
        return {peer.bookie_id for i, peer in enumerate(self.peers) if bits >> i & 1}

    def piece(self, batch: Batch) -> Piece:
        """The batch as it was sent."""
        if self._places is None:
            head = memoryview(self.buffers[0])[wire.PREFIX_BYTES :]
            columns = m.decode_add(head, self.body_bytes)
            body = memoryview(b"".join(self.buffers[1:]))
            strides = columns.strides if isinstance(columns.strides, list) else [columns.strides] * len(columns.sizes)
            self._places = {}
            offset = 0
            for ledger_id, first, count, stride, size in zip(
                columns.ledger_ids, columns.first_ids, columns.counts, strides, columns.sizes, strict=True
            ):
                self._places[ledger_id, first] = Piece(first, count, stride, body[offset : offset + size])
                offset += size
        return self._places[batch.ledger_id, batch.first_id]


class Piece(NamedTuple):
    """One batch as it was sent: entries first_id, first_id + stride, ... and their records."""

    first_id: int
    entries: int
    stride: int
    records: memoryview

    def cut(self, bytes_max: int) -> list[Piece]:
        """In pieces of at most so many bytes, or of one entry if that is larger."""
        if len(self.records) <= bytes_max:
            return [self]
        cut = []
        begin, entries, first = 0, 0, self.first_id
        for header in walk(self.records):
            if entries and header.end - begin > bytes_max:
                cut.append(Piece(first, entries, self.stride, self.records[begin : header.offset]))
                first += entries * self.stride
                begin, entries = header.offset, 0
            entries += 1
        return [*cut, Piece(first, entries, self.stride, self.records[begin:])]


class Resent:
    """Batches of one ledger on their way to one bookie that others had in its place, or that failed before."""

    __slots__ = (
        "_batches",
        "_flights",
        "_owner",
        "_peer",
        "_retried",
        "_to_come",
        "body_bytes",
        "buffers",
        "correlation_id",
        "ledger_ids",
    )

    def __init__(
        self,
        flights: Flights,
        owner: Writer,
        peer: Peer,
        flags: int,
        parts: list[tuple[Batch, Piece]],
        to_come: dict[Batch, int],
    ) -> None:
        """`to_come`: of batches that are sent in several pieces, how many are still to be accepted."""
        batches = [batch for batch, _ in parts]
        pieces = [piece for _, piece in parts]
        ledger_id = batches[0].ledger_id
        head = m.pack(
            [
                flags,
                [ledger_id] * len(pieces),
                [piece.first_id for piece in pieces],
                [piece.entries for piece in pieces],
                [piece.stride for piece in pieces],
                [len(piece.records) for piece in pieces],
            ]
        )
        self._flights = flights
        self._owner = owner
        self._peer = peer
        self._batches = batches
        self._to_come = to_come
        self._retried = False
        self.correlation_id = flights.next_id()
        self.buffers = wire.encode(Op.ADD, self.correlation_id, head, [piece.records for piece in pieces])
        self.body_bytes = sum(len(piece.records) for piece in pieces)
        self.ledger_ids = {ledger_id}

    def replied(self, index: int, head: memoryview) -> None:
        statuses = m.decode_add_reply(head, len(self._batches))
        if statuses != Status.OK and _key_required(statuses) and not self._retried:
            self._retried = True
            self._peer.add_again(self, index)
            return
        self._take(statuses)
        self._flights.settle()

    def _take(self, statuses: int | list[int]) -> None:
        name = self._peer.bookie_id
        each = statuses if isinstance(statuses, list) else [statuses] * len(self._batches)
        for batch, code in zip(self._batches, each, strict=True):
            if code == Status.OK:
                left = self._to_come.get(batch, 1) - 1
                if left:
                    self._to_come[batch] = left
                else:
                    self._owner.accepted(batch, name)
                continue
            error = m.refusal(code, ledger_id=batch.ledger_id, bookie=name)
            if code in (Status.FENCED, Status.UNAUTHORIZED):
                self._owner.failed(error)
            else:
                self._owner.bookie_failed(name, error, batch.first_id)

    def failed(self, index: int, error: BookKeeperError) -> None:
        self._owner.bookie_failed(self._peer.bookie_id, error, self._batches[0].first_id)
        self._flights.settle()


def _key_required(statuses: int | list[int]) -> bool:
    return Status.KEY_REQUIRED in statuses if isinstance(statuses, list) else statuses == Status.KEY_REQUIRED


class Route:
    """One write set with one ack quorum: collects the batches of a turn, of any number of ledgers, in columns."""

    __slots__ = (
        "__weakref__",
        "_bytes_max",
        "_counts",
        "_flags",
        "_flights",
        "_part_bytes_min",
        "_parts",
        "_settings",
        "_size",
        "_sizes",
        "_strides",
        "ack_quorum",
        "batches",
        "peers",
    )

    def __init__(
        self, flights: Flights, peers: list[Peer], ack_quorum: int, flags: int, settings: ClientSettings
    ) -> None:
        self.peers = peers
        self.ack_quorum = ack_quorum
        self._flags = flags
        self._flights = flights
        self._settings = settings
        self._part_bytes_min = settings.part_bytes_min
        self.limit()
        self._clear()

    def limit(self) -> None:
        """Look again at what its bookies take: any of them may have come back with another limit."""
        self._bytes_max = min(
            [self._settings.batch_bytes_max, *(m.batches_bytes_max(peer.frame_bytes_max) for peer in self.peers)]
        )

    def _clear(self) -> None:
        self.batches: list[Batch] = []
        self._counts: list[int] = []
        self._strides: list[int] = []
        self._sizes: list[int] = []
        self._parts: list[Bytes] = []
        self._size = 0

    def blocked(self) -> bool:
        return any(peer.congested for peer in self.peers)

    def add(self, batch: Batch, count: int, stride: int, size: int) -> list[Bytes]:
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
        head = m.pack([self._flags, ledger_ids, first_ids, self._counts, stride, self._sizes])
        parts = self._parts
        body: list[Bytes] = parts if size >= self._part_bytes_min * len(parts) else [b"".join(parts)]
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
        for batch in batches:
            batch.sent = sent
        for index, peer in enumerate(self.peers):
            peer.add(sent, index)


class Flights:
    """All routes of one client, and the turn that feeds them."""

    def __init__(self, pool: BookiePool, settings: ClientSettings) -> None:
        self._pool = pool
        self._settings = settings
        self._tick_s = settings.explicit_lac_interval_s or settings.progress_check_interval_s
        # Weak: a route lives as long as a writer uses it, and ensembles change.
        self._routes: WeakValueDictionary[tuple[tuple[str, ...], int, int], Route] = WeakValueDictionary()
        self._dirty: list[Writer] = []
        self._held: list[Writer] = []
        self._loaded: list[Route] = []
        self._scheduled = False
        self.gathered_bytes = 0  # of appends since the last launch: writers count here, see `launch_bytes`
        # Those that have sent something lately or are busy, by whether that is since the last tick. Of all the others
        # nothing is known here, and nothing is to be done. Sets that keep their order, so that simulated runs repeat.
        self._active: dict[Writer, None] = {}
        self._resting: dict[Writer, None] = {}
        self._ticker: asyncio.TimerHandle | None = None
        self.next_id = pool.next_id

    def route(self, bookie_ids: Iterable[str], ack_quorum: int, flags: int = 0, *, shared: bool = True) -> Route:
        """The route to these bookies. Their order is of no account: each of them gets every batch."""
        key = (tuple(sorted(bookie_ids)), ack_quorum, flags)
        route = self._routes.get(key) if shared else None
        if route is None:
            peers = [self._pool.peer(bookie_id) for bookie_id in key[0]]
            route = Route(self, peers, ack_quorum, flags, self._settings)
            if shared:
                self._routes[key] = route
        return route

    def resend(self, writer: Writer, bookie_id: str, batches: Iterable[Batch], flags: int) -> None:
        """Send batches of one ledger to one bookie more, in frames of about `batch_bytes_max` that it takes."""
        peer = self._pool.peer(bookie_id)
        bytes_max = min(self._settings.batch_bytes_max, m.batches_bytes_max(peer.frame_bytes_max))
        to_come: dict[Batch, int] = {}
        some: list[tuple[Batch, Piece]] = []
        size = 0
        for batch in batches:
            pieces = batch.sent.piece(batch).cut(bytes_max)
            if len(pieces) > 1:  # they were sent to bookies that take larger frames
                to_come[batch] = len(pieces)
            for piece in pieces:
                more = len(piece.records)
                if some and size + more > bytes_max:
                    peer.add(Resent(self, writer, peer, flags, some, to_come), 0)
                    some, size = [], 0
                some.append((batch, piece))
                size += more
        if some:
            peer.add(Resent(self, writer, peer, flags, some, to_come), 0)

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
        if self._ticker is None and dirty:
            self._ticker = asyncio.get_running_loop().call_later(self._tick_s, self._tick)
        active = self._active
        if self._pool.congested:
            held = [writer for writer in dirty if writer.blocked()]
            dirty = [writer for writer in dirty if not writer.blocked()]
            self._held += held
            active.update(dict.fromkeys(held))
        for writer in dirty:
            active[writer] = None
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

    # --- writers that pause -----------------------------------------------------------------------------------------

    def watch(self, writer: Writer) -> None:
        """The writer is busy, or has something to publish, though it has sent nothing."""
        self._active[writer] = None
        if self._ticker is None:
            self._ticker = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def watched(self) -> list[Writer]:
        """All writers that may be busy."""
        return list(self._resting | self._active)

    def _tick(self) -> None:
        self._ticker = None
        paused = [writer for writer in self._resting if writer not in self._active]
        self._resting, self._active = self._active, {}
        for writer in paused:
            if writer.busy():
                self._active[writer] = None
                continue
            if self._settings.explicit_lac_interval_s > 0:
                writer.publish_lac()
            writer.rest()
        if self._resting or self._active:
            self._ticker = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def forget(self, writer: Writer) -> None:
        """The writer is closed."""
        self._active.pop(writer, None)
        self._resting.pop(writer, None)

    def close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
