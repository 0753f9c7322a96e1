"""Ranges of a ledger's entries, several of them asked for at once and handed on in order: for scans and recoveries.

    first ..................................................................... last
    [ being used ][ the rest of it, if it was cut short ][ in flight ][ in flight ]  not asked for yet

The pipeline's owner fetches ranges: a reader takes one good copy of each entry, a recovery asks as many bookies as
it takes to decide where the ledger ends.

Invariants: results come in the order of their entries, without gaps; at most `at_once` ranges are in flight, and one
while the size of the records is unknown; none is left behind, however the scan ends.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bkpy.client.iteration import ResumableIterator, alone, cancel_dropped, ended, raised_where_awaited, result_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

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
        self.rest_ahead = rest_ahead
        self._first_entries = first_entries
        self._range_entries_max = range_entries_max
        self._range_bytes = range_bytes
        self._runtime = runtime

    def run(self, first: int, last: int) -> ResumableIterator[T]:
        """The results of first..last. Raises what `fetch` raised of the first range that can't be had."""
        return ResumableIterator(self.source(first, last), alone)

    def source(self, first: int, last: int) -> RangeScan[T]:
        """The same for an iterator over parts of the results."""
        return RangeScan(self, first, last)

    @property
    def depth(self) -> int:
        """How many ranges may be in flight. Without any idea of the sizes, one short range goes ahead alone."""
        return self._at_once if self.record_bytes else 1

    def begin(self, first: int, last: int) -> asyncio.Task[tuple[T, int]]:
        """Ask for a range."""
        return self._runtime.spawn(
            self._fetch(first, last), name=f"{self._name}, entries {first} to {last}", on_death=raised_where_awaited
        )

    def range_entries(self) -> int:
        """How many entries the next range has."""
        if not self.record_bytes:
            return min(self._range_entries_max, self._first_entries)
        return max(1, min(self._range_entries_max, int(self._range_bytes / self.record_bytes)))


class RangeScan(Generic[T]):
    """One pass over first..last of a pipeline: a `BatchSource`."""

    def __init__(self, pipeline: RangePipeline[T], first: int, last: int) -> None:
        self._pipeline = pipeline
        self._next = first
        self._last = last
        self._in_flight: deque[tuple[asyncio.Task[tuple[T, int]], int]] = deque()
        self._rest: tuple[int, int] | None = None  # of a range that was cut short, not asked for yet

    async def following(self) -> T:
        in_flight = self._in_flight
        self._begin_rest()
        while self._next <= self._last and len(in_flight) < self._pipeline.depth:
            range_last = min(self._last, self._next + self._pipeline.range_entries() - 1)
            in_flight.append((self._pipeline.begin(self._next, range_last), range_last))
            self._next = range_last + 1
        if not in_flight:
            raise StopAsyncIteration
        task, range_last = in_flight[0]
        await ended(task)
        if not in_flight:
            raise StopAsyncIteration  # closed meanwhile
        in_flight.popleft()
        try:
            result, answered_to = result_of(task)
        except BaseException:
            await self.close()
            raise
        if answered_to < range_last:  # larger entries than expected: the rest is still to be asked for
            self._rest = answered_to + 1, range_last
            if self._pipeline.rest_ahead:
                self._begin_rest()
        return result

    def _begin_rest(self) -> None:
        if self._rest is not None:
            first, last = self._rest
            self._in_flight.appendleft((self._pipeline.begin(first, last), last))
            self._rest = None

    async def close(self) -> None:
        self._rest = None
        for task, _ in self._in_flight:
            task.cancel()
        self._in_flight.clear()

    def __del__(self) -> None:
        for task, _ in self._in_flight:
            cancel_dropped(task)
