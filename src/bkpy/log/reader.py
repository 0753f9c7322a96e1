"""The reader of one log: how far it may be read, ranges of it across its ledgers, and following it as it grows.

Invariant: nothing at or past `next_position` is returned, and nothing that isn't the log's own. Reading never fences
and never changes anything.
"""

from __future__ import annotations

import sys
from contextlib import aclosing
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from bkpy.client.arguments import check_position, check_seconds, check_size
from bkpy.client.iteration import ResumableIterator, Stepwise, alone
from bkpy.client.lifetime import refuse_pickling
from bkpy.errors import (
    ClientClosedError,
    ConfigError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLogError,
    TruncatedError,
)
from bkpy.log.consumer import ConsumerLag, ConsumerStatus, LogEnd, opened
from bkpy.log.entries import LogBlock, past_the_end
from bkpy.log.poll import LogPoll
from bkpy.log.scan import SegmentScan
from bkpy.log.snapshot import LogSnapshot
from bkpy.log.tail import LogTail
from bkpy.log.traffic import LogTraffic
from bkpy.metadata.logs.consumers import LogConsumers
from bkpy.metadata.logs.pages import PageMissingError
from bkpy.protocol.log.client_info import writer_of
from bkpy.protocol.log.log_position import LogPosition
from bkpy.protocol.log.log_reading import range_in
from bkpy.protocol.wire.records import STAMP_SIZES, length_at

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from pyarrow import RecordBatch

    from bkpy.client.read.reader import LedgerReader
    from bkpy.errors import ClientInfo
    from bkpy.log.consumer import LogConsumer
    from bkpy.log.entries import LogEntry
    from bkpy.log.parts import LogParts
    from bkpy.log.segments import Segments
    from bkpy.metadata.logs.pages import LogPages
    from bkpy.protocol.log.log_list import Segment
    from bkpy.protocol.log.log_reading import SegmentRange
    from bkpy.runtime.interfaces import Runtime
    from bkpy.runtime.loop_guard import LoopGuard

T = TypeVar("T")


