"""Restarts the processes of a local cluster when they have ended by themselves.

Invariants: a process is started again after a pause that doubles each time it ends early, up to `pause_max_s`, so one
that dies at once doesn't keep the machine busy; no process waits for the restart of another; when `watch` has ended,
nothing is being started any more.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

from bkpy.errors import BookKeeperError, IdentityError
from bkpy.local.process import full_disk_note, how_it_ended

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_LOOK_INTERVAL_S = 0.2


class Restartable(Protocol):
    """A process that can be started again, with the same data and address."""

    @property
    def name(self) -> str: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def exit_status(self) -> int | None: ...
    @property
    def log_path(self) -> Path: ...
    async def start(self) -> None: ...


class Supervisor:
    """Restarts `parts`, which run now, when they end, and reports each end and restart in a line.

    With `restart`, a part is started again `pause_min_s` seconds after it has ended. While its runs are shorter than
    `steady_s` seconds, the pause doubles each time, up to `pause_max_s`.
    """

    def __init__(
        self,
        parts: Sequence[Restartable],
        say: Callable[[str], None],
        *,
        restart: bool = True,
        pause_min_s: float = 0.5,
        pause_max_s: float = 30.0,
        steady_s: float = 60.0,
    ) -> None:
        self._parts = parts
        self._say = say
        self._restart = restart
        self._pause_min_s = pause_min_s
        self._pause_max_s = pause_max_s
        self._steady_s = steady_s

    async def watch(self) -> None:
        """Goes on until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in self._parts:
                group.create_task(self._keep(part), name=f"supervision of {part.name}")
        await asyncio.Event().wait()  # nothing is restarted, and nothing runs any more

    async def _keep(self, part: Restartable) -> None:
        pause_s = self._pause_min_s
        while True:
            running_since = time.monotonic()
            await self._ended(part)
            what = f"{part.name} {how_it_ended(part.exit_status)}{full_disk_note(part.log_path.parent)}"
            if not self._restart:
                self._say(f"{what} and stays down (log: {part.log_path})")
                return
            if time.monotonic() - running_since >= self._steady_s:
                pause_s = self._pause_min_s
            next_pause_s = await self._start(part, what, pause_s)
            if next_pause_s is None:
                return
            pause_s = next_pause_s

    @staticmethod
    async def _ended(part: Restartable) -> None:
        while True:
            if part.pid is None:
                return
            await asyncio.sleep(_LOOK_INTERVAL_S)

    async def _start(self, part: Restartable, what: str, pause_s: float) -> float | None:
        """Try until the part runs; returns the pause before the next start, if it ends early again.

        None for a bookie that the cluster refuses for good.
        """
        while True:
            self._say(f"{what} (log: {part.log_path}); starting it again in {pause_s:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._pause_max_s)
            try:
                await part.start()
            except IdentityError as e:
                self._say(f"{part.name} stays down: {e}")
                return None
            except (BookKeeperError, OSError) as e:
                why, *_ = str(e).splitlines() or [repr(e)]  # a time-out has no text
                what = f"{part.name} did not start: {why}"
            else:
                self._say(f"{part.name} serves again, as process {part.pid}")
                return pause_s
