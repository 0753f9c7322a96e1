"""The writer of one ledger, as users have it: appends, syncs, and the ledger's end.

`LedgerAppends` has the window that appends wait for; the replication of its batcher brings entries to the bookies.

Invariants: once failed, everything that waits and everything that follows fails; the ledger is closed at last add
confirmed, never beyond.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bkpy.client.arguments import payload_of, payloads_of
from bkpy.client.lifetime import refuse_pickling, warn_unclosed
from bkpy.client.write.deferred_sync import DeferredSync
from bkpy.client.write.fragments import StoredFragments
from bkpy.client.write.ledger_appends import LedgerAppends
from bkpy.client.write.replication import log
from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    ClientClosedError,
    ConfigError,
    LedgerFencedError,
    QuorumTimeoutError,
)
from bkpy.protocol.ledger.writer_state import Event, WriterState
from bkpy.runtime.loop_guard import this_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from bkpy.client.write.batcher import AppendBatcher
    from bkpy.client.write.explicit_lac import Publisher
    from bkpy.client.write.interfaces import AppendReceiver, ReplicationParts
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.wire.records import RecordCodec


class LedgerWriter:
    """Appends to one ledger; made by `Client.create_ledger`. Not to be shared between event loops."""

    __slots__ = (
        "__weakref__",
        "_appends",
        "_batcher",
        "_closing",
        "_deferred_sync",
        "_following",
        "_fragments",
        "_ledger_id",
        "_on_closed",
        "_pool",
        "_replication",
        "_stragglers",
        "_window",
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
        log: AppendReceiver | None = None,
        absent: Collection[str] = (),
    ) -> None:
        """`log`: the appends of the log that the ledger is made for; they hold it until they release it.

        `absent`: bookies that the ledger was created without.
        """
        self._ledger_id = metadata.ledger_id
        self._fragments = StoredFragments(catalog, version, parts.settings)
        self._appends = LedgerAppends(
            metadata,
            codec=codec,
            store=self._fragments,
            publisher=publisher,
            parts=parts,
            receiver=log,
            absent=absent,
        )
        self._window, self._batcher = self._appends.window, self._appends.batcher
        self._replication = self._batcher.replication
        self._deferred_sync = DeferredSync(self._batcher, parts) if metadata.deferred_sync else None
        self._pool = parts.pool
        self._stragglers = parts.stragglers
        self._following: asyncio.Task[None] | None = None  # records what bookies miss of the closed ledger
        self._on_closed = on_closed
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
        return self._batcher.lac.entry

    @property
    def length(self) -> int:
        """Payload bytes of the entries that were acknowledged."""
        return self._batcher.length

    @property
    def pending(self) -> AppendBatcher:
        """What is appended and not confirmed: for the writer of a log, not for applications."""
        return self._batcher

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
    def absent(self) -> frozenset[str]:
        """The bookies of the ensemble that were absent when the ledger was created, and have not come since.

        When one comes, the writer takes it in: it has all entries from then on, and a worker copies the others to it.
        """
        return self._replication.absent

    @property
    def under_replicated(self) -> Mapping[str, int]:
        """The bookies that may miss acknowledged entries of theirs, each with the first of these.

        A bookie that could not take an entry (its disk is full, it died), and that none could replace in time, misses
        it until a worker copies it there. So does a bookie that is `absent`. A bookie that has not answered yet counts
        as one that will. `close` warns, but not of absent ones.
        """
        never = dict.fromkeys(sorted(self.absent), 0) if self._replication.confirmed >= 0 else {}
        return {**self._replication.under_replicated, **never}

    def __repr__(self) -> str:
        return f"<LedgerWriter ledger={self._ledger_id} last_add_confirmed={self.last_add_confirmed}>"

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
        size, batcher, window = len(data), self._batcher, self._window
        if batcher.open_batch is None:
            if asyncio._get_running_loop() is not batcher.guard.loop:
                batcher.guard.check()
        elif this_thread() != batcher.guard.thread:
            batcher.guard.check()
        if (
            batcher.next_id >= window.ids_end
            or batcher.added_bytes + size > window.bytes_end
            or size > self._replication.entry_bytes_max
            or entry_id is not None
        ):
            if self._appends.ids is not None or entry_id is not None:
                return await self._appends.append_at(entry_id, data)
            await self._appends.admit(size, size, 1)
        return await batcher.add(data, size)

    def append_nowait(self, data: bytes, *, entry_id: int | None = None) -> asyncio.Future[int]:
        """Like `append`, but returns the future of the entry's id, and raises `WouldBlock` if the window is full.

        Cancelling the future withdraws nothing.
        """
        if type(data) is not bytes:
            data = payload_of(data)
        size, batcher, window = len(data), self._batcher, self._window
        if batcher.open_batch is None:
            if asyncio._get_running_loop() is not batcher.guard.loop:
                batcher.guard.check()
        elif this_thread() != batcher.guard.thread:
            batcher.guard.check()
        if (
            batcher.next_id >= window.ids_end
            or batcher.added_bytes + size > window.bytes_end
            or size > self._replication.entry_bytes_max
            or entry_id is not None
        ):
            if self._appends.ids is not None or entry_id is not None:
                if (placed := self._appends.place(entry_id, data)) is not None:
                    return placed
                raise self._appends.would_block()
            self._appends.check(size)
            if not window.enter(size, 1):
                raise self._appends.would_block()
        return batcher.add(data, size)

    async def append_batch(self, entries: Sequence[bytes]) -> range:
        """Append many entries, with consecutive ids; returns the range of them. The guarantee is `append`'s, for all.

        An empty sequence is an empty range. The batch is admitted to the window as a whole. Cancelling the call
        withdraws nothing.
        """
        self._batcher.guard.check()
        if self._appends.ids is not None:
            what = "a ledger created with caller_ids=True takes entries one by one"
            raise ConfigError(what, ledger_id=self._ledger_id)
        payloads = payloads_of(entries)
        size, count = sum(map(len, payloads)), len(payloads)
        largest = max(map(len, payloads), default=0)
        if largest > self._replication.entry_bytes_max or not self._window.enter(size, count):
            await self._appends.admit(largest, size, count)
        if not payloads:
            return range(self._batcher.next_id, self._batcher.next_id)
        return await self._batcher.add_batch(payloads, size)

    async def flush(self) -> None:
        """Return when every entry that has its place so far is durable on the ack quorum; raises the writer's error.

        It doesn't wait for an `append` that still waits for room in the window, nor, with `caller_ids`, for entries
        above an id that is missing: these calls and futures end by themselves. Cancelling the call withdraws nothing.
        """
        self._batcher.guard.check()
        if self._replication.error is not None:
            raise self._replication.failure(outcome_unknown=self._replication.confirmed < self._batcher.next_id - 1)
        await self._batcher.flush()

    # --- syncing ----------------------------------------------------------------------------------------------------

    async def force(self) -> int:
        """Make durable what was acknowledged so far, on the whole ensemble; returns last add confirmed, which moves.

        For ledgers created with `deferred_sync=True`, where an append is acknowledged before it is on disk. Raises
        `BookieUnavailableError` if a bookie can't say so. If a connection was lost since the last call, what was sent
        meanwhile may be lost: then the writer has failed, and its ledger ends where the last call left it. After a
        cancelled call, call it again.
        """
        self._batcher.guard.check()
        if self._deferred_sync is None:
            raise ConfigError("force is for ledgers created with deferred_sync=True", ledger_id=self._ledger_id)
        if self._replication.error is not None:
            raise self._replication.failure()
        return await self._deferred_sync.force()

    # --- closing ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for what is pending, then close the ledger at last add confirmed. Closing twice is once.

        If appends have failed for want of bookies, the ledger is closed behind the last acknowledged one. With deferred
        sync, everything is forced before, which needs the whole ensemble. After a cancelled call, call it again. Raises
        `LedgerFencedError` if another client is recovering the ledger, `LedgerClosedError` if it was closed elsewhere
        at a different entry, `ClientClosedError` if the writer was abandoned before, or its client closed.
        """
        self._batcher.guard.check()
        while (others := self._closing) is not None:
            await asyncio.wait([others])
            if not others.cancelled():  # else that call has gone, and this one takes its place
                if self._following is not None:
                    await asyncio.wait([self._following])
                return others.result()
        if (state := self._replication.state).over:
            unknown = state is WriterState.GIVEN_UP
            raise ClientClosedError("the writer was abandoned", ledger_id=self._ledger_id, outcome_unknown=unknown)
        self._replication.move(Event.CLOSE)
        self._closing = closing = asyncio.get_running_loop().create_future()
        try:
            await self._drain()
            await self._replication.settled()
            last_entry, length = await self._end()
            with self._stragglers.closing(self._ledger_id, self._failed, recorded=self.absent):
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
        abandoned = self._replication.state.over  # meanwhile
        self._replication.move(Event.STORED)
        # The absent ones are recorded since the creation.
        self._following = self._stragglers.follow(self.metadata, self._failed, recorded=self.absent)
        closing.set_result(None)
        if not abandoned:
            self._let_go()
        await asyncio.wait([self._following])

    def _failed(self) -> Collection[str]:
        """The bookies that failed to take acknowledged entries."""
        return self._replication.under_replicated

    async def _drain(self) -> None:
        """Wait until every append has ended, one way or the other."""
        await self._appends.drained()
        if self._replication.error is None:
            try:
                await self._batcher.flush()
            except (BookieUnavailableError, QuorumTimeoutError):
                return  # those appends have failed; the ledger ends before them
        if isinstance(self._replication.error, LedgerFencedError):
            raise self._replication.failure()

    async def _end(self) -> tuple[int, int]:
        """The last entry and the length to close the ledger with."""
        replication, last = self._replication, self._batcher.lac
        if self._deferred_sync is not None and replication.error is None and last.entry < replication.confirmed:
            await self._deferred_sync.force()
        if under_replicated := replication.under_replicated:
            bookies = ", ".join(f"{name} from entry {first} on" for name, first in under_replicated.items())
            message = "ledger %d: closed with acknowledged entries under-replicated, bookies may miss theirs: %s"
            log.warning(message, self._ledger_id, bookies)
        return last.entry, last.length

    def leave(self, bookie_ids: Sequence[str]) -> asyncio.Task[None] | None:
        """Have others take the place of these bookies; the client's own call, not for applications."""
        return self._replication.leave(bookie_ids)

    def take_in(self, bookie_ids: Collection[str]) -> asyncio.Task[None] | None:
        """Begin a fragment with these absent bookies, which are there now; the client's own call."""
        return self._replication.take_in(bookie_ids)

    def abandon(self) -> None:
        """Stop without closing the ledger: it stays open, for another client to recover."""
        self._batcher.guard.check()
        if not self._replication.state.over:
            self._let_go()

    def _let_go(self) -> None:
        self._replication.abandon(ClientClosedError("the writer is closed", outcome_unknown=True))
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
