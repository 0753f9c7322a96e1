"""Waiting for what happens at some time, in real or virtual time: the one helper of all tests.

Nothing but what never happens reaches the deadline. Then the failure shows the condition and what it looked at.
"""

from __future__ import annotations

import asyncio
import inspect
import reprlib
import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

DEADLINE_S = 60.0
_PAUSE_S = 0.005
_SHOWN_MAX = 300  # characters of each value


async def eventually(
    condition: Callable[[], T | Awaitable[T]],
    what: str = "",
    *,
    until: Callable[[T], object] = bool,
    pause_s: float = _PAUSE_S,
    deadline_s: float = DEADLINE_S,
    meanwhile: type[Exception] | tuple[type[Exception], ...] = (),
) -> T:
    """Return the condition's first true value, or the first that is as `until` says.

    `meanwhile`: errors that only mean *not yet*.
    """
    seen: Any = None
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                try:
                    seen = condition()
                    if inspect.isawaitable(seen):
                        seen = await seen
                    if until(seen):
                        return seen  # type: ignore[no-any-return]
                except meanwhile as error:
                    seen = error
                await asyncio.sleep(pause_s)
    except TimeoutError:
        raise AssertionError(_failure(condition, what, seen, deadline_s)) from None


def eventually_here(
    condition: Callable[[], T],
    what: str = "",
    *,
    pause_s: float = 0.05,
    deadline_s: float = DEADLINE_S,
) -> T:
    """The same for a test without an event loop."""
    deadline = time.monotonic() + deadline_s
    while not (seen := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(_failure(condition, what, seen, deadline_s))
        time.sleep(pause_s)
    return seen


async def turns(count: int = 200) -> None:
    """Let others run: all that waits for nothing outside the loop goes on meanwhile."""
    for _ in range(count):
        await asyncio.sleep(0)


def _failure(condition: Callable[[], Any], what: str, seen: Any, deadline_s: float) -> str:
    try:
        source = inspect.getsource(condition).strip()
    except (OSError, TypeError):
        source = repr(condition)
    text = reprlib.Repr()
    text.maxstring = text.maxother = _SHOWN_MAX
    lines = [f"{what or 'the condition'}: not within {deadline_s:.0f} s", source, f"last value: {text.repr(seen)}"]
    try:
        looked_at = inspect.getclosurevars(condition).nonlocals
    except TypeError:  # a method, or a callable object
        looked_at = {"self": getattr(condition, "__self__", condition)}
    return "\n".join(lines + [f"{name} = {text.repr(value)}" for name, value in looked_at.items()])
