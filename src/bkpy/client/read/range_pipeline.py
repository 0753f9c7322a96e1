"""Ranges of a ledger's entries, several of them asked for at once and handed on in order: for scans and recoveries.

    first ..................................................................... last
    [ being used ][ the rest of it, if it was cut short ][ in flight ][ in flight ]  not asked for yet

How a range is answered is the business of whoever makes the pipeline: a reader takes one good copy of each entry, a
recovery needs the word of as many bookies as it takes to say where the ledger ends.

Invariants: results come in the order of their entries, without gaps; at most `at_once` ranges are in flight, and one
while the size of the records is unknown; none is left behind, however the scan ends.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from bkpy.runtime.interfaces import Runtime

T = TypeVar("T")


class RangePipeline(Generic[T]):
    """`fetch(first, last)` returns what it has, and up to which entry that answers the range: at least `first`.

    A range is as many entries as make about `range_bytes`, but at most `range_entries_max`. `rest_ahead`: the rest of a
    range that was cut short is asked for while what came of it is used. That is faster, and holds one range more.
    """

    def __init__(
        self,
        fetch: Callable[[int, int], Coroutine[Any, Any, tuple[T, int]]],
        *,
        name: str,
        at_once: int,
        rest_ahead: bool,
        first_entries: int,
        range_entries_max: int,
        range_bytes: int,
        runtime: Runtime,
    ) -> None:
        self.record_bytes = 0.0  # of an average record as last seen, 0 while nothing is known
        self._fetch = fetch
        self._name = name
        self._at_once = at_once
        self._rest_ahead = rest_ahead
        self._first_entries = first_entries
        self._range_entries_max = range_entries_max
        self._range_bytes = range_bytes
        self._runtime = runtime

    async def run(self, first: int, last: int) -> AsyncGenerator[T, None]:
        """The results of first..last. Raises what `fetch` raised of the first range that can't be had."""
        in_flight: deque[tuple[asyncio.Task[tuple[T, int]], int]] = deque()
        following = first
        try:
            while following <= last or in_flight:
                # Without any idea of the sizes, one short range goes ahead alone.
                depth = self._at_once if self.record_bytes else 1
                while following <= last and len(in_flight) < depth:
                    range_last = min(last, following + self._range_entries() - 1)
                    in_flight.append((self._begin(following, range_last), range_last))
                    following = range_last + 1
                task, range_last = in_flight.popleft()
                result, answered_to = await task
                cut = answered_to < range_last  # larger entries than expected: the rest is still to be asked for
                if not self._rest_ahead:
                    yield result
                if cut:
                    in_flight.appendleft((self._begin(answered_to + 1, range_last), range_last))
                if self._rest_ahead:
                    yield result
        finally:
            for task, _ in in_flight:
                task.cancel()

    def _begin(self, first: int, last: int) -> asyncio.Task[tuple[T, int]]:
        return self._runtime.spawn(
            self._fetch(first, last), name=f"{self._name}, entries {first} to {last}", on_death=raised_where_awaited
        )

    def _range_entries(self) -> int:
        if not self.record_bytes:
            return self._first_entries
        return max(1, min(self._range_entries_max, int(self._range_bytes / self.record_bytes)))


def raised_where_awaited(error: BaseException) -> None:
    """For a task of which nobody has to hear how it died but whoever awaits it."""
