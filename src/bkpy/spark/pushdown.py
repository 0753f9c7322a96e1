"""Conditions of a query on ledgers and entries, turned into a narrower plan.

Invariant: what is taken over is applied exactly, because Spark doesn't look at those conditions again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from bkpy.protocol.ledger.ledger_metadata import LEDGER_ID_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bkpy.spark.planning import EntryRange

Span = tuple[int, int]  # ids first..last; none if last < first

# A condition that compares a column with one number, as the ids that it leaves.
_COMPARISONS: Final[dict[type[Filter], Callable[[int], Span]]] = {
    EqualTo: lambda value: (value, value),
    EqualNullSafe: lambda value: (value, value),
    GreaterThan: lambda value: (value + 1, LEDGER_ID_MAX),
    GreaterThanOrEqual: lambda value: (value, LEDGER_ID_MAX),
    LessThan: lambda value: (0, value - 1),
    LessThanOrEqual: lambda value: (0, value),
}


@dataclass(frozen=True)
class Conditions:
    """Ledgers in `ledger_span` and, if there are `ledgers`, among these; of each, the entries in `entry_span`.

    Of those, the ones at the positions in `position_span`, if there is one: a ledger that is read by its id has none.
    """

    ledger_span: Span = (0, LEDGER_ID_MAX)
    ledgers: frozenset[int] | None = None
    entry_span: Span = (0, LEDGER_ID_MAX)
    position_span: Span | None = None

    def and_also(self, condition: Filter) -> Conditions | None:
        """Both these and that one; None if it is of a kind that Spark has to apply."""
        column, value = getattr(condition, "attribute", None), getattr(condition, "value", None)
        if column == ("ledger_id",) and isinstance(condition, In) and _all_whole(condition.value):
            named = frozenset(condition.value)
            return replace(self, ledgers=named if self.ledgers is None else self.ledgers & named)
        span_of = _COMPARISONS.get(type(condition))
        if span_of is None or type(value) is not int:
            return None
        if column == ("ledger_id",):
            return replace(self, ledger_span=_both(self.ledger_span, span_of(value)))
        if column == ("entry_id",):
            return replace(self, entry_span=_both(self.entry_span, span_of(value)))
        if column == ("position",):
            return replace(self, position_span=_both(self.position_span or (0, LEDGER_ID_MAX), span_of(value)))
        return None

    def narrow(self, whole: EntryRange) -> EntryRange | None:
        """What the conditions leave of a range; None for nothing."""
        low, high = self.ledger_span
        if not low <= whole.ledger_id <= high or (self.ledgers is not None and whole.ledger_id not in self.ledgers):
            return None
        first, last = _both((whole.first, whole.last), self.entry_span)
        if self.position_span is not None:
            if whole.origin is None:
                return None
            low, high = self.position_span
            first, last = _both((first, last), (low - whole.origin.position, high - whole.origin.position))
        if last < first:
            return None
        return replace(whole, first=first, last=last, bytes=whole.bytes * (last - first + 1) // whole.entries)


def _both(one: Span, other: Span) -> Span:
    return max(one[0], other[0]), min(one[1], other[1])


def _all_whole(values: Iterable[Any]) -> bool:
    return all(type(value) is int for value in values)  # a null among them would make it another condition
