"""The event loop that a client belongs to, which is one of one thread of one process.

Invariant: a call from elsewhere raises `WrongEventLoopError` before it has changed or sent anything, and says where it
came from and what to do.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Final, Protocol, cast
from weakref import WeakSet

from bkpy.errors import WrongEventLoopError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_FORKED: Final = cast("AbstractEventLoop", object())  # no loop: that of the process before the fork is none here
_NO_THREAD: Final = -1  # as the identity of one
_FORK: Final = "the process was forked after the client was made, and shares its connections: connect in this process"
_CLOSED: Final = (
    "the event loop of the client is closed, as asyncio.run closes its own when it returns: connect and use the client "
    "within one call of asyncio.run"
)
_THREADSAFE: Final = (
    "from another thread use bkpy.threadsafe(client), in a script the blocking client, bkpy.connect_sync"
)

this_thread = threading.get_ident

_guards: WeakSet[LoopGuard] = WeakSet()


class Guard(Protocol):
    """What a public call begins with: `check` raises if the call may not be made."""

    def check(self) -> None: ...


class LoopGuard:
    """`loop` and `thread` are the client's.

    Appends compare one of them themselves, and call `check` where it differs. Comparing threads is five times as quick
    and enough beside an append of the same turn of the loop.
    """

    __slots__ = ("__weakref__", "loop", "thread")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread = this_thread()
        _guards.add(self)

    def check(self) -> None:
        """Raise `WrongEventLoopError` unless the client's event loop runs this."""
        if asyncio._get_running_loop() is not self.loop:
            raise WrongEventLoopError(f"nothing was done: {self._why()}")

    def _why(self) -> str:
        if self.loop is _FORKED:
            return _FORK
        if self.loop.is_closed():
            return _CLOSED
        if this_thread() != self.thread:
            name = threading.current_thread().name
            return f"the client belongs to the event loop of another thread than {name}: {_THREADSAFE}"
        if asyncio._get_running_loop() is None:
            return f"the client's event loop does not run: call this in a coroutine of that loop; {_THREADSAFE}"
        return "the client belongs to another event loop of this thread: connect in each event loop"

    def loop_for_threads(self) -> AbstractEventLoop:
        """The client's event loop, for a thread that waits for it. Raises `WrongEventLoopError` if that is hopeless."""
        loop = self.loop
        if loop is _FORKED or loop.is_closed():
            raise WrongEventLoopError(f"nothing was done: {self._why()}")
        if not loop.is_running():
            raise WrongEventLoopError("nothing was done: the client's event loop does not run, so no thread can use it")
        if this_thread() == self.thread:
            raise WrongEventLoopError(
                "nothing was done: this is the thread of the client's event loop, which would wait for itself: await "
                "the call without bkpy.threadsafe; a callback of the blocking client makes no calls of it"
            )
        return loop


def _forked() -> None:
    for guard in list(_guards):
        guard.loop, guard.thread = _FORKED, _NO_THREAD


os.register_at_fork(after_in_child=_forked)
