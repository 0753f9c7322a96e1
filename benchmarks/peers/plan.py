"""How long to measure, and what both systems need between two rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import argparse

    from rows import Row

COLD_S: Final = 5.0  # of the first round after a start: before that, a busy machine may not get a single answer
IDLE_S: Final = 2.0  # between two rounds: for so long the disk has to be idle
# After a round of the peer's: its write cache is flushed by a timer of 10 s (flushInterval), whenever its round ended.
PEER_IDLE_S: Final = 11.0
PEER_COLLECTS_S: Final = (
    15.0  # it deletes the files of deleted ledgers in one of its collections, every 5 s (gcWaitTime)
)


@dataclass(frozen=True)
class Plan:
    """How long to measure: seconds of a round, rounds of each system, warm-ups after a start and for each row.

    `setting_time_max_s` is what each setting of a further peer adds to `time_max_s`. `leaves_out`: rows that would end
    after that are left out and named, instead of an error.
    """

    seconds: float
    rounds: int
    cold_rounds: int
    warm_rounds: int
    time_max_s: float
    setting_time_max_s: float
    ceiling_each_round: bool
    sustained: bool  # whether rows of a minute a round are measured, too
    leaves_out: bool
    rounds_asked: bool = False  # by `--rounds`: then it is the number for a row with its own as well

    def rounds_of(self, row: Row) -> int:
        """How many rounds of that row each system has."""
        return self.rounds if self.rounds_asked or row.rounds is None else row.rounds

    def changed(self, options: argparse.Namespace) -> Plan:
        """The same with the `--seconds` and `--rounds` that were asked for."""
        asked = {name: getattr(options, name) for name in ("seconds", "rounds")}
        given = {name: value for name, value in asked.items() if value is not None}
        return replace(self, **given, rounds_asked="rounds" in given)


FULL: Final = Plan(
    seconds=10.0,
    rounds=7,
    cold_rounds=8,
    warm_rounds=2,
    time_max_s=9000.0,
    setting_time_max_s=1800.0,
    ceiling_each_round=True,
    sustained=True,
    leaves_out=False,
)
QUICK: Final = Plan(
    seconds=2.0,
    rounds=2,
    cold_rounds=4,
    warm_rounds=1,
    time_max_s=590.0,
    setting_time_max_s=240.0,
    ceiling_each_round=False,
    sustained=False,
    leaves_out=True,
)


def fits(left_s: float, taken_s: list[float]) -> bool:
    """Whether another row can be measured in the time that is left: it may take as long as the longest one before."""
    return not taken_s or max(taken_s) <= left_s
