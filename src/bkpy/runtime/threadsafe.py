"""A client's calls from other threads, which wait while the client's event loop carries them out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
    from concurrent.futures import Future

    from bkpy.runtime.loop_guard import LoopGuard

P = ParamSpec("P")
T = TypeVar("T")

_LOOK_S: Final = 1.0  # between two looks whether the loop still runs: a closed one drops calls without a word
_AT_ONCE: Final = 1000  # elements that one switch of threads fetches


class WaitingCalls(Protocol):
    """What an iterator for threads needs of the calls of its client."""

    def check(self) -> None: ...

    def call(self, function: Callable[[], Awaitable[T]], /) -> T: ...


class ThreadsafeCalls:
    """Calls of one client, and of all that it made, from any thread but its event loop's; made by `threadsafe`.

    Each call takes a function and the arguments for it, as `calls.call(log.append, b"order")`. Many threads may share
    one object.
    """

    def __init__(self, guard: LoopGuard) -> None:
        self._guard = guard

    def check(self) -> None:
        """Raise `WrongEventLoopError` if no call can be made from here."""
        self._guard.loop_for_threads()

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
        """Begin what `call` does. `result(timeout)` of the future waits for it, `cancel` cancels it.

        The arguments are used in the loop's thread until the future is done: don't change a buffer before.
        """
        loop = self._guard.loop_for_threads()

        async def run() -> T:
            return await function(*args, **kwargs)

        try:
            return asyncio.run_coroutine_threadsafe(_Call(run), loop)
        except RuntimeError:  # the loop was closed just now
            self._guard.loop_for_threads()
            raise

    def iterate(
        self, function: Callable[P, AsyncGenerator[T, None]], /, *args: P.args, **kwargs: P.kwargs
    ) -> BlockingIterator[T]:
        """The elements of the iterator that `function(*args, **kwargs)` returns; the thread waits for each.

        Elements that have arrived together cost one switch of threads. `read_blocks` and `tail_blocks` cost less still.
        """
        return iterator(self, partial(function, *args, **kwargs))


class _Call(Coroutine[Any, Any, T]):
    """A coroutine that begins with its first step: a loop that ends before drops it, and Python warns of no await."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._begin = begin

    @cached_property
    def _begun(self) -> Coroutine[Any, Any, T]:
        return self._begin()

    def send(self, value: Any) -> Any:
        return self._begun.send(value)

    def throw(self, *error: Any) -> Any:
        return self._begun.throw(*error)

    def close(self) -> None:
        self._begun.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._begun.__await__()


def iterator(calls: WaitingCalls, function: Callable[[], AsyncGenerator[T, None]]) -> BlockingIterator[T]:
    """The elements of what the function returns."""

    async def begin() -> AsyncGenerator[T, None]:
        return function()

    return BlockingIterator(calls.call(begin), calls)


class BlockingIterator(Iterator[T]):
    """The elements of a read, a tail or a list for threads, which may share it: each element goes to one of them.

    An interrupted wait, as by Ctrl-C, loses nothing: the next one returns that element. After an error each `next`
    raises it again. End it with `close`, or use it as a context, if you don't go on to its end.
    """

    def __init__(self, elements: AsyncGenerator[T, None], calls: WaitingCalls) -> None:
        self._elements = elements
        self._calls = calls
        self._fetched: deque[T] = deque()
        self._fetching = asyncio.Lock()  # in turn; an interrupted call goes on until its cancellation gets there

    def __next__(self) -> T:
        while True:
            try:
                return self._fetched.popleft()
            except IndexError:
                if not self._calls.call(self._fetch):
                    raise StopIteration from None

    async def _fetch(self) -> bool:
        """Have the elements that come next; False at the end. What an interrupted thread doesn't take stays here."""
        async with self._fetching:
            if self._fetched:  # by the interrupted call
                return True
            try:
                self._fetched.append(await anext(self._elements))
            except StopAsyncIteration:
                return False
            arrived: Callable[[int], list[T]] | None = getattr(self._elements, "arrived", None)  # of this package's
            if arrived is not None:
                self._fetched.extend(arrived(_AT_ONCE))
            return True

    def close(self) -> None:
        """End the read: each further `next` ends the iteration, also one that waits in another thread."""
        self._calls.call(self._close)

    async def _close(self) -> None:
        self._fetched.clear()
        await self._elements.aclose()
        self._fetched.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
