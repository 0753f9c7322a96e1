"""A client's calls from other threads, which wait while the client's event loop carries them out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
    from concurrent.futures import Future

    from bkpy.runtime.loop_guard import LoopGuard

P = ParamSpec("P")
T = TypeVar("T")

_END: Final = object()
_LOOK_S: Final = 1.0  # between two looks whether the loop still runs: a closed one drops calls without a word


class ThreadsafeCalls:
    """Calls of one client, and of all that it made, from any thread but its event loop's; made by `threadsafe`.

    Each call takes a function and the arguments for it, as `calls.call(log.append, b"order")`. Many threads may share
    one object.
    """

    def __init__(self, guard: LoopGuard) -> None:
        self._guard = guard

    def call(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return or raise what awaiting `function(*args, **kwargs)` does; the thread waits.

        An interrupted wait, as by Ctrl-C, cancels the call.
        """
        future = self.submit(function, *args, **kwargs)
        try:
            while True:
                try:
                    return future.result(_LOOK_S)
                except TimeoutError:
                    if future.done():  # just now, or by a time-out of its own
                        return future.result()
                    self._guard.loop_for_threads()
        finally:
            future.cancel()

    def submit(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin what `call` does. `result(timeout)` of the future waits for it, `cancel` cancels it."""
        loop = self._guard.loop_for_threads()

        async def run() -> T:
            return await function(*args, **kwargs)

        return asyncio.run_coroutine_threadsafe(run(), loop)

    def iterate(
        self, function: Callable[P, AsyncGenerator[T, None]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Iterator[T]:
        """The elements of the iterator that `function(*args, **kwargs)` returns; the thread waits for each.

        Each element costs a switch of threads: take `read_blocks` and `tail_blocks` where many come.
        """

        async def begin() -> AsyncGenerator[T, None]:
            return function(*args, **kwargs)

        async def following() -> Any:
            return await anext(elements, _END)

        elements = self.call(begin)
        try:
            while (element := self.call(following)) is not _END:
                yield cast("T", element)
        finally:
            self.call(elements.aclose)
