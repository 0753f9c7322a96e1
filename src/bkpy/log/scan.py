"""Reading ranges of several segments one after the other, the next ones begun while the one before is being used.

A log that rolls often has many small ledgers: each costs a look at its metadata and a read, which would add up.

Invariants: blocks come in the order of their positions, without gaps; of segments that aren't used yet at most
`prefetch_depth` are begun, and only while what is begun comes to less than one segment would have in flight; a page of
the log's list is read when all segments before it are used up; nothing is left behind, however the scan ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from bkpy.client.iteration import cancel_dropped, ended, raised_where_awaited, result_of
from bkpy.log.entries import LogBlock
from bkpy.log.segments import producer_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from bkpy.client.read.block import Block
    from bkpy.client.read.reader import LedgerReader
    from bkpy.config.client import ClientSettings
    from bkpy.metadata.logs.pages import RangeWalk
    from bkpy.protocol.log.log_reading import SegmentRange
    from bkpy.runtime.interfaces import Runtime


class SegmentScan:
    """A `BatchSource`: the blocks of these ranges, of ledgers that `open_range` opens.

    Raises what that and `read_blocks` do.
    """

    def __init__(
        self,
        ranges: RangeWalk,
        open_range: Callable[[SegmentRange], Awaitable[LedgerReader]],
        settings: ClientSettings,
        runtime: Runtime,
    ) -> None:
        self._ranges = ranges
        self._open_range = open_range
        self._settings = settings
        self._runtime = runtime
        self._begun: deque[_Begun] = deque()
        self._closed = False

    async def following(self) -> LogBlock:
        if not self._begun:
            await self._ranges.load()
        self._begin_more()
        while self._begun:
            block = await self._begun[0].next_block()
            if self._closed:
                break
            if block is None:
                await self._begun.popleft().close()
                if not self._begun:
                    await self._ranges.load()
            self._begin_more()
            if block is not None:
                return block
        raise StopAsyncIteration

    def _begin_more(self) -> None:
        """Begin the next ranges in time."""
        begun, settings = self._begun, self._settings
        in_flight = sum(one.bytes_left for one in begun)
        while (
            not self._closed
            and len(begun) <= settings.prefetch_depth
            and (not begun or in_flight < settings.read_bytes * settings.prefetch_depth)
        ):
            if (following := self._ranges.take()) is None:
                return
            begun.append(_Begun(following, self._open_range, self._runtime))
            in_flight += begun[-1].bytes_left

    async def close(self) -> None:
        self._closed = True
        for one in tuple(self._begun):
            await one.close()
        self._begun.clear()


class _Begun:
    """A range of which the first block is being fetched."""

    def __init__(
        self, wanted: SegmentRange, open_range: Callable[[SegmentRange], Awaitable[LedgerReader]], runtime: Runtime
    ) -> None:
        self.bytes_left = wanted.payload_bytes
        self._wanted = wanted
        self._first: asyncio.Task[tuple[Block, str | None, AsyncGenerator[Block, None]]] = runtime.spawn(
            _fetch_first(wanted, open_range),
            name=f"read of ledger {wanted.ledger_id}, begun ahead",
            on_death=raised_where_awaited,
        )
        self._producer: str | None = None
        self._others: AsyncGenerator[Block, None] | None = None
        self._closed = False

    async def next_block(self) -> LogBlock | None:
        """The next block, None behind the last one or if it was closed. May be cancelled and called again."""
        if self._others is None:
            await ended(self._first)
            if self._closed:
                return None
            block, self._producer, self._others = result_of(self._first)
            return self._placed(block)
        try:
            return self._placed(await anext(self._others))
        except StopAsyncIteration:
            return None

    def _placed(self, block: Block) -> LogBlock:
        wanted = self._wanted
        done = block.last_entry + 1 - wanted.first_entry
        self.bytes_left = wanted.payload_bytes * (wanted.entries - done) // wanted.entries
        position = wanted.first_position + block.first_entry - wanted.first_entry
        return LogBlock(block, position, wanted.begun_ms, self._producer)

    async def close(self) -> None:
        """End what was begun, and wait until it has ended."""
        self._closed = True
        self._first.cancel()
        await asyncio.gather(self._first, return_exceptions=True)
        if not self._first.cancelled() and self._first.exception() is None:
            await self._first.result()[2].aclose()

    def __del__(self) -> None:
        cancel_dropped(self._first)


async def _fetch_first(
    wanted: SegmentRange, open_range: Callable[[SegmentRange], Awaitable[LedgerReader]]
) -> tuple[Block, str | None, AsyncGenerator[Block, None]]:
    reader = await open_range(wanted)
    blocks = reader.read_blocks(wanted.first_entry, wanted.last_entry)
    return await anext(blocks), producer_of(reader), blocks
