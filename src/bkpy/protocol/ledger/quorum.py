"""Write sets and quorum coverage.

Entry n of a fragment is written to Qw consecutive bookies of its ensemble, starting at index n mod E. There are only E
different write sets, one where E = Qw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def check_sizes(ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
    """`ConfigError` unless E >= Qw >= Qa >= 1."""
    if not ensemble_size >= write_quorum >= ack_quorum >= 1:
        raise ConfigError(
            "quorum sizes must satisfy ensemble_size >= write_quorum >= ack_quorum >= 1, "
            f"got {ensemble_size}, {write_quorum}, {ack_quorum}"
        )


def write_set(entry_id: int, ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """Indexes of the ensemble that hold the entry."""
    first = entry_id % ensemble_size
    return tuple((first + k) % ensemble_size for k in range(write_quorum))


def stripe_bookies(rotation: int, ensemble_size: int, write_quorum: int) -> list[int]:
    """As few indexes as hold every entry between them: one of each write set, different ones for each `rotation`.

    One bookie holds Qw of every E consecutive entries, so every Qw-th one, in a circle, is enough.
    """
    return sorted((rotation + k) % ensemble_size for k in range(0, ensemble_size, write_quorum))


def covered(answered: Collection[int], ensemble_size: int, write_quorum: int, ack_quorum: int) -> bool:
    """Whether every possible ack quorum of every write set holds at least one of the ensemble indexes in `answered`.

    An ack quorum avoids them all exactly if Qa of a write set's members are not among them.
    """
    return all(
        sum(i not in answered for i in write_set(first, ensemble_size, write_quorum)) < ack_quorum
        for first in range(ensemble_size if ensemble_size > write_quorum else 1)
    )


def present_min(write_quorum: int, ack_quorum: int) -> int:
    """How many bookies of each write set are there when a ledger is created, at least.

    Qa of them acknowledge its entries; Qw - Qa + 1 fence it, and can say where it ends, without the absent ones.
    """
    return max(ack_quorum, write_quorum - ack_quorum + 1)


def arranged(
    ensemble: Sequence[str], absent: Collection[str], write_quorum: int, ack_quorum: int
) -> tuple[str, ...] | None:
    """An ensemble of these bookies, each write set of which has enough that are not `absent`; None if there is none.

    As given if that is one; else with the absent ones at other places, and all others in the order that they have.
    """
    size, here = len(ensemble), [name for name in ensemble if name not in absent]
    given = tuple(i for i, name in enumerate(ensemble) if name in absent)
    count = size - len(here)
    even = tuple(k * size // count for k in range(count))  # as far apart as they get
    enough = present_min(write_quorum, ack_quorum)
    for places in (given, even):
        sets = (write_set(first, size, write_quorum) for first in range(size))
        if all(sum(i not in places for i in members) >= enough for members in sets):
            there, away = iter(here), iter([ensemble[i] for i in given])
            return tuple(next(away if i in places else there) for i in range(size))
    return None
