"""Acknowledges adds that no journal holds: in order, on the event loop's next tick, and none after a failure."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Acknowledgements:
    """Stands for the journal's syncs where entries are not written to it. All methods are called on the event loop."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._waiting: list[Callable[[], None]] = []
        self._failed = False

    def add(self, callback: Callable[[], None]) -> None:
        """Call back soon, after all that were added before."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._tell)
        self._waiting.append(callback)

    def fail(self) -> None:
        """Call nobody any more."""
        self._failed = True

    def _tell(self) -> None:
        # Whoever is added meanwhile is told on the next tick.
        waiting, self._waiting = self._waiting, []
        if self._failed:
            return
        try:
            for callback in waiting:
                callback()
        except Exception as e:  # as in a journal: nothing after it may be acknowledged
            self._on_failure(e)
