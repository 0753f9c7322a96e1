"""Moves writers away from draining and lost bookies, and to absent ones that are back; idle writers included.

A writer that appends learns from the bookie itself that it is read-only. An idle writer would stay, and a worker that
moves the bookie's entries would have to fence it. A bookie that was absent when a ledger was created is taken in by its
writer when it is there.

Invariant: a writer that finds no other bookie goes on as it was, and is asked again when the list of bookies has been
read again, or after `leave_look_interval_s`; so is one that waits for an absent bookie.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from bkpy.protocol.repair.draining import to_leave

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bkpy.client.write.writer import LedgerWriter
    from bkpy.config.client import ClientSettings
    from bkpy.metadata.bookies.registration import BookieDirectory
    from bkpy.runtime.interfaces import Runtime


class Leaving:
    """Of one client, whose writers `writers` names each time."""

    def __init__(
        self,
        directory: BookieDirectory,
        settings: ClientSettings,
        runtime: Runtime,
        writers: Callable[[], Iterable[LedgerWriter]],
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._runtime = runtime
        self._writers = writers
        self._task: asyncio.Task[Any] | None = None

    def start(self, *, look: bool = False) -> None:
        """Begin, unless it has begun: with the client's first writer. `look`: begin again."""
        if self._task is not None and look:
            self._task.cancel()
            self._task = None
        if self._task is None:
            self._task = self._runtime.spawn(self._run(), name="leaving bookies")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            if self._some:
                await self._look()
            await self._wait()

    @property
    def _some(self) -> bool:
        """Whether bookies are there to be left, or writers wait for some."""
        directory = self._directory
        return bool(directory.draining or directory.absent_since) or any(writer.absent for writer in self._writers())

    async def _wait(self) -> None:
        """Until bookies have come or gone; for a while, if a look may find something before."""
        try:
            async with asyncio.timeout(self._settings.leave_look_interval_s if self._some else None):
                await self._directory.changed()
        except TimeoutError:
            return

    async def _look(self) -> None:
        """Ask each writer that is concerned, a few at a time: thousands may be."""
        some: set[asyncio.Task[None]] = set()
        for writer in list(self._writers()):
            bookie_ids = to_leave(
                writer.ensemble,
                self._directory.draining,
                self._directory.absent_since,
                self._runtime.clock.monotonic(),
                self._settings.absent_bookie_replace_delay_s,
                writer.absent,
            )
            change = writer.leave(bookie_ids) if bookie_ids else None
            back = writer.absent & self._directory.bookies.keys() if writer.absent else ()
            if change is None and back:
                change = writer.take_in(back)
            if change is not None:
                some.add(change)
            if len(some) >= self._settings.leaves_at_once:
                # One whose bookies fail meanwhile, or whose change can't be stored, mustn't hold up all others.
                timeout_s = self._settings.leave_look_interval_s
                _, some = await asyncio.wait(some, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
