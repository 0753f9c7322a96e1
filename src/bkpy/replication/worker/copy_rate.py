"""The rate at which copies are made: at most as a setting allows, and lower while bookies are busy with clients.

A busy bookie answers appends late, those of copies like those of clients. So a late answer halves the rate, and each
one in time raises it a little.

Invariant: the rate is never above `copy_bytes_per_s_max`, nor below `copy_bytes_per_s_min` unless that is higher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.runtime.pacer import Pacer

if TYPE_CHECKING:
    from bkpy.config.recovery import RecoverySettings
    from bkpy.runtime.interfaces import Runtime


class CopyRate:
    """Shared by all copies that one process makes."""

    def __init__(self, settings: RecoverySettings, runtime: Runtime) -> None:
        self._settings = settings
        self._now = runtime.clock.monotonic
        self._halved = float("-inf")
        self._pacer = Pacer(runtime.clock, float(settings.copy_bytes_per_s_max))

    @property
    def bytes_per_s(self) -> float:
        """The present rate."""
        return self._pacer.per_s

    async def spend(self, count: int) -> None:
        """Return when `count` bytes more may be sent."""
        await self._pacer.take_turn(count)

    def answered(self, seconds: float) -> None:
        """Adapt the rate to the time that a bookie took to store a part of a copy."""
        settings, pacer = self._settings, self._pacer
        if seconds <= settings.copy_late_s:
            pacer.per_s = min(pacer.per_s * (1 + settings.copy_rate_growth), settings.copy_bytes_per_s_max)
            return
        now = self._now()
        if now - self._halved >= settings.copy_late_s:  # answers that are late together have one cause
            self._halved = now
            least = min(settings.copy_bytes_per_s_min, settings.copy_bytes_per_s_max)
            pacer.per_s = max(pacer.per_s / 2, least)
