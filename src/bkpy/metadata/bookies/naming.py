"""The ledgers that may need a read-only bookie: there must be none before its id is given up.

    locks that are held now are released --> whole scan: none names it
                                                         ledgers IN_RECOVERY are closed, and looked at again

Invariants: the steps come in this order; a scan counts only if it was made in one session with the metadata store.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from bkpy.errors import BookKeeperError, MetadataConflictError, MetadataUnavailableError, NoSuchLedgerError
from bkpy.metadata import paths
from bkpy.metadata.ledgers.all_ledgers import all_ledgers
from bkpy.metadata.store.resolve import children_if_there
from bkpy.protocol.repair.draining import BookieReference, Scan, reference_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.cluster import Cluster
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata


async def agreed(asked: Awaitable[None] | None) -> None:
    """Return when the operator has agreed, who is perhaps asked while the event loop goes on."""
    if inspect.isawaitable(asked):
        await asked


class ReferencingLedgers(NamedTuple):
    """The result of a scan: the number of all ledgers, and the ids of those which may need the bookie."""

    ledgers: int
    named: tuple[int, ...]
    unsettled: tuple[int, ...]
    unreadable: tuple[int, ...]

    @property
    def scan(self) -> Scan:
        return Scan(len(self.named), len(self.unsettled), len(self.unreadable))


class NamingScan:
    """The search for ledgers that may need a read-only bookie. `recover` closes a ledger."""

    def __init__(
        self,
        cluster: Cluster,
        recover: Callable[[int], Coroutine[Any, Any, LedgerMetadata]],
        bookie_id: str,
        settings: RecoverySettings,
    ) -> None:
        self._cluster = cluster
        self._recover = recover
        self._bookie_id = bookie_id
        self._settings = settings
        self._store, self._clock = cluster.store, cluster.store.runtime.clock

    async def wait_for_movers(self) -> None:
        """Return when each lock that is held now is released: then no holder that chose the bookie can swap it in.

        Raises `MetadataConflictError` after `decommission_patience_s`.
        """
        held = await self._held()
        deadline = self._clock.monotonic() + self._settings.decommission_patience_s
        while held:
            if self._clock.monotonic() >= deadline:
                raise MetadataConflictError(
                    f"somebody has been at work on {len(held)} ledgers for too long, and may copy them to this bookie "
                    "(see `bkpy autorecovery status`): try again later",
                    bookie=self._bookie_id,
                )
            await asyncio.sleep(self._settings.drain_look_interval_s)
            held &= await self._held()

    async def _held(self) -> set[str]:
        """The nodes of the held locks, whose names are unique."""
        folder = f"{self._cluster.root}/{paths.LOCKS}"
        await self._store.sync(self._cluster.root)
        return {name for name in await children_if_there(self._store, folder) if "-" in name}

    async def look(self, looked_at: Callable[[int], None], *, settles: bool = True) -> ReferencingLedgers:
        """Read the metadata of all ledgers. With `settles`, close each ledger IN_RECOVERY, and look at it again."""
        before = self._store.session_id
        count = 0
        needs: dict[BookieReference, list[int]] = {need: [] for need in BookieReference}
        unreadable: list[int] = []
        async for some in all_ledgers(self._cluster.catalog, reads_at_once=self._settings.audit_reads_at_once):
            for ledger_id, metadata in some:
                if metadata is None:
                    unreadable.append(ledger_id)
                else:
                    needs[reference_of(metadata, self._bookie_id)].append(ledger_id)
            count += len(some)
            looked_at(count)
        unsettled: list[int] = []
        for ledger_id in needs[BookieReference.UNSETTLED]:
            need = await self._settled(ledger_id) if settles else BookieReference.UNSETTLED
            if need is BookieReference.NAMED:
                needs[BookieReference.NAMED].append(ledger_id)
            elif need is BookieReference.UNSETTLED:
                unsettled.append(ledger_id)
        if self._store.session_id != before:  # the server of another session may have been an older one
            raise MetadataUnavailableError("the session with the metadata store has ended during the scan")
        return ReferencingLedgers(
            count, tuple(sorted(needs[BookieReference.NAMED])), tuple(unsettled), tuple(unreadable)
        )

    async def _settled(self, ledger_id: int) -> BookieReference:
        """The ledger's reference to the bookie when it is closed."""
        try:
            return reference_of(await self._recover(ledger_id), self._bookie_id)
        except NoSuchLedgerError:
            return BookieReference.NONE
        except BookKeeperError:
            return BookieReference.UNSETTLED
