"""Waits for changes of a ledger: a long poll at each bookie of its last fragment, and a watch on its metadata.

The bookies report progress and fences; the metadata, new fragments, the ledger's end and its deletion. Each works
without the other: the tail polls bookies that are away or refuse to wait every `tail_poll_s`, and waits for a metadata
store that is away.

Invariants: at most one request of a tail is in flight at a bookie; a tail asks a bookie again only when its consumer
has seen the last report; `close` leaves nothing behind.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bkpy.errors import BookKeeperError, ClientClosedError, MetadataUnavailableError
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.lac_reply import proven_to_reader
from bkpy.protocol.wire.messages import Op

if TYPE_CHECKING:
    from bkpy.client.bookies.pool import BookiePool
    from bkpy.client.read.snapshot import LedgerSnapshot
    from bkpy.config.client import ClientSettings
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.protocol.wire.records import RecordCodec
    from bkpy.runtime.interfaces import Runtime


class Tail:
    """Keeps `snapshot` up to date between the first `news` and `close`."""

    def __init__(
        self,
        snapshot: LedgerSnapshot,
        *,
        codec: RecordCodec,
        catalog: LedgerCatalog,
        pool: BookiePool,
        settings: ClientSettings,
        runtime: Runtime,
    ) -> None:
        self._snapshot = snapshot
        self._codec = codec
        self._catalog = catalog
        self._pool = pool
        self._settings = settings
        self._runtime = runtime
        self._look_again = asyncio.Event()
        self._round_at = 0.0
        self._error: BaseException | None = None
        self._watch = catalog.watch(snapshot.ledger_id)
        self._watching: asyncio.Task[None] | None = None
        self._polls: dict[str, asyncio.Task[None]] = {}  # by bookie
        self._fenced: set[str] = set()  # bookies that have reported it

    async def news(self, seen: int) -> None:
        """Return once last add confirmed is above `seen`, or the ledger is closed. Raises `NoSuchLedgerError`."""
        if self._watching is None:
            self._watching = self._runtime.spawn(
                self._follow_metadata(), name=f"watch of ledger {self._snapshot.ledger_id}", on_death=self.fail
            )
        now = self._runtime.clock.monotonic
        while self._snapshot.confirmed <= seen and not self._snapshot.closed:
            if self._error is not None:
                raise self._error
            self._look_again.clear()
            # After a pause of the writer, the first change comes without delay.
            if (pause_s := self._round_at + self._settings.tail_round_min_s - now()) > 0:
                await asyncio.sleep(pause_s)
                continue
            self._round_at = now()
            self._poll_all()
            await self._look_again.wait()

    def fail(self, error: BaseException) -> None:
        """End with an error, which `news` raises."""
        self._error = error
        self._look_again.set()

    async def close(self) -> None:
        """End everything that was begun, and wait until it has ended."""
        self._watch.close()
        tasks = [*self._polls.values(), *([self._watching] if self._watching is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- the metadata -----------------------------------------------------------------------------------------------

    async def _follow_metadata(self) -> None:
        async for _ in self._watch:
            await self._refresh()
        raise ClientClosedError("the client is closed", ledger_id=self._snapshot.ledger_id)

    async def _refresh(self) -> None:
        """Read the metadata, however long the store is away: otherwise the watch's notification would be lost."""
        while True:
            try:
                await self._snapshot.refresh(self._catalog)
            except MetadataUnavailableError:
                await asyncio.sleep(self._settings.tail_poll_s)
            else:
                self._look_again.set()
                return

    # --- the bookies ------------------------------------------------------------------------------------------------

    def _poll_all(self) -> None:
        """Have one poll for each bookie of the last fragment, and none for others."""
        bookies = self._snapshot.metadata.fragments[-1].bookies
        for bookie_id, task in list(self._polls.items()):
            if bookie_id not in bookies:
                task.cancel()
            if task.done():
                del self._polls[bookie_id]
        for bookie_id in bookies:
            if bookie_id not in self._polls:
                self._polls[bookie_id] = self._runtime.spawn(
                    self._poll(bookie_id),
                    name=f"long poll of ledger {self._snapshot.ledger_id} at {bookie_id}",
                    on_death=self.fail,
                )

    async def _poll(self, bookie_id: str) -> None:
        """One long poll. A bookie that is away or refuses to wait is polled again after `tail_poll_s`."""
        try:
            try:
                await self._ask(bookie_id, wait=True)
            except ClientClosedError:
                raise
            except BookKeeperError:
                await asyncio.sleep(self._settings.tail_poll_s)
                await self._ask(bookie_id, wait=False)
        except ClientClosedError:
            raise
        except BookKeeperError:
            return  # other bookies report as well, and this one is polled again
        finally:
            self._look_again.set()

    async def _ask(self, bookie_id: str, *, wait: bool) -> None:
        snapshot, settings = self._snapshot, self._settings
        if wait:
            op, timeout_s = Op.WAIT_LAC, settings.long_poll_s + settings.read_timeout_s
            wait_ms = int(settings.long_poll_s * 1000)
            head = m.pack([snapshot.ledger_id, snapshot.confirmed, bookie_id in self._fenced, wait_ms])
        else:
            op, timeout_s = Op.READ_LAC, settings.read_timeout_s
            head = m.pack([0, snapshot.ledger_id])
        reply = await self._pool.channel(bookie_id).call(op, head, timeout_s=timeout_s, long_poll=wait)
        confirmed = proven_to_reader(self._codec, reply, snapshot.ledger_id, bookie_id)
        snapshot.advance(confirmed)
        if confirmed.fenced and bookie_id not in self._fenced:
            self._fenced.add(bookie_id)
            self._watch.wake()  # a recovery is about to close the ledger
