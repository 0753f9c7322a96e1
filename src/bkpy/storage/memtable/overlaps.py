"""Finds the batches that touch a range of ids, among batches that arrived in any order.

Sorted runs, each with a tree of the highest ids in it: a look takes logarithmic time in each run whose ids come near.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import merge
from operator import itemgetter
from typing import TYPE_CHECKING

from bkpy.buffers import Bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# (first id, count, stride, buffer, start, end): the entries first + k * stride, k < count, in buffer[start:end].
# A bare tuple, because hundreds of thousands of them are made for a flush.
Batch = tuple[int, int, int, Bytes, int, int]
Item = tuple[int, int, Batch]  # (first id, arrival, batch)

_first = itemgetter(0)


def last_of(batch: Batch) -> int:
    """The highest id of a batch."""
    return batch[0] + (batch[1] - 1) * batch[2]


class Run:
    """Items in ascending order."""

    __slots__ = ("_levels", "items", "last")

    def __init__(self, items: list[Item]) -> None:
        self.items = items
        level = [last_of(batch) for _, _, batch in items]
        self._levels = [level]  # of the highest ids below: of each item, of each two, of each four, ...
        while len(level) > 1:
            level = [*map(max, level[::2], level[1::2]), *level[len(level) & ~1 :]]
            self._levels.append(level)
        self.last = level[0]

    def touching(self, first: int, last: int) -> Iterator[Item]:
        """The items with ids from first to last between their lowest and their highest."""
        levels = self._levels
        end = bisect_right(self.items, last, key=_first)
        todo = [(len(levels) - 1, 0)]
        while todo:
            height, at = todo.pop()
            if at << height >= end or levels[height][at] < first:
                continue
            if height == 0:
                yield self.items[at]
                continue
            if 2 * at + 1 < len(levels[height - 1]):
                todo.append((height - 1, 2 * at + 1))
            todo.append((height - 1, 2 * at))


class Overlaps:
    """Items in runs of up to `run_max`, so that no more than that is sorted at a time."""

    def __init__(self, run_max: int) -> None:
        self._run_max = run_max
        self._runs: list[Run] = []

    def add(self, items: Sequence[Item]) -> None:
        """Take in items that arrived after all others, `run_max` at most."""
        new = sorted(items)
        while self._runs:  # runs at least double backwards, so that an item is merged a few times only
            before = self._runs[-1].items
            if len(before) >= 2 * len(new) or len(before) + len(new) > self._run_max:
                break
            self._runs.pop()
            new = sorted([*before, *new])  # two runs in order: a merge
        self._runs.append(Run(new))

    def touching(self, first: int, last: int) -> list[Iterator[Item]]:
        """Iterators over items with ids from first to last between their lowest and their highest, each ascending."""
        return [run.touching(first, last) for run in self._runs if run.items[0][0] <= last and run.last >= first]


def ascending(parts: list[Iterator[Item]]) -> Iterator[Item]:
    """The items of all iterators, merged in ascending order."""
    return parts[0] if len(parts) == 1 else merge(*parts)
