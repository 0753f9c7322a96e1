"""Runs the same coroutine function for many items, a bounded number of them at a time.

Invariants: items are taken in order, and each only when a worker is free for it; no worker is left when `for_each`
returns or raises.
"""

from __future__ import annotations

import asyncio
from operator import length_hint
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

T = TypeVar("T")


async def for_each(items: Iterable[T], act: Callable[[T], Awaitable[None]], *, at_once: int) -> None:
    """Await `act` for each item, with `at_once` workers. The first error cancels the other workers, and is raised."""
    remaining = iter(items)

    async def work() -> None:
        for item in remaining:
            await act(item)

    workers = [asyncio.ensure_future(work()) for _ in range(min(at_once, length_hint(items, at_once)))]
    if not workers:
        return
    try:
        await asyncio.gather(*workers)
    except GeneratorExit:
        raise  # the event loop has ended, and the workers with it: there is nothing that could be waited for
    except BaseException:
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)
        raise
