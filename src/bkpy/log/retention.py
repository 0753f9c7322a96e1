"""What a log's writer does beside appends: it says that it is there, and deletes what retention keeps no longer.

Invariant: nothing of a writer depends on it. What fails is tried again, and what is left when the writer has gone is
the auditor's to finish.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from bkpy.errors import BookKeeperError, NoSuchLogError

if TYPE_CHECKING:
    from bkpy.metadata.log_upkeep import LogUpkeep
    from bkpy.metadata.logs import LogStore
    from bkpy.runtime.interfaces import Runtime

log = logging.getLogger("bkpy.client")


class LogRetention:
    """Of the writer of log `name` that has this token; from `start` to `stop`."""

    def __init__(self, name: str, token: str, label: str, logs: LogStore, upkeep: LogUpkeep, runtime: Runtime) -> None:
        self._name = name
        self._token = token
        self._label = label
        self._logs = logs
        self._upkeep = upkeep
        self._runtime = runtime
        self._interval_s = logs.settings.log_retention_interval_s
        self._due = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        """Look now, and from then on each `log_retention_interval_s`."""
        self._task = self._runtime.spawn(self._run(), name=f"retention of log {self._name}")

    def look(self) -> None:
        """Look soon: the log has rolled."""
        self._due.set()

    async def stop(self) -> None:
        """Return when nothing is done any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            self._due.clear()
            try:
                await self._logs.take_lease(self._name, self._token, self._label)  # it goes when a session ends
                await self._upkeep.retain(self._name)
            except NoSuchLogError:
                return
            except BookKeeperError as error:
                log.info("the retention of log %s is kept later: %s", self._name, error)
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._due.wait()
            except TimeoutError:
                continue
