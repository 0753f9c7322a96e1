"""Reading ranges of several segments one after the other, the next ones begun while the one before is being used.

A log that rolls often has many small ledgers: each costs a look at its metadata and a read, which would add up.

Invariants: blocks come in the order of their positions, without gaps; of segments that aren't used yet at most
`prefetch_depth` are begun, and only while what is begun comes to less than one segment would have in flight; nothing
is left behind, however the scan ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from typing import TYPE_CHECKING

from bkpy.client.read.range_pipeline import raised_where_awaited
from bkpy.log.entries import LogBlock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

    from bkpy.client.read.block import Block
    from bkpy.client.read.reader import LedgerReader
    from bkpy.config.client import ClientSettings
    from bkpy.protocol.log_reading import SegmentRange
    from bkpy.runtime.interfaces import Runtime


async def scan(
    ranges: Iterator[SegmentRange],
    open_range: Callable[[SegmentRange], Awaitable[LedgerReader]],
    settings: ClientSettings,
    runtime: Runtime,
) -> AsyncGenerator[LogBlock, None]:
    """The blocks of these ranges, of ledgers that `open_range` opens. Raises what that and `read_blocks` do."""
    begun: deque[_Begun] = deque()

    def begin_more() -> None:
        """See to it that the next one is begun in time."""
        in_flight = sum(one.bytes_left for one in begun)
        while len(begun) <= settings.prefetch_depth and (
            not begun or in_flight < settings.read_bytes * settings.prefetch_depth
        ):
            if (following := next(ranges, None)) is None:
                return
            begun.append(_Begun(following, open_range, runtime))
            in_flight += begun[-1].bytes_left

    try:
        begin_more()
        while begun:
            async with aclosing(begun[0].blocks()) as blocks:
                async for block in blocks:
                    begin_more()
                    yield block
            await begun[0].close()
            begun.popleft()
            begin_more()
    finally:
        for one in begun:
            await one.close()


class _Begun:
    """A range of which the first block is being fetched."""

    def __init__(
        self, wanted: SegmentRange, open_range: Callable[[SegmentRange], Awaitable[LedgerReader]], runtime: Runtime
    ) -> None:
        self.bytes_left = wanted.payload_bytes
        self._wanted = wanted
        self._open = open_range
        self._blocks: AsyncGenerator[Block, None] | None = None
        self._first = runtime.spawn(
            self._fetch_first(), name=f"read of ledger {wanted.ledger_id}, begun ahead", on_death=raised_where_awaited
        )

    async def _fetch_first(self) -> tuple[Block, AsyncGenerator[Block, None]]:
        reader = await self._open(self._wanted)
        self._blocks = reader.read_blocks(self._wanted.first_entry, self._wanted.last_entry)
        return await anext(self._blocks), self._blocks

    async def blocks(self) -> AsyncGenerator[LogBlock, None]:
        """All of them."""
        block, others = await self._first
        yield self._placed(block)
        async for block in others:
            yield self._placed(block)

    def _placed(self, block: Block) -> LogBlock:
        wanted = self._wanted
        done = block.last_entry + 1 - wanted.first_entry
        self.bytes_left = wanted.payload_bytes * (wanted.entries - done) // wanted.entries
        position = wanted.first_position + block.first_entry - wanted.first_entry
        return LogBlock(block, position, wanted.begun_ms)

    async def close(self) -> None:
        """End what was begun, and wait until it has ended."""
        self._first.cancel()
        await asyncio.gather(self._first, return_exceptions=True)
        if self._blocks is not None:
            await self._blocks.aclose()
