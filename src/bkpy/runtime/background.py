"""An event loop on a thread of its own, for callers that keep connections between their calls."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

T = TypeVar("T")

_LOOK_S: Final = 1.0  # a Ctrl-C that comes as a wait begins does not end that wait


class BackgroundLoop:
    """Runs until it is closed, or the process ends: it keeps sessions alive between calls."""

    def __init__(
        self, name: str, loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    ) -> None:
        self._loop = loop_factory()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start the work. The future has its result or error."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work. Returns its result, or raises its error."""
        future = self.submit(work)
        while True:
            try:
                return future.result(_LOOK_S)
            except TimeoutError:
                if future.done():  # also: the work itself ran out of time
                    return future.result()

    def stop(self) -> None:
        """Cancel all work on the loop. Its thread ends soon; a second call does nothing."""
        with contextlib.suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(self._loop.stop)

    def close(self) -> None:
        """Cancel all work on the loop, and end its thread."""
        self.stop()
        self._thread.join()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.get_loop().run_forever()
