"""What the auditor has learnt of ledgers, so that the second loss costs less than the first.

Of closed ledgers it is enough to know which bookies they name: they change by re-replication alone, which goes on only
under a record. Of all others only the ids are known, to be read again: ledgers that were not closed or could not be
read, ids whose ledgers may still be created, ids above `settled_to`, and ledgers that had records.

Ids are drawn in order, but their ledgers are created in any order. A listing therefore settles only the ids that were
drawn before it began. A client that still holds one of those may create its ledger later: such an id counts as open.

Invariant: as long as `complete`, a ledger that names a bookie is among those `on` it, or is `open`, or has or had a
record, or has an id above `settled_to`. A ledger among them may not name it any more. The memory is bounded: when
it is full, all is forgotten.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from bkpy.protocol.ledger.ledger_metadata import LedgerState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bkpy.metadata.ledgers.catalog import IdsGiven
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata

_IN_A_SET = 8  # times the memory of an id in an array


class RememberedLedgers:
    """Ids in the memory of at most `items_max`, a closed ledger's counted once for each bookie that it names."""

    def __init__(self, items_max: int) -> None:
        self._items_max = items_max
        self.forget()

    def forget(self) -> None:
        """Start from nothing."""
        self.complete = False
        self.settled_to = -1
        self.since = 0.0
        self.announced = -1
        self._useless = False
        self.full = False  # whether all was forgotten because it was too much
        self._open: set[int] = set()
        self._held: frozenset[int] = frozenset()
        self._above: set[int] = set()  # closed ones above `settled_to`
        self._recorded: set[int] = set()
        self._of: dict[str, array[int]] = {}
        self._items = 0

    def begin(self, since: float, announced: int, recorded: Iterable[int], *, has_manual_moves: bool) -> None:
        """A whole audit begins, at the monotonic time `since`, after the announcement `announced`.

        While operators move copies, without records, the audit can't rely on what it learns.
        """
        self.forget()
        self._useless = has_manual_moves
        self.since = since
        self.announced = announced
        self.add_recorded(recorded)

    def end(self) -> None:
        """It has seen all ledgers."""
        self.complete = not self._useless

    def given(self, ids: IdsGiven) -> None:
        """These ids were given out when a listing began: it may miss the ledgers of ids that clients still hold."""
        self._held = ids.held
        for ledger_id in ids.held:
            self.unread(ledger_id)

    def listed(self, ids: IdsGiven) -> None:
        """The listing has ended: the ledgers with these ids are known, except for ids that clients still hold."""
        self.settled_to = max(self.settled_to, ids.below - 1)
        self._above = {ledger_id for ledger_id in self._above if ledger_id > self.settled_to}

    def is_known(self, ledger_id: int) -> bool:
        """Whether the ledger needs no look although a listing has it."""
        return ledger_id <= self.settled_to or ledger_id in self._above

    def learn(self, metadata: LedgerMetadata) -> None:
        """What was read of a ledger."""
        if self._useless:
            return
        if metadata.state is not LedgerState.CLOSED:
            self.unread(metadata.ledger_id)
            return
        self._open.discard(metadata.ledger_id)
        if metadata.ledger_id > self.settled_to and self.complete:
            self._above.add(metadata.ledger_id)
            self._count(_IN_A_SET)
        for bookie in metadata.needed_bookies:
            ids = self._of.setdefault(bookie, array("q"))
            # It is read again and again only while it isn't closed; then once for each time that it was worked off.
            ids.append(metadata.ledger_id)
            self._count(1)

    def unread(self, ledger_id: int) -> None:
        """The ledger is to be read again: it was not closed, could not be read, or may not be created yet."""
        if not self._useless and ledger_id not in self._open:
            self._open.add(ledger_id)
            self._count(_IN_A_SET)

    def gone(self, ledger_id: int) -> None:
        """There is no such ledger. One whose id a client holds may still be created."""
        if ledger_id not in self._held:
            self._open.discard(ledger_id)

    def add_recorded(self, ledger_ids: Iterable[int]) -> None:
        """These have records: workers may change them."""
        before = len(self._recorded)
        self._recorded.update(ledger_ids)
        self._count(_IN_A_SET * (len(self._recorded) - before))

    def worked_off(self, recorded: Iterable[int]) -> set[int]:
        """Ledgers that had records and are not among `recorded` any more."""
        return self._recorded.difference(recorded)

    def settle(self, ledger_ids: Iterable[int]) -> None:
        """These were read again after the removal of their records."""
        self._recorded.difference_update(ledger_ids)

    def on(self, bookies: Sequence[str], size: int) -> Iterator[dict[int, list[str]]]:
        """The closed ledgers that name some of these, or did, each once: in parts of at most `size`, with these names.

        Of millions the first part takes tenths of a second, on the event loop: the ids come nearly in order.
        """
        if not any(bookie in self._of for bookie in bookies):
            return
        import numpy as np  # takes memory, which most bookies never need

        by_bookie = {
            bookie: np.sort(np.frombuffer(self._of[bookie], np.int64), kind="stable")
            for bookie in bookies
            if bookie in self._of
        }
        all_ids = np.sort(np.concatenate([*by_bookie.values()]), kind="stable")
        last = -1
        for begin in range(0, len(all_ids), size):
            part = all_ids[begin : begin + size]
            of: dict[int, list[str]] = {}
            for bookie, ids in by_bookie.items():
                first, end = np.searchsorted(ids, part[0]), np.searchsorted(ids, part[-1], side="right")
                for ledger_id in ids[first:end].tolist():
                    if ledger_id > last and bookie not in (names := of.setdefault(ledger_id, [])):
                        names.append(bookie)
            last = int(part[-1])
            if of:
                yield of

    @property
    def open(self) -> set[int]:
        """The ledgers to read again."""
        return set(self._open)

    def _count(self, items: int) -> None:
        self._items += items
        if self._items > self._items_max:
            since = self.since
            self.forget()
            self._useless, self.full, self.since = True, True, since
