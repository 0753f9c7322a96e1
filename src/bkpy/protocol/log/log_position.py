"""Positions that prove themselves: what `append` returns says which entry of which ledger of which log it is.

A reader believes it without asking a bookie, if the log's list still has that ledger at that place. An `int` for all
other purposes. It costs no attribute of its own: all positions of one ledger have a class, which has the rest.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar


class LogPosition(int):
    """The position of an entry that was acknowledged.

    `log_uid`, `ledger_id` and `entry_id` tell where that is; with them, `of` makes it again in another process. Use
    `int(position)` for `in range(...)`, which goes through all of a range for anything but a plain integer.
    """

    __slots__ = ()
    log_uid: ClassVar[str]
    """The log's unique id."""
    ledger_id: ClassVar[int]
    """The ledger that the entry is in."""
    _first: ClassVar[int]  # the position of the ledger's first entry

    @classmethod
    def of(cls, position: int, *, log_uid: str, ledger_id: int, entry_id: int) -> LogPosition:
        """What `append` has returned, from its parts."""
        return positions_in(log_uid, ledger_id, int(position) - entry_id)(position)

    @property
    def entry_id(self) -> int:
        """The entry's id in its ledger."""
        return int(self) - self._first

    def __reduce__(self) -> tuple[object, ...]:
        return _made, (int(self), self.log_uid, self.ledger_id, self._first)


@lru_cache  # of the last ones; others live as long as their positions
def positions_in(log_uid: str, ledger_id: int, first_position: int) -> type[LogPosition]:
    """The class of the positions in one ledger of a log, which begins at `first_position`."""
    known = {"__slots__": (), "log_uid": log_uid, "ledger_id": ledger_id, "_first": first_position}
    return type("LogPosition", (LogPosition,), known)


def _made(position: int, log_uid: str, ledger_id: int, first_position: int) -> LogPosition:
    return positions_in(log_uid, ledger_id, first_position)(position)
