"""Takes a bookie out of its cluster for good, once nothing needs it: see `protocol/draining.py` for what that means.

    refuses all entries --> locks held by then are given back --> whole scan: none names it --> cookie and draining go
                                                    ledgers IN_RECOVERY are closed, and looked at again

Invariants: the steps come in this order; the cookie goes together with the draining, if both are still what they were
when they were read; a scan counts only if it was made in one session with the metadata store.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    ConfigError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLedgerError,
)
from bkpy.metadata import paths
from bkpy.metadata.cookies import read_cookie
from bkpy.metadata.draining import Drains
from bkpy.metadata.outcome import Changed, Done, Gone, Missing, NotDone, Overtaken, Unknown, told
from bkpy.metadata.resolve import children_if_there, read_certainly
from bkpy.protocol.draining import OBJECTIONS, Candidate, Need, Objection, Scan, need_of
from bkpy.recovery.all_ledgers import all_ledgers

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.draining import Drain
    from bkpy.recovery.upkeep import Upkeep

log = logging.getLogger("bkpy.recovery")


class Looked(NamedTuple):
    """At all ledgers: how many there are, and which of them may need the bookie."""

    ledgers: int
    named: tuple[int, ...]
    unsettled: tuple[int, ...]
    unreadable: tuple[int, ...]

    @property
    def scan(self) -> Scan:
        return Scan(len(self.named), len(self.unsettled), len(self.unreadable))


class Decommission:
    """Of one bookie. `lost`: it will never come back, and nobody waits for its word."""

    def __init__(self, upkeep: Upkeep, bookie_id: str, settings: RecoverySettings, *, lost: bool) -> None:
        self._upkeep = upkeep
        self._bookie_id = bookie_id
        self._settings = settings
        self._lost = lost
        self._began = False  # its draining
        cluster = upkeep.cluster
        self._store, self._root, self._runtime = cluster.store, cluster.root, cluster.store.runtime
        self._drains = Drains(self._store, self._root, self._runtime, settings)

    async def run(
        self, agree: Callable[[Looked], None], looked_at: Callable[[int], None] = lambda count: None
    ) -> Looked:
        """What was found; with `scan.clear` the bookie is decommissioned, else nothing was changed.

        `agree` raises to change nothing. Raises `ConfigError` for a bookie that isn't ready to go, and
        `MetadataConflictError` when something has happened to it meanwhile.
        """
        drain = await self._ready()
        try:
            await self._wait_for_movers()
            looked = await self._look(looked_at)
            if looked.scan.clear:
                agree(looked)
                await self._retire(drain)
                self._began = False
            return looked
        finally:
            if self._began:
                await self._take_back(drain)

    async def _ready(self) -> Drain:
        """Its draining, in which it takes no entries any more."""
        await self._object()
        if self._lost:  # should it come back all the same, it finds that it is to leave
            outcome = await self._drains.begin(self._bookie_id)
            if isinstance(outcome, NotDone | Unknown):
                raise told(outcome, bookie=self._bookie_id)
            self._began = isinstance(outcome, Done)
        drain = await self._drains.read(self._bookie_id)
        if drain is None:
            raise self._changed()
        return drain

    async def _take_back(self, drain: Drain) -> None:
        """End the draining that was begun here: should the bookie come back, it is what it was."""
        outcome = await self._drains.cancel(drain)
        if isinstance(outcome, NotDone | Unknown):
            log.warning(
                "bookie %s may be draining now (`bkpy bookie drain --cancel` ends that): %s",
                self._bookie_id,
                outcome.error,
            )

    async def _object(self) -> None:
        drain = await self._drains.read(self._bookie_id)
        cookie = await read_cookie(self._store, self._root, self._bookie_id)
        candidate = Candidate(
            known=cookie is not None,
            draining=drain is not None,
            refuses=drain is not None and drain.refuses,
            registered=await self._registered(),
            lost=self._lost,
        )
        objection = OBJECTIONS[candidate]
        if objection is Objection.UNKNOWN:
            raise BookieUnavailableError(objection.value, bookie=self._bookie_id, retriable=False)
        if objection is not None:
            raise ConfigError(objection.value, bookie=self._bookie_id)

    async def _registered(self) -> bool:
        places = [paths.available(self._root, self._bookie_id, read_only=read_only) for read_only in (False, True)]
        return any([await read_certainly(self._store, place) is not None for place in places])

    async def _wait_for_movers(self) -> None:
        """Until every lock that is held now was given back: from then on, who may have chosen the bookie can't swap."""
        held = await self._held()
        deadline = self._runtime.clock.monotonic() + self._settings.decommission_patience_s
        while held:
            if self._runtime.clock.monotonic() >= deadline:
                raise MetadataConflictError(
                    f"somebody has been at work on {len(held)} ledgers for too long, and may copy them to this bookie "
                    "(see `bkpy autorecovery status`): try again later",
                    bookie=self._bookie_id,
                )
            await asyncio.sleep(self._settings.drain_look_interval_s)
            held &= await self._held()

    async def _held(self) -> set[str]:
        """The nodes of the locks that are held, whose names no others ever have."""
        folder = f"{self._root}/{paths.LOCKS}"
        await self._store.sync(self._root)
        return {name for name in await children_if_there(self._store, folder) if "-" in name}

    async def _look(self, looked_at: Callable[[int], None]) -> Looked:
        before = self._store.session_id
        count = 0
        needs: dict[Need, list[int]] = {need: [] for need in Need}
        unreadable: list[int] = []
        async for some in all_ledgers(self._upkeep.cluster.catalog, reads_at_once=self._settings.audit_reads_at_once):
            for ledger_id, metadata in some:
                if metadata is None:
                    unreadable.append(ledger_id)
                else:
                    needs[need_of(metadata, self._bookie_id)].append(ledger_id)
            count += len(some)
            looked_at(count)
        unsettled: list[int] = []
        for ledger_id in needs[Need.UNSETTLED]:
            need = await self._settled(ledger_id)
            if need is Need.NAMED:
                needs[Need.NAMED].append(ledger_id)
            elif need is Need.UNSETTLED:
                unsettled.append(ledger_id)
        if self._store.session_id != before:  # the server of another session may have been an older one
            raise MetadataUnavailableError("the session with the metadata store has ended during the scan")
        return Looked(count, tuple(sorted(needs[Need.NAMED])), tuple(unsettled), tuple(unreadable))

    async def _settled(self, ledger_id: int) -> Need:
        """What the ledger needs when it is closed."""
        try:
            return need_of(await self._upkeep.recover(ledger_id), self._bookie_id)
        except NoSuchLedgerError:
            return Need.NONE
        except BookKeeperError:
            return Need.UNSETTLED

    async def _retire(self, drain: Drain) -> None:
        await self._object()
        cookie = await read_cookie(self._store, self._root, self._bookie_id)
        if cookie is None:
            raise self._changed()
        outcome = await self._drains.retire(drain, cookie[1])
        match outcome:
            case Gone():
                return
            case Missing() | Changed() | Overtaken():
                raise self._changed()
            case NotDone() | Unknown():
                raise told(outcome, bookie=self._bookie_id)

    def _changed(self) -> MetadataConflictError:
        return MetadataConflictError(
            "it was started, or its draining was cancelled or begun, at the same time: try again",
            bookie=self._bookie_id,
        )
