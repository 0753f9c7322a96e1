"""A bookie's eye on whether it is to leave its cluster, and its word, in the metadata, that it takes no more entries.

Invariants: the word is given only when every entry is refused, of recoveries too, and holds for as long as the bookie
drains: a bookie that is started again looks before it serves anybody. One whose cookie is gone takes no entries either.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, assert_never

from bkpy.errors import ClientClosedError, MetadataUnavailableError
from bkpy.metadata import paths
from bkpy.metadata.bookies.cookies import read_cookie
from bkpy.metadata.bookies.draining import Drains
from bkpy.metadata.store.outcome import Changed, Done, Missing, NotDone, Superseded, Unknown, to_error
from bkpy.protocol.repair.draining import Tenure, tenure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bkpy.config.bookie import BookieSettings
    from bkpy.metadata.bookies.draining import Drain
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.runtime.interfaces import Runtime

log = logging.getLogger("bkpy.bookie")


class DrainWatch:
    """Of one bookie. `stand` makes it what its tenure says, and returns when everybody can see that."""

    def __init__(
        self,
        settings: BookieSettings,
        store: MetadataStore,
        root: str,
        runtime: Runtime,
        stand: Callable[[Tenure], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._store = store
        self._root = root
        self._drains = Drains(store, root, runtime, settings)
        self._stand = stand
        self._said: Tenure | None = None
        self._reported = ""  # why the draining can't be read

    async def draining(self) -> bool:
        """Whether the bookie is draining, before it serves. Raises `MetadataUnavailableError`."""
        return await self._drains.read(self._settings.bookie_id) is not None

    async def run(self) -> None:
        """Follow what people decide, until cancelled or the store is closed."""
        watch = self._store.watch(paths.draining(self._root, self._settings.bookie_id))
        try:
            with contextlib.suppress(ClientClosedError):
                async for _ in watch:
                    await self._follow()
        finally:
            watch.close()

    async def _follow(self) -> None:
        """Look, and do what follows, however long the metadata store is away."""
        while True:
            try:
                if await self._look():
                    return
            except MetadataUnavailableError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(self._settings.metadata_retry_pause_s)

    async def _look(self) -> bool:
        """Whether all is done for now."""
        bookie_id = self._settings.bookie_id
        drain = await self._drains.read(bookie_id)
        known = drain is not None or await read_cookie(self._store, self._root, bookie_id) is not None
        now = tenure(draining=drain is not None, known=known)
        self._tell(now)
        await self._stand(now)
        if drain is not None and drain.unreadable:
            self._report(drain)
            return False
        return drain is None or drain.refuses or await self._say(drain)

    def _report(self, drain: Drain) -> None:
        """The bookie refuses entries, but can't write that down: `decommission` waits until it can."""
        if drain.unreadable != self._reported:
            self._reported = drain.unreadable
            log.error(
                "bookie %s drains, but it can't read or confirm that, so it can't be decommissioned: %s. Delete and "
                "begin the draining again (`bkpy bookie drain %s --cancel`), or give this bookie the rights; retrying",
                drain.bookie_id,
                drain.unreadable,
                drain.bookie_id,
            )

    async def _say(self, drain: Drain) -> bool:
        outcome = await self._drains.say_refusing(drain)
        match outcome:
            case Done():
                log.warning("draining: every entry is refused from now on")
                return True
            case Missing() | Changed() | Superseded():
                return False  # it was cancelled, or begun anew
            case NotDone() | Unknown():
                raise to_error(outcome, bookie=drain.bookie_id)
            case _:
                assert_never(outcome)

    def _tell(self, now: Tenure) -> None:
        if now is Tenure.GONE and self._said is not now:
            log.warning("decommissioned: no ledger names this bookie, and its cookie is gone: stop it for good")
        elif now is Tenure.TAKES and self._said is Tenure.LEAVES:
            log.warning("draining was cancelled")
        self._said = now
