"""Ends a coroutine at a chosen one of the points at which it waits."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import bkpy
from tests.in_process import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterator


class Stepped:
    """Runs a coroutine, and calls `act` when it waits for the `at`-th time.

    Either before what it waits for has happened, or, if `late`, in the very turn of the loop in which that happens.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: int, late: bool, act: Callable[[], Any]) -> None:
        self._inner = coroutine.__await__()
        self._at = at
        self._late = late
        self._act = act
        self.reached = False
        self.waits = 0

    def __await__(self) -> Generator[Any, None, Any]:
        resume = partial(self._inner.send, None)
        while True:
            try:
                awaited = resume()
            except StopIteration as end:
                return end.value
            if self.waits == self._at:
                self.reached = True
                if not self._late:
                    self._act()
                elif awaited is None:  # it only lets others run
                    asyncio.get_running_loop().call_soon(self._act)
                else:
                    awaited.add_done_callback(lambda _: self._act())  # before the task's own callback
            self.waits += 1
            try:
                yield awaited
            except BaseException as e:  # for the coroutine, whatever it is
                resume = partial(self._inner.throw, e)
            else:
                resume = partial(self._inner.send, None)


async def run_to(coroutine: Coroutine[Any, Any, Any], at: int, late: bool, act: Callable[[], Any] | None) -> bool:
    """Run the coroutine and do `act`, or cancel it, when it waits for the `at`-th time; whether it ever did.

    Returns when it has ended, one way or the other.
    """
    stepped = Stepped(coroutine, at, late, lambda: act() if act is not None else task.cancel())

    async def run() -> None:
        await stepped

    task = asyncio.create_task(run())
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        assert isinstance(error, bkpy.BookKeeperError), repr(error)
    return stepped.reached


@contextmanager
def naming(name: str, at: int, late: bool) -> Iterator[None]:
    """Say in an error's notes which case it was."""
    try:
        yield
    except BaseException as e:
        e.add_note(f"{name}, ended {'as' if late else 'before'} its wait number {at} was over")
        raise
