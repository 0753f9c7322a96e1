"""Entries whose callers chose their ids, and that came before the ones below them.

Invariant: of the appends that found no room one tries again at a time, preferably the next in order; one that finds
room wakes another, and so does one that gives up, whether it had been woken or not.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bkpy.errors import ConfigError, DuplicateEntryError
from bkpy.protocol.ledger.ledger_metadata import ENTRY_ID_MAX

if TYPE_CHECKING:
    from bkpy.client.write.append_window import AppendWindow
    from bkpy.client.write.batcher import AppendBatcher
    from bkpy.errors import BookKeeperError


class OutOfOrder:
    """The early entries of one ledger that was created with `caller_ids`, and the appends that wait for room."""

    __slots__ = ("_batcher", "early", "room_waiters")

    def __init__(self, batcher: AppendBatcher) -> None:
        self._batcher = batcher
        self.early: dict[int, tuple[bytes, asyncio.Future[int]]] = {}  # by ids whose predecessors are still to come
        self.room_waiters: dict[int, asyncio.Future[None]] = {}  # by ids that found no room

    def checked(self, entry_id: int | None) -> int:
        """The id, if it can be one. Raises `ConfigError`."""
        if type(entry_id) is not int or not 0 <= entry_id <= ENTRY_ID_MAX:
            raise ConfigError(
                f"a ledger created with caller_ids=True needs an entry_id from 0 on, not {entry_id!r}",
                ledger_id=self._batcher.replication.ledger_id,
            )
        return entry_id

    def check_new(self, entry_id: int) -> None:
        """Raise `DuplicateEntryError` if an entry has that id."""
        if entry_id < self._batcher.next_id or entry_id in self.early or entry_id in self.room_waiters:
            raise DuplicateEntryError(
                "an entry with that id was appended",
                ledger_id=self._batcher.replication.ledger_id,
                entry_id=entry_id,
            )

    def add(self, entry_id: int, data: bytes, window: AppendWindow) -> asyncio.Future[int]:
        """Keep the entry until all below it are there, or add it and the ones that waited for it."""
        batcher = self._batcher
        if entry_id > batcher.next_id:
            window.reserve(len(data))
            future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self.early[entry_id] = (data, future)
            return future
        added = batcher.add(data, len(data))
        while (waiting := self.early.pop(batcher.next_id, None)) is not None:
            data, future = waiting
            window.release(len(data))
            batcher.add(data, len(data), future)
        return added

    def wait_for_room(self, entry_id: int) -> asyncio.Future[None]:
        """Done when the entry may try again; to be given to `leave` if it gives up instead."""
        room = self.room_waiters[entry_id] = asyncio.get_running_loop().create_future()
        return room

    def leave(self, entry_id: int, room: asyncio.Future[None]) -> None:
        """The entry gives up. If it was woken before, others with its id may be waiting by now: they stay."""
        if self.room_waiters.get(entry_id) is room:
            del self.room_waiters[entry_id]

    def wake_one(self) -> bool:
        """Let one of the appends that wait for room try again; whether there was one."""
        next_id = self._batcher.next_id
        while self.room_waiters:
            entry_id = next_id if next_id in self.room_waiters else next(iter(self.room_waiters))
            room = self.room_waiters.pop(entry_id)
            if not room.done():
                room.set_result(None)
                return True
        return False

    def fail_early(self, error: BookKeeperError, window: AppendWindow) -> None:
        """Fail the entries that were waiting for others before them: they were never sent."""
        early, self.early = self.early, {}
        ledger_id = self._batcher.replication.ledger_id
        for entry_id, (data, future) in early.items():
            window.release(len(data))
            if not future.done():
                future.set_exception(
                    type(error)(error.message, ledger_id=ledger_id, entry_id=entry_id, outcome_unknown=False)
                )
                future.exception()  # retrieved: callers of append_nowait may look later, or never
