"""What is given up of a ledger whose missing bookies will never come back.

A recovery can't close a ledger while bookies that are gone might have entries that nobody else has. Somebody may decide
that they are gone for good. Then the ledger ends behind what can still be seen: behind everything that is known to have
been acknowledged, and behind every entry after that of which there is a copy, without a gap.

Invariants: only a person decides; a bookie that is registered and doesn't answer is never given up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bkpy.protocol.ledger.quorum import write_set

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata


class LostEntries(NamedTuple):
    """Entries of one fragment whose whole write sets can't be read: `entries` of those from `first` to `last`."""

    first: int
    last: int
    entries: int
    bookies: tuple[str, ...]  # one of which would have to come back


def unreadable(metadata: LedgerMetadata, last_entry: int, readable: Collection[str]) -> list[LostEntries]:
    """What no bookie of `readable` should have, up to `last_entry`, as the metadata tell."""
    found = []
    size, quorum = metadata.ensemble_size, metadata.write_quorum
    for first, last, bookies in _fragments(metadata, last_entry):
        # Every class of entries by its first: the write set is the same for each E-th one.
        starts = range(first, min(first + size, last + 1))
        sets = {start: [bookies[index] for index in write_set(start, size, quorum)] for start in starts}
        lost = [start for start in starts if not any(name in readable for name in sets[start])]
        if lost:
            ends = [last - (last - start) % size for start in lost]
            entries = sum((end - start) // size + 1 for start, end in zip(lost, ends, strict=True))
            away = sorted({name for start in lost for name in sets[start]})
            found.append(LostEntries(min(lost), max(ends), entries, tuple(away)))
    return found


def length_candidates(metadata: LedgerMetadata, last_entry: int) -> Iterator[int]:
    """The entries of which one is asked for the ledger's length, the highest first: those at the ends of fragments.

    The last E of each: these have every write set, so if none of them can be read, none of their fragment can, but for
    damage.
    """
    for first, last, _ in reversed(list(_fragments(metadata, last_entry))):
        yield from range(last, max(first - 1, last - metadata.ensemble_size), -1)


def _fragments(metadata: LedgerMetadata, last_entry: int) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """First and last entry of each fragment that has any, and its bookies."""
    following = [fragment.first_entry - 1 for fragment in metadata.fragments[1:]]
    for fragment, end in zip(metadata.fragments, [*following, last_entry], strict=True):
        if fragment.first_entry <= end:
            yield fragment.first_entry, end, fragment.bookies
