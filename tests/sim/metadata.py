"""A host's session with the world's metadata store: `MemorySession` with the latency of a network in between.

Calls of one session take effect, and are answered, in the order in which they were made, as ZooKeeper promises.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TypeVar

from bkpy.metadata.memory import MemorySession, MemoryStore

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
        self._latency_s = latency_s
        self._asked_at = self._answered_at = 0.0

    async def _call(self, function: Callable[[], T], *, write: bool) -> T:
        loop = asyncio.get_running_loop()
        self._asked_at = max(self._asked_at, loop.time() + self._rng.uniform(*self._latency_s))
        await asyncio.sleep(self._asked_at - loop.time())
        try:
            return await super()._call(function, write=write)
        finally:
            self._answered_at = max(self._answered_at, loop.time() + self._rng.uniform(*self._latency_s))
            await asyncio.sleep(self._answered_at - loop.time())

    def forgotten(self) -> None:
        """The store has not heard of the process for the session's timeout."""
        self._tree.end_session(self.session_id)
