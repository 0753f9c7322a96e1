"""Finding the position of a time: the list says in which ledger it must be, and entries of that one are looked at."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from bkpy.log.entries import LogBlock
from bkpy.protocol.log.log_reading import index_before, ranges_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bkpy.client.read.reader import LedgerReader
    from bkpy.log.snapshot import LogSnapshot
    from bkpy.protocol.log.log_reading import SegmentRange


async def position_at(
    snapshot: LogSnapshot, time: float, open_range: Callable[[SegmentRange], Awaitable[LedgerReader]]
) -> int:
    """The first readable position whose time is not earlier than `time`, in seconds since the epoch; else the end."""
    log_list, end = snapshot.list, max(snapshot.next_position, snapshot.list.first_position)
    index = index_before(log_list, time)
    if index < 0:
        return log_list.first_position
    segment = log_list.segments[index]
    low = min(end, max(log_list.first_position, segment.first_position))
    high = min(end, log_list.segments[index + 1].first_position) if index + 1 < len(log_list.segments) else end
    if segment.sealed:
        high = min(high, segment.end_position)  # a gap may begin there
    if low >= high or (segment.sealed and segment.last_ms / 1000 < time):
        return log_list.behind(max(low, high))
    wanted = next(ranges_of(log_list, low, high - 1))
    reader = await open_range(wanted)
    while low < high:
        middle = (low + high) // 2
        entry_id = middle - segment.first_position
        async with aclosing(reader.read_blocks(entry_id, entry_id)) as blocks:
            found = LogBlock(await anext(blocks), middle, segment.begun_ms).times()[0]
        if found < time:
            low = middle + 1
        else:
            high = middle
    return log_list.behind(low)
