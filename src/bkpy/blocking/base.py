"""What every object of the blocking client is: one of the client, and the thread whose loop carries out its calls.

Invariants: the thread ends with the client, however that ends, and the client's session with it; a call never waits for
a loop that has ended, that of a process before a fork, or one that waits for this call, and no future does.
"""

from __future__ import annotations

import atexit
import os
import threading
from concurrent.futures import CancelledError, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, Self, TypeVar
from weakref import WeakSet

import uvloop

from bkpy.client.client import loop_guard
from bkpy.client.lifetime import refuse_pickling, warn_unclosed
from bkpy.errors import BookKeeperError, ClientClosedError, WrongEventLoopError
from bkpy.runtime.background import BackgroundLoop
from bkpy.runtime.threadsafe import ThreadsafeCalls, iterator

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
    from concurrent.futures import Future

    from bkpy.client.client import Client
    from bkpy.client.metrics import ClientMetrics
    from bkpy.runtime.threadsafe import BlockingIterator

P = ParamSpec("P")
T = TypeVar("T")
O = TypeVar("O")  # noqa: E741 - the object

_AT_EXIT_S: Final = 10.0  # for closing a client that nobody closed, before the interpreter ends

_open: WeakSet[ClientThread] = WeakSet()


class ClientThread:
    """One client, and the thread of its event loop. All that the client made holds this."""

    _ended = True  # nothing to end yet

    def __init__(self, connecting: Coroutine[Any, Any, Client]) -> None:
        loop = BackgroundLoop("bkpy client", uvloop.new_event_loop)
        try:
            self.client = loop.call(connecting)
        except BaseException:
            loop.close()
            raise
        self._calls = ThreadsafeCalls(loop_guard(self.client))
        self._unfinished: set[Future[Any]] = set()  # of `submit`
        self._loop_ended = False
        self._closing = threading.RLock()  # a signal handler may close what its thread closes
        self._loop = loop
        self._process = os.getpid()
        self._ended = False
        _open.add(self)

    def call(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return or raise what awaiting `function(*args, **kwargs)` does; Ctrl-C cancels it."""
        self.check()
        try:
            return self._calls.call(function, *args, **kwargs)
        except (CancelledError, WrongEventLoopError):
            if not self._ended or self._process != os.getpid():
                raise
            raise ClientClosedError("the client was closed during the call", outcome_unknown=True) from None

    def submit(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin what `call` does."""
        self.check()
        try:
            future = self._calls.submit(function, *args, **kwargs)
        except WrongEventLoopError:
            self.check()  # another thread has closed the client just now
            raise
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)
        if self._loop_ended:  # too late for the thread that has ended it
            self._fail_unfinished()
        return future

    def iterate(
        self, function: Callable[P, AsyncGenerator[T, None]], /, *args: P.args, **kwargs: P.kwargs
    ) -> BlockingIterator[T]:
        """The elements of the iterator that `function(*args, **kwargs)` returns."""
        return iterator(self, partial(function, *args, **kwargs))

    def check(self) -> None:
        """Raise the error of a call that can't be made."""
        if self._ended and self._process == os.getpid():
            raise ClientClosedError("the client is closed")
        self._calls.check()

    def close(self, kind: type[BaseException] | None = None) -> None:
        """Close the client and end the thread. `kind` is of the error that ends its context, if one does."""
        if self._ended:
            return
        self._calls.check()  # elsewhere nothing of it is ended; and a forked process inherits a lock that is held
        with self._closing:  # else a second thread, for which the client is closed, would end the loop of the first
            if self._ended:
                return
            try:
                self.call(self.client.__aexit__, kind)
            finally:
                self._end()
                self._end_loop()

    def _end(self) -> None:
        self._ended = True
        _open.discard(self)

    def _end_loop(self) -> None:
        self._loop.close()
        self._loop_ended = True
        self._fail_unfinished()

    def _fail_unfinished(self) -> None:
        """Fail what the loop has dropped: it closes without a word to calls that came after its last turn."""
        for future in self._unfinished.copy():
            with suppress(InvalidStateError):  # its caller has just cancelled it, or another thread is as quick
                future.set_exception(ClientClosedError("the client was closed during the call", outcome_unknown=True))

    def close_at_exit(self) -> None:
        """Close it because the interpreter ends. Calls that follow are refused."""
        if self._ended or self._process != os.getpid():
            return
        warn_unclosed(f"{self.client!r} was not closed", self)
        closing = self._calls.submit(self.client.__aexit__, SystemExit)
        self._end()
        try:
            closing.result(_AT_EXIT_S)
        except (TimeoutError, BookKeeperError):
            return  # its session ends by its time-out
        finally:
            self._end_loop()

    def __del__(self) -> None:
        if not self._ended and self._process == os.getpid():
            self._ended = True
            warn_unclosed(f"{self.client!r} was not closed", self)
            self._loop.submit(_dropped(self.client, self._loop))


async def _dropped(client: Client, loop: BackgroundLoop) -> None:
    """The end of a client that nobody has any more; nobody waits for its thread."""
    try:
        await client.__aexit__(SystemExit)
    finally:
        loop.stop()


@atexit.register
def _close_all() -> None:
    for thread in list(_open):
        thread.close_at_exit()


class Blocking(Generic[O]):
    """An object of the blocking client."""

    __slots__ = ("_of", "_thread")
    __reduce__ = refuse_pickling

    def __init__(self, of: O, thread: ClientThread) -> None:
        self._of = of
        self._thread = thread

    def __repr__(self) -> str:
        return f"<blocking {self._of!r}>"

    def _call(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(function, *args, **kwargs)

    def _make(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """`_call` for an object that somebody has to end: an interrupted thread does not get it, and it ends."""
        made: list[T] = []
        left = False

        async def make() -> T:
            made.append(found := await function(*args, **kwargs))
            if left:  # it did not notice that it was cancelled
                await leave()
            return found

        async def leave() -> None:
            nonlocal left
            left = True
            while made:
                await made.pop().__aexit__(CancelledError, None, None)  # type: ignore[attr-defined]

        try:
            return self._call(make)
        except BaseException:
            with suppress(BookKeeperError):  # the client has ended, and all that it made
                self._begin(leave)
            raise

    def _act(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function returns, which doesn't wait."""

        async def act() -> T:
            return function(*args, **kwargs)

        return self._thread.call(act)

    def _iterate(
        self, function: Callable[P, AsyncGenerator[T, None]], /, *args: P.args, **kwargs: P.kwargs
    ) -> BlockingIterator[T]:
        return self._thread.iterate(function, *args, **kwargs)

    def _begin(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._thread.submit(function, *args, **kwargs)


class BlockingContext(Blocking[O]):
    """One that a `with` closes, as `async with` closes what it stands for."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._call(self._of.__aexit__, kind, *error)  # type: ignore[attr-defined]


class BlockingOwner(BlockingContext["Client"]):
    """The client itself, with whose end its thread ends."""

    __slots__ = ()

    @property
    def metrics(self) -> ClientMetrics:
        """See `Client.metrics`."""
        return self._act(lambda: self._of.metrics)

    def close(self) -> None:
        """Close the client, with its connections and its session, and end its thread. Closing twice is once.

        An interrupted call has closed it all the same.
        """
        self._thread.close()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            self._thread.close(kind)
        except BookKeeperError:
            if kind is None:
                raise
