"""What the auditor has learnt of ledgers, so that the second loss costs less than the first.

Of closed ledgers it is enough to know which bookies they name: they change by re-replication alone, which goes on only
under a mark. Of all others only the ids are known, to be read again: those that were not closed or could not be read,
those whose ledgers may still be created, those above `settled_to`, and those that had marks.

Ids are drawn in order, but their ledgers are created in any order. A listing therefore settles only the ids that were
drawn before it began. A client that still holds one of those may create its ledger later: such an id counts as open.

Invariant: as long as `complete`, a ledger that names a bookie is among `of(bookie)`, or is `open`, or has or had a
mark, or has an id above `settled_to`. Some that are named here may not name it any more. What is remembered is bounded:
beyond, all is forgotten.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from bkpy.protocol.ledger.ledger_metadata import LedgerState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bkpy.metadata.ledgers.catalog import IdsGiven
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata

_IN_A_SET = 8  # times the memory of an id in an array


class RememberedLedgers:
    """Ids in the memory of at most `items_max`, a closed ledger's counted once for each bookie that it names."""

    def __init__(self, items_max: int) -> None:
        self._items_max = items_max
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.complete = False
        self.settled_to = -1
        self.since = 0.0
        self.announced = -1
        self._useless = False
        self._open: set[int] = set()
        self._held: frozenset[int] = frozenset()
        self._above: set[int] = set()  # closed ones above `settled_to`
        self._marked: set[int] = set()
        self._of: dict[str, array[int]] = {}
        self._items = 0

    def begin(self, since: float, announced: int, marked: Iterable[int], *, has_manual_moves: bool) -> None:
        """A whole audit begins, at the monotonic time `since`, after the announcement `announced`.

        While copies are moved by hand, without marks, nothing that is learnt can be relied on.
        """
        self.forget()
        self._useless = has_manual_moves
        self.since = since
        self.announced = announced
        self.mark(marked)

    def end(self) -> None:
        """It has seen all ledgers."""
        self.complete = not self._useless

    def given(self, ids: IdsGiven) -> None:
        """These ids were given out when a listing began: the ledgers of those that are held may not be in it."""
        self._held = ids.held
        for ledger_id in ids.held:
            self.unread(ledger_id)

    def listed(self, ids: IdsGiven) -> None:
        """The listing has ended: the ledgers with these ids are known, but for those that are held."""
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

    def mark(self, ledger_ids: Iterable[int]) -> None:
        """These have marks: they may be changed."""
        before = len(self._marked)
        self._marked.update(ledger_ids)
        self._count(_IN_A_SET * (len(self._marked) - before))

    def worked_off(self, marked: Iterable[int]) -> set[int]:
        """Those that had marks and are not among `marked` any more."""
        return self._marked.difference(marked)

    def has_mark(self, ledger_id: int) -> bool:
        """Whether it had one when that was known last."""
        return ledger_id in self._marked

    def settle(self, ledger_ids: Iterable[int]) -> None:
        """These were read again after their marks had gone."""
        self._marked.difference_update(ledger_ids)

    def of(self, bookie: str) -> set[int]:
        """The closed ledgers that name it, or did."""
        return set(self._of.get(bookie, ()))

    @property
    def open(self) -> set[int]:
        """Those that are to be read again."""
        return set(self._open)

    def _count(self, items: int) -> None:
        self._items += items
        if self._items > self._items_max:
            since = self.since
            self.forget()
            self._useless, self.since = True, since
