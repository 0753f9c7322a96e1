"""The appends of a ledger's writer: from the call into the window, and from there into the batcher.

The state of the writer decides what the window may do (`protocol/ledger/writer_state.py`).

Invariants: once the writer has failed, all appends that wait and all that follow fail, with their outcome known;
entries whose callers choose their ids take room in the same window. The next of them in order has room as soon as
nothing is in flight, because the entries that wait for it may fill the window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.client.write.append_window import AppendWindow
from bkpy.client.write.batcher import AppendBatcher
from bkpy.client.write.out_of_order import OutOfOrder
from bkpy.errors import ConfigError, FrameTooLargeError, LedgerClosedError, WouldBlock

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection

    from bkpy.client.write.explicit_lac import Publisher
    from bkpy.client.write.interfaces import AppendReceiver, FragmentStore, ReplicationParts
    from bkpy.errors import BookKeeperError
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.wire.records import RecordCodec


class LedgerAppends:
    """Owns the window and the batcher, and receives the batcher's events.

    Unless the ledger is a log's: then the appends of the log are the `receiver`, and nothing is appended here.
    """

    __slots__ = ("_replication", "batcher", "ids", "window")

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        codec: RecordCodec,
        store: FragmentStore,
        publisher: Publisher,
        parts: ReplicationParts,
        receiver: AppendReceiver | None,
        absent: Collection[str] = (),
    ) -> None:
        self.batcher = AppendBatcher(
            metadata,
            codec=codec,
            store=store,
            publisher=publisher,
            parts=parts,
            receiver=receiver or self,
            held=receiver is not None,
            absent=absent,
        )
        self._replication = self.batcher.replication
        self.ids = OutOfOrder(self.batcher) if metadata.caller_ids else None
        self.window = AppendWindow(self, self.batcher, parts.settings)

    # --- into the window --------------------------------------------------------------------------------------------

    def check(self, size: int) -> None:
        """Raise what an append of `size` bytes could never get past."""
        replication = self._replication
        if replication.state.close_was_called:
            raise LedgerClosedError("the writer is closed", ledger_id=replication.ledger_id)
        if replication.error is not None:
            raise replication.failure()
        if size > replication.entry_bytes_max:
            raise FrameTooLargeError(
                f"an entry of {size} bytes is over the limit of {replication.entry_bytes_max} bytes",
                ledger_id=replication.ledger_id,
                entry_id=self.batcher.next_id,
            )

    async def admit(self, largest: int, size: int, count: int) -> None:
        """Wait, in order of arrival, until the window has room. The caller adds the entries at once."""
        self.check(largest)
        await self.window.admit(size, count)
        if self._replication.error is not None:
            raise self._replication.failure()

    def would_block(self) -> WouldBlock:
        """The error of an append that doesn't want to wait."""
        entries, size = self.window.filled()
        return WouldBlock(
            f"the writer's window is full ({entries} entries, {size} bytes pending)",
            ledger_id=self._replication.ledger_id,
        )

    async def drained(self) -> None:
        """Return when nothing waits any more, neither for room nor for entries below. The writer is being closed."""
        self.window.give_room()
        if self.ids is not None:
            self._fail_early(
                self.ids, LedgerClosedError("the writer was closed before the entries below this one were appended")
            )
        await self.window.drained()

    # --- ids that callers choose ------------------------------------------------------------------------------------

    async def append_at(self, entry_id: int | None, data: bytes) -> int:
        """Append an entry whose caller chose its id."""
        placed = self.place(entry_id, data)
        if placed is None:
            assert entry_id is not None
            placed = await self._place_later(entry_id, data)
        return await placed

    def place(self, entry_id: int | None, data: bytes) -> asyncio.Future[int] | None:
        """Take the entry if there is room for it now; None otherwise.

        Entries are sent in id order, so that a ledger has no gaps, whichever client recovers it.
        """
        ids, size = self._ids(), len(data)
        entry_id = ids.checked(entry_id)
        self.check(size)
        ids.check_new(entry_id)
        if not self.window.fits(size, 1) and (self.batcher.has_pending or entry_id > self.batcher.next_id):
            return None
        future = ids.add(entry_id, data, self.window)
        self._wake_room_waiters(ids)
        return future

    def _ids(self) -> OutOfOrder:
        if self.ids is None:
            what = "entry_id is for ledgers created with caller_ids=True"
            raise ConfigError(what, ledger_id=self._replication.ledger_id)
        return self.ids

    async def _place_later(self, entry_id: int, data: bytes) -> asyncio.Future[int]:
        """Take the entry when there is room."""
        ids = self._ids()
        while True:
            room = ids.wait_for_room(entry_id)
            try:
                await room
                if (placed := self.place(entry_id, data)) is not None:
                    return placed
            except BaseException:  # it may have been woken, and then another has to try in its place
                ids.leave(entry_id, room)
                self._wake_room_waiters(ids)
                raise

    def _wake_room_waiters(self, ids: OutOfOrder) -> None:
        """Let one of the entries that found no room try again; after a failure, all of them."""
        while ids.wake_one() and not self._replication.state.takes_entries:
            pass

    def _fail_early(self, ids: OutOfOrder, error: BookKeeperError) -> None:
        """Fail the entries that came before the ones below them: they were never sent."""
        ids.fail_early(error, self.window)
        self._wake_room_waiters(ids)

    # --- the owner of the window ------------------------------------------------------------------------------------

    @property
    def enters_at_once(self) -> bool:
        return self._replication.state.takes_entries and self.ids is None

    @property
    def admits(self) -> bool:
        return self._replication.error is None

    # --- the receiver of the batcher's events -----------------------------------------------------------------------

    def on_confirmed(self) -> None:
        if self.window.waiters:
            self.window.give_room()
        elif self.ids is not None:
            self._wake_room_waiters(self.ids)

    def on_failed(self, error: BookKeeperError) -> None:
        self.window.fail(lambda: self._replication.failure(outcome_unknown=False))
        if self.ids is not None:
            self._fail_early(self.ids, error)

    def as_error(self, error: BookKeeperError) -> BookKeeperError:
        return error

    @property
    def may_add(self) -> bool:
        return self.window.busy
