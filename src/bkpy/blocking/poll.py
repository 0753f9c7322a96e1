"""The polls of a blocking log's reader: what an interrupted one has fetched, the next one returns."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING

from bkpy.blocking.base import BlockingContext
from bkpy.log.reader import LogReader, put_back

if TYPE_CHECKING:
    from bkpy.blocking.base import ClientThread
    from bkpy.log.entries import LogEntry


class BlockingPoll(BlockingContext[LogReader]):
    """A reader whose `poll` and `seek` can be interrupted at any moment, also when the loop has ended their part."""

    __slots__ = ("_alone", "_fetched", "_fetching")

    def __init__(self, of: LogReader, thread: ClientThread) -> None:
        super().__init__(of, thread)
        self._fetched: deque[list[LogEntry]] = deque()  # at most one, which the calling thread has yet to take
        self._alone = threading.Lock()
        self._fetching = asyncio.Lock()  # an interrupted call goes on in the loop until its cancellation gets there

    def _poll(self, max_entries: int, timeout: float | None) -> list[LogEntry]:
        self._check_alone()
        with self._alone:
            self._call(self._fetch, max_entries, timeout)
            return self._fetched.popleft()

    async def _fetch(self, max_entries: int, timeout: float | None) -> None:  # noqa: ASYNC109
        async with self._fetching:
            if self._fetched:  # and nobody has taken them
                put_back(self._of, self._fetched.popleft())
            self._fetched.append(await self._of.poll(max_entries=max_entries, timeout=timeout))

    def _seek(self, position: int) -> None:
        self._check_alone()
        with self._alone:
            self._call(self._move, position)

    async def _move(self, position: int) -> None:
        async with self._fetching:
            self._of.seek(position)
            self._fetched.clear()

    def _check_alone(self) -> None:
        self._thread.check()  # first: a forked process inherits a lock that nobody releases
        if self._alone.locked():
            raise RuntimeError("another thread polls this reader already")
