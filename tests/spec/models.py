"""Small constants under which TLC sees all behaviours of the models, and the rules that can be switched off in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .tlc import Verdict, check

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LEDGER_INVARIANTS = ("I1", "I3", "I6", "I7", "I8", "I9")
ABSENT_INVARIANTS = ("Marked", "Known", "Ends")
LOG_INVARIANTS = ("Durable", "Dense", "AtMostTwoOpen", "OneWriter")


@dataclass(frozen=True)
class Ledgers:
    """Constants of `LedgerModel`. `off`: the rules that are switched off."""

    bookies: int
    sizes: tuple[int, int, int]
    entries: int
    recoveries: int = 1
    changes: int = 0
    losses: int = 0
    strangers: int = 0
    swaps: int = 0
    off: tuple[str, ...] = ()

    def check(self, directory: Path, *invariants: str, brief: bool = False) -> Verdict:
        ensemble, write, ack = self.sizes
        constants = {
            "Bookies": _numbers(self.bookies),
            "Recoveries": _numbers(self.recoveries),
            "Off": _names(self.off),
            "E": ensemble,
            "W": write,
            "A": ack,
            "Entries": self.entries,
            "Changes": self.changes,
            "Losses": self.losses,
            "Strangers": self.strangers,
            "Swaps": self.swaps,
        }
        return _check("LedgerModel", directory, "ModelInit", constants, invariants or LEDGER_INVARIANTS, brief=brief)


@dataclass(frozen=True)
class Logs:
    """Constants of `Log`. `off`: the rules that are switched off."""

    writers: int
    ledgers: int
    positions: int
    off: tuple[str, ...] = ()

    def check(self, directory: Path, *invariants: str) -> Verdict:
        constants = {
            "Writers": _numbers(self.writers),
            "Ledgers": _numbers(self.ledgers),
            "Positions": self.positions,
            "Off": _names(self.off),
        }
        return _check("Log", directory, "Init", constants, invariants or LOG_INVARIANTS)


@dataclass(frozen=True)
class Creations:
    """Constants of `Absent`. `off`: the parts of rule 51 that are switched off."""

    bookies: int
    ack: int
    entries: int
    moves: int
    off: tuple[str, ...] = ()

    def check(self, directory: Path, *invariants: str) -> Verdict:
        constants = {
            "Bookies": _numbers(self.bookies),
            "Ack": self.ack,
            "Entries": self.entries,
            "Moves": self.moves,
            "Off": _names(self.off),
        }
        return _check("Absent", directory, "Init", constants, invariants or ABSENT_INVARIANTS)


def _check(
    module: str,
    directory: Path,
    init: str,
    constants: Mapping[str, str | int],
    invariants: tuple[str, ...],
    *,
    brief: bool = False,
) -> Verdict:
    values = {name: str(value) for name, value in constants.items()}
    return check(module, directory, init=init, next_="Next", constants=values, invariants=invariants, brief=brief)


def _numbers(count: int) -> str:
    return "{" + ", ".join(map(str, range(1, count + 1))) + "}"


def _names(names: tuple[str, ...]) -> str:
    return "{" + ", ".join(f'"{name}"' for name in names) + "}"