class LogReader:
    """Reads one log; made by `Client.read_log`. Ranges of positions are inclusive."""

    __reduce__ = refuse_pickling

    def __init__(
        self,
        snapshot: LogSnapshot,
        password: bytes,
        *,
        parts: LogParts,
        segments: Segments,
    ) -> None:
        self._snapshot = snapshot
        self._guard: LoopGuard = parts.shared.pool.guard
        self._password = password
        self._parts = parts
        self._logs = parts.logs
        self._segments = segments
        self._traffic = parts.open_logs.of(snapshot.name)
        self._settings = parts.shared.settings
        self._runtime: Runtime = parts.shared.runtime
        self._readers: dict[int, LedgerReader] = {}  # of segments that aren't sealed in the list
        self._tails: set[LogTail] = set()
        self._polled: LogReader | None = None  # whose tail polls follow: its tasks don't hold this one
        self._poll = LogPoll(self._follow_apart)
        self._closed = False

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The log's name."""
        return self._snapshot.name

    @property
    def uid(self) -> str:
        """What tells the log from every other one, also from one that has had its name."""
        return self._snapshot.list.uid

    @property
    def first_position(self) -> int:
        """The lowest position that isn't truncated, as of the last look; where nothing is, `next_position`."""
        return self._snapshot.list.first_position

    @property
    def next_position(self) -> int:
        """The position behind the last entry that may be read, as of the last look."""
        return max(self._snapshot.next_position, self.first_position)

    @property
    def writer_info(self) -> ClientInfo | None:
        """The client that has opened the log for writing, as of the last look; None if no client has it open.

        A writer that was killed is named until the next one has come.
        """
        return writer_of(self._snapshot.list)

    def __repr__(self) -> str:
        return f"<LogReader log={self.name} first_position={self.first_position} next_position={self.next_position}>"

    async def refresh(self, *, confirmed: int = 0) -> None:
        """Look how far the log may be read by now, and where it begins.

        With `confirmed`, the position that an append has returned, or the writer's `last_acknowledged`, the entry may
        be read when the call returns: no bookie is asked, and none need know yet that it was acknowledged. If
        `confirmed` is another integer, what lies below that position may be read, as a caller knows that has read it;
        no consumer can be committed by that.

        Raises `NoSuchLogError` once the log is deleted, `BookieUnavailableError` if it has an open ledger and too few
        of its bookies can tell how far that may be read; with the position of an append, `ConfigError` if it was one to
        another log, `NoSuchEntryError` if the log has that entry no more since its loss was accepted, `TruncatedError`.
        """
        self._check_open()
        check_position("confirmed", confirmed)
        if isinstance(confirmed, LogPosition):
            if confirmed.log_uid != self.uid:
                raise ConfigError(
                    f"position {confirmed} is one of the log with uid {confirmed.log_uid}, and log {self.name} has uid "
                    f"{self.uid}"
                )
            await self._on_the_present_list(partial(self._trust, confirmed))
            return
        await self._snapshot.refresh(self._logs, fresh=True)
        await self._on_the_present_list(self._look)
        self._snapshot.claim(confirmed)

    async def _trust(self, appended: LogPosition) -> None:
        """The entry was acknowledged. That holds for the log if its list has the entry's ledger at that place."""
        snapshot = self._snapshot
        await snapshot.refresh(self._logs, fresh=True)
        snapshot.check(appended)
        entry_id = appended.entry_id
        found = await self._logs.pages.segment_at(self.name, snapshot.list, appended)
        if found is not None and (found.ledger_id, found.first_position) == (appended.ledger_id, appended - entry_id):
            if found.sealed and entry_id < found.entries:
                return
            if not found.sealed:
                reader = await self._look_up(found)
                if not reader.closed or entry_id <= reader.last_add_confirmed:
                    snapshot.advance(appended + 1)
                    return
        raise NoSuchEntryError(
            f"log {self.name} has no such entry at position {appended}: its loss was accepted, or the log was restored "
            "to a state before it",
            ledger_id=appended.ledger_id,
            entry_id=entry_id,
        )

    async def _look(self) -> None:
        snapshot = self._snapshot
        readers: dict[int, LedgerReader] = {}
        while (segment := snapshot.segment_for(snapshot.proved)) is not None and not segment.sealed:
            reader = self._readers.get(segment.ledger_id)
            if reader is None:
                reader = await self._look_up(segment)
            readers[segment.ledger_id] = reader
            entries = await reader.read_last_add_confirmed() + 1
            snapshot.advance(segment.first_position + entries)
            if not reader.closed:
                break
            snapshot.ended(segment, entries)
        # Segments below `proved` too: until the list has the size of a ledger, its reader tells it.
        still_open = {segment.ledger_id for segment in snapshot.list.open_segments}
        self._readers = {i: reader for i, reader in (self._readers | readers).items() if i in still_open}

    async def _on_the_present_list(self, act: Callable[[], Awaitable[T]]) -> T:
        """What `act` returns, which is done again if a ledger is gone because the list has done without it since."""
        while True:
            try:
                return await act()
            except (NoSuchLedgerError, PageMissingError) as e:
                await self._snapshot.refresh(self._logs, fresh=True)
                if await self._snapshot.misses(e, self._logs.pages):
                    raise

    async def close(self) -> None:
        """The reader can't be used any more, and what tails with it ends. The log isn't touched."""
        self._guard.check()
        self._closed = True
        self._readers.clear()
        for tail in self._tails:
            tail.fail(self._closed_error())
        await self._poll.close()

    async def __aenter__(self) -> LogReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        self._guard.check()
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> ClientClosedError:
        return ClientClosedError(f"the reader of log {self.name} is closed")

    async def _look_up(self, segment: Segment) -> LedgerReader:
        return await self._segments.look_up(segment.ledger_id, self._password, segment.stamp)

    async def _open_range(self, wanted: SegmentRange) -> LedgerReader:
        reader = self._readers.get(wanted.ledger_id)
        if reader is not None and reader.last_add_confirmed >= wanted.last_entry:
            return reader
        return await self._segments.open(wanted.ledger_id, self._password, wanted.stamp, wanted.last_entry)

    # --- reading ----------------------------------------------------------------------------------------------------

    def ranges(self, first: int | None = None, last: int | None = None) -> list[SegmentRange]:
        """The ledgers that the entries first..last are in, for programs that read them with several processes.

        Raises `TruncatedError`, `NoSuchEntryError` as `read` does, and `ConfigError` if the list of the log has pages
        there: `list_ranges` reads them.
        """
        self._check_positions(first, last)
        walk = self._snapshot.ranges(self._logs.pages, *self._bounds(first, last))
        if not walk.ready:
            raise ConfigError(f"log {self.name} has too many ledgers for ranges(): use list_ranges()")
        return [self._measured(part) for part in iter(walk.take, None)]

    def list_ranges(self, first: int | None = None, last: int | None = None) -> AsyncGenerator[SegmentRange, None]:
        """The same one by one, of a log with any number of ledgers. Raises `MetadataUnavailableError`, too."""
        self._check_positions(first, last)
        parts = Stepwise(self._list_ranges(first, last), self._runtime, name=f"list of ranges of log {self.name}")
        return ResumableIterator(parts, alone, self._guard)

    async def _list_ranges(self, first: int | None, last: int | None) -> AsyncGenerator[SegmentRange, None]:
        self._check_open()
        position, end = self._bounds(first, last)
        walk = self._snapshot.ranges(self._logs.pages, position, end)
        while True:
            try:
                await walk.load()
            except PageMissingError:
                await self._check_present(position)
                raise
            if (part := walk.take()) is not None:
                yield self._measured(part)
                position = part.first_position + part.entries
            elif walk.ready:
                return

    def behind(self, position: int) -> int:
        """The same position, or the one behind the gap that it lies in.

        For programs that read with several processes: `ranges` has nothing between the two.
        """
        return self._snapshot.list.behind(position)

    def _measured(self, part: SegmentRange) -> SegmentRange:
        """With the size of what lies in a segment that isn't sealed, as far as its ledger's reader can tell."""
        reader = self._readers.get(part.ledger_id)
        if part.payload_bytes or reader is None:
            return part
        return part._replace(payload_bytes=reader.bytes_of(part.entries))

    def read(self, first: int | None = None, last: int | None = None) -> AsyncGenerator[LogEntry, None]:
        """The entries at positions first..last in order; all of them without bounds.

        What there is, is what this reader knows: call `refresh` before, or use `tail`. Iterating raises
        `TruncatedError` for a position that is gone, before or while it is read, `NoSuchEntryError` for a `last` past
        the end, `NoSuchLogError` for a log that was deleted meanwhile, and else what `LedgerReader.read` does.
        """
        self._check_positions(first, last)
        return ResumableIterator(self._scan(first, last), guard=self._guard)

    def read_blocks(self, first: int | None = None, last: int | None = None) -> AsyncGenerator[LogBlock, None]:
        """Like `read`, many entries at once, with no object per entry."""
        self._check_positions(first, last)
        return ResumableIterator(self._scan(first, last), alone, self._guard)

    def read_batches(self, first: int | None = None, last: int | None = None) -> AsyncGenerator[RecordBatch, None]:
        """Like `read_blocks`, as Arrow's record batches, each of one ledger.

        The columns are `position`, `ledger_id`, `entry_id`, `time` (with UTC as its zone), `producer` and `sequence`,
        both null where nobody has numbered the entries, and `payload`. Raises `ConfigError` at the call where pyarrow
        isn't installed.
        """
        self._check_positions(first, last)
        try:
            from bkpy.log.arrow import record_batch
        except ImportError as e:
            raise ConfigError(f"{e.name} is missing; get it with pip install 'bkpy[arrow]'") from None
        return ResumableIterator(self._scan(first, last), lambda block: alone(record_batch(block)), self._guard)

    def _scan(self, first: int | None, last: int | None, traffic: LogTraffic | None = None) -> PositionScan:
        def begin() -> tuple[int, SegmentScan]:
            self._check_open()
            position, end = self._bounds(first, last)
            ranges = self._snapshot.ranges(self._logs.pages, position, end)
            return position, SegmentScan(ranges, self._open_range, self._settings, self._runtime)

        return PositionScan(begin, self._check_open, self._check_present, self._snapshot, traffic or self._traffic)

    async def _check_present(self, position: int) -> None:
        """Raise `NoSuchLogError` or `TruncatedError` if that is why a ledger or a page at `position` is not there."""
        await self._snapshot.refresh(self._logs, fresh=True)
        self._snapshot.check(position)

    def _check_positions(self, first: int | None, last: int | None = None) -> None:
        if first is not None:
            check_position("first", first)
        if last is not None:
            check_position("last", last)

    def _bounds(self, first: int | None, last: int | None) -> tuple[int, int]:
        """Both given, and known to be readable."""
        begin = self.first_position if first is None else first
        end = self.next_position - 1 if last is None else last
        self._snapshot.check(begin)
        if end >= self.next_position:
            raise past_the_end(self.name, end, self.next_position)
        return begin, end

    # --- tailing ----------------------------------------------------------------------------------------------------

    def tail(self, first: int | None = None) -> AsyncGenerator[LogEntry, None]:
        """Entries from `first` on as they are confirmed, from one ledger, and one writer, to the next.

        Without `first` from the log's beginning. Ends by errors alone: `TruncatedError` when what would come next is
        truncated, `NoSuchLogError` once the log is deleted, `ClientClosedError`; else as `read`. Goes on while some
        bookies, or the metadata store, are away.
        """
        self._check_positions(first)
        return ResumableIterator(self._following(first), guard=self._guard)

    def tail_blocks(self, first: int | None = None) -> AsyncGenerator[LogBlock, None]:
        """Like `tail`, as many entries at once as have come, with no object per entry."""
        self._check_positions(first)
        return ResumableIterator(self._following(first), alone, self._guard)

    def _following(self, first: int | None) -> Stepwise:
        return Stepwise(self._tail_blocks(first), self._runtime, name=f"tail of log {self.name}")

    async def _tail_blocks(self, first: int | None) -> AsyncGenerator[LogBlock, None]:
        self._check_open()
        tail = LogTail(
            self._snapshot,
            logs=self._logs,
            look_up=self._look_up,
            open_range=self._open_range,
            settings=self._settings,
            runtime=self._runtime,
        )
        self._tails.add(tail)
        try:
            async with aclosing(tail.blocks(self.first_position if first is None else first)) as blocks:
                async for block in blocks:
                    self._traffic.read(block)
                    yield block
        finally:
            self._tails.discard(tail)
            await tail.close()

    # --- polling ----------------------------------------------------------------------------------------------------

    async def poll(self, *, max_entries: int = 1000, timeout: float | None = None) -> list[LogEntry]:  # noqa: ASYNC109
        """The next entries: at most `max_entries`, as soon as there is one; an empty list after `timeout` seconds.

        The first call begins where the log does, or at the position of `seek`; each further one behind what the former
        returned. A call that is cancelled, times out or fails loses nothing: the next one returns those entries. With
        `timeout=0` it returns what has arrived; None waits. Raises what `tail` does, and `RuntimeError` if another task
        polls.
        """
        self._check_open()
        check_size("max_entries", max_entries)
        if max_entries < 1:
            raise ConfigError(f"max_entries must be at least 1, not {max_entries}")
        if timeout is not None:
            check_seconds("timeout", timeout)
        try:
            return await self._poll.poll(min(max_entries, sys.maxsize), timeout)
        except StopAsyncIteration:  # `close` has ended its tail, which has no other end
            raise self._closed_error() from None

    def _follow_apart(self, first: int | None) -> Stepwise:
        """The same for polls. A reader that is forgotten is collected, and with it what ends these tasks."""
        if self._polled is None:
            self._polled = LogReader(self._snapshot, self._password, parts=self._parts, segments=self._segments)
        return self._polled._following(first)

    def seek(self, position: int) -> None:
        """The next `poll` begins at this position. Raises `RuntimeError` while another task polls."""
        self._check_open()
        check_position("position", position)
        self._poll.seek(position)

    # --- consumers --------------------------------------------------------------------------------------------------

    async def consumer(
        self, name: str, *, position: int | str | datetime | None = None, create: bool = False, lease: bool = False
    ) -> LogConsumer:
        """The consumer of that name. Raises `NoSuchConsumerError` if there is none, unless it is to `create` one.

        A new one begins at `position`: "earliest", as without it, "latest", a position, or a time with a time zone.
        What it has yet to read is kept from then on. With `lease`, no other client can commit, or take the lease, until
        it is closed or this client's session ends; `ConsumerLockedError` says who has it. A cancelled call may have
        registered the consumer, and leaves no lease. Raises `TruncatedError` for a position that is gone, `ConfigError`
        for one past the end, `NoSuchLogError`, `MetadataUnavailableError`.
        """
        self._check_open()
        end = LogEnd(self._end_at, self.position_at, self.lag_at, self._lag_apart)
        return await opened(self._parts, self.name, self.uid, name, position, end, create=create, lease=lease)

    async def consumers(self) -> list[ConsumerStatus]:
        """All consumers of the log by name, with their lag. Raises what `refresh` and `read` do."""
        self._check_open()
        await self.refresh()
        consumers = LogConsumers(self._logs, self.name, self.uid)
        found = []
        lags: dict[int, ConsumerLag] = {}
        for name, state in sorted((await consumers.registered()).states.items()):
            lag = lags.get(state.position)
            if lag is None:
                lag = lags[state.position] = await self._lag(state.position)
            since = state.since_ms / 1000
            idle_s = max(0.0, min(lag.seconds, self._runtime.clock.time() - since))
            holder = await consumers.holder(name) if state.lease else None
            found.append(ConsumerStatus(name, state.position, since, lag, idle_s, holder))
        return found

    async def lag_at(self, position: int) -> ConsumerLag:
        """What lies from the position on, as a consumer there has yet to read it. Raises what `refresh` does."""
        self._check_open()
        check_position("position", position)
        await self.refresh()
        return await self._lag(position)

    async def _lag_apart(self, position: int) -> ConsumerLag:
        """The same by a reader of its own: this one learns nothing of it."""
        snapshot = LogSnapshot(self.name, *await self._logs.read(self.name))
        if snapshot.list.uid != self.uid:
            raise NoSuchLogError(f"log {self.name} has been deleted, and another one has its name")
        async with LogReader(snapshot, self._password, parts=self._parts, segments=self._segments) as reader:
            return await reader.lag_at(position)

    async def _lag(self, position: int) -> ConsumerLag:
        while True:
            snapshot = self._snapshot
            begin, end = snapshot.list.behind(max(position, self.first_position)), snapshot.proved
            if begin >= end:
                return ConsumerLag(0, 0, 0.0)
            try:
                entries_left, bytes_left = await self._logs.pages.sealed_from(self.name, snapshot.list, begin)
                for part in self.ranges(min(max(begin, snapshot.list.sealed_end), end), end - 1):
                    entries_left += part.entries
                    with_stamps = part.payload_bytes or await self._bytes_of(part)
                    bytes_left += max(0, with_stamps - STAMP_SIZES[part.stamp] * part.entries)
                scan = self._scan(begin, begin, LogTraffic())  # what is read here isn't counted
                one: AsyncGenerator[LogEntry, None] = ResumableIterator(scan, guard=self._guard)
                async with aclosing(one) as entries:
                    age_s = self._runtime.clock.time() - (await anext(entries)).time
            except PageMissingError:
                await self._snapshot.refresh(self._logs, fresh=True)
                if begin >= self.first_position:
                    raise
            except TruncatedError:
                continue  # meanwhile; what is there begins later
            else:
                return ConsumerLag(entries_left, bytes_left, max(0.0, age_s))

    async def _bytes_of(self, part: SegmentRange) -> int:
        """About how many bytes the entries have, in a ledger whose length no bookie has reported."""
        reader = await self._open_range(part)
        async with aclosing(reader.read_blocks(part.last_entry, part.last_entry)) as blocks:
            last = await anext(blocks)
        return length_at(last.buffer, last.starts[0], part.stamp) * part.entries // (part.last_entry + 1)

    async def _end_at(self, position: int) -> int:
        """The position below which everything is proved, after a `refresh` if that is short of `position`."""
        if position > self._snapshot.proved:
            await self.refresh()
        return self._snapshot.proved

    # --- times ------------------------------------------------------------------------------------------------------

    async def position_at(self, time: float | datetime) -> int:
        """The first position whose entry's time isn't earlier than `time`; `next_position` if there is none.

        `time` is in seconds since the epoch, or a `datetime` with a time zone. Looks how far the log may be read, and
        reads single entries of one ledger: as many as its entries can be halved. Raises what `refresh` and `read` do.
        """
        seconds = _seconds(time)
        await self.refresh()
        return await self._on_the_present_list(
            lambda: _search(self._snapshot, seconds, self._open_range, self._logs.pages)
        )


