"""Following a log: through what is there already, then as it grows, from one ledger into the next, for ever.

A watch on the list reports new segments, truncation and deletion; the tail of the last ledger, its entries and its end.
The metadata store is asked only after such a report. What fails meanwhile because the log has changed is tried again on
the log as it is now. The tail waits for a metadata store that can't be reached.

Invariants: positions are yielded in order and without gaps but the ones in the list, each of them proven to be the
log's own by the list and the ends of ledgers; one ledger is followed at a time, and nothing of it is left when the next
one's turn has come.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from bkpy.client.iteration import ResumableIterator, alone
from bkpy.errors import ClientClosedError, MetadataUnavailableError, NoSuchLedgerError
from bkpy.log.entries import LogBlock
from bkpy.log.scan import SegmentScan
from bkpy.log.segments import producer_of
from bkpy.metadata.logs.pages import PageMissingError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from bkpy.client.read.reader import LedgerReader
    from bkpy.config.client import ClientSettings
    from bkpy.log.snapshot import LogSnapshot
    from bkpy.metadata.logs.catalog import LogStore
    from bkpy.protocol.log.log_list import Segment
    from bkpy.protocol.log.log_reading import SegmentRange
    from bkpy.runtime.interfaces import Runtime


class LogTail:
    """One iteration over a log that doesn't end. `blocks` is used once; `close` belongs behind it."""

    def __init__(
        self,
        snapshot: LogSnapshot,
        *,
        logs: LogStore,
        look_up: Callable[[Segment], Awaitable[LedgerReader]],
        open_range: Callable[[SegmentRange], Awaitable[LedgerReader]],
        settings: ClientSettings,
        runtime: Runtime,
    ) -> None:
        self._snapshot = snapshot
        self._logs = logs
        self._look_up = look_up
        self._open_range = open_range
        self._settings = settings
        self._runtime = runtime
        self._position = 0
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self._followed: tuple[Segment, LedgerReader] | None = None
        self._watch = logs.watch(snapshot.name)
        self._watching: asyncio.Task[None] | None = None

    async def blocks(self, first: int) -> AsyncGenerator[LogBlock, None]:
        """Entries from `first` on. Raises `TruncatedError`, `NoSuchLogError`, `ClientClosedError`."""
        self._position = first
        self._watching = self._runtime.spawn(
            self._follow_list(), name=f"watch of log {self._snapshot.name}", on_death=self.fail
        )
        while True:
            self._changed.clear()
            if self._error is not None:
                raise self._error
            self._snapshot.check(self._position)
            self._position = self._snapshot.behind(self._position)
            try:
                async with aclosing(self._some()) as blocks:
                    async for block in blocks:
                        if self._error is not None:
                            raise self._error
                        self._snapshot.check(self._position)
                        self._position = block.positions.stop  # first: the consumer may take its time
                        self._snapshot.advance(self._position)
                        yield block
            except MetadataUnavailableError:
                await asyncio.sleep(self._settings.tail_poll_s)
            except (NoSuchLedgerError, PageMissingError) as e:
                await self._explain(e)

    async def _some(self) -> AsyncGenerator[LogBlock, None]:
        """What there is at the position as the log is now known, as far as that leads; waits if there is nothing."""
        snapshot, position = self._snapshot, self._position
        if position < snapshot.list.sealed_end:
            ranges = snapshot.ranges(self._logs.pages, position, snapshot.list.sealed_end - 1)
            scan = SegmentScan(ranges, self._open_range, self._settings, self._runtime)
            async with aclosing(ResumableIterator(scan, alone)) as blocks:
                async for block in blocks:
                    yield block
            return
        segment = snapshot.segment_for(position)
        if segment is None:
            await self._changed.wait()
            return
        async with aclosing(self._follow(segment)) as blocks:
            async for block in blocks:
                yield block

    async def _follow(self, segment: Segment) -> AsyncGenerator[LogBlock, None]:
        """The segment's entries from the position on, until its ledger is closed, or the list has moved on."""
        reader = await self._look_up(segment)
        self._followed = segment, reader
        try:
            if self._moved_on(segment):  # while it was looked up
                return
            producer = producer_of(reader)
            async with aclosing(reader.tail_blocks(self._position - segment.first_position)) as blocks:
                async for block in blocks:
                    position = segment.first_position + block.first_entry
                    yield LogBlock(block, position, segment.begun_ms, producer)
            self._snapshot.ended(segment, reader.last_add_confirmed + 1)
        except ClientClosedError:
            if not self._moved_on(segment):
                raise
        finally:
            self._followed = None
            await reader.close()

    def _moved_on(self, segment: Segment) -> bool:
        """Whether there is nothing more to be had from the segment."""
        snapshot = self._snapshot
        return self._error is not None or self._position < snapshot.list.first_position or not snapshot.names(segment)

    async def _explain(self, error: NoSuchLedgerError | PageMissingError) -> None:
        """Return if the log no longer has the ledger or the page; else it is lost, and the error is raised."""
        await self._look(fresh=True)
        try:
            if self._error is None and await self._snapshot.misses(error, self._logs.pages):
                raise error
        except MetadataUnavailableError:
            await asyncio.sleep(self._settings.tail_poll_s)  # it will meet the error once more

    def fail(self, error: BaseException) -> None:
        """End: callers that wait for entries get the error."""
        self._error = self._error or error
        self._wake()

    async def close(self) -> None:
        """End everything that was begun, and wait until it has ended."""
        self._watch.close()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    # --- the list ---------------------------------------------------------------------------------------------------

    async def _follow_list(self) -> None:
        async for _ in self._watch:
            await self._look()
            self._wake()
        raise ClientClosedError("the client is closed")

    async def _look(self, *, fresh: bool = False) -> None:
        """Read the list, however long the store is away: otherwise the watch's report would be lost."""
        while self._error is None:
            try:
                await self._snapshot.refresh(self._logs, fresh=fresh)
            except MetadataUnavailableError:
                await asyncio.sleep(self._settings.tail_poll_s)
            else:
                return

    def _wake(self) -> None:
        """Have what is being followed given up if nothing more can come of it."""
        self._changed.set()
        if self._followed is not None and self._moved_on(self._followed[0]):
            segment, reader = self._followed
            self._runtime.spawn(reader.close(), name=f"end of following ledger {segment.ledger_id}")
