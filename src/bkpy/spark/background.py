"""An event loop on a thread of its own, for callers that keep connections between their calls."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future

T = TypeVar("T")


class BackgroundLoop:
    """Runs until it is closed, or the process ends: it keeps sessions alive between calls."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start the work. The future has its result or error."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work. Returns its result, or raises its error."""
        return self.submit(work).result()

    def close(self) -> None:
        """Cancel all work on the loop, and end its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
