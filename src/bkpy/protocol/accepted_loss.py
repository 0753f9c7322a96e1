"""The record, in a ledger's metadata, that it was closed though bookies that are gone may have had more of it.

Invariant: fields of it that this version doesn't know survive a rewrite.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """That it was done: when (milliseconds since 1970), and what was known.

    `acknowledged`: up to there every entry was certainly acknowledged, whether it can be read or not; -1 for none.
    `seen`: the last entry that some bookie was seen to have. `bookies`: those that could not tell, and why.
    """

    at_ms: int
    acknowledged: int
    seen: int
    bookies: Mapping[str, str]
    unknown: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)

    def fields(self) -> dict[str, Any]:
        """As JSON has it."""
        known = {
            "at_ms": self.at_ms,
            "acknowledged": self.acknowledged,
            "seen": self.seen,
            "bookies": dict(sorted(self.bookies.items())),
        }
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
        return cls(at_ms, acknowledged, seen, bookies, rest)
