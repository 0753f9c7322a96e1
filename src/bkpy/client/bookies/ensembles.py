"""Finds bookies for ledgers: the placement policy chooses them, and the client connects to them before it uses them.

A new ledger may have bookies that are known and *absent*, where there are too few others: not registered, or out of
this client's reach.

Invariants: an ensemble has no new bookie that could not be reached, but for absent ones of a new ledger, whose write
sets have `present_min` others each; a bookie that failed lately is chosen only if there is no other, an absent one only
if there are too few others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.errors import (
    BookieUnavailableError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    TlsError,
    UnauthorizedError,
)
from bkpy.protocol.ledger.quorum import arranged, present_min

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bkpy.client.bookies.placement import Placement
    from bkpy.client.bookies.pool import BookiePool
    from bkpy.config.client import ClientSettings
    from bkpy.errors import BookKeeperError
    from bkpy.metadata.bookies.registration import AbsentBookie, BookieDirectory, BookieInfo
    from bkpy.runtime.interfaces import Runtime


_REFUSALS: Final = (TlsError, UnauthorizedError)  # of bookies that are there, and won't have this client


class NewEnsemble(NamedTuple):
    """The bookies of a new ledger, and those of them that are absent."""

    bookies: tuple[str, ...]
    absent: tuple[AbsentBookie, ...] = ()


class Ensembles:
    """Chooses ensembles for one client, and remembers which bookies failed lately."""

    def __init__(
        self,
        directory: BookieDirectory,
        placement: Placement,
        pool: BookiePool,
        settings: ClientSettings,
        runtime: Runtime,
    ) -> None:
        self._directory = directory
        self._placement = placement
        self._pool = pool
        self._settings = settings
        self._runtime = runtime
        self._quarantine: dict[str, float] = {}  # until when, by bookie; bounded by the cluster's bookies

    def failed(self, bookie_id: str) -> None:
        """The bookie failed an append: prefer others for `quarantine_s`."""
        self._quarantine[bookie_id] = self._runtime.clock.monotonic() + self._settings.quarantine_s

    @property
    def quarantined(self) -> frozenset[str]:
        """The bookies that failed lately."""
        now = self._runtime.clock.monotonic()
        self._quarantine = {bookie_id: until for bookie_id, until in self._quarantine.items() if until > now}
        return frozenset(self._quarantine)

    async def new(
        self,
        size: int,
        write_quorum: int,
        ack_quorum: int,
        *,
        allow_absent: bool = False,
        not_known: Collection[str] = (),
    ) -> NewEnsemble:
        """An ensemble for a new ledger. Raises `NotEnoughBookiesError`.

        Where that needs them, and `allow_absent`, some are absent bookies: never one of those `not_known`.
        """
        if len(self._directory.bookies) < size:
            await self._directory.refresh()  # the watch may be a moment behind
        unreachable: dict[str, BookKeeperError] = {}
        shortage: NotEnoughBookiesError | None = None  # of bookies that are there
        absent: dict[str, AbsentBookie] = {}
        while True:
            here, avoid = self._without(unreachable), self.quarantined
            if shortage is not None:
                refusing = {name for name, error in unreachable.items() if isinstance(error, _REFUSALS)}
                known = await self._directory.known({*here, *self._directory.read_only, *refusing, *not_known})
                absent = {one.bookie_id: one for one in known}
                avoid = frozenset(absent)
            away = {name: self._directory.last_seen(name) for name in absent}
            try:
                chosen = self._placement.choose(here | away, size, avoid)
            except NotEnoughBookiesError as e:
                if shortage is None and allow_absent:
                    shortage = e
                    continue
                raise self._explained(shortage or e, unreachable) from None
            failed = await self._unreachable([name for name in chosen if name in here])
            if failed:
                unreachable |= failed
                continue
            ensemble = arranged(chosen, absent, write_quorum, ack_quorum)
            if ensemble is None:
                assert shortage is not None
                needed = present_min(write_quorum, ack_quorum)
                why = f"of each {write_quorum} bookies that get an entry, {needed} have to be there"
                raise self._explained(NotEnoughBookiesError(f"{shortage.message}; {why}"), unreachable)
            return NewEnsemble(ensemble, tuple(absent[name] for name in ensemble if name in absent))

    async def replace(
        self, ensemble: Sequence[str], positions: Collection[int], *, without: Collection[str] = ()
    ) -> tuple[str, ...] | None:
        """The ensemble with other bookies at `positions`, or at as many of them as possible; None if at none.

        Never takes bookies in `without`.
        """
        wanted = list(positions)
        unreachable: set[str] = set(without)
        while wanted:
            try:
                changed = self._placement.replace(self._without(unreachable), ensemble, wanted, self.quarantined)
            except NotEnoughBookiesError:
                wanted.pop()
                continue
            failed = await self._unreachable([changed[i] for i in wanted])
            if not failed:
                return changed
            unreachable |= failed.keys()
        return None

    def _without(self, bookie_ids: Collection[str]) -> dict[str, BookieInfo]:
        return {name: info for name, info in self._directory.bookies.items() if name not in bookie_ids}

    async def _unreachable(self, bookie_ids: Sequence[str]) -> dict[str, BookKeeperError]:
        reached = await asyncio.gather(
            *(self._pool.channel(bookie_id).connect(again=True) for bookie_id in bookie_ids), return_exceptions=True
        )
        failed: dict[str, BookKeeperError] = {}
        for bookie_id, result in zip(bookie_ids, reached, strict=True):
            # One that allows this client nothing says nothing of the others: their files of rights may differ.
            if isinstance(result, BookieUnavailableError | MetadataUnavailableError | UnauthorizedError):
                self.failed(bookie_id)
                failed[bookie_id] = result
            elif result is not None:
                raise result
        return failed

    def _explained(self, error: NotEnoughBookiesError, unreachable: dict[str, BookKeeperError]) -> BookKeeperError:
        """The error with the registered bookies that can't be used; their refusal if that is all that is wrong."""
        message = error.message
        refusals = [failure for failure in unreachable.values() if isinstance(failure, _REFUSALS)]
        if refusals and len(refusals) == len(unreachable):
            return refusals[0]
        if unreachable:
            reasons = {name: f" ({e.message})" if isinstance(e, _REFUSALS) else "" for name, e in unreachable.items()}
            message += f"; registered, but unreachable: {', '.join(n + reasons[n] for n in sorted(reasons))}"
        read_only = sorted(self._directory.read_only.values(), key=lambda info: info.bookie_id)
        if read_only:
            names = (f"{b.bookie_id} ({b.read_only_reason})" if b.read_only_reason else b.bookie_id for b in read_only)
            message += f"; {len(read_only)} are read-only: {', '.join(names)}"
        return NotEnoughBookiesError(message)
