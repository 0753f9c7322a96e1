"""What the writers of a log were told, what a tail of it has read, and what the log has to be in the end."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bkpy.errors import BookKeeperError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from bkpy.log.entries import LogEntry


PRODUCERS = ("shop", "mail")  # names of tales whose entries have numbers


@dataclass
class Tale:
    """One writer's: what it appended, in this order, where it was told that this is, and what certainly isn't there."""

    name: str
    appended: list[bytes] = field(default_factory=list)
    acknowledged: dict[bytes, int] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    whole: bool = False  # all of it is in the log

    def next(self, size: int = 0) -> bytes:
        data = f"{self.name}-{len(self.appended)}".encode().ljust(size)
        self.appended.append(data)
        return data

    def told(self, data: bytes, position: int) -> None:
        self.acknowledged[data] = int(position)

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


class LeaseAccount:
    """Of a consumer that several clients want to lease: who had it last, and where it may be.

    A client that begins a commit after another one has taken the lease must not succeed; who takes the lease finds what
    was committed, or what may have been.
    """

    def __init__(self) -> None:
        self.order: list[object] = []  # consumers that had the lease
        self.begun: dict[int, int] = {}  # of a consumer's commit that runs: how many had the lease by then
        self.may_be: set[int] = set()  # positions of commits whose outcome is unknown, and of the last certain one

    def taken(self, consumer: object, position: int) -> None:
        assert not self.may_be or position in self.may_be, f"the consumer is at {position}, not in {self.may_be}"
        self.may_be = {position}
        self.order.append(consumer)

    def begins(self, consumer: object, position: int) -> None:
        self.begun[id(consumer)] = len(self.order)
        self.may_be.add(position)

    def ended(self, consumer: object, position: int) -> None:
        later = self.order[: self.begun[id(consumer)]]
        assert later[-1] is consumer, "a commit of a client that had lost its lease succeeded"
        if self.order[-1] is consumer:
            self.may_be = {position}


class Account:
    """Of one log. `tailed`: the next position of the tail; `end`: where the log ends, once all writers have.

    `begun`: where the tail's consumer was registered. With `retention`, entries below that may have gone unread.
    """

    def __init__(self, *, retention: bool) -> None:
        self.retention = retention
        self.tales: list[Tale] = []
        self.tail: dict[int, tuple[bytes, float]] = {}
        self.begun: int | None = None
        self.committed = 0  # the consumer's position
        self.tailed = 0
        self.end = 0
        self.losses: list[range] = []  # positions whose entries were given up
        self.broken: list[str] = []

    def begin(self, name: str) -> Tale:
        self.tales.append(Tale(name))
        return self.tales[-1]

    def numbered(self, producer: str) -> Tale:
        """The one tale of all writers with this producer, whose entry with number n is its n-th."""
        for tale in self.tales:
            if tale.name == producer:
                return tale
        return self.begin(producer)

    def told(self, tale: Tale, number: int, position: int) -> None:
        """An append with this number, perhaps a repeated one, was acknowledged there."""
        data = tale.appended[number]
        position = int(position)  # a range searches in vain for long for what is no plain integer
        before = tale.acknowledged.get(data, position)
        if before != position and self.is_lost(position):
            return  # by a writer that doesn't know yet what was given up, and says again what it said before
        assert before == position or self.is_lost(before), (
            f"number {number} of {tale.name} is at {before}, and a repetition was told that it is at {position}"
        )
        tale.told(data, position)

    def check_number(self, entry: LogEntry) -> None:
        """That the entry has the number which its writer gave it, if any."""
        name, _, number = entry.data.decode().strip().rpartition("-")
        expected = (name, int(number)) if name in PRODUCERS else (None, None)
        assert (entry.producer, entry.sequence) == expected, (
            f"{entry.data[:30]!r} has number {entry.sequence} of {entry.producer}"
        )

    def registered(self, position: int) -> None:
        """The tail's consumer is there, at this position; nobody deletes it, so only the first call moves the tail."""
        if self.begun is None:
            self.begun = self.committed = self.tailed = position
        assert self.committed <= position <= self.tailed, (
            f"the consumer is at {position}, though {self.committed} was committed and {self.tailed} is next"
        )

    def read(self, position: int, data: bytes, time: float) -> None:
        """The tail has read this."""
        assert self.given_up(self.tailed, position), f"the tail read position {position} where {self.tailed} was next"
        last = next(reversed(self.tail.values()), None)
        assert last is None or last[1] <= time, f"the time fell at position {position}"
        self.tail[position] = data, time
        self.tailed = position + 1

    def acknowledged(self, first: int, behind: int) -> list[bytes]:
        """The entries that were acknowledged in this range of positions, without a gap."""
        told = {position: data for tale in self.tales for data, position in tale.acknowledged.items()}
        found = []
        while first < behind and first in told:
            found.append(told[first])
            first += 1
        return found

    def lose(self, positions: range) -> None:
        """An operator has accepted the loss of what these positions may have had."""
        self.losses.append(positions)

    def pass_over(self, position: int) -> None:
        """What is below the position went unread by the tail, whose consumer had expired."""
        self.lose(range(self.tailed, position))
        self.tailed = position

    def is_lost(self, position: int) -> bool:
        return any(position in lost for lost in self.losses)

    def is_appended_again(self, position: int, data: bytes) -> bool:
        """Whether this was lost, and has a number by which it may have been appended once more."""
        return self.is_lost(position) and data.decode().strip().rpartition("-")[0] in PRODUCERS

    def given_up(self, first: int, behind: int) -> bool:
        """Whether all of these positions are lost; there may be none of them."""
        while first < behind:
            ends = [lost.stop for lost in self.losses if first in lost]
            if not ends:
                return False
            first = max(ends)
        return True

    def check(self, found: Mapping[int, tuple[bytes, float]], first: int) -> None:
        """`found` is what is left of the log, which begins at `first`. The tail had read all that was truncated since
        its consumer was registered.

        Nothing acknowledged is lost but what was given up, nothing is there twice, of each writer a prefix is there, in
        its order; what the tail has read is what is there; times never fall.
        """
        assert not self.broken, self.broken
        begun = self.begun or 0
        assert self.retention or self.given_up(0, begun), f"the log began at {begun} before anybody had read it"
        assert self.given_up(self.tailed, first), "more was truncated than the tail has read"
        for position, read in self.tail.items():
            assert position < first or self.is_lost(position) or found[position] == read, (
                f"the tail read {read!r} at {position}, where {found.get(position)!r} is"
            )
        seen = {position: read for position, read in self.tail.items() if not self.is_appended_again(position, read[0])}
        log = dict(sorted([*seen.items(), *found.items()]))
        for (_, before), (data, after) in itertools.pairwise(log.values()):
            assert before <= after, f"the time fell at {data!r}"
        present = [data for data, _ in log.values()]
        assert len(set(present)) == len(present), "an entry is there twice"
        of_name: dict[str, list[bytes]] = {tale.name: [] for tale in self.tales}
        for data in present:
            of_name[data.decode().strip().rpartition("-")[0]].append(data)
        positions: dict[int, bytes] = {}
        for tale in self.tales:
            for data, position in tale.acknowledged.items():
                assert positions.setdefault(position, data) == data, f"position {position} was acknowledged twice"
                there = log.get(position, (None, 0.0))[0]
                assert there == data or (there is None and (position < begun or self.is_lost(position))), (
                    f"{data[:30]!r} was acknowledged at {position}, where {there!r} is"
                )
            survived = of_name[tale.name]
            assert not tale.whole or self.losses or begun or survived == tale.appended, f"{tale.name} is not whole"
            appended = [data for data in tale.appended if data]
            numbered = tale.name in PRODUCERS  # others may have written between two of its entries
            if begun and survived and (numbered or log.get(begun, (b"", 0.0))[0] == survived[0]):
                # Those that it appended before, if any, were the last ones below. Acknowledged ones were looked for.
                appended = appended[appended.index(survived[0]) :]
            if self.losses:
                appended = [data for data in appended if data in set(survived)]
            assert survived == appended[: len(survived)], f"what survives of {tale.name} is no prefix of it"
            assert not tale.refused & set(survived), "an append is there of which it was said that it was not made"
