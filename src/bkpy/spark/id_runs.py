"""A set of whole numbers as the runs that it consists of: small for dense sets, such as ids and positions.

Invariants: runs ascend, none is empty, and no two overlap or touch, so that equal sets are equal values.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_RUN: Final = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True, slots=True)
class Runs:
    """The numbers `starts[i]` to `ends[i]`, the ends not among them."""

    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Runs:
        """The set of these numbers."""
        return cls._joined((number, number + 1) for number in sorted(numbers))

    @classmethod
    def spans(cls, spans: Iterable[tuple[int, int]]) -> Runs:
        """The union of these, each with its start and its end."""
        return cls._joined(sorted(span for span in spans if span[0] < span[1]))

    @classmethod
    def between(cls, first: int, end: int) -> Runs:
        """All from `first` to before `end`."""
        return cls.spans([(first, end)])

    @classmethod
    def parse(cls, text: str) -> Runs:
        """The set that `str` has made this text of. Raises `ValueError` for any other text."""
        pairs = []
        for part in text.split(",") if text else ():
            found = _RUN.fullmatch(part)
            if found is None:
                raise ValueError(f"{part!r} is no run of numbers")
            pairs.append((int(found[1]), int(found[2] or found[1]) + 1))
        runs = cls._joined(pairs)
        if str(runs) != text or any(start >= end for start, end in pairs):
            raise ValueError("the runs don't ascend, or touch")
        return runs

    @classmethod
    def _joined(cls, pairs: Iterable[tuple[int, int]]) -> Runs:
        """Of pairs that ascend by their starts, and may overlap or touch."""
        starts: list[int] = []
        ends: list[int] = []
        for start, end in pairs:
            if ends and start <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            else:
                starts.append(start)
                ends.append(end)
        return cls(tuple(starts), tuple(ends))

    def __str__(self) -> str:
        return ",".join(str(start) if end == start + 1 else f"{start}-{end - 1}" for start, end in self.pairs())

    def __contains__(self, number: int) -> bool:
        i = bisect_right(self.starts, number) - 1
        return i >= 0 and number < self.ends[i]

    def __len__(self) -> int:
        return sum(end - start for start, end in self.pairs())

    def __or__(self, other: Runs) -> Runs:
        return self.spans(chain(self.pairs(), other.pairs()))

    def __ge__(self, other: Runs) -> bool:
        """Whether all of the other's numbers are in this set, at a cost by runs and not by numbers."""
        return all(start in self and end <= self._end_of_run(start) for start, end in other.pairs())

    def _end_of_run(self, number: int) -> int:
        return self.ends[bisect_right(self.starts, number) - 1]

    def clipped(self, first: int) -> Runs:
        """The numbers that are not below `first`."""
        return self.spans((max(start, first), end) for start, end in self.pairs())

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Each run's start and end."""
        return zip(self.starts, self.ends, strict=True)

    def missing(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """The runs of what isn't in the set, from `first` to before `end`."""
        for start, stop in self.pairs():
            if stop <= first:
                continue
            if start >= end:
                break
            if first < start:
                yield first, start
            first = stop
        if first < end:
            yield first, end


NOTHING: Final = Runs()
