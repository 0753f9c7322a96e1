"""Reads a running bookie's settings again, at SIGHUP and for `bkpy bookie reload`.

Invariant: settings that can't be read, or that don't fit together, change nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from bkpy.config.reloading import Comparison, compare, take_over

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.config.bookie import BookieSettings

log = logging.getLogger("bkpy.bookie")


class SettingsReload:
    """The settings that the bookie runs with, and how to read them again. Without `read_again`, nothing is."""

    def __init__(
        self,
        live: BookieSettings,
        read_again: Callable[[], BookieSettings] | None = None,
        given: BookieSettings | None = None,
    ) -> None:
        """`given`: what the settings were before the bookie fitted them to its machine."""
        self._live = live
        self._read_again = read_again
        self._last: BookieSettings | None = None if read_again is None else (given or live).model_copy()

    def read(self) -> BookieSettings | None:
        """The settings as they are given now. Raises `ConfigError`; changes nothing."""
        return None if self._read_again is None else self._read_again()

    def apply(self, given: BookieSettings | None) -> Comparison:
        """Take over what may change without a restart. Raises `ConfigError`, and has then changed nothing."""
        if given is None or self._last is None:
            return Comparison([], [])
        found = compare(self._last, given)
        take_over(self._live, given, [change.setting for change in found.changed])
        take_over(self._last, given, [change.setting for change in found.changed])
        if any(change.setting == "log_level" for change in found.changed):
            logging.getLogger().setLevel(self._live.log_level.upper())
        for change in found.changed:
            log.info("reloaded: %s", change)
        for change in found.needs_restart:
            log.warning("not reloaded, for it needs a restart: %s", change)
        return found


def to_json(found: Comparison) -> dict[str, Any]:
    """The report of a reload, for the page and for commands."""
    return {
        "changed": [change._asdict() for change in found.changed],
        "needs_restart": [change._asdict() for change in found.needs_restart],
    }
