"""What can be read of a named log: positions, as ranges of entries of its ledgers, and no further than is confirmed.

Invariants: nothing that a `LogReader` would not return is ever part of a plan; equal positions of one log give plans of
equal rows, whenever they are made.
"""

from __future__ import annotations

from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING

from bkpy.errors import ConfigError, TruncatedError
from bkpy.log.entries import past_the_end
from bkpy.protocol.wire.records import HEADER_BYTES
from bkpy.spark.options import EARLIEST, LATEST
from bkpy.spark.planning import EntryRange, Origin, cut

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from bkpy.client.client import Client
    from bkpy.log.reader import LogReader
    from bkpy.spark.options import LogOffset, SourceOptions

Task = tuple[EntryRange, ...]  # the ranges of one task, in the order of positions


class LogView:
    """One log as its reader saw it last; entries are read elsewhere."""

    def __init__(self, reader: LogReader, options: SourceOptions) -> None:
        self._reader = reader
        self._options = options

    @staticmethod
    async def of(client: Client, options: SourceOptions) -> LogView:
        """The log as it is now.

        Raises `NoSuchLogError`, `UnauthorizedError`, `BookieUnavailableError` if too few bookies tell how far the last
        ledger may be read, and `ConfigError` if the options have offsets of another log.
        """
        assert options.log is not None
        view = LogView(await client.read_log(options.log, password=options.password()), options)
        if others := options.log_uids - {view.uid}:
            raise ConfigError(
                f"an offset belongs to a deleted log of the name {options.log} (uid {', '.join(sorted(others))}), not "
                f"to the present one (uid {view.uid}): take offsets of the present one"
            )
        return view

    @property
    def uid(self) -> str:
        """Unlike that of any other log, also of another one that had the name."""
        return self._reader.uid

    @property
    def end_position(self) -> int:
        """The position behind the last entry that can be read."""
        return self._reader.next_position

    async def refresh(self, confirmed: int = 0) -> None:
        """Look how far the log can be read now. What lies below `confirmed` was read by somebody, so it can be.

        Bookies that are away may be the only ones that know. Raises `NoSuchLogError` if the log was deleted, and what
        `of` does.
        """
        await self._reader.refresh(confirmed=confirmed)

    async def position(self, offset: LogOffset) -> int:
        """The position of a word or a time in the log; numbers stay as they are."""
        if isinstance(offset, datetime):
            return await self._reader.position_at(offset)
        if isinstance(offset, int):
            return offset
        return {EARLIEST: self._reader.first_position, LATEST: self.end_position}[offset]

    def behind(self, position: int) -> int:
        """The same position, or if it lies in a gap, where a loss was accepted, the one behind that."""
        return self._reader.behind(position)

    def clipped(self, start: int, end: int) -> tuple[int, int]:
        """The part of start..end that is there. With `fail_on_data_loss`, an error says what isn't there any more."""
        if end > self.end_position:
            raise past_the_end(self._reader.name, end - 1, self.end_position)
        first, unread = self._reader.first_position, self.behind(start)
        if unread < min(first, end) and self._options.fail_on_data_loss:
            raise TruncatedError(
                f"positions {unread} to {min(first, end) - 1} of log {self._options.log} were truncated before they "
                "were read; option failOnDataLoss = false goes on without them"
            )
        return min(max(start, first), end), end

    async def plan(
        self, start: int, end: int, narrow: Callable[[EntryRange], EntryRange | None] | None = None
    ) -> list[Task]:
        """What tasks read so that positions start..end, exclusive, are read. Nothing of what `narrow` leaves out."""
        ranges = cut([part async for part in self._ranges(start, end)], self._options, narrow)
        return grouped(ranges, self._options.partition_bytes_max, self._options.partitions_min)

    async def _ranges(self, start: int, end: int) -> AsyncGenerator[EntryRange, None]:
        assert self._options.log is not None
        if start >= end:
            return
        async with aclosing(self._reader.list_ranges(start, end - 1)) as parts:
            async for part in parts:
                yield EntryRange(
                    part.ledger_id,
                    part.first_entry,
                    part.last_entry,
                    part.payload_bytes + part.entries * HEADER_BYTES,
                    Origin(self._options.log, part.first_position - part.first_entry, part.begun_ms, part.stamp),
                )

    async def end_after(self, start: int, end: int, entries: int) -> int:
        """How far from `start` so many entries reach: further than their number where positions have a gap."""
        async with aclosing(self._ranges(start, end)) as parts:
            async for part in parts:
                assert part.origin is not None
                if part.last + 1 - part.first >= entries:
                    return part.origin.position + part.first + entries
                entries -= part.last + 1 - part.first
        return end

    async def end_within(self, start: int, end: int, bytes_max: int) -> int:
        """How far from `start` so many bytes reach, by the average entry of each ledger; at least one entry."""
        left = bytes_max
        async with aclosing(self._ranges(start, end)) as parts:
            async for part in parts:
                assert part.origin is not None
                if part.bytes > left:
                    return max(part.origin.position + part.first + left * part.entries // part.bytes, start + 1)
                left -= part.bytes
        return end


def grouped(ranges: Sequence[EntryRange], bytes_max: int, count_min: int) -> list[Task]:
    """Put small neighbours together: a log may have many short ledgers, and each task costs something.

    There are at least `count_min` tasks, as far as there are ranges.
    """
    tasks: list[list[EntryRange]] = []
    size, mergeable = 0, len(ranges) - count_min
    for part in ranges:
        if tasks and mergeable > 0 and size + part.bytes <= bytes_max:
            tasks[-1].append(part)
            size += part.bytes
            mergeable -= 1
        else:
            tasks.append([part])
            size = part.bytes
    return [tuple(task) for task in tasks]


async def plan_batch(
    client: Client, options: SourceOptions, narrow: Callable[[EntryRange], EntryRange | None] | None = None
) -> list[Task]:
    """What the tasks of a batch read. Raises what `LogView` raises, and `ConfigError` for an end before the start."""
    view = await LogView.of(client, options)
    start, end = await view.position(options.log_start), await view.position(options.log_end)
    if end < start:
        raise ConfigError(f"the range to read of log {options.log} ends at position {end}, before its start {start}")
    return await view.plan(*view.clipped(start, end), narrow)
