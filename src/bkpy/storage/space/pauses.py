"""Pauses between short steps of work that is never urgent, which a stop cuts short, however long they are."""

from __future__ import annotations

import asyncio
import contextlib


class WorkPauses:
    """`over`: there is to be no further step."""

    def __init__(self) -> None:
        self._stopped = asyncio.Event()

    @property
    def over(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """End the pause that is going on, and all later ones at once."""
        self._stopped.set()

    async def pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
