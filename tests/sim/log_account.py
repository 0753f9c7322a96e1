"""What the writers of a log were told, what a tail of it has read, and what the log has to be in the end."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bkpy.errors import BookKeeperError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping


@dataclass
class Tale:
    """One writer's: what it appended, in this order, where it was told that this is, and what certainly isn't there."""

    name: str
    appended: list[bytes] = field(default_factory=list)
    acknowledged: dict[bytes, int] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)

    def next(self, size: int = 0) -> bytes:
        data = f"{self.name}-{len(self.appended)}".encode().ljust(size)
        self.appended.append(data)
        return data

    def told(self, data: bytes, position: int) -> None:
        self.acknowledged[data] = position

    def never(self, data: bytes) -> None:
        """It was never appended."""
        self.appended.remove(data)
        self.appended.append(b"")  # so that no name is used twice
        self.refused.add(data)

    def failed(self, data: bytes, error: BookKeeperError) -> None:
        if not error.outcome_unknown:
            self.refused.add(data)

    def settled(self, data: bytes, future: asyncio.Future[int]) -> None:
        error = future.exception()
        if error is None:
            self.told(data, future.result())
        elif isinstance(error, BookKeeperError):
            self.failed(data, error)
        else:
            raise error


class Account:
    """Of one log. `tailed`: the next position of the tail; `end`: where the log ends, once all writers have."""

    def __init__(self) -> None:
        self.tales: list[Tale] = []
        self.tail: list[tuple[bytes, float]] = []
        self.end = 0
        self.broken: list[str] = []

    def begin(self, name: str) -> Tale:
        self.tales.append(Tale(name))
        return self.tales[-1]

    @property
    def tailed(self) -> int:
        return len(self.tail)

    def read(self, position: int, data: bytes, time: float) -> None:
        """The tail has read this."""
        assert position == len(self.tail), f"the tail read position {position} where {len(self.tail)} was next"
        assert not self.tail or self.tail[-1][1] <= time, f"the time fell at position {position}"
        self.tail.append((data, time))

    def check(self, found: Mapping[int, tuple[bytes, float]]) -> None:
        """`found` is what is left of the log. What was truncated, the tail had read.

        Nothing acknowledged is lost, nothing is there twice, of each writer a prefix is there, in its order; what the
        tail has read is what is there; times never fall.
        """
        assert not self.broken, self.broken
        first = min(found)
        assert first <= len(self.tail), "more was truncated than the tail has read"
        for position, read in enumerate(self.tail[first:], first):
            assert found[position] == read, f"the tail read {read!r} at {position}, where {found[position]!r} is"
        log = [*self.tail[:first], *found.values()]
        for (_, before), (data, after) in itertools.pairwise(log):
            assert before <= after, f"the time fell at {data!r}"
        present = [data for data, _ in log]
        assert len(set(present)) == len(present), "an entry is there twice"
        of_name: dict[str, list[bytes]] = {tale.name: [] for tale in self.tales}
        for data in present:
            of_name[data.decode().strip().rpartition("-")[0]].append(data)
        for tale in self.tales:
            for data, position in tale.acknowledged.items():
                assert present[position : position + 1] == [data], f"{data[:30]!r} was acknowledged at {position}"
            survived = of_name[tale.name]
            appended = [data for data in tale.appended if data]
            assert survived == appended[: len(survived)], f"what survives of {tale.name} is no prefix of it"
            assert not tale.refused & set(survived), "an append is there of which it was said that it was not made"
