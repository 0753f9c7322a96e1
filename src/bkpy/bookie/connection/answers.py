"""The answers that are in memory until their clients have read them: how many, and how many bytes.

A request reserves a place for its answer before it makes the answer, for as many bytes as that may take, and releases
the bytes that it turns out not to need. A request without a place waits in line.

Invariants: there are no more answers, nor bytes, than the bounds, except for a single answer, and for bytes that an
answer needs beyond its reservation; the first in line goes on when there is room, so every request does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from bkpy.buffers import Bytes
    from bkpy.storage.memory_budget import MemoryPart


class AnswerPlace:
    """One answer's place. Ended once, by `end`."""

    __slots__ = ("_answers", "bytes")

    def __init__(self, answers: Answers, bytes_: int) -> None:
        self._answers = answers
        self.bytes = bytes_

    def holds(self, segments: Sequence[Bytes]) -> None:
        """The answer consists of these."""
        self._answers.change(self, held_bytes(segments))

    def takes(self, bytes_: int) -> None:
        """The answer takes that many bytes: one that is copied, or sent several times."""
        self._answers.change(self, bytes_)

    def end(self) -> None:
        """The answer is not in memory any more."""
        self._answers.end(self)


def held_bytes(segments: Sequence[Bytes]) -> int:
    """What segments keep in memory: all of the blocks that they are slices of, once each.

    Memory that requests were received into counts elsewhere.
    """
    held: dict[int, int] = {}
    for segment in segments:
        whole = segment.obj if isinstance(segment, memoryview) else segment
        if isinstance(whole, bytes):
            held[id(whole)] = len(whole)
    return sum(held.values())


class Answers:
    """Places for answers, `count_max` of them, of `bytes_max` bytes together, counted in `part` of the budget."""

    def __init__(self, count_max: int, bytes_max: int, part: MemoryPart) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._part = part
        self._count = 0
        self._line: deque[tuple[asyncio.Future[AnswerPlace], int]] = deque()

    @property
    def wanted(self) -> bool:
        """Whether a request waits."""
        return bool(self._line)

    @property
    def full(self) -> bool:
        """Whether there is no place for one of a byte."""
        return not self._fits(1)

    async def begin(self, bytes_: int) -> AnswerPlace:
        """Wait for a place for an answer of about that many bytes."""
        if not self._line and self._fits(bytes_):
            return self._take(bytes_)
        waiting: asyncio.Future[AnswerPlace] = asyncio.get_running_loop().create_future()
        self._line.append((waiting, bytes_))
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                waiting.result().end()
            self._go_on()
            raise

    def _fits(self, bytes_: int) -> bool:
        return not self._count or (self._count < self._count_max and self._part.used + bytes_ <= self._bytes_max)

    def _take(self, bytes_: int) -> AnswerPlace:
        self._count += 1
        self._part.change(bytes_)
        return AnswerPlace(self, bytes_)

    def change(self, place: AnswerPlace, bytes_: int) -> None:
        """The answer turns out to hold that many bytes."""
        self._part.change(bytes_ - place.bytes)
        place.bytes = bytes_
        self._go_on()

    def end(self, place: AnswerPlace) -> None:
        """The place is free."""
        self._count -= 1
        self._part.change(-place.bytes)
        self._go_on()

    def _go_on(self) -> None:
        while self._line:
            waiting, bytes_ = self._line[0]
            if not waiting.done():  # else it was cancelled
                if not self._fits(bytes_):
                    return
                waiting.set_result(self._take(bytes_))
            self._line.popleft()


class ConnectionAnswers:
    """The answers of one connection: at most `at_once` are made at a time, and none while its client reads none.

    `flush` sends what was answered.
    """

    def __init__(self, answers: Answers, at_once: int, flush: Callable[[], None]) -> None:
        self._answers = answers
        self._flush = flush
        self._reads = asyncio.Semaphore(at_once)
        self._writable = asyncio.Event()
        self._writable.set()
        self._unread: list[AnswerPlace] = []  # of answers that the client has yet to read

    def pause_writing(self) -> None:
        """The client doesn't read its answers: make no more of them."""
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        while self._unread:
            self._unread.pop().end()

    def close(self) -> None:
        """The connection is gone: nothing waits for its client any more."""
        self.resume_writing()
        self._flush = lambda: None

    @contextlib.asynccontextmanager
    async def place(self, bytes_: int) -> AsyncIterator[AnswerPlace]:
        """Hold one of the few places for answers in memory, until the client has read the answer."""
        async with self._reads:
            await self._writable.wait()
            place = await self._answers.begin(bytes_)
            try:
                yield place
            finally:
                self._flush()  # so that the next answer waits if the client doesn't read
                if self._writable.is_set():
                    place.end()
                else:
                    self._unread.append(place)
