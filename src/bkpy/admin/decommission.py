"""Removes a bookie from its cluster for good, once no ledger needs it (`protocol/repair/draining.py`).

    bookie refuses entries --> locks held then are released --> scan: no ledger names it --> delete cookie, drain node
                                                   ledgers IN_RECOVERY are closed, and read again

`bkpy bookie format` frees the id of a stopped bookie by the same scan (`metadata/bookies/naming.py`).

Invariants: the steps come in this order; one transaction deletes the cookie and the drain node, and only if neither has
changed since it was read; a scan counts only within one session with the metadata store; the cluster remembers the id
before it deletes the cookie; a bookie that answers, or refuses this client, is not lost.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from bkpy.client.iteration import raised_where_awaited
from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    ConfigError,
    MetadataConflictError,
    TlsError,
    UnauthorizedError,
)
from bkpy.metadata import paths
from bkpy.metadata.audit_trail import ActKind, entry_of
from bkpy.metadata.bookies.cookies import instance_of, read_cookie
from bkpy.metadata.bookies.draining import Drain, Drains
from bkpy.metadata.bookies.naming import NamingScan, agreed
from bkpy.metadata.bookies.retired import RetiredBy, retire
from bkpy.metadata.store.outcome import Changed, Done, Gone, Missing, NotDone, Superseded, Unknown, to_error
from bkpy.metadata.store.resolve import read_certainly
from bkpy.protocol.repair.draining import OBJECTIONS, Candidate, DecommissionRefusal
from bkpy.protocol.wire.messages import Op, pack

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.audit_trail import AuditTrail
    from bkpy.metadata.bookies.naming import ReferencingLedgers
    from bkpy.replication.context import ReplicationContext

_ANY_LEDGER = 0  # each answer says that the bookie runs, also that it knows no such ledger

log = logging.getLogger("bkpy.recovery")


async def answers(context: ReplicationContext, bookie_id: str) -> bool:
    """Whether the bookie answers at its last address, whether it is registered or not.

    Raises `TlsError` or `UnauthorizedError` if this client is refused there: the bookie may run, and serve others.
    """
    timeout_s = 2 * context.parts.settings.connect_timeout_s  # to connect, and to answer
    try:
        await context.parts.pool.channel(bookie_id).call(
            Op.READ_LAC, pack([0, _ANY_LEDGER]), timeout_s=timeout_s, again=True
        )
    except (TlsError, UnauthorizedError):
        raise
    except BookKeeperError:
        return False
    return True


class Decommission:
    """The removal of one bookie. `lost`: the bookie will never come back, so its own confirmation isn't needed."""

    def __init__(
        self,
        context: ReplicationContext,
        bookie_id: str,
        settings: RecoverySettings,
        *,
        lost: bool,
        trail: AuditTrail | None = None,
    ) -> None:
        self._context = context
        self._bookie_id = bookie_id
        self._settings = settings
        self._lost = lost
        self._trail = trail
        self._own: Drain | None = None  # the draining that this object has begun, or may have
        cluster = context.cluster
        self._store, self._root, self._runtime = cluster.store, cluster.root, cluster.store.runtime
        self._drains = Drains(self._store, self._root, self._runtime, settings)
        self._scan = NamingScan(cluster, context.recover, bookie_id, settings)

    async def run(
        self,
        agree: Callable[[ReferencingLedgers], Awaitable[None] | None],
        looked_at: Callable[[int], None] = lambda count: None,
    ) -> ReferencingLedgers:
        """The ledgers that may need the bookie. It is decommissioned if `scan.clear`, else nothing has changed.

        `agree` raises to prevent the removal. Raises `ConfigError` for a bookie that isn't drained, and
        `MetadataConflictError` if it was started, or its draining changed, meanwhile.
        """
        try:
            drain = await self._ready()
            await self._scan.wait_for_movers()
            looked = await self._scan.look(looked_at)
            if looked.scan.clear:
                await agreed(agree(looked))
                await self._retire(drain)
                self._own = None
            return looked
        finally:
            if self._own is not None:
                await self._take_back(self._own)

    async def _ready(self) -> Drain:
        """The bookie's drain node. The bookie refuses entries."""
        await self._object()
        if self._lost:  # if the bookie comes back all the same, it refuses entries
            self._own = Drain(self._bookie_id, self._drains.new_token())
            outcome = await self._drains.begin(self._bookie_id, token=self._own.token)
            if isinstance(outcome, NotDone | Unknown):
                raise to_error(outcome, bookie=self._bookie_id)
            if not isinstance(outcome, Done):
                self._own = None
        drain = await self._drains.read(self._bookie_id)
        if drain is None:
            raise self._changed()
        return drain

    async def _take_back(self, drain: Drain) -> None:
        """Cancel the draining that this object began, so that a bookie that comes back serves as before.

        To its end, even if the caller is cancelled meanwhile.
        """
        name = f"end of the draining of {self._bookie_id}"
        cancelling = self._runtime.spawn(self._drains.cancel(drain), name=name, on_death=raised_where_awaited)
        try:
            outcome = await asyncio.shield(cancelling)
        finally:
            await asyncio.wait([cancelling])
        if isinstance(outcome, NotDone | Unknown):
            log.warning(
                "failed to cancel the draining of bookie %s (`bkpy bookie drain --cancel` does that): %s",
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
        refusal = OBJECTIONS[candidate]
        if self._lost and refusal is None and await answers(self._context, self._bookie_id):
            refusal = DecommissionRefusal.ANSWERS
        if refusal is DecommissionRefusal.UNKNOWN:
            raise BookieUnavailableError(refusal.value, bookie=self._bookie_id, retriable=False)
        if refusal is not None:
            raise ConfigError(refusal.value, bookie=self._bookie_id)

    async def _registered(self) -> bool:
        places = [paths.available(self._root, self._bookie_id, read_only=read_only) for read_only in (False, True)]
        return any([await read_certainly(self._store, place) is not None for place in places])

    async def _retire(self, drain: Drain) -> None:
        await self._object()
        cookie = await read_cookie(self._store, self._root, self._bookie_id)
        if cookie is None:
            raise self._changed()
        await retire(
            self._store,
            self._root,
            self._bookie_id,
            RetiredBy.DECOMMISSION,
            self._runtime.clock,
            instance=instance_of(cookie[0]),
            attempts_max=self._settings.metadata_write_attempts_max,
        )
        audit = await entry_of(self._trail, ActKind.DECOMMISSION, self._bookie_id, "lost" if self._lost else "")
        outcome = await self._drains.retire(drain, cookie[1], *audit)
        match outcome:
            case Gone():
                return
            case Missing() | Changed() | Superseded():
                raise self._changed()
            case NotDone() | Unknown():
                raise to_error(outcome, bookie=self._bookie_id)

    def _changed(self) -> MetadataConflictError:
        return MetadataConflictError(
            "it was started, or its draining began or was cancelled, at the same time: try again",
            bookie=self._bookie_id,
        )
