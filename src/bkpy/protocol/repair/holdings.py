"""Which entries each bookie of a ledger has to hold, as its metadata say.

Invariants: an entry of a fragment is in the shares of exactly its write set, one of a hole in nobody's; a fragment ends
where the next one begins, the last one where the ledger is closed, and nowhere yet while it is not.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from bkpy.protocol.ledger.quorum import write_set

if TYPE_CHECKING:
    from collections.abc import Iterator


class Share(NamedTuple):
    """Entries of one fragment: every `step`-th from each of `starts`, up to the fragment's end.

    `entries` is how many these are, None while the fragment has no end.
    """

    bookie_id: str
    step: int
    starts: tuple[int, ...]
    entries: int | None

    def following(self, entry_id: int) -> int | None:
        """The first of these entries behind `entry_id`, were the fragment without an end; None if there are none."""
        return (
            min(
                (start if start > entry_id else start + ((entry_id - start) // self.step + 1) * self.step)
                for start in self.starts
            )
            if self.starts
            else None
        )

    def last(self, entry_id: int) -> int | None:
        """The last of these entries up to `entry_id`; None if there are none."""
        return max(
            (start + (entry_id - start) // self.step * self.step for start in self.starts if start <= entry_id),
            default=None,
        )


class Holdings(NamedTuple):
    """A fragment, from `first_entry` to `last_entry` (one less if it is empty, None for no end yet)."""

    first_entry: int
    last_entry: int | None
    shares: tuple[Share, ...]  # in ensemble order


def holdings(metadata: LedgerMetadata) -> Iterator[Holdings]:
    """For each fragment, what each of its bookies has to hold: nothing of a hole."""
    end = metadata.last_entry if metadata.state is LedgerState.CLOSED else None
    for number, (fragment, following) in enumerate(zip_longest(metadata.fragments, metadata.fragments[1:])):
        last = end if following is None else following.first_entry - 1
        if end is not None and last is not None:  # an old BookKeeper may have closed it before its last fragments
            last = max(fragment.first_entry - 1, min(last, end))
        if metadata.is_hole(number):
            yield Holdings(fragment.first_entry, last, tuple(Share(name, 1, (), 0) for name in fragment.bookies))
            continue
        shares = (
            _share(bookie_id, index, metadata.ensemble_size, metadata.write_quorum, fragment.first_entry, last)
            for index, bookie_id in enumerate(fragment.bookies)
        )
        yield Holdings(fragment.first_entry, last, tuple(shares))


def _share(bookie_id: str, index: int, ensemble_size: int, write_quorum: int, first: int, last: int | None) -> Share:
    # Where every bookie holds every entry there is one progression, not as many as there are bookies.
    step = 1 if ensemble_size == write_quorum else ensemble_size
    starts = tuple(
        entry_id
        for entry_id in range(first, first + step)
        if index in write_set(entry_id, ensemble_size, write_quorum) and (last is None or entry_id <= last)
    )
    entries = None if last is None else sum((last - start) // step + 1 for start in starts)
    return Share(bookie_id, step, starts, entries)
