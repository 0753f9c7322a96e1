"""A log's tail as lists of entries: what `LogReader.poll` returns.

Invariants: all polls together return the entries of one tail, none twice and none left out, however many of them are
cancelled, time out or fail; besides what was returned, one block is fetched: the next one as soon as a poll has
returned the last entry of a block, so that a poll that waits for nothing finds it.
"""

from __future__ import annotations

import asyncio
from itertools import chain, islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bkpy.client.iteration import Stepwise
    from bkpy.log.entries import LogBlock, LogEntry


class LogPoll:
    """Where the polls of one reader are. `follow` begins a tail at a position, None for the log's first."""

    def __init__(self, follow: Callable[[int | None], Stepwise]) -> None:
        self._follow = follow
        self._position: int | None = None  # that comes next
        self._tail: Stepwise | None = None
        self._left: Stepwise | None = None  # a tail that is to be closed
        self._entries: Iterator[LogEntry] = iter(())
        self._end = 0  # behind the last of them
        self._polling = False

    def seek(self, position: int) -> None:
        """The next poll begins there."""
        self._check_alone()
        self._position = position
        self._entries = iter(())
        self._leave()

    async def poll(self, entries_max: int, timeout_s: float | None) -> list[LogEntry]:
        """At most so many entries, as soon as there is one; none if none has come in time."""
        self._check_alone()
        self._polling = True
        try:
            found = list(islice(self._entries, entries_max))
            if not found:
                try:
                    async with asyncio.timeout(timeout_s) as patience:
                        block = await self._block()
                        self._entries, self._end = iter(block), block.positions.stop
                except TimeoutError:
                    if not patience.expired():
                        raise
                found = list(islice(self._entries, entries_max))
        finally:
            self._polling = False
        if found:
            self._position = found[-1].position + 1
            if self._position == self._end and self._tail is not None:
                self._tail.begin()
        return found

    def put_back(self, entries: list[LogEntry]) -> None:
        """The next poll begins with what the last one returned."""
        if entries:
            self._position = entries[0].position
            self._entries = chain(entries, self._entries)

    async def _block(self) -> LogBlock:
        """The next block. A tail that has failed makes room for a new one: the next poll tries again."""
        await self._close_left()
        if self._tail is None:
            self._tail = self._follow(self._position)
        try:
            block: LogBlock = await self._tail.following()
        except Exception:
            self._leave()
            raise
        return block

    def _check_alone(self) -> None:
        if self._polling:
            raise RuntimeError("another task polls this reader already")

    def _leave(self) -> None:
        if self._tail is not None:
            self._left, self._tail = self._tail, None

    async def _close_left(self) -> None:
        if self._left is not None:
            await self._left.close()
            self._left = None

    async def close(self) -> None:
        """End the tail, and wait until it has ended."""
        self._leave()
        await self._close_left()
