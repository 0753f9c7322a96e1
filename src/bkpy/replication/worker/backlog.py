"""The under-replicated ledgers that one worker knows, counted: how endangered they are, and since when.

Many ledgers share their write sets and the time of their record, so the counts are kept by these. A report takes no
longer when there are many ledgers.

Invariant: the counts are those of the ledgers in it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from bkpy.protocol.repair.rereplication import copies_left

if TYPE_CHECKING:
    from collections.abc import Collection

K = TypeVar("K")

WriteSets = frozenset[tuple[str, ...]]


class _Known(NamedTuple):
    since_ms: int
    sets: WriteSets


class Backlog:
    """Ledgers from when a scan finds their records until they are repaired, or a scan finds no record."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._by_sets: Counter[WriteSets] = Counter()
        self._by_since: Counter[int] = Counter()
        self._unseen: set[int] = set()

    def __len__(self) -> int:
        return len(self._known)

    def put(self, ledger_id: int, since_ms: int, sets: WriteSets) -> None:
        """The ledger has a record since then; `sets` are its endangered write sets."""
        self.drop(ledger_id)
        self._known[ledger_id] = _Known(since_ms, sets)
        self._by_sets[sets] += 1
        self._by_since[since_ms] += 1

    def drop(self, ledger_id: int) -> None:
        """The ledger has no record."""
        self._unseen.discard(ledger_id)
        known = self._known.pop(ledger_id, None)
        if known is not None:
            _less(self._by_sets, known.sets)
            _less(self._by_since, known.since_ms)

    def begin_look(self) -> None:
        """A scan of all records begins."""
        self._unseen = set(self._known)

    def saw(self, ledger_id: int) -> None:
        """The scan has found its record."""
        self._unseen.discard(ledger_id)

    def end_look(self) -> Collection[int]:
        """Drop the ledgers whose records the scan has not found, and return them."""
        gone = tuple(self._unseen)
        for ledger_id in gone:
            self.drop(ledger_id)
        return gone

    def by_copies_left(self, readable: Collection[str]) -> dict[int, int]:
        """How many ledgers have how few copies left. One without an endangered write set isn't counted."""
        counts: Counter[int] = Counter()
        for sets, count in self._by_sets.items():
            left = copies_left(sets, readable)
            if left is not None:
                counts[left] += count
        return dict(sorted(counts.items()))

    @property
    def oldest_ms(self) -> int | None:
        """The time of the oldest record, in milliseconds since 1970."""
        return min(self._by_since, default=None)


def _less(counts: Counter[K], key: K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
