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
from itertools import accumulate
from types import TracebackType
from typing import Any, Final

from bkpy.client.flights import Flights, Route
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
from bkpy.protocol.records import HEADER_BYTES, Bytes, RecordCodec
from bkpy.runtime import Runtime

_CLOSE_ATTEMPTS_MAX: Final = 20  # each lost to somebody else's change of the metadata


log = logging.getLogger("bkpy.client")


class _Segment:
    """Appends in id order whose futures are still to be resolved: one future an entry, or one for a range."""

    __slots__ = ("bytes", "first", "futures", "last", "whole")

    def __init__(self, first: int) -> None:
        self.first = first
        self.last = first - 1
        self.bytes = 0
        self.futures: list[asyncio.Future[int]] = []
        self.whole: asyncio.Future[range] | None = None


class LedgerWriter:
    """Appends to one ledger; made by `Client.create_ledger`. Not to be shared between event loops."""

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
        self._ledger_id = metadata.ledger_id
        self._entry_bytes_max = settings.entry_bytes_max
        self._batch_bytes_max = settings.batch_bytes_max
        self._timeout_s = settings.add_timeout_s
        self._window_bytes_max = settings.write_window_bytes
        self._window_entries_max = settings.write_window_entries
        self._window_bytes = 0
        self._window_entries = 0
        self._waiters: deque[tuple[int, int, asyncio.Future[None]]] = deque()
        self._flushing: list[tuple[int, asyncio.Future[None]]] = []
        self._payloads: list[bytes] = []  # appended but not sent, ids _unsent_first ...
        self._unsent_first = 0
        self._next_id = 0
        self._sent_length = 0
        self._segments: deque[_Segment] = deque()
        self._lengths: deque[tuple[int, list[int]]] = deque()  # cumulative lengths of what is sent, by first id
        self._acks = LedgerAcks()
        self._confirmed = -1
        self._length = 0
        self._lac_sent = -1
        self._dirty = False
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
        if self._blocked(size):
            await self._room(size, 1)
        return await self._enqueue(data)

    def append_nowait(self, data: bytes) -> asyncio.Future[int]:
        """Like `append`, but returns the future of the entry's id, and raises `WouldBlock` if the window is full."""
        if type(data) is not bytes:
            data = _as_bytes(data)
        if self._blocked(len(data)):
            raise WouldBlock(
                f"the writer's window is full ({self._window_entries} entries, {self._window_bytes} bytes pending)",
                ledger_id=self._ledger_id,
            )
        return self._enqueue(data)

    async def append_batch(self, entries: Sequence[bytes]) -> range:
        """Append many entries, with consecutive ids; returns the range of them. The guarantee is `append`'s, for all.

        An empty sequence is an empty range. The batch is admitted to the window as a whole.
        """
        payloads = [data if type(data) is bytes else _as_bytes(data) for data in entries]
        size = sum(map(len, payloads))
        self._check(max(map(len, payloads), default=0))
        if self._waiters or not self._fits(size, len(payloads)):
            await self._room(size, len(payloads))
        if not payloads:
            return range(self._next_id, self._next_id)
        future: asyncio.Future[range] = self._loop.create_future()
        segment = _Segment(self._next_id)
        segment.last = self._next_id + len(payloads) - 1
        segment.bytes = size
        segment.whole = future
        self._segments.append(segment)
        self._payloads += payloads
        self._took(size, len(payloads))
        return await future

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

    def _blocked(self, size: int) -> bool:
        """Whether the window has no room for one append now."""
        if self._shut or self._error is not None or size > self._entry_bytes_max:
            self._check(size)
        return bool(self._waiters) or not self._fits(size, 1)

    def _fits(self, size: int, count: int) -> bool:
        entries = self._window_entries + count
        return (
            self._window_bytes + size <= self._window_bytes_max and entries <= self._window_entries_max
        ) or self._window_entries == 0

    async def _room(self, size: int, count: int) -> None:
        """Wait, in order of arrival, until the window has room."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append((size, count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # admitted and cancelled at once: pass the room on
                self._release(size, count)
            raise
        # The room was taken for this append by whoever woke it up; from here on it is counted like any other.
        self._window_bytes -= size
        self._window_entries -= count
        if self._error is not None:
            raise self._failure()

    def _enqueue(self, data: bytes) -> asyncio.Future[int]:
        future: asyncio.Future[int] = self._loop.create_future()
        segments = self._segments
        if self._payloads and segments[-1].whole is None:  # this turn's appends share a segment
            segment = segments[-1]
        else:
            segment = _Segment(self._next_id)
            segments.append(segment)
        size = len(data)
        segment.futures.append(future)
        segment.last += 1
        segment.bytes += size
        self._payloads.append(data)
        self._took(size, 1)
        return future

    def _took(self, size: int, count: int) -> None:
        self._next_id += count
        self._window_bytes += size
        self._window_entries += count
        if not self._dirty:
            self._dirty = True
            self._flights.mark(self)

    # --- the flights' calls -----------------------------------------------------------------------------------------

    def blocked(self) -> bool:
        return any(route.blocked() for route in self._routes)

    def gather(self) -> None:
        """Make batches of what is unsent, and give them to their routes."""
        self._dirty = False
        payloads, self._payloads = self._payloads, []
        if self._error is not None or not payloads:
            return
        first = self._unsent_first
        self._unsent_first = first + len(payloads)
        lengths = list(accumulate(map(len, payloads), initial=self._sent_length))
        del lengths[0]
        self._sent_length = lengths[-1]
        self._lengths.append((first, lengths))
        self._lac_sent = self._confirmed
        if not self._striped:
            self._send(self._routes[0], payloads, first, 1, lengths)
            return
        ensemble_size = len(self._routes)
        stripes = [(k, (first + k) % ensemble_size) for k in range(min(ensemble_size, len(payloads)))]
        for k, r in stripes:
            self._send(self._routes[r], payloads[k::ensemble_size], first + k, ensemble_size, lengths[k::ensemble_size])

    def _send(self, route: Route, payloads: list[bytes], first: int, stride: int, lengths: list[int]) -> None:
        limit = self._batch_bytes_max
        overhead = HEADER_BYTES + self._codec.mac_bytes
        if sum(map(len, payloads)) + overhead * len(payloads) <= limit or len(payloads) == 1:
            self._send_batch(route, payloads, first, stride, lengths)
            return
        sizes = list(accumulate(len(payload) + overhead for payload in payloads))
        start, done = 0, 0
        while start < len(payloads):
            end = max(bisect_right(sizes, done + limit, start), start + 1)
            self._send_batch(route, payloads[start:end], first + start * stride, stride, lengths[start:end])
            start, done = end, sizes[end - 1]

    def _send_batch(self, route: Route, payloads: list[bytes], first: int, stride: int, lengths: list[int]) -> None:
        parts: list[Bytes] = []
        count = len(payloads)
        size = self._codec.encode(parts, payloads, first, stride, self._lac_sent, lengths)
        batch = Batch(self._ledger_id, first, first + (count - 1) * stride, self)
        self._acks.sent(batch)
        route.add(batch, count, stride, parts, size)

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
        self._payloads.clear()
        segments, self._segments = self._segments, deque()
        for segment in segments:
            entry_id = segment.first
            for pending in segment.futures:
                if not pending.done():
                    pending.set_exception(self._failure(entry_id))
                    pending.exception()  # retrieved: whoever used append_nowait may look later, or never
                entry_id += 1
            if segment.whole is not None and not segment.whole.done():
                segment.whole.set_exception(self._failure(segment.first))
        waiters, self._waiters = self._waiters, deque()
        for _, _, turn in waiters:
            if not turn.done():
                turn.set_exception(self._failure(outcome_unknown=False))
        flushing, self._flushing = self._flushing, []
        for target, flushed in flushing:
            if not flushed.done():
                flushed.set_exception(self._failure(target))
        self._window_bytes = self._window_entries = 0

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
            outcome_unknown=outcome_unknown,
        )

    def _confirm(self, confirmed: int) -> None:
        """Everything up to `confirmed` is durable: resolve futures in id order and make room."""
        self._confirmed = confirmed
        released_bytes = released_entries = 0
        segments = self._segments
        while segments and segments[0].first <= confirmed:
            segment = segments[0]
            if segment.last <= confirmed:
                segments.popleft()
                futures = segment.futures
                released_bytes += segment.bytes
                released_entries += segment.last - segment.first + 1
                if segment.whole is not None and not segment.whole.done():
                    segment.whole.set_result(range(segment.first, segment.last + 1))
            elif segment.whole is not None:
                break
            else:  # striped ledgers, or several batches: a part of it
                count = confirmed - segment.first + 1
                futures, segment.futures = segment.futures[:count], segment.futures[count:]
                released_entries += count
            entry_id = segment.first
            for future in futures:
                if not future.done():
                    future.set_result(entry_id)
                entry_id += 1
            segment.first = entry_id if futures else segment.first
        self._measure(confirmed)
        self._release(released_bytes, released_entries)
        if self._flushing:
            self._wake_flushing()
        self._flights.moved(self)

    def _measure(self, confirmed: int) -> None:
        lengths = self._lengths
        while lengths and lengths[0][0] + len(lengths[0][1]) - 1 <= confirmed:
            self._length = lengths.popleft()[1][-1]
        if lengths and lengths[0][0] <= confirmed:
            self._length = lengths[0][1][confirmed - lengths[0][0]]

    def _release(self, size: int, count: int) -> None:
        self._window_bytes -= size
        self._window_entries -= count
        waiters = self._waiters
        while waiters and (waiters[0][2].done() or self._fits(waiters[0][0], waiters[0][1])):
            wanted, many, turn = waiters.popleft()
            if not turn.done():
                self._window_bytes += wanted
                self._window_entries += many
                turn.set_result(None)

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
        a different entry.
        """
        if self._closing is not None:
            await asyncio.shield(self._closing)
            return
        self._shut = True
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
        while self._waiters:
            await asyncio.wait([turn for _, _, turn in self._waiters])
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
