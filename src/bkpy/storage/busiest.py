"""Which ledgers a bookie stores most of: found among the frames in memory, when somebody asks.

Invariants: nothing is counted while nobody asks; a look takes a bounded time, however much has arrived; the rates of
all ledgers together are at most those of the bookie.
"""

from __future__ import annotations

import weakref
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bkpy.config.bookie import BookieSettings
    from bkpy.protocol.wire.messages import AddColumns
    from bkpy.runtime.interfaces import Clock, Rng
    from bkpy.storage.memtable.generation import Frame, Generation
    from bkpy.storage.shard import Shard


class LedgerRate(NamedTuple):
    """What is stored of a ledger in a second, about."""

    ledger_id: int
    entries: float
    bytes: float


class BusiestLedgers:
    """`totals` returns how many entries and bytes the bookie has stored so far."""

    def __init__(
        self,
        shards: Sequence[Shard],
        settings: BookieSettings,
        clock: Clock,
        rng: Rng,
        totals: Callable[[], tuple[float, float]],
    ) -> None:
        self._settings = settings
        self._shards = shards
        self._now = clock.monotonic
        self._rng = rng
        self._totals = totals
        self._at_s = float("-inf")  # of the last look
        self._before = (0.0, 0.0)
        self._ends: list[tuple[weakref.ref[Generation], int]] = []  # by shard, how far it went
        self._found: list[LedgerRate] = []

    def look(self) -> list[LedgerRate]:
        """The busiest ledgers since the look before, most bytes first."""
        now = self._now()
        if now - self._at_s < self._settings.activity_fresh_s:
            return self._found
        seconds, totals = now - self._at_s, self._totals()
        self._found = [] if seconds > self._settings.activity_stale_s else self._rates(seconds, totals)
        self._at_s, self._before = now, totals
        self._ends = [(weakref.ref(shard.active), len(shard.active.frames)) for shard in self._shards]
        return self._found

    def _rates(self, seconds: float, totals: tuple[float, float]) -> list[LedgerRate]:
        counts: dict[int, list[int]] = {}
        for columns in self._drawn():
            for ledger_id, entries, size in zip(columns.ledger_ids, columns.counts, columns.sizes, strict=True):
                one = counts.setdefault(ledger_id, [0, 0])
                one[0] += entries
                one[1] += size
        drawn = [sum(column) or 1 for column in zip(*counts.values(), strict=True)]
        stored = [(after - before) / seconds for before, after in zip(self._before, totals, strict=True)]
        rates = [
            LedgerRate(ledger_id, stored[0] * entries / drawn[0], stored[1] * size / drawn[1])
            for ledger_id, (entries, size) in counts.items()
        ]
        rates.sort(key=lambda rate: (-rate.bytes, rate.ledger_id))
        return rates[: self._settings.activity_ledgers_max]

    def _drawn(self) -> list[AddColumns]:
        """Some of the frames that have arrived since the last look and are still in memory; each is as likely."""
        arrived = [frame for shard, end in zip(self._shards, self._ends, strict=True) for frame in _since(shard, end)]
        found: list[AddColumns] = []
        batches = 0
        for columns, _, _ in self._rng.sample(arrived, min(len(arrived), self._settings.activity_frames_max)):
            batches += len(columns.ledger_ids)
            if found and batches > self._settings.activity_batches_max:
                break
            found.append(columns)
        return found


def _since(shard: Shard, end: tuple[weakref.ref[Generation], int]) -> Iterator[Frame]:
    """The frames in the shard's memory that are new."""
    before, frames = end[0](), end[1]
    if shard.sealed is not None and shard.active is not before:
        yield from islice(shard.sealed.frames, frames if shard.sealed is before else 0, None)
    yield from islice(shard.active.frames, frames if shard.active is before else 0, None)
