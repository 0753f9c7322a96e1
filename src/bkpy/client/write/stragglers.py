"""The bookies that are slower than the ack quorum when a ledger ends: they get a little time, then a record.

A ledger is closed when its ack quorum has answered. What the other bookies were sent may never arrive, and nobody
looks at a closed ledger again but the sampled checks.

Invariants: a closed ledger is recorded as under-replicated on each bookie that failed to take an acknowledged entry or
has not answered `close_linger_s` later, whatever becomes of the call that closed it, also of one that never learns
whether it did; a client that is closed waits for these records.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bkpy.errors import (
    BookKeeperError,
    LedgerClosedError,
    LedgerFencedError,
    NoSuchLedgerError,
    UnsupportedVersionError,
)
from bkpy.metadata.store.outcome import NotDone, Unknown, to_error
from bkpy.protocol.ledger.ledger_metadata import LedgerState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterator

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
        self._under_way: set[asyncio.Future[None]] = set()  # each ends by itself

    @contextmanager
    def closing(
        self, ledger_id: int, failed: Callable[[], Collection[str]], *, recorded: Collection[str] = ()
    ) -> Iterator[None]:
        """For the write that closes a ledger: if nobody learns whether it did, the ledger is followed if it is closed.

        A client that is closed meanwhile waits for the write.
        """
        write = asyncio.get_running_loop().create_future()
        self._under_way.add(write)
        try:
            yield
        except (LedgerFencedError, LedgerClosedError, NoSuchLedgerError, GeneratorExit):
            raise  # it has not closed the ledger; or the loop has ended
        except BaseException:
            self._start(self._follow_if_closed(ledger_id, failed, set(recorded)), ledger_id)
            raise
        finally:
            self._under_way.discard(write)
            write.cancel()

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
        return self._start(self._follow(metadata, failed, set(recorded)), metadata.ledger_id)

    def _start(self, work: Coroutine[None, None, None], ledger_id: int) -> asyncio.Task[None]:
        task = self._runtime.spawn(work, name=f"stragglers of ledger {ledger_id}")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _follow_if_closed(
        self, ledger_id: int, failed: Callable[[], Collection[str]], recorded: set[str]
    ) -> None:
        try:
            metadata, _ = await self._catalog.read(ledger_id, fresh=True)  # behind the write, if that was sent
        except (BookKeeperError, UnsupportedVersionError) as error:
            log.warning("ledger %d: if it is closed, nothing is recorded of slow bookies: %s", ledger_id, error)
            return
        if metadata.state is LedgerState.CLOSED:
            await self._follow(metadata, failed, recorded)

    async def _follow(
        self, metadata: LedgerMetadata, failed: Callable[[], Collection[str]], recorded: set[str]
    ) -> None:
        ledger_id = metadata.ledger_id
        # Of former fragments, too: a writer leaves a bookie without waiting for what it was sent before.
        bookies = {name: None for fragment in metadata.fragments for name in fragment.bookies}
        short = set(failed()) - recorded
        try:
            if short:
                await self._record(ledger_id, short)
            silent = await self._pool.linger(ledger_id, tuple(bookies))
            # Nobody looks when these answer, or fail to.
            short = {*failed(), *silent} - recorded - short
            if short:
                await self._record(ledger_id, short)
        except asyncio.CancelledError:
            log.warning("ledger %d: the client ended before it was known whether bookies miss entries", ledger_id)
            raise

    async def record(self, ledger_id: int, bookie_ids: Collection[str]) -> None:
        """Record that the closed ledger may miss acknowledged entries on these bookies, also if the caller goes."""
        await asyncio.wait([self._start(self._record(ledger_id, bookie_ids), ledger_id)])

    async def _record(self, ledger_id: int, bookie_ids: Collection[str]) -> None:
        """Record that the closed ledger may miss acknowledged entries on these bookies: workers verify and copy.

        Where that fails, the periodic check of replicas may find it, as in a BookKeeper cluster, which has no records.
        """
        if not self._catalog.has_marks:
            return
        records = self._catalog.marks()
        try:
            closed_ms = await self._catalog.written_ms(ledger_id)
            outcome = await records.add(ledger_id, records.returned(bookie_ids, closed_ms))
            if isinstance(outcome, NotDone | Unknown):
                raise to_error(outcome)
            await records.announce()
        except NoSuchLedgerError:
            return  # deleted meanwhile: nobody misses anything
        except (BookKeeperError, UnsupportedVersionError) as error:
            log.warning("ledger %d: failed to mark it under-replicated on %s: %s", ledger_id, sorted(bookie_ids), error)

    async def close(self) -> None:
        """Wait until all is recorded, for `close_linger_s` and `metadata_close_timeout_s`; end what takes longer."""
        limit_s = self._settings.close_linger_s + self._settings.metadata_close_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                while self._under_way:  # a write that ends may be followed
                    await asyncio.wait(self._under_way)
        except TimeoutError:
            pass
        finally:
            for one in list(self._under_way):
                one.cancel()
