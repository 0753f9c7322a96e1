"""The appends of a log's writer: the window that they wait for, and the ledgers that they go to, one after the other.

They go to the pending appends of the present ledger, as those to a ledger do, and cost the same. While the log rolls
they wait; afterwards they go to the next ledger, which tells nothing of what it has confirmed before the last entry of
the former is acknowledged.

Invariants: positions ascend by one, across ledgers too; futures are resolved in their order; at most
`write_window_bytes` and `write_window_entries` are unacknowledged, in both ledgers together (one append that is larger
goes alone); once an append has failed, so has everything behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from bkpy.client.write.batch import NEVER
from bkpy.errors import (
    BookKeeperError,
    ClientClosedError,
    FrameTooLargeError,
    LedgerClosedError,
    LedgerFencedError,
    LogFencedError,
    NoSuchLedgerError,
    WouldBlock,
)
from bkpy.protocol.wire.records import STAMP_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.client.write.pending import PendingAppends
    from bkpy.config.client import ClientSettings


def log_fenced(name: str, cause: BookKeeperError | None = None) -> LogFencedError:
    """The error of a writer that can't go on, by the list or by what became of its ledger.

    What a ledger's error advises, another ledger, is no use to the writer of a log.
    """
    return LogFencedError(
        f"another client has become the writer of log {name}, or has deleted it. To write to the log, open it again",
        ledger_id=None if cause is None else cause.ledger_id,
        entry_id=None if cause is None else cause.entry_id,
        bookie=None if cause is None else cause.bookie,
        outcome_unknown=False if cause is None else cause.outcome_unknown,
    )


class LogAppends:
    """Of one writer. `pending` are those of the present ledger, to which its owner adds.

    Whoever adds without `admit` looks before that nothing is in the way: `slow_path` of what is pending, and the room
    that `bytes_max` and `entries_max` leave. `closed`: nothing is taken any more. `error`: what has ended the writer;
    the appends that it concerns have been told. `on_due` is told when the present ledger is large enough, `on_end` when
    the writer has failed.
    """

    __slots__ = (
        "_admitted",
        "_former",
        "_moved",
        "_name",
        "_on_due",
        "_on_end",
        "_settings",
        "_stopped",
        "_waiters",
        "bytes_max",
        "closed",
        "entries_max",
        "error",
        "pending",
    )

    def __init__(
        self, name: str, settings: ClientSettings, on_due: Callable[[], None], on_end: Callable[[], None]
    ) -> None:
        self._name = name
        self._settings = settings
        self._on_due = on_due
        self._on_end = on_end
        self._waiters: deque[tuple[int, int, asyncio.Future[None]]] = deque()
        self._admitted = 0  # appends that were given room and have not gone on yet
        self._stopped = False  # nothing is given room: the log rolls
        self._moved = asyncio.Event()  # something was confirmed, or has failed
        self._former: PendingAppends | None = None  # of the ledger before, until all of it is acknowledged
        self.pending: PendingAppends
        self.bytes_max = settings.write_window_bytes  # less what is pending in the former ledger
        self.entries_max = settings.write_window_entries
        self.closed = False
        self.error: BookKeeperError | None = None

    @property
    def next_position(self) -> int:
        """The position that the next append gets."""
        return self.pending.base + self.pending.next_id

    @property
    def acknowledged(self) -> int:
        """The position up to which everything is acknowledged."""
        appends = self.pending if self._former is None else self._former
        return appends.base + appends.lac + 1

    # --- the window -------------------------------------------------------------------------------------------------

    def check(self, size: int) -> None:
        """Raise whatever an append of `size` bytes could never get past."""
        if self.closed:
            raise ClientClosedError(f"the writer of log {self._name} is closed")
        if self.error is not None:
            raise self.failure()
        if size > self.pending.replication.entry_bytes_max:
            raise FrameTooLargeError(
                f"an entry of {size - STAMP_BYTES} bytes is over the limit of "
                f"{self.pending.replication.entry_bytes_max - STAMP_BYTES} bytes",
                ledger_id=self.pending.replication.ledger_id,
            )

    def failure(self, *, outcome_unknown: bool = False) -> BookKeeperError:
        """A fresh copy of the error; as it is, for what was never sent."""
        error = self.error
        assert error is not None
        return type(error)(
            error.message,
            ledger_id=error.ledger_id,
            bookie=error.bookie,
            retriable=error.retriable,
            outcome_unknown=outcome_unknown,
        )

    def _flush_failure(self) -> BookKeeperError:
        """What has failed tells nobody who comes later: nobody knows of the entries that were never acknowledged."""
        return self.failure(outcome_unknown=self.acknowledged < self.next_position)

    def fits(self, size: int, count: int) -> bool:
        pending = self.pending
        return (
            pending.window_bytes + size <= self.bytes_max and pending.window_entries + count <= self.entries_max
        ) or (pending.window_entries == 0 and self._former is None)

    async def admit(self, largest: int, size: int, count: int) -> None:
        """Wait, in order of arrival, until the window has room and the log isn't rolling."""
        self.check(largest)
        if not self._waiters and not self._stopped and self.fits(size, count):
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((size, count, admitted))
        self.pending.slow_path = True
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.cancelled():
                self._give_room()  # leave the queue: those behind it may be smaller
            elif admitted.exception() is None:
                self._take_over(size, count)  # admitted and cancelled at once: pass the room on
                self._give_room()
            raise
        # The room was taken for this append by whoever woke it up; from here on it is counted like any other.
        self._take_over(size, count)
        if self.error is not None:
            raise self.failure()

    def _take_over(self, size: int, count: int) -> None:
        self._admitted -= 1
        self.pending.window_bytes -= size
        self.pending.window_entries -= count

    def would_block(self) -> WouldBlock:
        """The error of an append that doesn't want to wait."""
        pending = self.pending
        return WouldBlock(
            f"log {self._name} is rolling"
            if self._stopped
            else f"the window is full ({pending.window_entries} entries, {pending.window_bytes} bytes pending)",
            ledger_id=pending.replication.ledger_id,
        )

    async def drained(self) -> None:
        """Return when nothing waits for room any more."""
        # Those that were cancelled while the log rolls are still in the queue, and nothing waits for them.
        while (waiting := [admitted for _, _, admitted in self._waiters if not admitted.done()]) or self._admitted:
            if waiting:
                await asyncio.wait(waiting)
            await asyncio.sleep(0)

    async def flush(self) -> None:
        """Return when all that was appended is acknowledged; raises the writer's error."""
        if self.error is not None:
            raise self._flush_failure()
        former, present = self._former, self.pending
        if former is not None:
            await former.flush()
            if self.error is not None:  # meanwhile
                raise self._flush_failure()
        await present.flush()

    def _give_room(self) -> None:
        """Let those go on that there is room for now."""
        if self._stopped or self.error is not None:
            return
        waiters, pending = self._waiters, self.pending
        while waiters and (waiters[0][2].done() or self.fits(waiters[0][0], waiters[0][1])):
            wanted, many, admitted = waiters.popleft()
            if not admitted.done():
                pending.window_bytes += wanted
                pending.window_entries += many
                self._admitted += 1
                admitted.set_result(None)
        pending.slow_path = bool(waiters) or self.closed

    # --- the owner of pending appends -------------------------------------------------------------------------------

    def on_room(self) -> None:
        self._moved.set()
        former, pending = self._former, self.pending
        if former is not None:
            self.bytes_max = self._settings.write_window_bytes - former.window_bytes
            self.entries_max = self._settings.write_window_entries - former.window_entries
            if not former.has_pending:
                self._former = None
                pending.release()
        if pending.lac >= pending.due_entry or pending.length >= pending.due_length:
            pending.due_entry = pending.due_length = NEVER
            self._on_due()
        self._give_room()

    def on_failed(self, error: BookKeeperError) -> None:
        # Else it is of a former ledger, whose entries are all acknowledged: it was closed, or what closes it will tell.
        if any(pending is not None and pending.replication.error for pending in (self._former, self.pending)):
            self.fail(error)

    def as_error(self, error: BookKeeperError) -> BookKeeperError:
        if isinstance(error, LogFencedError) or not isinstance(
            error, LedgerFencedError | LedgerClosedError | NoSuchLedgerError
        ):
            return error
        return log_fenced(self._name, error)

    # --- what the roller does ---------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Return when appends wait, and all before them have left: their times are known.

        The present ledger stays on the slow path, also when it is the former one: each of its ends is told.
        """
        self._stopped = self.pending.slow_path = True
        while self.error is None and (self._admitted or self.pending.has_unsent):
            self._moved.clear()
            with contextlib.suppress(TimeoutError):  # nothing tells when they have left
                async with asyncio.timeout(self._settings.metadata_write_pause_s):
                    await self._moved.wait()
        if self.error is not None:
            raise self.failure()

    def go_on(self) -> None:
        """Appends go on, in the ledger that they went to before."""
        self._stopped = False
        self._give_room()

    def begin(self, pending: PendingAppends, position: int, due_entry: int, due_length: int) -> None:
        """Appends can go to the first of the writer's ledgers, from this position on."""
        self.pending = pending
        pending.base = position
        pending.due_entry, pending.due_length = due_entry, due_length
        pending.release()

    def switch(self, following: PendingAppends, due_entry: int, due_length: int) -> None:
        """Appends go on, in another ledger, which tells nothing before the former one is acknowledged."""
        former, self.pending = self.pending, following
        following.base = former.base + former.next_id
        following.due_entry, following.due_length = due_entry, due_length
        if former.has_pending:
            self._former = former
        else:
            following.release()
        self._stopped = False
        self.on_room()
        if (error := following.replication.error) is not None:  # it has failed already, while the list was written
            self.fail(self.as_error(error))

    def fail(self, error: BookKeeperError) -> None:
        """End, with this error, unless it has ended: the entries that are pending in order, then what waits."""
        if self.error is not None:
            return
        self.error = error
        for pending in (self._former, self.pending):
            if pending is not None:
                pending.slow_path = True
                pending.replication.failed(error)
        waiters, self._waiters = self._waiters, deque()
        for _, _, admitted in waiters:
            if not admitted.done():
                admitted.set_exception(self.failure())
        self._moved.set()
        self._on_end()
