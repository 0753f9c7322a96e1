"""Appends to one ledger, from the call to the acknowledgement: ids, the window, batches, futures.

Entry ids are assigned when `append` is called and the append has found room in the window; what one turn of the event
loop appends leaves as one batch per write set (see `dispatcher.py`). Futures are resolved in id order only, when the
entry and all before it are on their ack quorum.

Invariants: at most `write_window_bytes` and `write_window_entries` are unacknowledged (one append that is larger than
the window goes alone, and so does the next in order of ids chosen by callers); once failed, everything that is pending
and everything that follows fails.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, Final

from bkpy.client.write.batch import SENT, Chunk, Single, Turn, chunks
from bkpy.client.write.replication import Replicator
from bkpy.errors import (
    BookKeeperError,
    ConfigError,
    DuplicateEntryError,
    FrameTooLargeError,
    LedgerClosedError,
    WouldBlock,
)
from bkpy.protocol.acks import AT_REST, Batch
from bkpy.protocol.ledger_metadata import ENTRY_ID_MAX, LedgerMetadata
from bkpy.protocol.messages import Flags
from bkpy.protocol.records import HEADER_BYTES, RecordCodec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bkpy.config.client import ClientSettings

_NOTHING: Final[dict[int, Any]] = {}  # of all writers whose ledger's ids aren't their callers': it stays empty


class Appends(Replicator):
    """The part of a `LedgerWriter` that knows nothing of its ledger's end."""

    __slots__ = (
        "_admitted",
        "_append_bytes",
        "_caller_ids",
        "_codec",
        "_crowd",
        "_deferred",
        "_early",
        "_flushing",
        "_gate",
        "_lac",
        "_lac_sent",
        "_length",
        "_loop",
        "_new_future",
        "_next_id",
        "_overhead",
        "_send_bytes",
        "_sent_length",
        "_shut",
        "_turn",
        "_turns",
        "_unsent",
        "_waiters",
        "_window_bytes",
        "_window_bytes_max",
        "_window_entries",
        "_window_entries_max",
    )

    def __init__(self, metadata: LedgerMetadata, *, codec: RecordCodec, settings: ClientSettings, **parts: Any) -> None:
        flags = int(Flags.DEFERRED_SYNC) if metadata.deferred_sync else 0
        super().__init__(metadata, settings=settings, flags=flags, **parts)
        self._codec = codec
        self._loop = asyncio.get_running_loop()
        self._new_future = self._loop.create_future
        self._send_bytes = settings.launch_bytes
        self._append_bytes = settings.launch_append_bytes
        self._overhead = HEADER_BYTES + codec.mac_bytes
        self._window_bytes_max = settings.write_window_bytes
        self._window_entries_max = settings.write_window_entries
        self._window_bytes = 0
        self._window_entries = 0
        self._waiters: deque[tuple[int, int, asyncio.Future[None]]] = AT_REST
        self._admitted = 0  # appends that were given room and have not gone on yet
        self._caller_ids = metadata.caller_ids
        self._early: dict[int, tuple[bytes, asyncio.Future[int]]] = (
            {} if metadata.caller_ids else _NOTHING
        )  # by ids whose predecessors are still to come
        self._crowd: dict[int, asyncio.Future[None]] = (
            {} if metadata.caller_ids else _NOTHING
        )  # by ids that found no room
        self._gate = self._caller_ids  # whether appends must not go the short way
        self._flushing: list[tuple[int, asyncio.Future[None]]] = []
        self._turn: Single | Turn | None = None  # what `append` adds to
        self._unsent = 0  # how many of the last turns
        self._turns: deque[Single | Turn] = AT_REST  # all that isn't confirmed
        self._next_id = 0
        self._sent_length = 0
        self._length = 0
        self._lac = -1  # what readers may read: `_confirmed`, unless syncs are deferred
        self._lac_sent = -1
        self._deferred = metadata.deferred_sync
        self._shut = False  # no more appends: `close` was called

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def ledger_id(self) -> int:
        return self._ledger_id

    @property
    def last_add_confirmed(self) -> int:
        """The highest id such that it and all below are durable on their ack quorums; -1 for none yet.

        In a ledger with deferred sync it moves by `force` alone.
        """
        return self._lac

    @property
    def length(self) -> int:
        """Payload bytes of the entries that were acknowledged."""
        return self._length

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    def __repr__(self) -> str:
        return f"<LedgerWriter ledger={self._ledger_id} last_add_confirmed={self._lac}>"

    # --- appending --------------------------------------------------------------------------------------------------

    async def append(self, data: bytes, *, entry_id: int | None = None) -> int:
        """Append one entry; returns its id when it and all before it are durable on the ack quorum.

        Waits for room in the window first. `entry_id` is given in ledgers created with `caller_ids=True`, and only
        there: ids may come in any order, each once, and an entry is acknowledged when all below it are. Cancelling the
        call doesn't withdraw an entry that has been assigned its id.

        Raises `FrameTooLargeError`, `LedgerClosedError` or `DuplicateEntryError` with nothing written, and
        `LedgerFencedError`, `BookieUnavailableError`, `QuorumTimeoutError` or `UnauthorizedError`, whose outcome is
        unknown once the entry was sent to any bookie, as `outcome_unknown` says.
        """
        if type(data) is not bytes:
            data = _as_bytes(data)
        size = len(data)
        if (
            self._gate
            or size > self._entry_bytes_max
            or self._window_bytes + size > self._window_bytes_max
            or self._window_entries >= self._window_entries_max
            or entry_id is not None
        ):
            if self._caller_ids or entry_id is not None:
                return await self._append_at(entry_id, data, size)
            await self._admit(size, size, 1)
        return await self._enqueue(data, size)

    def append_nowait(self, data: bytes, *, entry_id: int | None = None) -> asyncio.Future[int]:
        """Like `append`, but returns the future of the entry's id, and raises `WouldBlock` if the window is full."""
        if type(data) is not bytes:
            data = _as_bytes(data)
        size = len(data)
        if self._caller_ids or entry_id is not None:
            placed = self._place(entry_id, data, size)
            if placed is not None:
                return placed
            raise self._would_block()
        if self._gate or size > self._entry_bytes_max or not self._fits(size, 1):
            self._check(size)
            raise self._would_block()
        return self._enqueue(data, size)

    def _would_block(self) -> WouldBlock:
        return WouldBlock(
            f"the writer's window is full ({self._window_entries} entries, {self._window_bytes} bytes pending)",
            ledger_id=self._ledger_id,
        )

    async def _append_at(self, entry_id: int | None, data: bytes, size: int) -> int:
        while (placed := self._place(entry_id, data, size)) is None:
            assert entry_id is not None
            room: asyncio.Future[None] = self._loop.create_future()
            self._crowd[entry_id] = room
            try:
                await room
            finally:
                if self._crowd.get(entry_id) is room:
                    del self._crowd[entry_id]
                    self._wake_crowd()  # it may have been its turn
        return await placed

    def _place(self, entry_id: int | None, data: bytes, size: int) -> asyncio.Future[int] | None:
        """Take an entry whose caller chose its id; None if there is no room for it now.

        Entries are sent in id order, so that a ledger has no gaps whoever recovers it. The next one in order has room
        as soon as nothing is on its way: those that wait for it may be what fills the window.
        """
        if not self._caller_ids:
            raise ConfigError("entry_id is for ledgers created with caller_ids=True", ledger_id=self._ledger_id)
        if type(entry_id) is not int or not 0 <= entry_id <= ENTRY_ID_MAX:
            raise ConfigError(
                f"a ledger created with caller_ids=True needs an entry_id from 0 on, not {entry_id!r}",
                ledger_id=self._ledger_id,
            )
        self._check(size)
        if entry_id < self._next_id or entry_id in self._early or entry_id in self._crowd:
            raise DuplicateEntryError(
                "an entry with that id was appended", ledger_id=self._ledger_id, entry_id=entry_id
            )
        if not self._fits(size, 1) and (self._turns or entry_id > self._next_id):
            return None
        if entry_id > self._next_id:
            future = self._new_future()
            self._early[entry_id] = (data, future)
            self._window_bytes += size
            self._window_entries += 1
            self._wake_crowd()
            return future
        future = self._enqueue(data, size)
        while (waiting := self._early.pop(self._next_id, None)) is not None:
            self._window_bytes -= len(waiting[0])
            self._window_entries -= 1
            self._enqueue(waiting[0], len(waiting[0]), waiting[1])
        self._wake_crowd()
        return future

    def _wake_crowd(self) -> None:
        """Entries with ids of their callers' that found no room: let one of them try again, best the next in order.

        One that finds room wakes another. After a failure all of them are told.
        """
        while self._crowd:
            entry_id = self._next_id if self._next_id in self._crowd else next(iter(self._crowd))
            room = self._crowd.pop(entry_id)
            if not room.done():
                room.set_result(None)
                if self._error is None and not self._shut:
                    return

    async def append_batch(self, entries: Sequence[bytes]) -> range:
        """Append many entries, with consecutive ids; returns the range of them. The guarantee is `append`'s, for all.

        An empty sequence is an empty range. The batch is admitted to the window as a whole.
        """
        if self._caller_ids:
            raise ConfigError(
                "a ledger created with caller_ids=True takes entries one by one", ledger_id=self._ledger_id
            )
        payloads = [data if type(data) is bytes else _as_bytes(data) for data in entries]
        size, count = sum(map(len, payloads)), len(payloads)
        largest = max(map(len, payloads), default=0)
        if self._gate or largest > self._entry_bytes_max or not self._fits(size, count):
            await self._admit(largest, size, count)
        first = self._next_id
        if not payloads:
            return range(first, first)
        self._turn = None
        turn = Turn(self._ledger_id, self, first, payloads, [])
        turn.whole = self._new_future()
        self._begin(turn)
        self._next_id = first + count
        self._window_bytes += size
        self._window_entries += count
        self._dispatcher.unsent_bytes += size + self._append_bytes
        if self._dispatcher.unsent_bytes >= self._send_bytes:
            self._dispatcher.send()
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
        self._gate = self._shut or self._error is not None or bool(self._waiters) or self._caller_ids

    async def _admit(self, largest: int, size: int, count: int) -> None:
        """Wait, in order of arrival, until the window has room."""
        self._check(largest)
        if not self._waiters and self._fits(size, count):
            return
        admitted: asyncio.Future[None] = self._loop.create_future()
        if not self._waiters:
            self._waiters = deque()
        self._waiters.append((size, count, admitted))
        self._gate = True
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.cancelled():
                self._release(0, 0)  # leave the queue: those behind it may be smaller
            elif admitted.exception() is None:
                # Admitted and cancelled at once: pass the room on.
                self._admitted -= 1
                self._release(size, count)
            raise
        self._admitted -= 1
        # The room was taken for this append by whoever woke it up; from here on it is counted like any other.
        self._window_bytes -= size
        self._window_entries -= count
        if self._error is not None:
            raise self._failure()

    def _enqueue(self, data: bytes, size: int, future: asyncio.Future[int] | None = None) -> asyncio.Future[int]:
        if future is None:
            future = self._new_future()
        turn = self._turn
        if turn is None:
            self._turn = turn = Single(self._ledger_id, self, self._next_id, data, future)
            self._begin(turn)
        elif isinstance(turn, Turn):
            turn.payloads.append(data)
            turn.futures.append(future)
        else:
            self._turn = self._turns[-1] = Turn(
                self._ledger_id, self, turn.first_id, [turn.payload, data], [turn.future, future]
            )
        self._next_id += 1
        self._window_bytes += size
        self._window_entries += 1
        dispatcher = self._dispatcher
        dispatcher.unsent_bytes += size + self._append_bytes
        if dispatcher.unsent_bytes >= self._send_bytes:
            dispatcher.send()
        return future

    def _begin(self, turn: Single | Turn) -> None:
        try:
            self._turns.append(turn)
        except AttributeError:
            self._turns = deque((turn,))  # the first one, or the first after a rest
        if not self._unsent:
            self._dispatcher.schedule(self)
        self._unsent += 1

    # --- the dispatcher's calls--------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Make batches of what is unsent, and give them to their queues."""
        if self._acks.frozen:
            return  # until it is known who the bookies are
        turns, unsent = self._turns, self._unsent
        if not unsent:
            return
        self._turn, self._unsent = None, 0
        self._lac_sent = self._lac
        for turn in (turns[-1],) if unsent == 1 else tuple(islice(turns, len(turns) - unsent, None)):
            if isinstance(turn, Single):
                self._send_single(turn)
            elif self._striped:
                self._send_striped(turn)
            else:
                self._send(turn)

    def _send_single(self, turn: Single) -> None:
        payload, turn.payload = turn.payload, b""
        self._acks.sent(turn)
        queue = self._queues[turn.first_id % len(self._queues)]
        parts = queue.add(turn, 1, 1, len(payload) + self._overhead)
        self._sent_length = turn.end_length = self._codec.encode_run(
            parts, (payload,), turn.first_id, self._lac_sent, self._sent_length
        )

    def _send(self, turn: Turn) -> None:
        payloads, turn.payloads = turn.payloads, SENT
        count = len(payloads)
        turn.last_id = turn.first_id + count - 1
        size = sum(map(len, payloads)) + self._overhead * count
        if count == 1 or size <= self._batch_bytes_max:
            self._acks.sent(turn)
            parts = self._queues[0].add(turn, count, 1, size)
            self._sent_length = turn.end_length = self._codec.encode_run(
                parts, payloads, turn.first_id, self._lac_sent, self._sent_length
            )
            return
        self._measure(turn, payloads)
        self._send_chunks(self._cut(0, payloads, turn.first_id, 1, turn.lengths))

    def _send_striped(self, turn: Turn) -> None:
        payloads, turn.payloads = turn.payloads, SENT
        turn.last_id = turn.first_id + len(payloads) - 1
        self._measure(turn, payloads)
        size = len(self._queues)
        cut: list[Chunk] = []
        for k in range(min(size, len(payloads))):
            first = turn.first_id + k
            cut += self._cut(first % size, payloads[k::size], first, size, turn.lengths[k::size])
        # Last add confirmed is what lies below the first batch that isn't done: so they leave in order of first ids.
        self._send_chunks(sorted(cut, key=lambda chunk: chunk.first_id))

    def _measure(self, turn: Turn, payloads: Sequence[bytes]) -> None:
        turn.lengths = list(accumulate(map(len, payloads), initial=self._sent_length))[1:]
        self._sent_length = turn.end_length = turn.lengths[-1]

    def _cut(
        self, queue: int, payloads: Sequence[bytes], first: int, stride: int, lengths: Sequence[int]
    ) -> list[Chunk]:
        return chunks(queue, payloads, first, stride, lengths, self._overhead, self._batch_bytes_max)

    def _send_chunks(self, cut: list[Chunk]) -> None:
        for chunk in cut:
            count = len(chunk.payloads)
            batch = Batch(self._ledger_id, chunk.first_id, chunk.first_id + (count - 1) * chunk.stride, self)
            self._acks.sent(batch)
            parts = self._queues[chunk.queue].add(batch, count, chunk.stride, chunk.size)
            self._codec.encode(parts, chunk.payloads, chunk.first_id, chunk.stride, self._lac_sent, chunk.lengths)

    def failed(self, error: BookKeeperError) -> None:
        """Fail everything that is pending, and everything to come."""
        if self._error is not None:
            return
        self._error = error
        turns, self._turns = self._turns, AT_REST
        sent = len(turns) - self._unsent
        self._unsent, self._turn = 0, None
        for index, turn in enumerate(turns):
            # Whatever the error says, and whoever it came from: another bookie may have what was sent.
            self._fail_turn(turn, outcome_unknown=index < sent)
        waiters, self._waiters = self._waiters, AT_REST
        for _, _, admitted in waiters:
            if not admitted.done():
                admitted.set_exception(self._failure(outcome_unknown=False))
        self._drop_early(error)
        flushing, self._flushing = self._flushing, []
        for target, flushed in flushing:
            if not flushed.done():
                flushed.set_exception(self._failure(target, outcome_unknown=sent > 0))
        self._window_bytes = self._window_entries = 0
        self._gate = True
        self._reopened.clear()
        self._wake_crowd()

    def _fail_turn(self, turn: Single | Turn, *, outcome_unknown: bool) -> None:
        entry_id = turn.first_id
        for pending in (turn.future,) if isinstance(turn, Single) else turn.futures:
            if not pending.done():
                pending.set_exception(self._failure(entry_id, outcome_unknown=outcome_unknown))
                pending.exception()  # retrieved: whoever used append_nowait may look later, or never
            entry_id += 1
        if isinstance(turn, Turn) and turn.whole is not None and not turn.whole.done():
            turn.whole.set_exception(self._failure(turn.first_id, outcome_unknown=outcome_unknown))

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
        if not self._deferred:
            self._lac = confirmed
        turns = self._turns
        while turns and (turn := turns[0]).first_id <= confirmed:
            if isinstance(turn, Single):
                turns.popleft()
                self._length = turn.end_length
                if not turn.future.done():
                    turn.future.set_result(turn.first_id)
            else:
                whole = turn.confirm(confirmed)
                self._length = turn.length_at(confirmed)
                if not whole:
                    break
                turns.popleft()
        self._release(self._length - length, released)
        if self._flushing:
            self._wake_flushing()
        if self._reopened:
            self._forget_reopened(confirmed)

    def _release(self, size: int, count: int) -> None:
        self._window_bytes -= size
        self._window_entries -= count
        if not self._gate:  # then nobody waits
            return
        waiters = self._waiters
        if self._crowd:
            self._wake_crowd()
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

    async def flush(self) -> None:
        """Return when everything appended so far is durable on the ack quorum; raises the writer's error."""
        if self._error is not None:
            raise self._failure()
        target = self._next_id - 1
        if target > self._confirmed:
            flushed: asyncio.Future[None] = self._loop.create_future()
            self._flushing.append((target, flushed))
            await flushed

    def _resume(self) -> None:
        if self._unsent and self._error is None:
            self._dispatcher.schedule(self)

    def _pending(self) -> bool:
        return bool(self._turns)

    def rest(self) -> None:
        super().rest()
        if not self._turns:
            self._turns = AT_REST

    def _idle(self) -> bool:
        return self._shut and not self._turns and not self._waiters and not self._admitted

    def _drop_early(self, error: BookKeeperError) -> None:
        """Fail the entries that were waiting for others before them: they were never sent."""
        early, self._early = self._early, {} if self._early else self._early
        for entry_id, (data, future) in early.items():
            self._window_bytes -= len(data)
            self._window_entries -= 1
            if not future.done():
                future.set_exception(
                    type(error)(error.message, ledger_id=self._ledger_id, entry_id=entry_id, outcome_unknown=False)
                )
                future.exception()  # retrieved: whoever used append_nowait may look later, or never


def _as_bytes(data: Any) -> bytes:
    """A copy, so that a buffer that changes later doesn't change the entry."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise ConfigError(f"an entry is bytes, not {type(data).__name__}")
