"""Tells from the reads of a ledger that somebody goes through it in steps, and what will be read next.

A reader asks several bookies in turn, so the steps that one of them sees leave entries out. A step is known by its
likeness with the one before, or by going on right behind it.

Invariants: nothing is foretold before two steps in a row; the last reads of a bounded number of ledgers are remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple


class _Scan(NamedTuple):
    first: int
    last: int
    step: int  # from the first entry of the read before, 0 if there was none
    steps: int  # in a row


class Scans:
    """The last read of each ledger, of `ledgers_max` at most."""

    def __init__(self, ledgers_max: int) -> None:
        self._ledgers_max = ledgers_max
        self._scans: OrderedDict[int, _Scan] = OrderedDict()

    def began(self, ledger_id: int, first: int, last: int) -> bool:
        """A read begins; whether it goes on from the one before."""
        before = self._scans.get(ledger_id)
        if before is not None and before.first == first:
            return before.steps > 0  # somebody asks once more
        step = first - before.first if before is not None else 0
        goes_on = before is not None and step > 0 and (first == before.last + 1 or step == before.step)
        steps = before.steps + 1 if goes_on and before is not None else 0
        self._scans[ledger_id] = _Scan(first, last, step, steps)
        self._scans.move_to_end(ledger_id)
        if len(self._scans) > self._ledgers_max:
            self._scans.popitem(last=False)
        return goes_on

    def ended(self, ledger_id: int, first: int, examined_to: int) -> tuple[int, int] | None:
        """A read has got to `examined_to`: the range that will be read next, None if that can't be told."""
        scan = self._scans.get(ledger_id)
        if scan is None or scan.first != first:
            return None
        self._scans[ledger_id] = scan = scan._replace(last=min(scan.last, examined_to))
        if scan.steps < 2:  # one may be chance
            return None
        return first + scan.step, scan.last + scan.step

    def __len__(self) -> int:
        return len(self._scans)
