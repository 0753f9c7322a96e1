"""Watches whether the bookie drains, and confirms in the metadata that it refuses all entries.

Invariants: the bookie confirms only once it refuses every entry, those of recoveries too, and it goes on refusing as
long as it drains: a restarted bookie reads the metadata before it serves. A bookie whose cookie is gone refuses all,
too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, assert_never

from bkpy.errors import ClientClosedError, MetadataUnavailableError, UnauthorizedError
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
    """Of one bookie. `follow` makes it follow its tenure, and returns when the registration shows that."""

    def __init__(
        self,
        settings: BookieSettings,
        store: MetadataStore,
        root: str,
        runtime: Runtime,
        follow: Callable[[Tenure], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._store = store
        self._root = root
        self._drains = Drains(store, root, runtime, settings)
        self._follow_tenure = follow
        self._known: Tenure | None = None
        self._reported = ""  # the last error in reading the drain node or the cookie

    async def run(self) -> None:
        """Follow operators' decisions, until cancelled or until the store is closed."""
        watch = self._store.watch(paths.draining(self._root, self._settings.bookie_id))
        try:
            with contextlib.suppress(ClientClosedError):
                async for _ in watch:
                    await self._follow()
        finally:
            watch.close()

    async def _follow(self) -> None:
        """Read the drain node and follow it, however long the metadata store is unavailable, or refuses that."""
        while True:
            try:
                if await self._look():
                    return
            except UnauthorizedError as error:  # of the cookie: rights may come back, and entries are here meanwhile
                self._report(
                    str(error),
                    f"failed to read the cookie of bookie {self._settings.bookie_id}, going on as before, retrying",
                )
            except MetadataUnavailableError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(self._settings.metadata_retry_pause_s)

    async def _look(self) -> bool:
        """Whether nothing is left to do until the node changes."""
        bookie_id = self._settings.bookie_id
        drain = await self._drains.read(bookie_id)
        known = drain is not None or await read_cookie(self._store, self._root, bookie_id) is not None
        now = tenure(draining=drain is not None, known=known)
        self._log_change(now)
        await self._follow_tenure(now)
        if drain is not None and drain.unreadable:
            self._report(
                drain.unreadable,
                f"bookie {bookie_id} is draining, but failed to read or confirm its drain node, so it can't be "
                f"decommissioned. Cancel the drain (`bkpy bookie drain {bookie_id} --cancel`) and restart it, or give "
                "this bookie the rights; retrying",
            )
            return False
        self._reported = ""
        return drain is None or drain.refuses or await self._confirm(drain)

    def _report(self, error: str, what: str) -> None:
        if error != self._reported:
            self._reported = error
            log.error("%s: %s", what, error)

    async def _confirm(self, drain: Drain) -> bool:
        outcome = await self._drains.say_refusing(drain)
        match outcome:
            case Done():
                log.warning("draining: bookie %s refuses every entry from now on", drain.bookie_id)
                return True
            case Missing() | Changed() | Superseded():
                return False  # an operator has cancelled or restarted it
            case NotDone() | Unknown():
                raise to_error(outcome, bookie=drain.bookie_id)
            case _:
                assert_never(outcome)

    def _log_change(self, now: Tenure) -> None:
        bookie_id = self._settings.bookie_id
        if now is Tenure.GONE and self._known is not now:
            log.warning(
                "bookie %s is decommissioned: no ledger names it, and its cookie is gone: stop it for good", bookie_id
            )
        elif now is Tenure.TAKES and self._known is Tenure.LEAVES:
            log.warning("draining of bookie %s was cancelled", bookie_id)
        self._known = now