def put_back(reader: LogReader, entries: list[LogEntry]) -> None:
    """Have the next `poll` begin with what the last one returned, which nobody has taken."""
    reader._poll.put_back(entries)


class PositionScan:
    """A `BatchSource` that begins with its first call: how far the log may be read is known then.

    The present list explains a ledger that is gone: the position is truncated, or the log deleted.
    """

    def __init__(
        self,
        begin: Callable[[], tuple[int, SegmentScan]],
        check_open: Callable[[], None],
        check_present: Callable[[int], Awaitable[None]],
        snapshot: LogSnapshot,
        traffic: LogTraffic,
    ) -> None:
        self._begin = begin
        self._check_open = check_open
        self._check_present = check_present
        self._snapshot = snapshot
        self._traffic = traffic
        self._position = 0
        self._scan: SegmentScan | None = None

    async def following(self) -> LogBlock:
        if self._scan is None:
            self._position, self._scan = self._begin()
        try:
            block = await self._scan.following()
        except (NoSuchLedgerError, PageMissingError):
            await self._check_present(self._position)
            raise
        self._check_open()
        self._snapshot.behind(self._position)
        self._position = block.positions.stop
        self._traffic.read(block)
        return block

    async def close(self) -> None:
        if self._scan is not None:
            await self._scan.close()


