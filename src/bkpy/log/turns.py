"""Clients that take a log from each other again and again: each opening costs a ledger, and hardly anything is written.

A client whose writer was fenced soon after it had opened the log waits before it opens the log again, longer each time.

Invariants: the first opening of a log never waits; a writer that has served for long enough starts from nothing; at
most `log_turns_remembered_max` logs are remembered.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from bkpy.protocol.log.log_opening import fenced_again, turn_pause_s

if TYPE_CHECKING:
    from bkpy.config.client import ClientSettings
    from bkpy.runtime.interfaces import Runtime

log = logging.getLogger("bkpy.client")


class WriterTurns:
    """Of one client: how many times in a row its writers were fenced early, by log."""

    def __init__(self, settings: ClientSettings, runtime: Runtime) -> None:
        self._settings = settings
        self._runtime = runtime
        self._counts: dict[str, int] = {}

    def fenced(self, name: str, served_s: float) -> int:
        """The writer of this log was fenced after so many seconds. Returns how many times in a row that was early."""
        settings = self._settings
        count = fenced_again(
            self._counts.pop(name, 0), served_s, settings.log_turn_early_s, settings.log_turn_pause_max_s
        )
        if count:
            self._counts[name] = count
            if len(self._counts) > settings.log_turns_remembered_max:
                del self._counts[next(iter(self._counts))]
        return count

    async def wait(self, name: str) -> None:
        """Return when it is this client's turn to open the log."""
        settings = self._settings
        pause_s = turn_pause_s(
            self._counts.get(name, 0),
            settings.log_turn_pause_min_s,
            settings.log_turn_pause_max_s,
            self._runtime.rng.random(),
        )
        if pause_s:
            log.info("log %s: another client has just taken it over, opening it in %.2f s", name, pause_s)
            await asyncio.sleep(pause_s)
