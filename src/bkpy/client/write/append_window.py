"""The window of one writer: how far appends may go ahead of what is confirmed, and the appends that wait for room.

The counts of the batchers say what is in the window: entries and bytes that were added, less what is confirmed. These
counts only grow. The window itself counts what holds room without being added: appends that were given room and have
not gone on yet, and entries that came before the ones below them.

Appends compare the batcher's counts with `ids_end` and `bytes_end`, and ask the window only at these ends. The window
moves the ends when it is asked. Confirmations since then make more room: so the ends are never too high.

Invariants: at most `write_window_bytes` and `write_window_entries` are in the window (one append that is larger goes
alone); appends that wait are given room in order of arrival, and none enters before them; room given to an append that
is cancelled goes to the next one; while the owner's state does not admit, none is given room.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

from bkpy.protocol.ledger.acks import AT_REST

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.config.client import ClientSettings
    from bkpy.errors import BookKeeperError


class Counted(Protocol):
    """The batcher of one ledger, as the window counts it."""

    @property
    def next_id(self) -> int:
        """The number of entries that were added."""

    @property
    def added_bytes(self) -> int: ...

    @property
    def confirmed_entries(self) -> int:
        """Those of the added entries whose appenders know that they are confirmed."""

    @property
    def length(self) -> int:
        """The bytes of those."""


class WindowOwner(Protocol):
    """The state of the writer, which the window goes by."""

    @property
    def enters_at_once(self) -> bool:
        """Whether an append that finds room need not wait."""

    @property
    def admits(self) -> bool:
        """Whether appends that wait may be given room."""


class AppendWindow:
    """Made for one writer. A log's writer moves it from ledger to ledger (`follow`)."""

    __slots__ = (
        "_admitted",
        "_batcher",
        "_bytes_max",
        "_entries_max",
        "_former",
        "_owner",
        "_reserved_bytes",
        "_reserved_entries",
        "bytes_end",
        "ids_end",
        "waiters",
    )

    def __init__(self, owner: WindowOwner, batcher: Counted, settings: ClientSettings) -> None:
        self._owner = owner
        self._batcher = batcher
        self._former: Counted | None = None  # of the ledger before, while anything of it is in the window
        self._bytes_max = settings.write_window_bytes
        self._entries_max = settings.write_window_entries
        self._admitted = 0  # appends that were given room and have not gone on yet
        self._reserved_entries = self._reserved_bytes = 0
        self.waiters: deque[tuple[int, int, asyncio.Future[None]]] = AT_REST
        self.ids_end = self.bytes_end = 0

    @property
    def busy(self) -> bool:
        """Whether appends wait for room, or have not gone on since they were given it."""
        return bool(self.waiters) or self._admitted > 0

    @property
    def admitted(self) -> int:
        """How many appends were given room and have not gone on yet."""
        return self._admitted

    def filled(self) -> tuple[int, int]:
        """Entries and bytes that are in the window."""
        batcher, former = self._batcher, self._former
        entries = batcher.next_id - batcher.confirmed_entries + self._reserved_entries
        size = batcher.added_bytes - batcher.length + self._reserved_bytes
        if former is not None:
            entries += former.next_id - former.confirmed_entries
            size += former.added_bytes - former.length
        return entries, size

    def fits(self, size: int, count: int) -> bool:
        """Whether there is room for `count` entries of `size` bytes in all."""
        entries, filled = self.filled()
        return not entries or (entries + count <= self._entries_max and filled + size <= self._bytes_max)

    def enter(self, size: int, count: int) -> bool:
        """Whether an append may go on now, before any that waits. If so, the caller adds it at once."""
        if self.waiters or not self._owner.enters_at_once or not self.fits(size, count):
            return False
        self._move_ends()
        return True

    async def admit(self, size: int, count: int) -> None:
        """Return when an append may go on, in order of arrival. The caller adds it at once.

        Raises what the window fails with. The writer may have failed all the same between the moment in which the
        append was given room and that in which it goes on.
        """
        if self.enter(size, count):
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self.waiters:
            self.waiters = deque()
        self.waiters.append((size, count, admitted))
        self.ids_end = 0
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.cancelled():
                self.give_room()  # leave the queue: the appends behind may be smaller
            elif admitted.exception() is None:
                self._go_on(size, count)  # admitted and cancelled at once: pass the room on
                self.give_room()
            raise
        self._go_on(size, count)  # from here on the batcher counts it

    def _go_on(self, size: int, count: int) -> None:
        self._admitted -= 1
        self._reserved_entries -= count
        self._reserved_bytes -= size

    def reserve(self, size: int) -> None:
        """Hold the room of one entry that is added later, or never."""
        self._reserved_entries += 1
        self._reserved_bytes += size

    def release(self, size: int) -> None:
        """The entry is added now, or never: it holds the room no longer."""
        self._reserved_entries -= 1
        self._reserved_bytes -= size

    def give_room(self) -> None:
        """Admit the appends that there is room for. Called when something was confirmed, or the state has changed."""
        waiters = self.waiters
        if waiters and self._owner.admits:
            while waiters and (waiters[0][2].done() or self.fits(waiters[0][0], waiters[0][1])):
                size, count, admitted = waiters.popleft()
                if not admitted.done():
                    self._admitted += 1
                    self._reserved_entries += count
                    self._reserved_bytes += size
                    admitted.set_result(None)
        self._move_ends()

    def _move_ends(self) -> None:
        if self._former is not None and self._former.next_id == self._former.confirmed_entries:
            self._former = None
        if self.waiters or not self._owner.enters_at_once:
            self.ids_end = 0
            return
        entries, size = self.filled()
        self.ids_end = self._batcher.next_id + self._entries_max - entries
        self.bytes_end = self._batcher.added_bytes + self._bytes_max - size

    async def drained(self) -> None:
        """Return when nothing waits for room any more, and what was given room has gone on."""
        # An append that was cancelled while the window admits none is still in the queue, and nothing waits for it.
        while (waiting := [admitted for _, _, admitted in self.waiters if not admitted.done()]) or self._admitted:
            if waiting:
                await asyncio.wait(waiting)
            await asyncio.sleep(0)

    def follow(self, batcher: Counted) -> None:
        """Appends go to another ledger from now on. What is in the window of the one before stays until confirmed."""
        self._former, self._batcher = self._batcher, batcher
        self.ids_end = 0

    def fail(self, failure: Callable[[], BookKeeperError]) -> None:
        """The writer has failed: fail all appends that wait, each with an error of its own."""
        waiters, self.waiters = self.waiters, AT_REST
        self.ids_end = 0
        for _, _, admitted in waiters:
            if not admitted.done():
                admitted.set_exception(failure())
