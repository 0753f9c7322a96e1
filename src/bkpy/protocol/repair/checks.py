"""What the periodic checks ask bookies for, and what follows from their answers.

A bookie's share of a fragment is looked at in *windows*: at its beginning, at its end, and in between. In a window the
bookie is asked for its entries, and each that it returns is verified. An id of the share that was examined, and isn't
returned intact, is missing there.

Invariants: the windows of a share that is no longer than they are together are all of it; a bookie that gave no answer
misses nothing; a bookie is misplaced only if a writable one of a rack of its own could take its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.ledger.quorum import write_set
from bkpy.protocol.repair.holdings import holdings

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Hashable, Iterator, Mapping, Sequence

    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.holdings import Share


class Window(NamedTuple):
    """Entries `first` to `last`, of which the share's are looked at."""

    first: int
    last: int


def windows(first: int, last: int, size: int, count: int, chances: Sequence[float]) -> list[Window]:
    """At most `count` (two or more) windows of `size` ids in first..last: the two ends, and by `chances` in between.

    Ascending, and without an id in two of them. `chances` are `count` - 2 numbers from 0 up to 1.
    """
    if last - first + 1 <= size * count:
        return [Window(first, last)] if first <= last else []
    between = first + size, last - 2 * size + 1  # where one may begin
    starts = sorted(between[0] + int(chance * (between[1] - between[0] + 1)) for chance in chances)
    found = [Window(first, first + size - 1)]
    for start in (*starts, last - size + 1):
        begin = max(start, found[-1].last + 1)
        if begin <= start + size - 1:
            found.append(Window(begin, start + size - 1))
    return found


def wanted(share: Share, first: int, last: int) -> Iterator[int]:
    """The ids of the share in first..last, ascending. `first` isn't below the fragment's."""
    ids = [
        range(start + max(0, -(-(first - start) // share.step)) * share.step, last + 1, share.step)
        for start in share.starts
    ]
    return iter(sorted(entry_id for some in ids for entry_id in some))


def missing(share: Share, first: int, examined_to: int, intact: Container[int]) -> list[int]:
    """The ids of the share in first..examined_to that the bookie did not return intact."""
    return [entry_id for entry_id in wanted(share, first, examined_to) if entry_id not in intact]


def misplaced(metadata: LedgerMetadata, racks: Mapping[str, Hashable], writable: Collection[str]) -> str | None:
    """A bookie that shares a write set with another one of its rack, where a writable one of a new rack would not.

    One at a time: what moves changes what is right for the others. None for a ledger that isn't closed.
    """
    if metadata.state is not LedgerState.CLOSED:
        return None
    for fragment, held in zip(metadata.fragments, holdings(metadata), strict=True):
        if held.last_entry is None or held.last_entry < held.first_entry:
            continue
        for place, name in enumerate(fragment.bookies):
            taken = {racks[other] for other in _neighbours(metadata, fragment.bookies, place) if other in racks}
            if racks.get(name) not in taken:
                continue
            if any(one in racks and racks[one] not in taken for one in set(writable).difference(fragment.bookies)):
                return name
    return None


def _neighbours(metadata: LedgerMetadata, bookies: Sequence[str], place: int) -> set[str]:
    """The others of the write sets that have this place."""
    sets = [write_set(first, metadata.ensemble_size, metadata.write_quorum) for first in range(len(bookies))]
    return {bookies[index] for members in sets if place in members for index in members if index != place}
