"""A host's session with the world's metadata store: `MemorySession` with the latency of a network in between.

Calls of one session take effect, and are answered, in the order in which they were made, as ZooKeeper promises.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from bkpy.errors import MetadataUnavailableError, UnauthorizedError
from bkpy.metadata.store.memory import MemorySession, MemoryStore

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

T = TypeVar("T")


class SimSession(MemorySession):
    """A session that lives until its process says so, or for `session_timeout_s` after its death."""

    def __init__(
        self,
        tree: MemoryStore,
        rng: random.Random,
        latency_s: tuple[float, float],  # of each way
        *,
        session_timeout_s: float = 10.0,
        call_timeout_s: float = 10.0,
    ) -> None:
        super().__init__(tree, session_timeout_s, call_timeout_s)
        self._rng = rng
        self.latency_s = latency_s
        self._asked_at = self._answered_at = 0.0
        self._losing: asyncio.Future[None] | None = None
        self._calls_left: int | None = None
        self.forbidden: set[str] = set()  # nodes that access control keeps from this session

    async def get(self, path: str) -> tuple[bytes, int]:
        data = await super().get(path)
        if path in self.forbidden:
            raise UnauthorizedError(f"access control forbids this on {path}")
        return data

    def lose_reply(self, calls: int) -> asyncio.Future[None]:
        """Lose the reply to the next write; answer `calls` calls more, and then lose the connection until `resume`.

        The future is done when the reply was lost.
        """
        self._losing = asyncio.get_running_loop().create_future()
        self._calls_left = calls
        return self._losing

    def keep_replies(self) -> None:
        """Take back what `lose_reply` has asked for, as far as it hasn't happened."""
        self._losing = self._calls_left = None

    async def _call(self, function: Callable[[], T], *, write: bool) -> T:
        loop = asyncio.get_running_loop()
        self._asked_at = max(self._asked_at, loop.time() + self._rng.uniform(*self.latency_s))
        await _sleep(loop, self._asked_at - loop.time())
        try:
            result = await super()._call(function, write=write)
            if write and self._losing is not None and not self._losing.done():
                self._losing.set_result(None)
                raise MetadataUnavailableError("the connection was lost during a write", outcome_unknown=True)
            return result
        finally:
            self._count()
            self._answered_at = max(self._answered_at, loop.time() + self._rng.uniform(*self.latency_s))
            await _sleep(loop, self._answered_at - loop.time())

    def _count(self) -> None:
        """One call more was answered since the reply that was lost."""
        if self._losing is None or not self._losing.done() or self._calls_left is None:
            return
        self._calls_left -= 1
        if self._calls_left < 0:
            self.keep_replies()
            self.suspend()

    def forgotten(self) -> None:
        """The store has not heard of the process for the session's timeout."""
        self.tree.end_session(self.session_id)


async def _sleep(loop: asyncio.AbstractEventLoop, delay: float) -> None:
    """`asyncio.sleep`, at less cost: runs are largely made of calls of the metadata store."""
    if delay <= 0:
        await asyncio.sleep(0)
        return
    future = loop.create_future()
    timer = loop.call_later(delay, _wake, future)
    try:
        await future
    finally:
        timer.cancel()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
