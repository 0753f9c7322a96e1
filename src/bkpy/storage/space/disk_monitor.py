"""Watches the free space of a bookie's directories, and notices a directory that is gone.

Invariants: `low` begins below `disk_free_bytes_min` and ends at `disk_free_bytes_resume`, so a bookie near one of them
doesn't flap; a directory whose space can't be read counts as full; one counts as gone only if the file system says so.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from bkpy.errors import IdentityError
from bkpy.storage.identity import COOKIE_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import DiskRuntime


class DiskMonitor:
    """`low`: a directory had too little space at the last look.

    `free_bytes` and `total_bytes`: of all ledger directories together.
    """

    def __init__(self, settings: BookieSettings, runtime: DiskRuntime) -> None:
        self.low = False
        self.free_bytes = 0
        self.total_bytes = 0
        self._enough = False  # while `low`: whether `disk_free_bytes_min` is free again
        self._settings = settings
        self._files = runtime.files
        self._worker = runtime.files.worker("disk-monitor")  # a file system that hangs must not stop the loop
        self._silent: set[str] = set()  # directories whose space can't be read, each reported once
        self._log = logging.getLogger("bkpy.bookie")

    async def look(self) -> None:
        """Look at all directories now. Raises `IdentityError` if one is gone, or empty.

        Writes to open files of such a directory are lost, so the bookie must not acknowledge anything any more.
        """
        settings = self._settings
        directories = [*settings.journal_directories, *settings.ledger_directories]
        space = await self._worker.run(self._measure, directories)
        free = [bytes_[0] for bytes_ in space]
        self.free_bytes = sum(free[len(settings.journal_directories) :])
        self.total_bytes = sum(bytes_[1] for bytes_ in space[len(settings.journal_directories) :])
        least, directory = min(zip(free, directories, strict=True))
        if not self.low and least < settings.disk_free_bytes_min:
            self.low = True
            self._log.warning(
                "%d bytes are free in %s, less than disk_free_bytes_min = %d: new entries are refused until every "
                "directory has disk_free_bytes_resume = %d",
                least,
                directory,
                settings.disk_free_bytes_min,
                settings.disk_free_bytes_resume,
            )
        elif self.low and least >= settings.disk_free_bytes_resume:
            self.low = False
            self._enough = False
            self._log.info("%d bytes or more are free in every directory", least)
        elif self.low and self._enough != (least >= settings.disk_free_bytes_min):
            self._enough = not self._enough
            if self._enough:
                self._log.info(
                    "%d bytes are free in %s, more than disk_free_bytes_min = %d: new entries are still refused, until "
                    "every directory has disk_free_bytes_resume = %d",
                    least,
                    directory,
                    settings.disk_free_bytes_min,
                    settings.disk_free_bytes_resume,
                )

    def _measure(self, directories: list[str]) -> list[tuple[int, int]]:
        for directory in directories:
            if not self._files.exists(f"{directory}/{COOKIE_NAME}") and self._has_gone(directory):
                raise IdentityError(
                    "the directory, or what was in it, was removed while the bookie ran, or its disk isn't mounted any "
                    "more: mount it, then start the bookie again",
                    path=directory,
                )
        return [self._space(directory) for directory in directories]

    def _has_gone(self, directory: str) -> bool:
        try:
            return COOKIE_NAME not in self._files.listdir(directory)
        except FileNotFoundError:
            return True
        except OSError:
            return False  # nobody knows, so it doesn't count as gone

    def _space(self, directory: str) -> tuple[int, int]:
        """(free, total) bytes."""
        try:
            space = self._files.space(directory)
        except OSError as e:
            if directory not in self._silent:
                self._silent.add(directory)
                self._log.error("failed to read the free space of %s, so it counts as full: %s", directory, e)
            return 0, 0
        self._silent.discard(directory)
        return space

    async def watch(self, looked: Callable[[], None]) -> None:
        """Look every `disk_check_interval_s`, and call `looked` after each time."""
        while True:
            await asyncio.sleep(self._settings.disk_check_interval_s)
            await self.look()
            looked()

    def close(self) -> None:
        """End the worker. Blocks until a look that is under way has ended."""
        self._worker.close()
