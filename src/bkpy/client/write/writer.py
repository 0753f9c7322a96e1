"""The writer of one ledger, as users have it: appends and the window that they wait for, syncs, and its end.

What was given room in the window is added to `PendingAppends`, whose replication brings it to the bookies.

Invariants: at most `write_window_bytes` and `write_window_entries` are unacknowledged (one append that is larger than
the window goes alone, and so does the next in order of ids chosen by callers); once failed, everything that waits and
everything that follows fails; the ledger is closed at last add confirmed, never beyond.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from bkpy.client.arguments import payload_of
from bkpy.client.lifetime import refuse_pickling, warn_unclosed
from bkpy.client.write.deferred_sync import DeferredSync
from bkpy.client.write.fragments import StoredFragments
from bkpy.client.write.out_of_order import OutOfOrder
from bkpy.client.write.pending import PendingAppends
from bkpy.client.write.replication import log
from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    ClientClosedError,
    ConfigError,
    DuplicateEntryError,
    FrameTooLargeError,
    LedgerClosedError,
    LedgerFencedError,
    QuorumTimeoutError,
    WouldBlock,
)
from bkpy.protocol.ledger.acks import AT_REST
from bkpy.protocol.ledger.ledger_metadata import ENTRY_ID_MAX
from bkpy.protocol.ledger.writer_state import Event, WriterState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bkpy.client.write.interfaces import AppendsOwner, ReplicationParts
    from bkpy.client.write.lac_publisher import Publisher
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.wire.records import RecordCodec


class LedgerWriter:
    """Appends to one ledger; made by `Client.create_ledger`. Not to be shared between event loops."""

    __slots__ = (
        "__weakref__",
        "_admitted",
        "_closing",
        "_deferred_sync",
        "_fragments",
        "_ledger_id",
        "_on_closed",
        "_out_of_order",
        "_pending",
        "_pool",
        "_replication",
        "_waiters",
        "_window_bytes_max",
        "_window_entries_max",
    )
    __reduce__ = refuse_pickling

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        *,
        codec: RecordCodec,
        catalog: LedgerCatalog,
        publisher: Publisher,
        parts: ReplicationParts,
        on_closed: Callable[[LedgerWriter], None],
        owner: AppendsOwner | None = None,
    ) -> None:
        self._ledger_id = metadata.ledger_id
        self._fragments = StoredFragments(catalog, version, parts.settings)
        self._pending = PendingAppends(
            metadata,
            codec=codec,
            store=self._fragments,
            publisher=publisher,
            parts=parts,
            on_room=self._give_room,
            on_failed=self._fail_waiting,
            may_add=self._may_add,
            owner=owner,
        )
        self._replication = self._pending.replication
        self._deferred_sync = DeferredSync(self._pending, parts) if metadata.deferred_sync else None
        self._out_of_order = OutOfOrder() if metadata.caller_ids else None
        self._pool = parts.pool
        self._on_closed = on_closed
        self._window_bytes_max = parts.settings.write_window_bytes
        self._window_entries_max = parts.settings.write_window_entries
        self._waiters: deque[tuple[int, int, asyncio.Future[None]]] = AT_REST
        self._admitted = 0  # appends that were given room and have not gone on yet
        self._pending.slow_path = metadata.caller_ids
        self._closing: asyncio.Future[None] | None = None  # the call of `close` that goes on, or has ended it

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def ledger_id(self) -> int:
        """The id by which others open the ledger."""
        return self._ledger_id

    @property
    def last_add_confirmed(self) -> int:
        """The highest id such that it and all below are durable on their ack quorums; -1 for none yet.

        With deferred sync it moves by `force` alone.
        """
        return self._pending.lac

    @property
    def length(self) -> int:
        """Payload bytes of the entries that were acknowledged."""
        return self._pending.length

    @property
    def pending(self) -> PendingAppends:
        """What is appended and not acknowledged: for the writer of a log, not for applications."""
        return self._pending

    @property
    def metadata(self) -> LedgerMetadata:
        """What the metadata store keeps about the ledger, as this writer last stored or found it."""
        return self._replication.metadata

    @property
    def ensemble(self) -> tuple[str, ...]:
        """The bookies that entries go to now."""
        return self._replication.ensemble

    @property
    def usable(self) -> bool:
        """Whether appends can go on: it was neither closed nor abandoned, and has not failed."""
        return self._replication.state.takes_entries

    @property
    def under_replicated(self) -> Mapping[str, int]:
        """The bookies that may lack acknowledged entries which they are to hold, each with the first of those.

        One that could not take an entry (its disk is full, it died), and that nobody could replace in time, lacks it
        until somebody copies it there. Who has not answered yet counts as one that will. `close` warns of it.
        """
        return self._replication.under_replicated

    def __repr__(self) -> str:
        return f"<LedgerWriter ledger={self._ledger_id} last_add_confirmed={self._pending.lac}>"

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
            data = payload_of(data)
        size, pending = len(data), self._pending
        if pending.open_batch is None and asyncio._get_running_loop() is not pending.loop:
            pending.check_loop()
        if (
            pending.slow_path
            or size > self._replication.entry_bytes_max
            or pending.window_bytes + size > self._window_bytes_max
            or pending.window_entries >= self._window_entries_max
            or entry_id is not None
        ):
            if self._out_of_order is not None or entry_id is not None:
                return await self._append_at(entry_id, data, size)
            await self._admit(size, size, 1)
        pending.window_bytes += size
        pending.window_entries += 1
        return await pending.add(data, size)

    def append_nowait(self, data: bytes, *, entry_id: int | None = None) -> asyncio.Future[int]:
        """Like `append`, but returns the future of the entry's id, and raises `WouldBlock` if the window is full."""
        if type(data) is not bytes:
            data = payload_of(data)
        size, pending = len(data), self._pending
        if pending.open_batch is None and asyncio._get_running_loop() is not pending.loop:
            pending.check_loop()
        if self._out_of_order is not None or entry_id is not None:
            if (placed := self._place(entry_id, data, size)) is not None:
                return placed
            raise self._would_block()
        if pending.slow_path or size > self._replication.entry_bytes_max or not self._fits(size, 1):
            self._check(size)
            raise self._would_block()
        pending.window_bytes += size
        pending.window_entries += 1
        return pending.add(data, size)

    async def append_batch(self, entries: Sequence[bytes]) -> range:
        """Append many entries, with consecutive ids; returns the range of them. The guarantee is `append`'s, for all.

        An empty sequence is an empty range. The batch is admitted to the window as a whole.
        """
        if self._out_of_order is not None:
            what = "a ledger created with caller_ids=True takes entries one by one"
            raise ConfigError(what, ledger_id=self._ledger_id)
        self._pending.check_loop()
        payloads = [data if type(data) is bytes else payload_of(data) for data in entries]
        size, count = sum(map(len, payloads)), len(payloads)
        largest = max(map(len, payloads), default=0)
        if self._pending.slow_path or largest > self._replication.entry_bytes_max or not self._fits(size, count):
            await self._admit(largest, size, count)
        if not payloads:
            return range(self._pending.next_id, self._pending.next_id)
        self._pending.window_bytes += size
        self._pending.window_entries += count
        return await self._pending.add_batch(payloads, size)

    async def flush(self) -> None:
        """Return when everything appended so far is durable on the ack quorum; raises the writer's error."""
        if self._replication.error is not None:
            raise self._replication.failure(outcome_unknown=self._replication.confirmed < self._pending.next_id - 1)
        await self._pending.flush()

    def _would_block(self) -> WouldBlock:
        pending = self._pending
        return WouldBlock(
            f"the writer's window is full ({pending.window_entries} entries, {pending.window_bytes} bytes pending)",
            ledger_id=self._ledger_id,
        )

    # --- the window -------------------------------------------------------------------------------------------------

    def _check(self, size: int) -> None:
        """Raise whatever an append of `size` bytes could never get past."""
        if self._replication.state.close_was_called:
            raise LedgerClosedError("the writer is closed", ledger_id=self._ledger_id)
        if self._replication.error is not None:
            raise self._replication.failure()
        if size > self._replication.entry_bytes_max:
            raise FrameTooLargeError(
                f"an entry of {size} bytes is over the limit of {self._replication.entry_bytes_max} bytes",
                ledger_id=self._ledger_id,
                entry_id=self._pending.next_id,
            )

    def _fits(self, size: int, count: int) -> bool:
        pending = self._pending
        return (
            pending.window_bytes + size <= self._window_bytes_max
            and pending.window_entries + count <= self._window_entries_max
        ) or pending.window_entries == 0

    async def _admit(self, largest: int, size: int, count: int) -> None:
        """Wait, in order of arrival, until the window has room."""
        self._check(largest)
        if not self._waiters and self._fits(size, count):
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._waiters:
            self._waiters = deque()
        self._waiters.append((size, count, admitted))
        self._pending.slow_path = True
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
        self._pending.window_bytes -= size
        self._pending.window_entries -= count
        if self._replication.error is not None:
            raise self._replication.failure()

    def _release(self, size: int, count: int) -> None:
        self._pending.window_bytes -= size
        self._pending.window_entries -= count
        self._give_room()

    def _give_room(self) -> None:
        """Let those go on that there is room for now."""
        waiters = self._waiters
        if self._out_of_order is not None:
            self._wake_room_waiters(self._out_of_order)
        if not waiters:
            return
        while waiters and (waiters[0][2].done() or self._fits(waiters[0][0], waiters[0][1])):
            wanted, many, admitted = waiters.popleft()
            if not admitted.done():
                self._pending.window_bytes += wanted
                self._pending.window_entries += many
                self._admitted += 1
                admitted.set_result(None)
        self._pending.slow_path = self._out_of_order is not None or bool(waiters) or not self.usable

    def _fail_waiting(self, error: BookKeeperError) -> None:
        """Nothing can be added any more: fail what waits for room, or for entries below it."""
        waiters, self._waiters = self._waiters, AT_REST
        for _, _, admitted in waiters:
            if not admitted.done():
                admitted.set_exception(self._replication.failure(outcome_unknown=False))
        self._fail_early(error)
        self._pending.window_bytes = self._pending.window_entries = 0
        self._pending.slow_path = True
        if self._out_of_order is not None:
            self._wake_room_waiters(self._out_of_order)

    # --- ids that callers choose ------------------------------------------------------------------------------------

    async def _append_at(self, entry_id: int | None, data: bytes, size: int) -> int:
        placed = self._place(entry_id, data, size)
        if placed is None:
            assert entry_id is not None
            assert self._out_of_order is not None
            placed = await self._place_later(self._out_of_order, entry_id, data, size)
        return await placed

    async def _place_later(self, ids: OutOfOrder, entry_id: int, data: bytes, size: int) -> asyncio.Future[int]:
        """Take the entry when there is room."""
        while True:
            room = ids.wait_for_room(entry_id)
            try:
                await room
                if (placed := self._place(entry_id, data, size)) is not None:
                    return placed
            except BaseException:  # it may have been woken, and then another has to try in its place
                ids.leave(entry_id, room)
                self._wake_room_waiters(ids)
                raise

    def _place(self, entry_id: int | None, data: bytes, size: int) -> asyncio.Future[int] | None:
        """Take an entry whose caller chose its id; None if there is no room for it now.

        Entries are sent in id order, so that a ledger has no gaps whoever recovers it. The next one in order has room
        as soon as nothing is on its way: those that wait for it may be what fills the window.
        """
        ids, pending = self._out_of_order, self._pending
        if ids is None:
            raise ConfigError("entry_id is for ledgers created with caller_ids=True", ledger_id=self._ledger_id)
        if type(entry_id) is not int or not 0 <= entry_id <= ENTRY_ID_MAX:
            raise ConfigError(
                f"a ledger created with caller_ids=True needs an entry_id from 0 on, not {entry_id!r}",
                ledger_id=self._ledger_id,
            )
        self._check(size)
        if entry_id < pending.next_id or entry_id in ids:
            raise DuplicateEntryError(
                "an entry with that id was appended", ledger_id=self._ledger_id, entry_id=entry_id
            )
        if not self._fits(size, 1) and (pending.has_pending or entry_id > pending.next_id):
            return None
        self._pending.window_bytes += size
        self._pending.window_entries += 1
        if entry_id > pending.next_id:
            future = ids.add(entry_id, data)
        else:
            future = pending.add(data, size)
            while (waiting := ids.early.pop(pending.next_id, None)) is not None:
                pending.add(waiting[0], len(waiting[0]), waiting[1])
        self._wake_room_waiters(ids)
        return future

    def _wake_room_waiters(self, ids: OutOfOrder) -> None:
        """Let one of the entries that found no room try again; after a failure, all of them."""
        while ids.wake_one(self._pending.next_id) and not self.usable:
            pass

    def _fail_early(self, error: BookKeeperError) -> None:
        """Fail the entries that were waiting for others before them: they were never sent."""
        early = () if self._out_of_order is None else self._out_of_order.fail_early(error, self._ledger_id)
        self._pending.window_bytes -= sum(map(len, early))
        self._pending.window_entries -= len(early)

    # --- syncing ----------------------------------------------------------------------------------------------------

    async def force(self) -> int:
        """Make durable what was acknowledged so far, on the whole ensemble; returns last add confirmed, which moves.

        For ledgers created with `deferred_sync=True`, where an append is acknowledged before it is on disk. Raises
        `BookieUnavailableError` if a bookie can't say so. If a connection was lost since the last call, what was sent
        meanwhile may be lost: then the writer has failed, and its ledger ends where the last call left it.
        """
        if self._deferred_sync is None:
            raise ConfigError("force is for ledgers created with deferred_sync=True", ledger_id=self._ledger_id)
        if self._replication.error is not None:
            raise self._replication.failure()
        return await self._deferred_sync.force()

    # --- closing ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for what is pending, then close the ledger at last add confirmed. Closing twice is once.

        If appends have failed for lack of bookies, the ledger is closed behind the last acknowledged one. With deferred
        sync, everything is forced before, which needs the whole ensemble. Raises `LedgerFencedError` if somebody else
        is recovering the ledger, `LedgerClosedError` if it was closed elsewhere at a different entry,
        `ClientClosedError` if the writer was abandoned before, or its client closed.
        """
        while (others := self._closing) is not None:
            await asyncio.wait([others])
            if not others.cancelled():  # else whoever closed has gone, and this call takes its place
                return others.result()
        if (state := self._replication.state).over:
            unknown = state is WriterState.GIVEN_UP
            raise ClientClosedError("the writer was abandoned", ledger_id=self._ledger_id, outcome_unknown=unknown)
        self._replication.move(Event.CLOSE)
        self._pending.slow_path = True
        self._closing = closing = asyncio.get_running_loop().create_future()
        try:
            await self._drain()
            await self._replication.settled()
            last_entry, length = await self._end()
            self._replication.metadata = await self._fragments.close(self.metadata, last_entry, length)
        except BaseException as e:
            if isinstance(e, Exception):
                closing.set_exception(e)
                closing.exception()  # retrieved: nobody else may be waiting
            else:
                closing.cancel()
            if isinstance(e, BookKeeperError) and not e.retriable:
                self.abandon()
            else:
                self._closing = None  # may be tried again; appends stay refused, for the write may have happened
            raise
        closing.set_result(None)
        abandoned = self._replication.state.over  # meanwhile
        self._replication.move(Event.STORED)
        under_replicated = self.under_replicated
        if not abandoned:
            self._let_go()
        if under_replicated:
            await self._fragments.mark_short(self._ledger_id, under_replicated)
        await self._pool.linger(self._ledger_id, self.ensemble)

    async def _drain(self) -> None:
        """Wait until every append has ended, one way or the other."""
        self._fail_early(LedgerClosedError("the writer was closed before the entries below this one were appended"))
        if self._out_of_order is not None:
            self._wake_room_waiters(self._out_of_order)
        while self._waiters or self._admitted:  # the latter are assigned their ids in the event loop's next tick
            if self._waiters:
                await asyncio.wait([admitted for _, _, admitted in self._waiters])
            await asyncio.sleep(0)
        if self._replication.error is None:
            try:
                await self._pending.flush()
            except (BookieUnavailableError, QuorumTimeoutError):
                return  # those appends have failed; the ledger ends before them
        if isinstance(self._replication.error, LedgerFencedError):
            raise self._replication.failure()

    def _may_add(self) -> bool:
        return bool(self._waiters or self._admitted) or not self._replication.state.close_was_called

    async def _end(self) -> tuple[int, int]:
        """The last entry and the length to close the ledger with."""
        pending, replication = self._pending, self._replication
        if self._deferred_sync is not None and replication.error is None and pending.lac < replication.confirmed:
            await self._deferred_sync.force()
        if under_replicated := self.under_replicated:
            bookies = ", ".join(
                f"bookie {name} may lack those from {first} on" for name, first in under_replicated.items()
            )
            message = "ledger %d: closed with acknowledged entries on fewer bookies than its write quorum: %s"
            log.warning(message, self._ledger_id, bookies)
        return pending.lac, pending.lac_length

    def leave(self, bookie_ids: Sequence[str]) -> asyncio.Task[None] | None:
        """Have others take the place of these bookies; the client's own call, not for applications."""
        return self._replication.leave(bookie_ids)

    def abandon(self) -> None:
        """Stop without closing the ledger: it stays open, for somebody else to recover."""
        if not self._replication.state.over:
            self._let_go()

    def _let_go(self) -> None:
        self._replication.abandon(ClientClosedError("the writer is closed", outcome_unknown=True))
        self._pending.let_go()
        self._pool.forget_key(self._ledger_id)
        self._on_closed(self)

    def __del__(self) -> None:
        if hasattr(self, "_closing") and self.usable:  # the former: it was made
            warn_unclosed(f"{self!r} was not closed", self)

    async def __aenter__(self) -> LedgerWriter:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            self.abandon()
