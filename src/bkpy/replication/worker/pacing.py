"""How fast copies are made, and how many ledgers are repaired at once: less while clients need the bookies.

Invariants: the rate is never above `copy_bytes_per_s_max`, nor below `copy_bytes_per_s_min` unless that is higher; some
hand always has a turn while any wants one, and keeps it however many clients come.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.runtime.pacer import Pacer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from bkpy.config.recovery import RecoverySettings
    from bkpy.runtime.interfaces import Runtime

_FORGOTTEN: Final = 1.01
_LATELY_S: Final = 10.0  # in which a copy of large parts sends several, at the least rate too


class _Quickest(NamedTuple):
    """The quickest answer to parts of about one size, and when the last of them came."""

    seconds: float
    at: float


class CopyRate:
    """The rate of all copies that one process makes.

    A busy bookie answers appends late, those of copies like those of clients. So a late answer halves the rate, and
    each one in time raises it a little. What is late follows the bookie's own quickest answers, of which each later one
    lets a little be forgotten: disks differ. A large part takes long on an idle bookie, too, and so do small ones
    behind it: the quickest answers are those to parts of about the largest size that it has got lately.
    """

    def __init__(self, settings: RecoverySettings, runtime: Runtime) -> None:
        self._settings = settings
        self._now = runtime.clock.monotonic
        self._halved = -math.inf
        self._quickest: dict[str, dict[int, _Quickest]] = {}  # by bookie, and about how many bytes
        self._pacer = Pacer(runtime.clock, float(settings.copy_bytes_per_s_max))

    @property
    def bytes_per_s(self) -> float:
        """The present rate."""
        return self._pacer.per_s

    async def spend(self, count: int) -> None:
        """Return when `count` bytes more may be sent."""
        await self._pacer.take_turn(count)

    def answered(self, bookie_id: str, count: int, seconds: float) -> None:
        """Adapt the rate to the time that the bookie took to store a part of a copy, of `count` bytes."""
        settings, pacer, now = self._settings, self._pacer, self._now()
        by_size = self._quickest.setdefault(bookie_id, {})
        size = count.bit_length()
        former = by_size.get(size, _Quickest(math.inf, now))
        by_size[size] = _Quickest(min(seconds, former.seconds * _FORGOTTEN), now)
        quickest = max(one.seconds for one in by_size.values() if now - one.at < _LATELY_S)
        late_s = max(settings.copy_late_s, settings.copy_late_factor * quickest)
        if seconds <= late_s:
            pacer.per_s = min(pacer.per_s * (1 + settings.copy_rate_growth), settings.copy_bytes_per_s_max)
            return
        if now - self._halved >= late_s:  # answers that are late together have one cause
            self._halved = now
            least = min(settings.copy_bytes_per_s_min, settings.copy_bytes_per_s_max)
            pacer.per_s = max(pacer.per_s / 2, least)


def no_clients() -> int:
    """Of a worker that is in no bookie: how many appends of clients it knows of."""
    return 0


class CopyTurns:
    """How many ledgers a worker repairs at once. `appended` counts what clients have appended to its bookie.

    Copies and clients share the bookie's event loop and the machine's processors. A hand with the next step ready is
    served before a client that comes later, and of many hands there is always one: then appends wait behind all of
    them. Hands mostly wait for other bookies and the metadata store, so few hands are not much slower than many.
    """

    def __init__(self, settings: RecoverySettings, runtime: Runtime, appended: Callable[[], int]) -> None:
        self._settings = settings
        self._now = runtime.clock.monotonic
        self._appended = appended
        self._counted = appended()
        self._changed_at = -math.inf  # when the count was another one than before
        self._taken = 0
        self._ended = asyncio.Event()

    @property
    def at_once(self) -> int:
        """How many turns there are now."""
        count, now, settings = self._appended(), self._now(), self._settings
        if count != self._counted:
            self._counted, self._changed_at = count, now
        beside_clients = now - self._changed_at < settings.foreground_idle_s
        return (
            min(settings.copies_max_under_load, settings.copies_at_once) if beside_clients else settings.copies_at_once
        )

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Begin when it is one's turn, which ends with the block."""
        while self._taken >= self.at_once:
            self._ended.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.foreground_idle_s):  # the clients may have gone
                    await self._ended.wait()
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1
            self._ended.set()
