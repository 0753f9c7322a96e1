"""Entries whose callers chose their ids, and that came before those below them.

Invariant: of the appends that found no room one tries again at a time, preferably the next in order; one that finds
room wakes another, and so does one that gives up, whether it had been woken or not.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bkpy.errors import BookKeeperError


class OutOfOrder:
    """The early entries of one ledger that was created with `caller_ids`, and the appends that wait for room."""

    __slots__ = ("early", "room_waiters")

    def __init__(self) -> None:
        self.early: dict[int, tuple[bytes, asyncio.Future[int]]] = {}  # by ids whose predecessors are still to come
        self.room_waiters: dict[int, asyncio.Future[None]] = {}  # by ids that found no room

    def __contains__(self, entry_id: int) -> bool:
        return entry_id in self.early or entry_id in self.room_waiters

    def add(self, entry_id: int, data: bytes) -> asyncio.Future[int]:
        """Keep the entry until all below it are there; returns the future of its id."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.early[entry_id] = (data, future)
        return future

    def wait_for_room(self, entry_id: int) -> asyncio.Future[None]:
        """Done when the entry may try again; to be given to `leave` if it gives up instead."""
        room = self.room_waiters[entry_id] = asyncio.get_running_loop().create_future()
        return room

    def leave(self, entry_id: int, room: asyncio.Future[None]) -> None:
        """The entry gives up. If it was woken before, others with its id may be waiting by now: they stay."""
        if self.room_waiters.get(entry_id) is room:
            del self.room_waiters[entry_id]

    def wake_one(self, next_id: int) -> bool:
        """Let one of those that wait for room try again; whether there was one."""
        while self.room_waiters:
            entry_id = next_id if next_id in self.room_waiters else next(iter(self.room_waiters))
            room = self.room_waiters.pop(entry_id)
            if not room.done():
                room.set_result(None)
                return True
        return False

    def fail_early(self, error: BookKeeperError, ledger_id: int) -> list[bytes]:
        """Fail the entries that were waiting for others before them: they were never sent. Returns their payloads."""
        early, self.early = self.early, {}
        for entry_id, (_, future) in early.items():
            if not future.done():
                future.set_exception(
                    type(error)(error.message, ledger_id=ledger_id, entry_id=entry_id, outcome_unknown=False)
                )
                future.exception()  # retrieved: whoever used append_nowait may look later, or never
        return [data for data, _ in early.values()]
