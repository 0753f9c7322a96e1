"""How many ledgers a worker works off at the same time: all hands while no client appends to its bookie, else few.

Copies and clients share the bookie's event loop and the machine's processors. A hand that has the next step ready is
served before a client that comes later, and with many hands there is always one: then appends wait behind all of them.
Most of a hand's time is that of others, bookies and the metadata store, so few hands are not much slower than many.

Invariants: somebody always has a turn while somebody wants one; who has one keeps it, however many clients come.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from bkpy.config.recovery import RecoverySettings
    from bkpy.runtime.interfaces import Runtime


def no_clients() -> int:
    """Of a worker that is in no bookie: how many appends of clients it knows of."""
    return 0


class CopyTurns:
    """For all hands of one worker. `appended` counts what clients have appended to its bookie."""

    def __init__(self, settings: RecoverySettings, runtime: Runtime, appended: Callable[[], int]) -> None:
        self._settings = settings
        self._now = runtime.clock.monotonic
        self._appended = appended
        self._counted = appended()
        self._changed_at = float("-inf")  # when the count was another one than before
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
