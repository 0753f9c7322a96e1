"""An event loop on a thread of its own, for one who is called now and then and keeps connections in between."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future

T = TypeVar("T")


class BackgroundLoop:
    """Runs until it is closed, or the process ends: sessions are kept alive on it while nobody calls."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin it; the future is of what it returns or raises."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """What it returns or raises, when it has."""
        return self.submit(work).result()

    def close(self) -> None:
        """Whatever is left on the loop is cancelled."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
