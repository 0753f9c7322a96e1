"""The writer of one ledger.

Entry ids are assigned when `append` is called and the append has found room in the window; what one turn of the event
loop appends leaves as one batch per write set (see `flights`). Futures are resolved in id order only, when the entry
and all before it are on their ack quorum.

Invariants: at most `write_window_bytes` and `write_window_entries` are unacknowledged (one append that is larger than
the window goes alone); once failed, a writer fails everything that is pending and everything that follows; the ledger
is closed at last add confirmed, never beyond.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, islice
from types import TracebackType
from typing import Any, Final, NamedTuple

from bkpy.client.flights import APPEND_BYTES, LAUNCH_BYTES, Flights, Route
from bkpy.client.pool import BookiePool
from bkpy.config import ClientSettings
from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    ClientClosedError,
    ConfigError,
    FrameTooLargeError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
    NoSuchLedgerError,
    WouldBlock,
)
from bkpy.metadata.ledgers import LedgerCatalog
from bkpy.protocol import messages as m
from bkpy.protocol.acks import Batch, LedgerAcks
from bkpy.protocol.ledger_metadata import LedgerMetadata, LedgerState
from bkpy.protocol.messages import Op, Status
from bkpy.protocol.quorum import write_set
from bkpy.protocol.records import HEADER_BYTES, RecordCodec
from bkpy.runtime import Runtime

_CLOSE_ATTEMPTS_MAX: Final = 20  # each lost to somebody else's change of the metadata


log = logging.getLogger("bkpy.client")


_UNSENT: Final = 1 << 62
_SENT: Final[list[bytes]] = []  # what is left of the payloads of a turn that has left


class _Single(Batch):
    """The only append of one turn of the event loop, as long as it is that: the rule where there are many ledgers."""

    __slots__ = ("end_length", "future", "payload")

    def __init__(
        self, ledger_id: int, owner: LedgerWriter, first_id: int, payload: bytes, future: asyncio.Future[int]
    ) -> None:
        # All here, without a call of the base class: one of these is made for every such append.
        self.ledger_id = ledger_id
        self.first_id = self.last_id = first_id
        self.owner = owner
        self.done = False
        self.payload = payload
        self.future = future
        self.end_length = 0  # the ledger's length after it


class _Turn(Batch):
    """What one turn of the event loop appended, or one `append_batch`: payloads until sent, futures until resolved.

    If it leaves as a single batch, which is the rule, it is that batch.
    """

    __slots__ = ("end_length", "futures", "lengths", "payloads", "resolved", "whole")

    def __init__(
        self,
        ledger_id: int,
        owner: LedgerWriter,
        first_id: int,
        payloads: list[bytes],
        futures: list[asyncio.Future[int]],
    ) -> None:
        super().__init__(ledger_id, first_id, _UNSENT, owner)
        self.payloads = payloads
        self.futures = futures
        self.whole: asyncio.Future[range] | None = None
        self.lengths: Sequence[int] = ()  # the ledger's length after each entry, unless it left as a single batch
        self.end_length = 0
        self.resolved = 0  # entries of it that are confirmed


class _Chunk(NamedTuple):
    """Entries first_id, first_id + stride, ... that leave as one batch of `size` bytes; `route` is an index."""

    route: int
    payloads: Sequence[bytes]
    first_id: int
    stride: int
    lengths: Sequence[int]
    size: int


class LedgerWriter:
    """Appends to one ledger; made by `Client.create_ledger`. Not to be shared between event loops."""

    # Not for the memory: an object with more than thirty attributes has a dict that is slow to look into.
    __slots__ = (
        "__weakref__",
        "_acks",
        "_admitted",
        "_batch_bytes_max",
        "_catalog",
        "_closing",
        "_codec",
        "_confirmed",
        "_entry_bytes_max",
        "_error",
        "_flights",
        "_flushing",
        "_gate",
        "_lac_sent",
        "_ledger_id",
        "_length",
        "_loop",
        "_metadata",
        "_new_future",
        "_next_id",
        "_on_closed",
        "_overhead",
        "_pool",
        "_routes",
        "_runtime",
        "_sent_length",
        "_shut",
        "_striped",
        "_timeout_s",
        "_turn",
        "_turns",
        "_unsent",
        "_version",
        "_waiters",
        "_window_bytes",
        "_window_bytes_max",
        "_window_entries",
        "_window_entries_max",
    )

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        *,
        codec: RecordCodec,
        catalog: LedgerCatalog,
        pool: BookiePool,
        flights: Flights,
        settings: ClientSettings,
        entry_bytes_max: int,
        runtime: Runtime,
        on_closed: Any,
    ) -> None:
        self._metadata = metadata
        self._version = version
        self._codec = codec
        self._catalog = catalog
        self._pool = pool
        self._flights = flights
        self._runtime = runtime
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._new_future = self._loop.create_future
        self._ledger_id = metadata.ledger_id
        self._entry_bytes_max = entry_bytes_max
        self._batch_bytes_max = settings.batch_bytes_max
        self._overhead = HEADER_BYTES + codec.mac_bytes
        self._timeout_s = settings.add_timeout_s
        self._window_bytes_max = settings.write_window_bytes
        self._window_entries_max = settings.write_window_entries
        self._window_bytes = 0
        self._window_entries = 0
        self._waiters: deque[tuple[int, int, asyncio.Future[None]]] = deque()
        self._admitted = 0  # appends that were given room and have not gone on yet
        self._gate = False  # whether appends must not go the short way: somebody waits, or the writer has ended
        self._flushing: list[tuple[int, asyncio.Future[None]]] = []
        self._turn: _Single | _Turn | None = None  # what `append` adds to
        self._unsent = 0  # how many of the last turns
        self._turns: deque[_Single | _Turn] = deque()  # all that isn't confirmed
        self._next_id = 0
        self._sent_length = 0
        self._acks = LedgerAcks()
        self._confirmed = -1
        self._length = 0
        self._lac_sent = -1
        self._error: BookKeeperError | None = None
        self._shut = False  # no more appends: `close` was called
        self._closing: asyncio.Future[None] | None = None
        ensemble = metadata.fragments[-1].bookies
        self._striped = metadata.ensemble_size > metadata.write_quorum
        self._routes: list[Route] = [
            flights.route([ensemble[i] for i in members], metadata.ack_quorum)
            for members in (
                write_set(r, metadata.ensemble_size, metadata.write_quorum)
                for r in range(metadata.ensemble_size if self._striped else 1)
            )
        ]

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def ledger_id(self) -> int:
        return self._ledger_id

    @property
    def last_add_confirmed(self) -> int:
        """The highest id such that it and all below are durable on their ack quorums; -1 for none yet."""
        return self._confirmed

    @property
    def length(self) -> int:
        """Payload bytes of the entries up to last add confirmed."""
        return self._length

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    def __repr__(self) -> str:
        return f"<LedgerWriter ledger={self._ledger_id} last_add_confirmed={self._confirmed}>"

    # --- appending --------------------------------------------------------------------------------------------------

    async def append(self, data: bytes) -> int:
        """Append one entry; returns its id when it and all before it are durable on the ack quorum.

        Waits for room in the window first. Cancelling the call doesn't withdraw an entry that has been assigned its
        id. Raises `FrameTooLargeError` or `LedgerClosedError` with nothing written, `LedgerFencedError` or
        `BookieUnavailableError` with the outcome unknown.
        """
        if type(data) is not bytes:
            data = _as_bytes(data)
        size = len(data)
        if (
            self._gate
            or size > self._entry_bytes_max
            or self._window_bytes + size > self._window_bytes_max
            or self._window_entries >= self._window_entries_max
        ):
            await self._admit(size, size, 1)
        return await self._enqueue(data, size)

    def append_nowait(self, data: bytes) -> asyncio.Future[int]:
        """Like `append`, but returns the future of the entry's id, and raises `WouldBlock` if the window is full."""
        if type(data) is not bytes:
            data = _as_bytes(data)
        size = len(data)
        if self._gate or size > self._entry_bytes_max or not self._fits(size, 1):
            self._check(size)
            raise WouldBlock(
                f"the writer's window is full ({self._window_entries} entries, {self._window_bytes} bytes pending)",
                ledger_id=self._ledger_id,
            )
        return self._enqueue(data, size)

    async def append_batch(self, entries: Sequence[bytes]) -> range:
        """Append many entries, with consecutive ids; returns the range of them. The guarantee is `append`'s, for all.

        An empty sequence is an empty range. The batch is admitted to the window as a whole.
        """
        payloads = [data if type(data) is bytes else _as_bytes(data) for data in entries]
        size, count = sum(map(len, payloads)), len(payloads)
        largest = max(map(len, payloads), default=0)
        if self._gate or largest > self._entry_bytes_max or not self._fits(size, count):
            await self._admit(largest, size, count)
        first = self._next_id
        if not payloads:
            return range(first, first)
        self._turn = None
        turn = _Turn(self._ledger_id, self, first, payloads, [])
        turn.whole = self._new_future()
        self._begin(turn)
        self._next_id = first + count
        self._window_bytes += size
        self._window_entries += count
        self._flights.gathered_bytes += size + APPEND_BYTES
        if self._flights.gathered_bytes >= LAUNCH_BYTES:
            self._flights.launch()
        return await turn.whole

    def _check(self, size: int) -> None:
        """Raise whatever an append of `size` bytes could never get past."""
        if self._shut:
            raise LedgerClosedError("the writer is closed", ledger_id=self._ledger_id)
        if self._error is not None:
            raise self._failure()
        if size > self._entry_bytes_max:
            raise FrameTooLargeError(
                f"an entry of {size} bytes is over the limit of {self._entry_bytes_max} bytes",
                ledger_id=self._ledger_id,
                entry_id=self._next_id,
            )

    def _fits(self, size: int, count: int) -> bool:
        return (
            self._window_bytes + size <= self._window_bytes_max
            and self._window_entries + count <= self._window_entries_max
        ) or self._window_entries == 0

    def _set_gate(self) -> None:
        self._gate = self._shut or self._error is not None or bool(self._waiters)

    async def _admit(self, largest: int, size: int, count: int) -> None:
        """Wait, in order of arrival, until the window has room."""
        self._check(largest)
        if not self._waiters and self._fits(size, count):
            return
        admitted: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append((size, count, admitted))
        self._gate = True
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():  # admitted and cancelled at once: pass the room on
                self._admitted -= 1
                self._release(size, count)
            raise
        self._admitted -= 1
        # The room was taken for this append by whoever woke it up; from here on it is counted like any other.
        self._window_bytes -= size
        self._window_entries -= count
        if self._error is not None:
            raise self._failure()

    def _enqueue(self, data: bytes, size: int) -> asyncio.Future[int]:
        future: asyncio.Future[int] = self._new_future()
        turn = self._turn
        if turn is None:
            self._turn = turn = _Single(self._ledger_id, self, self._next_id, data, future)
            self._begin(turn)
        elif isinstance(turn, _Turn):
            turn.payloads.append(data)
            turn.futures.append(future)
        else:
            self._turn = self._turns[-1] = _Turn(
                self._ledger_id, self, turn.first_id, [turn.payload, data], [turn.future, future]
            )
        self._next_id += 1
        self._window_bytes += size
        self._window_entries += 1
        flights = self._flights
        flights.gathered_bytes += size + APPEND_BYTES
        if flights.gathered_bytes >= LAUNCH_BYTES:
            flights.launch()
        return future

    def _begin(self, turn: _Single | _Turn) -> None:
        self._turns.append(turn)
        if not self._unsent:
            self._flights.mark(self)
        self._unsent += 1

    # --- the flights' calls -----------------------------------------------------------------------------------------

    def blocked(self) -> bool:
        return any(route.blocked() for route in self._routes)

    def gather(self) -> None:
        """Make batches of what is unsent, and give them to their routes."""
        turns, unsent = self._turns, self._unsent
        self._turn, self._unsent = None, 0
        self._lac_sent = self._confirmed
        for turn in (turns[-1],) if unsent == 1 else tuple(islice(turns, len(turns) - unsent, None)):
            if isinstance(turn, _Single):
                self._send_single(turn)
            elif self._striped:
                self._send_striped(turn)
            else:
                self._send(turn)

    def _send_single(self, turn: _Single) -> None:
        payload, turn.payload = turn.payload, b""
        self._acks.sent(turn)
        route = self._routes[turn.first_id % len(self._routes)]
        parts = route.add(turn, 1, 1, len(payload) + self._overhead)
        self._sent_length = turn.end_length = self._codec.encode_run(
            parts, (payload,), turn.first_id, self._lac_sent, self._sent_length
        )

    def _send(self, turn: _Turn) -> None:
        payloads, turn.payloads = turn.payloads, _SENT
        count = len(payloads)
        turn.last_id = turn.first_id + count - 1
        size = sum(map(len, payloads)) + self._overhead * count
        if count == 1 or size <= self._batch_bytes_max:
            self._acks.sent(turn)
            parts = self._routes[0].add(turn, count, 1, size)
            self._sent_length = turn.end_length = self._codec.encode_run(
                parts, payloads, turn.first_id, self._lac_sent, self._sent_length
            )
            return
        self._measure(turn, payloads)
        self._send_chunks(self._chunks(0, payloads, turn.first_id, 1, turn.lengths))

    def _send_striped(self, turn: _Turn) -> None:
        payloads, turn.payloads = turn.payloads, _SENT
        turn.last_id = turn.first_id + len(payloads) - 1
        self._measure(turn, payloads)
        size = len(self._routes)
        chunks: list[_Chunk] = []
        for k in range(min(size, len(payloads))):
            first = turn.first_id + k
            chunks += self._chunks(first % size, payloads[k::size], first, size, turn.lengths[k::size])
        # Last add confirmed is what lies below the first batch that isn't done: so they leave in order of first ids.
        self._send_chunks(sorted(chunks, key=lambda chunk: chunk.first_id))

    def _measure(self, turn: _Turn, payloads: Sequence[bytes]) -> None:
        turn.lengths = list(accumulate(map(len, payloads), initial=self._sent_length))[1:]
        self._sent_length = turn.end_length = turn.lengths[-1]

    def _chunks(
        self, route: int, payloads: Sequence[bytes], first: int, stride: int, lengths: Sequence[int]
    ) -> list[_Chunk]:
        """Cut into batches of at most `batch_bytes_max`, or one entry if that is larger."""
        sizes = list(accumulate(len(payload) + self._overhead for payload in payloads))
        chunks = []
        start, done = 0, 0
        while start < len(payloads):
            end = max(bisect_right(sizes, done + self._batch_bytes_max, start), start + 1)
            size = sizes[end - 1] - done
            chunks.append(_Chunk(route, payloads[start:end], first + start * stride, stride, lengths[start:end], size))
            start, done = end, sizes[end - 1]
        return chunks

    def _send_chunks(self, chunks: list[_Chunk]) -> None:
        for chunk in chunks:
            count = len(chunk.payloads)
            batch = Batch(self._ledger_id, chunk.first_id, chunk.first_id + (count - 1) * chunk.stride, self)
            self._acks.sent(batch)
            parts = self._routes[chunk.route].add(batch, count, chunk.stride, chunk.size)
            self._codec.encode(parts, chunk.payloads, chunk.first_id, chunk.stride, self._lac_sent, chunk.lengths)

    def completed(self, batch: Batch) -> None:
        if self._error is None:
            confirmed = self._acks.done(batch)
            if confirmed > self._confirmed:
                self._confirm(confirmed)

    def failed(self, error: BookKeeperError) -> None:
        """Fail everything that is pending, and everything to come."""
        if self._error is not None:
            return
        self._error = error
        self._unsent, self._turn = 0, None
        turns, self._turns = self._turns, deque()
        for turn in turns:
            entry_id = turn.first_id
            for pending in (turn.future,) if isinstance(turn, _Single) else turn.futures:
                if not pending.done():
                    pending.set_exception(self._failure(entry_id))
                    pending.exception()  # retrieved: whoever used append_nowait may look later, or never
                entry_id += 1
            if isinstance(turn, _Turn) and turn.whole is not None and not turn.whole.done():
                turn.whole.set_exception(self._failure(turn.first_id))
        waiters, self._waiters = self._waiters, deque()
        for _, _, admitted in waiters:
            if not admitted.done():
                admitted.set_exception(self._failure(outcome_unknown=False))
        flushing, self._flushing = self._flushing, []
        for target, flushed in flushing:
            if not flushed.done():
                flushed.set_exception(self._failure(target))
        self._window_bytes = self._window_entries = 0
        self._gate = True

    def _failure(self, entry_id: int | None = None, *, outcome_unknown: bool | None = None) -> BookKeeperError:
        """A fresh copy of the writer's error, so that tracebacks don't pile up on a shared one."""
        error = self._error
        assert error is not None
        if outcome_unknown is None:
            outcome_unknown = error.outcome_unknown if entry_id is not None else False
        return type(error)(
            error.message,
            ledger_id=self._ledger_id,
            entry_id=entry_id,
            bookie=error.bookie,
            retriable=error.retriable,
            outcome_unknown=outcome_unknown,
        )

    def _confirm(self, confirmed: int) -> None:
        """Everything up to `confirmed` is durable: resolve futures in id order and make room."""
        released, length = confirmed - self._confirmed, self._length
        self._confirmed = confirmed
        turns = self._turns
        while turns and (turn := turns[0]).first_id <= confirmed:
            if isinstance(turn, _Single):
                turns.popleft()
                self._length = turn.end_length
                if not turn.future.done():
                    turn.future.set_result(turn.first_id)
            elif not self._confirm_turn(turn, confirmed):
                break
        self._release(self._length - length, released)
        if self._flushing:
            self._wake_flushing()
        self._flights.moved(self)

    def _confirm_turn(self, turn: _Turn, confirmed: int) -> bool:
        """Resolve the first turn up to `confirmed`; whether that is all of it."""
        futures, entry_id = turn.futures, turn.first_id
        if turn.resolved:
            futures, entry_id = futures[turn.resolved :], entry_id + turn.resolved
        whole = turn.last_id <= confirmed
        if whole:
            self._turns.popleft()
            self._length = turn.end_length
            if turn.whole is not None and not turn.whole.done():
                turn.whole.set_result(range(turn.first_id, turn.last_id + 1))
        else:  # of several batches, some are done
            turn.resolved = confirmed - turn.first_id + 1
            self._length = turn.lengths[turn.resolved - 1]
            futures = futures[: confirmed - entry_id + 1]
        for future in futures:
            if not future.done():
                future.set_result(entry_id)
            entry_id += 1
        return whole

    def _release(self, size: int, count: int) -> None:
        self._window_bytes -= size
        self._window_entries -= count
        waiters = self._waiters
        if not waiters:
            return
        while waiters and (waiters[0][2].done() or self._fits(waiters[0][0], waiters[0][1])):
            wanted, many, admitted = waiters.popleft()
            if not admitted.done():
                self._window_bytes += wanted
                self._window_entries += many
                self._admitted += 1
                admitted.set_result(None)
        self._set_gate()

    def _wake_flushing(self) -> None:
        self._flushing = [(target, flushed) for target, flushed in self._flushing if not self._flushed(target, flushed)]

    def _flushed(self, target: int, flushed: asyncio.Future[None]) -> bool:
        if target > self._confirmed:
            return False
        if not flushed.done():
            flushed.set_result(None)
        return True

    # --- flushing, publishing, closing ------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Return when everything appended so far is durable on the ack quorum; raises the writer's error."""
        if self._error is not None:
            raise self._failure()
        target = self._next_id - 1
        if target > self._confirmed:
            flushed: asyncio.Future[None] = self._loop.create_future()
            self._flushing.append((target, flushed))
            await flushed

    def publish_lac(self) -> None:
        if self._error is None and not self._shut and self._confirmed > self._lac_sent:
            self._lac_sent = self._confirmed
            record = self._codec.explicit_lac(self._confirmed, self._length)
            for bookie_id in self._metadata.fragments[-1].bookies:
                self._runtime.spawn(
                    self._publish(bookie_id, record), name=f"last add confirmed of ledger {self._ledger_id}"
                )

    async def _publish(self, bookie_id: str, record: bytes) -> None:
        try:
            reply = await self._pool.peer(bookie_id).call(
                Op.WRITE_LAC,
                m.pack([self._ledger_id]),
                (record,),
                present=self._ledger_id,
                timeout_s=self._timeout_s,
            )
            status = m.reply_status(reply.head)
        except BookKeeperError as e:
            # It is a hint: readers ask several bookies, and the next entry carries it too.
            log.debug("ledger %d: last add confirmed not published to %s: %s", self._ledger_id, bookie_id, e)
            return
        if status in (Status.FENCED, Status.UNAUTHORIZED):
            self.failed(m.error_of(status, ledger_id=self._ledger_id, bookie=bookie_id))

    async def close(self) -> None:
        """Wait for what is pending, then close the ledger at last add confirmed. Closing twice is once.

        If appends have failed for lack of bookies, the ledger is closed behind the last acknowledged one. Raises
        `LedgerFencedError` if somebody else is recovering the ledger, `LedgerClosedError` if it was closed elsewhere at
        a different entry, `ClientClosedError` if the writer was abandoned before.
        """
        if self._closing is not None:
            await asyncio.shield(self._closing)
            return
        if isinstance(self._error, ClientClosedError):
            raise self._failure()  # it was abandoned, with the ledger left open
        self._shut = self._gate = True
        self._closing = closing = self._loop.create_future()
        try:
            await self._drain()
            await self._close_metadata()
        except BaseException as e:
            closing.set_exception(e if isinstance(e, Exception) else ClientClosedError("closing was cancelled"))
            closing.exception()  # retrieved: nobody else may be waiting
            if isinstance(e, BookKeeperError) and not e.retriable:
                self.abandon()
            else:
                self._closing = None  # may be tried again; appends stay refused, for the write may have happened
            raise
        closing.set_result(None)
        self.abandon()

    async def _drain(self) -> None:
        """Wait until every append has ended, one way or the other."""
        while self._waiters or self._admitted:  # the latter are assigned their ids in this loop's next turn
            if self._waiters:
                await asyncio.wait([admitted for _, _, admitted in self._waiters])
            await asyncio.sleep(0)
        target = self._next_id - 1
        if self._error is None and target > self._confirmed:
            flushed: asyncio.Future[None] = self._loop.create_future()
            self._flushing.append((target, flushed))
            try:
                await flushed
            except BookieUnavailableError:
                return  # those appends have failed; the ledger ends before them
        if isinstance(self._error, LedgerFencedError):
            raise self._failure()

    async def _close_metadata(self) -> None:
        """One closing write, repeated only while somebody else changes an open ledger at the same time."""
        for _ in range(_CLOSE_ATTEMPTS_MAX):
            closed = self._metadata.closed(self._confirmed, self._length)
            try:
                self._version = await self._catalog.write(closed, self._version)
                self._metadata = closed
                return
            except MetadataConflictError:
                self._metadata, self._version = await self._catalog.read(self._ledger_id)
            except NoSuchLedgerError:
                raise NoSuchLedgerError("the ledger was deleted while it was open", ledger_id=self._ledger_id) from None
            if self._metadata.state is LedgerState.CLOSED:
                if (self._metadata.last_entry, self._metadata.length) == (self._confirmed, self._length):
                    return
                raise LedgerClosedError(
                    f"somebody else closed the ledger at entry {self._metadata.last_entry}; "
                    f"this writer's last acknowledged entry is {self._confirmed}",
                    ledger_id=self._ledger_id,
                )
            if self._metadata.state is LedgerState.IN_RECOVERY:
                raise LedgerFencedError(
                    "somebody else is recovering the ledger", ledger_id=self._ledger_id, outcome_unknown=False
                )
        raise MetadataConflictError("the ledger's metadata kept changing", ledger_id=self._ledger_id)

    def abandon(self) -> None:
        """Stop without closing the ledger: it stays open, for somebody else to recover."""
        self.failed(ClientClosedError("the writer is closed", outcome_unknown=True))
        self._flights.forget(self)
        self._pool.forget_key(self._ledger_id, self._metadata.fragments[-1].bookies)
        self._on_closed(self)

    async def __aenter__(self) -> LedgerWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        else:
            self.abandon()


def _as_bytes(data: Any) -> bytes:
    """A copy, so that a buffer that changes later doesn't change the entry."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise ConfigError(f"an entry is bytes, not {type(data).__name__}")