async def _search(
    snapshot: LogSnapshot,
    time: float,
    open_range: Callable[[SegmentRange], Awaitable[LedgerReader]],
    pages: LogPages,
) -> int:
    """The first readable position whose time is not earlier than `time`, in seconds since the epoch; else the end.

    The list and its pages say in which ledger it must be; then entries of that one are read.
    """
    log_list, end = snapshot.list, max(snapshot.next_position, snapshot.list.first_position)
    found = await pages.segment_before(snapshot.name, log_list, time)
    if found is None:
        return log_list.first_position
    segment, following = found
    low = min(end, max(log_list.first_position, segment.first_position))
    high = end if following is None else min(end, following.first_position)
    if segment.sealed:
        high = min(high, segment.end_position)  # a gap may begin there
    if low >= high or (segment.sealed and segment.last_ms / 1000 < time):
        return log_list.behind(max(low, high))
    wanted = range_in(segment, following, low, high - 1)
    assert wanted is not None
    reader = await open_range(wanted)
    while low < high:
        middle = (low + high) // 2
        entry_id = middle - segment.first_position
        async with aclosing(reader.read_blocks(entry_id, entry_id)) as blocks:
            found_time = LogBlock(await anext(blocks), middle, segment.begun_ms).times()[0]
        if found_time < time:
            low = middle + 1
        else:
            high = middle
    return log_list.behind(low)


def _seconds(time: float | datetime) -> float:
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise ConfigError(f"the time {time} has no time zone: give datetime(..., tzinfo=timezone.utc), or another")
        return time.timestamp()
    if type(time) not in (int, float) or time != time:
        raise ConfigError(f"a time is seconds since the epoch or a datetime, not {time!r}")
    try:
        return float(time)
    except OverflowError:
        raise ConfigError(
            "the time, in seconds since the epoch, is larger than any number that a float can hold"
        ) from None
