"""Runs a command's coroutine, and ends the command when Ctrl-C, SIGTERM or the reader of its output asks for it.

Invariant: a signal cancels the coroutine, which tidies up, at whatever moment the signal comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import signal
import stat
import sys
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bkpy.cli.endings import TERMINATED, Terminated
from bkpy.cli.output.text import say

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterator
    from types import FrameType

T = TypeVar("T")

_OUTPUT_LOOK_S: Final = 0.2  # between two polls of standard output


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result. Ctrl-C cancels it, and raises `KeyboardInterrupt` once it has ended; SIGTERM likewise.

    A SIGTERM before the coroutine begins, or between its end and that of the loop, ends the command all the same.
    """
    sigterm = _Sigterm()
    before = signal.signal(signal.SIGTERM, sigterm)
    try:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(sigterm.handled(coroutine))
    except asyncio.CancelledError:
        if sigterm.received:
            raise Terminated from None
        raise
    finally:
        coroutine.close()  # Ctrl-C may have come before it began
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
        if sigterm.unhandled:
            raise Terminated


class _Sigterm:
    """The handler of SIGTERM meanwhile: it cancels the coroutine, or notes the signal if there is none to cancel."""

    def __init__(self) -> None:
        self.received = False
        self.unhandled = False
        self._task: asyncio.Task[Any] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        if self._task is None:
            self.unhandled = True
        elif self._task.cancel():
            self._task.get_loop().call_soon_threadsafe(lambda: None)  # wakes the loop

    async def handled(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._task = asyncio.current_task()
        try:
            if self.unhandled:
                raise asyncio.CancelledError
            return await coroutine
        finally:
            self._task = None


@contextlib.contextmanager
def interruptible(unfinished: str) -> Iterator[None]:
    """Meanwhile SIGTERM unwinds the stack as Ctrl-C does. After either, one line says what is `unfinished`."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except KeyboardInterrupt:
        say(f"bkpy: interrupted; {unfinished}")
        raise
    except Terminated:
        say(f"bkpy: terminated; {unfinished}")
        sys.exit(TERMINATED)
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


@contextlib.asynccontextmanager
async def output_has_reader() -> AsyncIterator[None]:
    """Meanwhile, raise `BrokenPipeError` soon after the reader of standard output has closed it.

    A command that waits for entries may write nothing for hours, and would notice only with the next entry. This polls
    the pipe: an event loop that watched it would make it non-blocking.
    """
    task = asyncio.current_task()
    assert task is not None
    closed = False

    async def watch(pipe: select.poll) -> None:
        nonlocal closed
        while not pipe.poll(0):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(_OUTPUT_LOOK_S)
        closed = True
        task.cancel()

    watching = None
    if (pipe := _output_pipe()) is not None:
        watching = asyncio.create_task(watch(pipe), name="watch of standard output")
    try:
        yield
    except asyncio.CancelledError:
        if not closed or task.uncancel():
            raise
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
    finally:
        if watching is not None:
            watching.cancel()


def _output_pipe() -> select.poll | None:
    """Standard output, to poll for errors; None if it is no pipe."""
    try:
        fd = sys.stdout.fileno()
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            return None
    except (OSError, ValueError):  # a test's
        return None
    poll = select.poll()
    poll.register(fd, 0)
    return poll
