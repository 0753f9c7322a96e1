"""Placement: the bookies of a new ledger's ensemble, and the replacements of failed bookies.

A *domain* is a set of bookies that fail together: a rack, or a region. Invariants: an ensemble never has a bookie
twice; a replacement was never in the ensemble; a bookie to avoid is taken only when there are too few others; the same
bookies and the same random numbers give the same choice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Protocol

from bkpy.errors import NotEnoughBookiesError
from bkpy.metadata.bookies.registration import BookieInfo

if TYPE_CHECKING:
    from bkpy.runtime.interfaces import Rng

Domain = Callable[[BookieInfo], Hashable]


class Placement(Protocol):
    """Chooses ensembles. `connect(placement=...)` takes any object with these methods."""

    def choose(self, bookies: Mapping[str, BookieInfo], size: int, avoid: Collection[str]) -> tuple[str, ...]:
        """`size` different ids of `bookies`; ids in `avoid` only if there are too few others.

        Raises `NotEnoughBookiesError` if there are too few.
        """

    def replace(
        self,
        bookies: Mapping[str, BookieInfo],
        ensemble: Sequence[str],
        positions: Collection[int],
        avoid: Collection[str],
    ) -> tuple[str, ...]:
        """The ensemble with other bookies at `positions` (indexes), none of which was in `ensemble`.

        Takes ids in `avoid` only if there are too few others. Raises `NotEnoughBookiesError` if there are too few.
        """


def region_of(info: BookieInfo) -> Hashable:
    return info.region


def rack_of(info: BookieInfo) -> Hashable:
    return info.region, info.rack  # racks of different regions may have the same name


class SpreadPlacement:
    """Spreads ensembles over `domains`, the wider ones first, and chooses at random among equals.

    Entries go to consecutive bookies of the ensemble, in a circle. So two bookies of one domain are as far apart as
    possible: a write set has two of them only if there are too few domains. If `weighted`, free space decides
    how likely a bookie is: one with twice the space of another is taken twice as often.
    """

    def __init__(self, rng: Rng, domains: Sequence[Domain], *, weighted: bool = True) -> None:
        self._rng = rng
        self._domains = domains
        self._weighted = weighted

    def choose(self, bookies: Mapping[str, BookieInfo], size: int, avoid: Collection[str]) -> tuple[str, ...]:
        candidates = sorted(bookies)
        if len(candidates) < size:
            raise NotEnoughBookiesError(f"the ensemble needs {size} bookies, {_available(candidates)}")
        chosen: list[str] = []
        taken: Counter[Hashable] = Counter()

        def load(bookie_id: str) -> tuple[int, ...]:
            return bookie_id in avoid, *(taken[domain(bookies[bookie_id])] for domain in self._domains)

        while len(chosen) < size:
            bookie_id = self._pick(bookies, candidates, load)
            candidates.remove(bookie_id)
            chosen.append(bookie_id)
            taken.update(domain(bookies[bookie_id]) for domain in self._domains)
        circle = _interleaved(bookies, chosen, self._domains)
        # No bookie's space or rack may decide its place: the first ones get the entries of all short ledgers.
        start = self._rng.randrange(size)
        return (*circle[start:], *circle[:start])

    def replace(
        self,
        bookies: Mapping[str, BookieInfo],
        ensemble: Sequence[str],
        positions: Collection[int],
        avoid: Collection[str],
    ) -> tuple[str, ...]:
        candidates = sorted(bookies.keys() - set(ensemble))
        places = sorted(set(positions))
        if len(candidates) < len(places):
            raise NotEnoughBookiesError(
                f"the ensemble needs {len(places)} bookies in the places of "
                f"{', '.join(ensemble[i] for i in places)}, {_available(candidates)}"
            )
        result = list(ensemble)
        # The rack of a bookie that stays and isn't registered any more is unknown.
        settled = {i: bookies[b] for i, b in enumerate(ensemble) if i not in places and b in bookies}
        for place in places:
            result[place] = self._successor(bookies, candidates, settled, place, len(ensemble), avoid)
            candidates.remove(result[place])
            settled[place] = bookies[result[place]]
        return tuple(result)

    def _successor(
        self,
        bookies: Mapping[str, BookieInfo],
        candidates: Sequence[str],
        settled: Mapping[int, BookieInfo],
        place: int,
        size: int,
        avoid: Collection[str],
    ) -> str:
        """The candidate whose domains are farthest from `place` in an ensemble of `size`, given the settled bookies."""
        distances = [_distances(settled, domain, place, size) for domain in self._domains]

        def load(bookie_id: str) -> tuple[int, ...]:
            found = [
                of_domain.get(domain(bookies[bookie_id]), [])
                for domain, of_domain in zip(self._domains, distances, strict=True)
            ]
            return bookie_id in avoid, *chain(*((-min(near, default=size), len(near)) for near in found))

        return self._pick(bookies, candidates, load)

    def _pick(
        self, bookies: Mapping[str, BookieInfo], candidates: Sequence[str], load: Callable[[str], tuple[int, ...]]
    ) -> str:
        """One of the candidates with the least crowding, at random."""
        ranks = [load(bookie_id) for bookie_id in candidates]
        least = min(ranks)
        equals = [bookie_id for bookie_id, rank in zip(candidates, ranks, strict=True) if rank == least]
        if not self._weighted:
            return equals[self._rng.randrange(len(equals))]
        free = [bookies[bookie_id].free_bytes for bookie_id in equals]
        known = [size for size in free if size > 0]
        mean = sum(known) // len(known) if known else 1
        shares = list(accumulate(size if size > 0 else mean for size in free))
        return equals[bisect_right(shares, self._rng.randrange(shares[-1]))]


def random_placement(rng: Rng) -> SpreadPlacement:
    """Any bookies, each as likely as the others."""
    return SpreadPlacement(rng, (), weighted=False)


def rack_aware_placement(rng: Rng) -> SpreadPlacement:
    """Spread over racks; among equals random, weighted by free space."""
    return SpreadPlacement(rng, (rack_of,))


def region_aware_placement(rng: Rng) -> SpreadPlacement:
    """Spread over regions, and within each over its racks; among equals random, weighted by free space."""
    return SpreadPlacement(rng, (region_of, rack_of))


def _interleaved(
    bookies: Mapping[str, BookieInfo], chosen: Sequence[str], domains: Sequence[Domain]
) -> tuple[str, ...]:
    """The chosen bookies in a circle in which two of one domain are as far apart as possible.

    If a domain has at most m of n bookies, any n // m consecutive ones are of different domains: the bookies are dealt
    into m rounds, domain by domain, the largest first, so no round has a domain twice, and all have it in one order.
    """
    if not domains:
        return tuple(chosen)
    groups: dict[Hashable, list[str]] = {}
    for bookie_id in chosen:
        groups.setdefault(domains[0](bookies[bookie_id]), []).append(bookie_id)
    rows = sorted((_interleaved(bookies, group, domains[1:]) for group in groups.values()), key=len, reverse=True)
    rounds: list[list[str]] = [[] for _ in rows[0]]
    for index, bookie_id in enumerate(chain(*rows)):
        rounds[index % len(rounds)].append(bookie_id)
    return tuple(chain(*rounds))


def _distances(settled: Mapping[int, BookieInfo], domain: Domain, place: int, size: int) -> dict[Hashable, list[int]]:
    """How far from `place`, around the circle, the settled bookies of each domain are."""
    distances: dict[Hashable, list[int]] = {}
    for other, info in settled.items():
        apart = abs(place - other)
        distances.setdefault(domain(info), []).append(min(apart, size - apart))
    return distances


def _available(candidates: Sequence[str]) -> str:
    return f"{len(candidates)} are available: {', '.join(candidates) or 'none'}"
