"""Keeps background work to a rate, and to intervals: how long it pauses, by the clock of the `Runtime`.

Invariants: over any time the work stays within its rate, but for the piece that is in hand; time in which nothing was
done gives no credit, so that no burst follows a rest; a stop ends a pause, and a reload of settings changes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.runtime.interfaces import Clock


class Pacer:
    """Counts work and tells the pauses that its rate asks for. `per_s`: bytes or steps a second; it may change.

    Callers on one event loop may share one pacer: each waits for the work that the others counted before it.
    """

    def __init__(self, clock: Clock, per_s: float) -> None:
        self.per_s = per_s
        self._clock = clock
        self._free_at = 0.0  # when all work that was counted has taken its time

    def charge(self, amount: float) -> float:
        """Count work that is done; how many seconds to pause until it, and all before it, has taken its time."""
        now = self._clock.monotonic()
        self._free_at = max(self._free_at, now) + amount / self.per_s
        return self._free_at - now

    async def take_turn(self, amount: float) -> None:
        """Count work that is about to begin, and return when all work before it has taken its time."""
        now = self._clock.monotonic()
        begins_at = max(self._free_at, now)
        self._free_at = begins_at + amount / self.per_s
        if begins_at > now:
            await asyncio.sleep(begins_at - now)


class StoppablePauses:
    """Pauses between short steps of background work. A stop cuts them short. `stopped`: do no further step."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """End the pause that is under way, and every later one at once."""
        self._stop.set()

    async def pause(self, seconds: float) -> None:
        """Wait that long, or until the stop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()


class Interval:
    """The time between two runs of background work. `length_s` returns it: it may change, and is never at 0."""

    def __init__(self, clock: Clock, length_s: Callable[[], float]) -> None:
        self._clock = clock
        self._length_s = length_s
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Settings were reloaded: the wait that is under way goes by the length that there is now."""
        self._changed.set()

    async def wait(self, share: float = 1.0) -> None:
        """Wait for this share of the interval."""
        began = self._clock.monotonic()
        while True:
            length_s = self._length_s()
            left_s = began + share * length_s - self._clock.monotonic() if length_s else None
            if left_s is not None and left_s <= 0:
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
            except TimeoutError:
                if self._length_s() == length_s:
                    return
