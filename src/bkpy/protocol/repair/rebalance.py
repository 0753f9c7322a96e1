"""Which copies of closed ledgers are moved to bookies that have less than their share, as new ones do.

Every bookie's share is the same part of all bytes. One that has more gives, one that takes entries and has less is
given, ledger by ledger: all that a bookie has of a closed ledger goes to one other bookie. One that has less and takes
no entries can't be given its share: it keeps what it has, and the others share the rest.

Invariants: nobody gives or is given more than separates it from its share, so every move is needed, nothing is moved
back, and it ends; an ensemble never names a bookie twice; no bookie comes nearer to others of its rack, in an ensemble,
than the one whose place it takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.repair.holdings import holdings

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence

    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata


class Move(NamedTuple):
    """All copies that `source` has of a ledger go to `target`. `size` is in bytes of payload, on an average."""

    ledger_id: int
    source: str
    target: str
    size: int


def shares(metadata: LedgerMetadata) -> dict[str, int]:
    """By bookie, how many bytes of payload it has of the ledger, were all entries of one size; of no open ledger."""
    found: dict[str, int] = {}
    if metadata.state is not LedgerState.CLOSED or metadata.last_entry < 0:
        return found
    for held in holdings(metadata):
        for share in held.shares:
            size = (share.entries or 0) * metadata.length // (metadata.last_entry + 1)
            found[share.bookie_id] = found.get(share.bookie_id, 0) + size
    return found


class Balance:
    """What each bookie is still to give or to be given. `loads`, by bookie that is here and is to stay, in bytes."""

    def __init__(self, loads: Mapping[str, int], writable: Collection[str], racks: Mapping[str, Hashable]) -> None:
        self._racks = racks
        self.share = _share(loads, writable)
        self.surplus = {name: load - self.share for name, load in loads.items() if load > self.share}
        # A bookie without a load began to drain during the scan.
        self.room = {n: self.share - loads[n] for n in sorted(writable) if n in loads and loads[n] < self.share}

    @property
    def even(self) -> bool:
        """Whether nobody has anything more to give, or to be given."""
        return not any(self.surplus.values()) or not any(self.room.values())

    def moves(self, metadata: LedgerMetadata) -> Iterator[Move]:
        """The moves of this ledger, in their order. They count as done."""
        while (move := self._next(metadata)) is not None:
            self.surplus[move.source] -= move.size
            self.room[move.target] -= move.size
            metadata = moved(metadata, move)
            yield move

    def _next(self, metadata: LedgerMetadata) -> Move | None:
        sizes = shares(metadata)
        givers = sorted(
            (name for name, size in sizes.items() if 0 < size <= self.surplus.get(name, 0)),
            key=lambda name: (-self.surplus[name], name),
        )
        for source in givers:
            for target in sorted(self.room, key=lambda name: (-self.room[name], name)):
                if sizes[source] <= self.room[target] and self._fits(metadata, source, target):
                    return Move(metadata.ledger_id, source, target, sizes[source])
        return None

    def _fits(self, metadata: LedgerMetadata, source: str, target: str) -> bool:
        return all(
            target not in fragment.bookies
            and self._crowding(fragment.bookies, place, target) <= self._crowding(fragment.bookies, place, source)
            for fragment in metadata.fragments
            for place, name in enumerate(fragment.bookies)
            if name == source
        )

    def _crowding(self, bookies: Sequence[str], place: int, name: str) -> tuple[int, int]:
        """How near others of its rack are around the circle, and how many they are: the less the better."""
        size = len(bookies)
        rack = self._racks.get(name)
        near = [
            min(abs(place - other), size - abs(place - other))
            for other, neighbour in enumerate(bookies)
            if other != place and neighbour in self._racks and self._racks[neighbour] == rack
        ]
        return -min(near, default=size), len(near)


def _share(loads: Mapping[str, int], writable: Collection[str]) -> int:
    """The mean of the bookies that take entries, or have more than the mean to give."""
    sharing = dict(loads)
    while sharing:
        share = sum(sharing.values()) // len(sharing)
        fewer = {name: load for name, load in sharing.items() if load >= share or name in writable}
        if len(fewer) == len(sharing):
            return share
        sharing = fewer  # without these the mean is higher, and more may be below it
    return 0


def moved(metadata: LedgerMetadata, move: Move) -> LedgerMetadata:
    """The ledger after the move."""
    for number, fragment in enumerate(metadata.fragments):
        if move.source in fragment.bookies and not metadata.is_hole(number):
            metadata = metadata.replace_bookie(number, fragment.bookies.index(move.source), move.target)
    return metadata
