"""The record, in a ledger's metadata, that it was closed though bookies that are gone may have had more of it.

Its *holes* are entries that nobody can return any more, as the bookies that are left have said one by one. They are
whole fragments, which keep their bookies: copies are made of the entries beside them.

Invariants: fields of it that this version doesn't know survive a rewrite; holes ascend, and don't touch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


HOLES_MAX: Final = 100  # a ledger's metadata are read at once


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """That it was done: when (milliseconds since 1970), and what was known.

    `acknowledged`: up to there every entry was certainly acknowledged, whether it can be read or not; -1 for none.
    `seen`: the last entry that some bookie was seen to have. `bookies`: the ones that could not tell, and why. `holes`:
    first and last entry of each.
    """

    at_ms: int
    acknowledged: int
    seen: int
    bookies: Mapping[str, str]
    holes: tuple[tuple[int, int], ...] = ()
    unknown: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)

    def fields(self) -> dict[str, Any]:
        """As JSON has it."""
        known = {
            "at_ms": self.at_ms,
            "acknowledged": self.acknowledged,
            "seen": self.seen,
            "bookies": dict(sorted(self.bookies.items())),
        }
        if self.holes:
            known["holes"] = [list(hole) for hole in self.holes]
        return known | {name: self.unknown[name] for name in sorted(self.unknown)}

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> AcceptedLoss:
        """Raises `ValueError`, `KeyError` or `TypeError` for what isn't one."""
        rest = dict(fields)
        numbers = [rest.pop(name) for name in ("at_ms", "acknowledged", "seen")]
        bookies = rest.pop("bookies")
        if not all(type(number) is int for number in numbers) or not isinstance(bookies, dict):
            raise ValueError("an accepted loss has three integers and an object of bookies")
        if not all(isinstance(why, str) for why in bookies.values()):
            raise ValueError("an accepted loss says of each bookie in text why it could not tell")
        at_ms, acknowledged, seen = numbers
        return cls(at_ms, acknowledged, seen, bookies, _holes(rest.pop("holes", [])), rest)

    def with_hole(self, first: int, last: int) -> AcceptedLoss:
        """With these entries among the holes."""
        holes: list[tuple[int, int]] = []
        for start, end in sorted((*self.holes, (first, last))):
            if holes and start <= holes[-1][1] + 1:
                holes[-1] = holes[-1][0], max(holes[-1][1], end)
            else:
                holes.append((start, end))
        return replace(self, holes=tuple(holes))


def _holes(stored: Any) -> tuple[tuple[int, int], ...]:
    holes = tuple((first, last) for first, last in stored)
    if not all(type(number) is int for hole in holes for number in hole):
        raise ValueError("a hole is two integers")
    if any(not 0 <= first <= last for first, last in holes):
        raise ValueError("a hole ends before it begins")
    if any(before[1] + 1 >= after[0] for before, after in pairwise(holes)):
        raise ValueError("holes ascend, and don't touch")
    return holes
