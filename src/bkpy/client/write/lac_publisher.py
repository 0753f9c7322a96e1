"""Tells bookies how far the ledgers of writers that pause may be read, with few requests at a time to each bookie.

Thousands of writers may pause at the same moment: what others ask of the same bookies goes on in between.

Invariants: at most `lac_writes_in_flight_max` requests and as many tasks exist for each bookie, and none for one that
nothing waits for; a writer waits once for each, and what is sent is what is confirmed by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bkpy.config.client import ClientSettings
    from bkpy.runtime.interfaces import Runtime


class Publishing(Protocol):
    """A writer with something to tell."""

    async def publish_to(self, bookie_id: str) -> None:
        """Tell one bookie. Raises nothing."""


class _Waiting:
    """Those that wait for one bookie, in order, and how many tasks work on them."""

    __slots__ = ("tasks", "writers")

    def __init__(self) -> None:
        self.writers: dict[Publishing, None] = {}
        self.tasks = 0


class Publisher:
    """The progress of one client's writers on its way to bookies."""

    def __init__(self, settings: ClientSettings, runtime: Runtime) -> None:
        self._in_flight_max = settings.lac_writes_in_flight_max
        self._runtime = runtime
        self._waiting: dict[str, _Waiting] = {}

    def publish(self, writer: Publishing, bookie_ids: Iterable[str]) -> None:
        """Tell these bookies of the writer's progress, soon."""
        for bookie_id in bookie_ids:
            waiting = self._waiting.setdefault(bookie_id, _Waiting())
            waiting.writers[writer] = None
            if waiting.tasks < self._in_flight_max:
                waiting.tasks += 1
                self._runtime.spawn(self._work_off(bookie_id, waiting), name=f"last add confirmed to {bookie_id}")

    async def _work_off(self, bookie_id: str, waiting: _Waiting) -> None:
        try:
            while waiting.writers:
                writer = next(iter(waiting.writers))
                del waiting.writers[writer]
                await writer.publish_to(bookie_id)
        finally:
            waiting.tasks -= 1
            if not waiting.tasks and not waiting.writers:
                self._waiting.pop(bookie_id, None)

    def close(self) -> None:
        """Forget all that waits."""
        for waiting in self._waiting.values():
            waiting.writers.clear()
