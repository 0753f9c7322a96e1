"""The bookies that are slower than the ack quorum when a ledger ends: they get a little time, then a record.

A ledger is closed when its ack quorum has answered. What the other bookies were sent may never arrive, and nobody
looks at a closed ledger again but the sampled checks.

Invariants: a closed ledger is recorded as under-replicated on each bookie that failed to take an acknowledged entry or
has not answered `close_linger_s` later, whatever becomes of the call that closed it; a client that is closed waits for
these records.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from bkpy.errors import BookKeeperError
from bkpy.metadata.store.outcome import NotDone, Unknown, to_error
from bkpy.protocol.ledger.ledger_metadata import UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from bkpy.client.bookies.pool import BookiePool
    from bkpy.config.client import ClientSettings
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.runtime.interfaces import Runtime

log = logging.getLogger("bkpy.client")


class Stragglers:
    """Those of all ledgers that one client closes."""

    def __init__(self, catalog: LedgerCatalog, pool: BookiePool, settings: ClientSettings, runtime: Runtime) -> None:
        self._catalog = catalog
        self._pool = pool
        self._settings = settings
        self._runtime = runtime
        self._tasks: set[asyncio.Task[None]] = set()  # each ends by itself

    def follow(
        self,
        metadata: LedgerMetadata,
        failed: Callable[[], Collection[str]],
        *,
        recorded: Collection[str] = (),
    ) -> asyncio.Task[None]:
        """Record what bookies miss of the closed ledger: nothing of those in `recorded`.

        `failed` returns the bookies that failed to take acknowledged entries. A caller may wait for the task with
        `asyncio.wait`; it does not end with the caller.
        """
        task = self._runtime.spawn(
            self._follow(metadata, failed, set(recorded)), name=f"stragglers of ledger {metadata.ledger_id}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _follow(
        self, metadata: LedgerMetadata, failed: Callable[[], Collection[str]], recorded: set[str]
    ) -> None:
        ledger_id = metadata.ledger_id
        # Of former fragments, too: a writer leaves a bookie without waiting for what it was sent before.
        bookies = {name: None for fragment in metadata.fragments for name in fragment.bookies}
        short = set(failed()) - recorded
        try:
            if short:
                await self.record(ledger_id, short)
            silent = await self._pool.linger(ledger_id, tuple(bookies))
            # Nobody looks when these answer, or fail to.
            short = {*failed(), *silent} - recorded - short
            if short:
                await self.record(ledger_id, short)
        except asyncio.CancelledError:
            log.warning("ledger %d: the client ended before it was known whether bookies miss entries", ledger_id)
            raise

    async def record(self, ledger_id: int, bookie_ids: Collection[str]) -> None:
        """Record that the closed ledger may miss acknowledged entries on these bookies: workers verify and copy.

        Where that fails, the periodic check of replicas may find it, as in a BookKeeper cluster, which has no records.
        """
        if not self._catalog.has_marks:
            return
        records = self._catalog.marks()
        try:
            outcome = await records.add(ledger_id, records.returned_now(bookie_ids))
            if isinstance(outcome, NotDone | Unknown):
                raise to_error(outcome)
            await records.announce()
        except (BookKeeperError, UnsupportedVersionError) as error:
            log.warning("ledger %d: failed to mark it under-replicated on %s: %s", ledger_id, sorted(bookie_ids), error)

    async def close(self) -> None:
        """Wait until all is recorded, for `close_linger_s` and `metadata_close_timeout_s`; end what takes longer."""
        limit_s = self._settings.close_linger_s + self._settings.metadata_close_timeout_s
        try:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=limit_s)
        finally:
            for task in self._tasks:
                task.cancel()
