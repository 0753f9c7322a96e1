"""How fast copies are made: never faster than a setting says, and slower while bookies are busy with clients.

A bookie that has much to do answers appends late, those of a copy like those of a client. So a late answer halves the
rate, and each one in time raises it a little again.

Invariant: the rate is never above `copy_bytes_per_s_max`, nor below `copy_bytes_per_s_min` unless that is higher.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bkpy.config.recovery import RecoverySettings
    from bkpy.runtime.interfaces import Runtime


class CopyRate:
    """Shared by all copies that one process makes."""

    def __init__(self, settings: RecoverySettings, runtime: Runtime) -> None:
        self._settings = settings
        self._now = runtime.clock.monotonic
        self._next = 0.0  # when the bytes that were spent before are paid for
        self._halved = float("-inf")
        self.bytes_per_s = float(settings.copy_bytes_per_s_max)

    async def spend(self, count: int) -> None:
        """Return when `count` bytes more may be sent."""
        now = self._now()
        at = max(self._next, now)
        self._next = at + count / self.bytes_per_s
        if at > now:
            await asyncio.sleep(at - now)

    def answered(self, seconds: float) -> None:
        """A bookie took so long to store a part of a copy."""
        settings = self._settings
        if seconds <= settings.copy_late_s:
            self.bytes_per_s = min(self.bytes_per_s * (1 + settings.copy_rate_growth), settings.copy_bytes_per_s_max)
            return
        now = self._now()
        if now - self._halved >= settings.copy_late_s:  # what is late together is late for one reason
            self._halved = now
            least = min(settings.copy_bytes_per_s_min, settings.copy_bytes_per_s_max)
            self.bytes_per_s = max(self.bytes_per_s / 2, least)
