"""The appends of a log's writer: from the call into the window, and from there to one ledger after the other.

They go to the batcher of the last ledger, as appends to a ledger do, and cost the same. While the log rolls they wait;
afterwards they go to the next ledger, which holds them until the last entry of the former one is confirmed. The state
of the writer (`protocol/log/log_writer_state.py`) decides what the window may do.

Invariants: positions ascend by one, across ledgers too; futures are resolved in their order; both ledgers together have
one window; once an append has failed, so has everything behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from bkpy.client.write.append_window import AppendWindow
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
from bkpy.protocol.ledger.writer_state import WriterState
from bkpy.protocol.log.log_opening import TURNS_SAID
from bkpy.protocol.log.log_position import positions_in
from bkpy.protocol.log.log_writer_state import TRANSITIONS, LogEvent, LogWriterState

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.client.write.batcher import AppendBatcher
    from bkpy.config.client import ClientSettings
    from bkpy.errors import ClientInfo
    from bkpy.protocol.log.log_position import LogPosition

_SERVING: Final = LogWriterState.SERVING
_ENDING_FORMER: Final = LogWriterState.ENDING_FORMER


def log_fenced(
    name: str, cause: BookKeeperError | None = None, writer: ClientInfo | None = None, turns: int = 0
) -> LogFencedError:
    """The error of a writer that can't go on, by the list or by what became of its ledger; `writer` has succeeded it.

    `turns`: how many times in a row this client's writers were fenced early. What a ledger's error advises, another
    ledger, is no use to the writer of a log.
    """
    advice = "To write to the log, open it again"
    if turns >= TURNS_SAID:
        advice = (
            f"Two writers take turns: the one of this client was fenced {turns} times in a row just after its opening. "
            "Let one of them write, or open the log with wait=False"
        )
    happened = (
        f"another client has become the writer of log {name}, or has deleted it"
        if writer is None
        else f"another client has become the writer of log {name}: {writer}"
    )
    error = LogFencedError(
        f"{happened}. {advice}",
        ledger_id=None if cause is None else cause.ledger_id,
        entry_id=None if cause is None else cause.entry_id,
        bookie=None if cause is None else cause.bookie,
        outcome_unknown=False if cause is None else cause.outcome_unknown,
    )
    error.writer = writer
    return error


class LogAppends:
    """Of one writer. It receives the events of the batchers of its ledgers, and owns the window.

    `batcher` is the last ledger's. `error`: what has ended the writer; the appends that it concerns have failed.
    `on_due` is called when the last ledger is large enough, `on_end` when the writer has failed. `on_fenced` is called
    before, if another client has fenced it; it returns the `turns` of `log_fenced`.
    """

    __slots__ = (
        "_due_bytes",
        "_due_entries",
        "_former",
        "_last_before",
        "_may_publish",
        "_moved",
        "_name",
        "_on_due",
        "_on_end",
        "_on_fenced",
        "_settings",
        "_stamp_bytes",
        "_turns",
        "_uid",
        "batcher",
        "error",
        "state",
        "successor",
        "window",
    )

    def __init__(
        self,
        name: str,
        uid: str,
        settings: ClientSettings,
        stamp_bytes: int,
        on_due: Callable[[], None],
        on_end: Callable[[], None],
        on_fenced: Callable[[], int],
    ) -> None:
        self._name = name
        self._uid = uid
        self._settings = settings
        self._stamp_bytes = stamp_bytes
        self._on_due = on_due
        self._on_end = on_end
        self._on_fenced = on_fenced
        self._turns = 0
        self._moved = asyncio.Event()  # something was confirmed, or has failed
        self._former: AppendBatcher | None = None  # of the ledger before, until all of it is confirmed
        self._last_before: LogPosition | None = None  # of the last entry in the ledger before, once that is confirmed
        self._due_entries = self._due_bytes = NEVER  # of the last ledger, when it is large enough
        self._may_publish = settings.explicit_lac_interval_s > 0
        self.batcher: AppendBatcher
        self.window: AppendWindow
        self.state = LogWriterState.SERVING
        self.error: BookKeeperError | None = None
        self.successor: ClientInfo | None = None  # the next writer of the log, once it is known

    @property
    def next_position(self) -> int:
        """The position that the next append gets."""
        return self.batcher.base + self.batcher.next_id

    @property
    def acknowledged(self) -> int:
        """The position up to which everything is acknowledged."""
        batcher = self.batcher if self._former is None else self._former
        return batcher.base + batcher.confirmed_entries

    @property
    def last_acknowledged(self) -> LogPosition | None:
        """The last acknowledged entry that this writer has appended."""
        for batcher in (self.batcher, self._former):
            if batcher is not None and batcher.confirmed_entries:
                return self._positions(batcher)(batcher.base + batcher.confirmed_entries - 1)
        return self._last_before

    def _positions(self, batcher: AppendBatcher) -> type[LogPosition]:
        return positions_in(self._uid, batcher.replication.ledger_id, batcher.base)

    def move(self, event: LogEvent) -> None:
        self.state = TRANSITIONS[self.state, event]

    # --- into the window --------------------------------------------------------------------------------------------

    def check(self, size: int) -> None:
        """Raise what an append of `size` bytes could never get past."""
        if self.state.close_was_called:
            raise ClientClosedError(f"the writer of log {self._name} is closed")
        if self.error is not None:
            raise self.failure()
        replication = self.batcher.replication
        if size > replication.entry_bytes_max:
            raise FrameTooLargeError(
                f"an entry of {size - self._stamp_bytes} bytes is over the limit of "
                f"{replication.entry_bytes_max - self._stamp_bytes} bytes",
                ledger_id=replication.ledger_id,
            )

    def failure(self, *, outcome_unknown: bool = False) -> BookKeeperError:
        """A fresh copy of the error; as it is, for what was never sent."""
        error = self.error
        assert error is not None
        return error.renewed(entry_id=None, outcome_unknown=outcome_unknown)

    def _flush_failure(self) -> BookKeeperError:
        """Of a call that comes after the failure: unknown, unless all that was appended is acknowledged."""
        return self.failure(outcome_unknown=self.acknowledged < self.next_position)

    async def admit(self, largest: int, size: int, count: int) -> None:
        """Wait, in order of arrival, until the window has room and the log isn't rolling.

        The caller adds the entries at once, to the batcher that is the last ledger's then.
        """
        self.check(largest)
        await self.window.admit(size, count)
        if self.error is not None:
            raise self.failure()

    def would_block(self) -> WouldBlock:
        """The error of an append that doesn't want to wait."""
        entries, size = self.window.filled()
        return WouldBlock(
            f"log {self._name} is rolling"
            if self.state.switching
            else f"the window is full ({entries} entries, {size} bytes pending)",
            ledger_id=self.batcher.replication.ledger_id,
        )

    async def flush(self) -> None:
        """Return when all that was appended is acknowledged; raises the writer's error."""
        if self.error is not None:
            raise self._flush_failure()
        if self.state.over:
            raise ClientClosedError(f"the writer of log {self._name} is closed")
        former, last = self._former, self.batcher
        if former is not None:
            await former.flush()
            if self.error is not None:  # meanwhile
                raise self._flush_failure()
        await last.flush()

    def succeeded_by(self, writer: ClientInfo) -> None:
        """Another client is known to have become the log's writer: errors name it from now on."""
        self.successor = writer
        if self.error is None:
            self.fail(log_fenced(self._name, writer=writer))
        elif isinstance(self.error, LogFencedError) and self.error.writer is None:
            self.error = log_fenced(self._name, self.error, writer, self._turns)

    # --- the owner of the window ------------------------------------------------------------------------------------

    @property
    def enters_at_once(self) -> bool:
        return self.state.enters_at_once

    @property
    def admits(self) -> bool:
        return self.state.admits

    # --- the receiver of the batchers' events -----------------------------------------------------------------------

    def on_confirmed(self) -> None:
        batcher, state = self.batcher, self.state
        if (
            (state is _SERVING or state is _ENDING_FORMER)
            and not self.window.waiters
            and batcher.confirmed_entries < self._due_entries
            and batcher.length < self._due_bytes
        ):
            if self._may_publish and batcher.confirmed_entries == batcher.next_id:
                self._publish_soon()
            return
        self._moved.set()
        if self._former is not None and not self._former.has_pending:
            self._last_before = self.last_acknowledged
            self._former = None
            self._release()
        if batcher.confirmed_entries >= self._due_entries or batcher.length >= self._due_bytes:
            self._due_entries = self._due_bytes = NEVER
            self._on_due()
        self.window.give_room()
        if self._may_publish and batcher.confirmed_entries == batcher.next_id:
            self._publish_soon()

    def _publish_soon(self) -> None:
        """Nothing is pending. Unless the application goes on at once, publish that, so that readers see it now.

        At most once in `explicit_lac_interval_s`; what is confirmed meanwhile is published when that is over.
        """
        self._may_publish = False
        self.batcher.guard.loop.call_soon(
            self._publish, self.batcher
        )  # behind the callers whose appends were confirmed

    def _publish(self, batcher: AppendBatcher) -> None:
        if batcher.confirmed_entries == batcher.next_id:
            batcher.lac.publish()
            self.batcher.guard.loop.call_later(self._settings.explicit_lac_interval_s, self._publish_again)
        else:
            self._may_publish = True

    def _publish_again(self) -> None:
        self._may_publish = True

    def _release(self) -> None:
        """The former ledger holds up the last one no longer."""
        self.move(LogEvent.RELEASE)
        self.batcher.release()

    def on_failed(self, error: BookKeeperError) -> None:
        # Not that of a former ledger whose entries are all confirmed, or of one that its writer has closed.
        replications = [batcher.replication for batcher in (self._former, self.batcher) if batcher is not None]
        if any(replication.error and replication.state is not WriterState.CLOSED for replication in replications):
            self.fail(error)

    def as_error(self, error: BookKeeperError) -> BookKeeperError:
        if isinstance(error, LogFencedError) or not isinstance(
            error, LedgerFencedError | LedgerClosedError | NoSuchLedgerError
        ):
            return error
        return log_fenced(self._name, error, turns=self._turns)

    @property
    def may_add(self) -> bool:
        return False  # the last ledger is closed after all appends have ended, and the former one gets none

    # --- what the roller does ---------------------------------------------------------------------------------------

    def begin(self, batcher: AppendBatcher, position: int, due_entries: int, due_bytes: int) -> None:
        """Appends can go to the first of the writer's ledgers, from this position on."""
        self.batcher = batcher
        batcher.base = position
        batcher.position = self._positions(batcher)
        self._due_entries, self._due_bytes = due_entries, due_bytes
        batcher.release()
        self.window = AppendWindow(self, batcher, self._settings)

    async def stop(self) -> None:
        """Return when appends wait, and all before them have left: their times are known."""
        if self.error is not None:
            raise self.failure()
        self.move(LogEvent.SWITCH)
        self.window.give_room()
        while self.error is None and (self.window.admitted or self.batcher.has_unsent):
            self._moved.clear()
            with contextlib.suppress(TimeoutError):  # nothing tells when they have left
                async with asyncio.timeout(self._settings.metadata_write_pause_s):
                    await self._moved.wait()
        if self.error is not None:
            raise self.failure()

    def resume(self) -> None:
        """Appends go on in the ledger that they went to before."""
        self.move(LogEvent.RESUME)
        self.window.give_room()

    def switch(self, following: AppendBatcher, due_entries: int, due_bytes: int) -> None:
        """Appends go on in another ledger, which is held until all of the former one is confirmed."""
        self._last_before = self.last_acknowledged
        former, self.batcher = self.batcher, following
        following.base = former.base + former.next_id
        following.position = self._positions(following)
        self._due_entries, self._due_bytes = due_entries, due_bytes
        self.window.follow(following)
        self.move(LogEvent.SWITCHED)
        if former.has_pending:
            self._former = former
        else:
            self._release()
        self.on_confirmed()
        if (error := following.replication.error) is not None:  # it has failed already, while the list was written
            self.fail(self.as_error(error))

    # --- the end ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Take no more appends, and return when nothing waits for room any longer."""
        self.move(LogEvent.CLOSE)
        self.window.give_room()
        await self.window.drained()

    def abandon(self) -> None:
        """End as if the writer had failed."""
        self.move(LogEvent.CLOSE)
        self.fail(ClientClosedError(f"the writer of log {self._name} was abandoned", outcome_unknown=True))

    def fail(self, error: BookKeeperError) -> None:
        """End, with this error, unless it has ended: the entries that are pending in order, then what waits."""
        if self.error is not None or self.state.over:
            return
        if isinstance(error, LogFencedError | LedgerFencedError):
            self._turns = self._on_fenced()
            if isinstance(error, LogFencedError):
                error = log_fenced(self._name, error, error.writer, self._turns)
        self.error = error
        self.move(LogEvent.FAIL)
        for batcher in (self._former, self.batcher):
            if batcher is not None:
                batcher.replication.failed(error)
        self.window.fail(self.failure)
        self._moved.set()
        self._on_end()
