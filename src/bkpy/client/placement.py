"""Which bookies a new ledger is placed on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from bkpy.errors import NotEnoughBookiesError
from bkpy.metadata.registration import BookieInfo
from bkpy.runtime import Rng


class Placement(Protocol):
    """Chooses ensembles. A class with this method can be given to `connect(placement=...)`."""

    def choose(self, bookies: Mapping[str, BookieInfo], size: int, avoid: Collection[str]) -> tuple[str, ...]:
        """`size` different ids out of `bookies`, those in `avoid` only if there is no other way.

        Raises `NotEnoughBookiesError` if there are too few.
        """

    def replace(
        self,
        bookies: Mapping[str, BookieInfo],
        ensemble: Sequence[str],
        positions: Collection[int],
        avoid: Collection[str],
    ) -> tuple[str, ...]:
        """The ensemble with others at `positions`."""


class RandomPlacement:
    """Any bookies, at random."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng

    def choose(self, bookies: Mapping[str, BookieInfo], size: int, avoid: Collection[str]) -> tuple[str, ...]:
        good = sorted(bookies.keys() - set(avoid))
        rest = sorted(bookies.keys() & set(avoid))
        if len(good) + len(rest) < size:
            raise NotEnoughBookiesError(
                f"the ensemble needs {size} bookies, {len(bookies)} are available: "
                f"{', '.join(sorted(bookies)) or 'none'}"
            )
        if len(good) >= size:
            return tuple(self._rng.sample(good, size))
        return tuple(self._rng.sample([*good, *self._rng.sample(rest, size - len(good))], size))

    def replace(
        self,
        bookies: Mapping[str, BookieInfo],
        ensemble: Sequence[str],
        positions: Collection[int],
        avoid: Collection[str],
    ) -> tuple[str, ...]:
        rest = {k: v for k, v in bookies.items() if k not in ensemble}
        chosen = iter(self.choose(rest, len(positions), avoid))
        return tuple(next(chosen) if i in positions else b for i, b in enumerate(ensemble))
