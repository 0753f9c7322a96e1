"""The list of the damages that the scrub of a ledger directory has found and that are still there.

Invariants: a damage is in the list once, however often it is found; it leaves when a round doesn't find it any more, or
the index doesn't name the damaged bytes any more; the list is bounded, and counts the damages that it left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bkpy.storage.tools.check.defects import Defect

_Key = tuple[str, int | None, int | None, int | None]


class Known(NamedTuple):
    """A damage, and the number of the round that found it last."""

    defect: Defect
    round: int


class DamageList:
    """The damages of one directory, `damages_max` at most. Each has a ledger."""

    def __init__(self, known: Iterable[Known], left_out: int, damages_max: int) -> None:
        self._known = {_key(one.defect): one for one in known}
        self._damages_max = damages_max
        self._left_out = left_out  # by the last full round
        self._left_out_now = 0  # by the one that is under way
        while len(self._known) > damages_max:  # the setting was larger
            self._known.popitem()
            self._left_out += 1

    @property
    def defects(self) -> list[Defect]:
        """All known damages."""
        return [one.defect for one in self._known.values()]

    @property
    def known(self) -> tuple[Known, ...]:
        """The same, in the form that is stored."""
        return tuple(self._known.values())

    @property
    def left_out(self) -> int:
        """How many more there are, beyond the bound."""
        return max(self._left_out, self._left_out_now)

    def add(self, defect: Defect, round_number: int) -> bool:
        """Add a damage that was found in that round; whether it is new and in the list."""
        key = _key(defect)
        before = self._known.get(key)
        if before is None and len(self._known) >= self._damages_max:
            self._left_out_now += 1
            return False
        self._known[key] = Known(defect, round_number)
        return before is None

    def end_round(self, round_number: int) -> list[Defect]:
        """Remove and return the damages that the round, which is complete, didn't find."""
        gone = [key for key, one in self._known.items() if one.round != round_number]
        self._left_out, self._left_out_now = self._left_out_now, 0
        return [self._known.pop(key).defect for key in gone]

    def update(self, before: Sequence[Defect], now: Sequence[Defect | None]) -> list[Defect]:
        """Replace the damages `before` by `now`, where None stands for one that is gone; returns the gone ones."""
        gone: list[Defect] = []
        for old, new in zip(before, now, strict=True):
            key = _key(old)
            if key not in self._known:
                continue  # a round has ended meanwhile
            if new is None:
                gone.append(self._known.pop(key).defect)
            else:
                self._known[key] = self._known[key]._replace(defect=new)
        return gone


def _key(defect: Defect) -> _Key:
    """The identity of a finding: the block, or the ledger and the first entry that a row concerns."""
    return defect.path, defect.offset, defect.ledger_id, defect.first if defect.offset is None else None
