"""The writer of a log, as users have it.

An append costs what one to a ledger costs: it goes from here to the batcher of the log's last ledger.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bkpy.client.arguments import check_position, payload_of, payloads_of
from bkpy.client.lifetime import refuse_pickling
from bkpy.errors import ConfigError
from bkpy.log.consumer import LogEnd, opened
from bkpy.log.numbered import NumberedAppends
from bkpy.log.rolling import Roller
from bkpy.protocol.log.log_producers import NOTHING
from bkpy.protocol.wire.records import STAMP_BYTES
from bkpy.runtime.loop_guard import this_thread

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from bkpy.errors import ClientInfo
    from bkpy.log.consumer import ConsumerLag, LogConsumer
    from bkpy.log.opening import Opened
    from bkpy.log.parts import LogParts
    from bkpy.log.reader import LogReader
    from bkpy.log.rolling import RollLimits
    from bkpy.protocol.log.log_position import LogPosition


class LogWriter:
    """Appends to one log; made by `Client.open_log`. Not to be shared between event loops."""

    __slots__ = ("__weakref__", "_appends", "_name", "_numbered", "_parts", "_read", "_roller")
    __reduce__ = refuse_pickling

    def __init__(
        self,
        name: str,
        opened: Opened,
        password: bytes,
        limits: RollLimits,
        parts: LogParts,
        read: Callable[[], Awaitable[LogReader]],
    ) -> None:
        """`read` opens the log for reading."""
        self._name = name
        self._parts = parts
        self._read = read
        self._roller = Roller(name, opened, password, limits, parts)
        self._appends = self._roller.appends
        parts.open_logs.of(name)
        parts.open_logs.writers[self] = partial(_lags, read)  # which doesn't keep the writer
        producer = opened.log_list.producers.numbered(opened.producer)
        self._numbered: NumberedAppends | None = None
        if producer is not None:
            shared = parts.shared
            self._numbered = NumberedAppends(
                name,
                opened.producer,
                producer,
                appends=self._appends,
                located=self._roller.located,
                settings=shared.settings,
                runtime=shared.runtime,
            )

    # --- what is known ----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The log's name."""
        return self._name

    @property
    def ledger_id(self) -> int:
        """The ledger that appends go to now; it changes when the log rolls."""
        return self._roller.ledger_id

    @property
    def first_position(self) -> int:
        """Entries below it are gone, as far as this writer knows."""
        return self._roller.log_list.first_position

    @property
    def next_position(self) -> int:
        """The position that the next append gets."""
        return self._appends.next_position

    @property
    def last_acknowledged(self) -> LogPosition | None:
        """The last entry of this writer that is acknowledged, as `append` returned it; None if there is none yet."""
        return self._appends.last_acknowledged

    @property
    def producer(self) -> str | None:
        """The producer of this writer's appends, None if they have no numbers."""
        return self._roller.producer or None

    @property
    def last_sequence(self) -> int:
        """The highest number of this writer's producer that the log has: append the next one. -1 if it has none.

        What is on its way is not counted. Always -1 for a writer without a producer.
        """
        return NOTHING if self._numbered is None else self._numbered.last_sequence

    @property
    def usable(self) -> bool:
        """Whether appends can go on: it was neither closed nor abandoned, and has not failed."""
        return self._appends.state.takes_appends

    @property
    def writer_info(self) -> ClientInfo | None:
        """The client that writes the log: this one, and once it was fenced the next one, None while that is unknown."""
        return self._roller.writer

    def __repr__(self) -> str:
        return f"<LogWriter log={self._name} next_position={self.next_position}>"

    # --- appending --------------------------------------------------------------------------------------------------

    async def append(self, data: bytes, *, sequence: int | None = None) -> LogPosition:
        """Append one entry; returns its position when it and all before it are durable on the ack quorum.

        The position is an int, and proves to `LogReader.refresh` that the entry was acknowledged.

        Waits for room in the window first, and while the log rolls. Cancelling the call doesn't withdraw an entry that
        has been assigned its position.

        With a producer (`Client.open_log`), `sequence` is the entry's number: each append has one, and they ascend by
        one. An append whose number is known to be in the log writes nothing, and returns the position that the entry
        has there; one whose number is on its way waits for that outcome. Other numbers raise `SequenceError`. Such an
        append goes on when its call is cancelled: repeat it.

        Raises `FrameTooLargeError` or `ClientClosedError` with nothing written, `LogFencedError` if somebody else has
        become the log's writer, and `BookieUnavailableError`, `QuorumTimeoutError` or `MetadataUnavailableError`, all
        of which end the writer: whatever was appended behind has failed, too. Their outcome is unknown once the entry
        was sent to any bookie, as `outcome_unknown` says.
        """
        if self._numbered is not None or sequence is not None:
            return await self._with_numbers().append(data, sequence)
        if type(data) is not bytes:
            data = payload_of(data)
        size, appends = len(data) + STAMP_BYTES, self._appends
        batcher, window = appends.batcher, appends.window
        if batcher.open_batch is None or this_thread() != batcher.guard.thread:
            batcher.guard.check()
        if (
            batcher.next_id >= window.ids_end
            or batcher.added_bytes + size > window.bytes_end
            or size > batcher.replication.entry_bytes_max
        ):
            await appends.admit(size, size, 1)
            batcher = appends.batcher
        return await batcher.add(data, size)  # type: ignore[return-value]  # what the batcher's `position` makes

    def append_nowait(self, data: bytes, *, sequence: int | None = None) -> asyncio.Future[LogPosition]:
        """Like `append`, but returns the future of the entry's position; cancelling that withdraws nothing.

        Raises `WouldBlock` if the window is full or the log is rolling.
        """
        if self._numbered is not None or sequence is not None:
            return self._with_numbers().append_nowait(data, sequence)
        if type(data) is not bytes:
            data = payload_of(data)
        size, appends = len(data) + STAMP_BYTES, self._appends
        batcher, window = appends.batcher, appends.window
        if batcher.open_batch is None or this_thread() != batcher.guard.thread:
            batcher.guard.check()
        if (
            batcher.next_id >= window.ids_end
            or batcher.added_bytes + size > window.bytes_end
            or size > batcher.replication.entry_bytes_max
        ):
            appends.check(size)
            if not window.enter(size, 1):
                raise appends.would_block()
        return batcher.add(data, size)  # type: ignore[return-value]

    async def append_batch(self, entries: Sequence[bytes], *, first_sequence: int | None = None) -> range:
        """Append many entries, with consecutive positions; returns the range of them. The guarantee is `append`'s.

        An empty sequence is an empty range. The batch is admitted to the window as a whole, and never lies in two
        ledgers. Cancelling the call withdraws nothing. `last_acknowledged` proves to `LogReader.refresh` that they were
        acknowledged.

        With a producer, `first_sequence` is the number of the first entry. What a repeated batch finds in the log is
        not appended again: then it may lie in several ledgers. Raises `SequenceError`, with nothing written, if the
        others wouldn't lie behind that.
        """
        if self._numbered is not None or first_sequence is not None:
            return await self._with_numbers().append_batch(entries, first_sequence)
        payloads = payloads_of(entries)
        count = len(payloads)
        size = sum(map(len, payloads)) + STAMP_BYTES * count
        largest = max(map(len, payloads), default=0) + STAMP_BYTES
        appends = self._appends
        batcher = appends.batcher
        batcher.guard.check()
        if largest > batcher.replication.entry_bytes_max or not appends.window.enter(size, count):
            await appends.admit(largest, size, count)
            batcher = appends.batcher
        if not payloads:
            return range(self.next_position, self.next_position)
        return await batcher.add_batch(payloads, size)

    def _with_numbers(self) -> NumberedAppends:
        self._appends.batcher.guard.check()
        if self._numbered is None:
            raise ConfigError(
                f"this writer of log {self._name} has no producer to number appends: give one to open_log"
            )
        return self._numbered

    async def truncate(self, before: int, *, ignore_consumers: bool = False) -> None:
        """Delete the entries below the position `before`. Entries that share a ledger with later ones go with these.

        A cancelled call may have deleted them. Raises `ConfigError`, with nothing deleted, for a position past what is
        acknowledged, or one that a consumer has yet to reach unless they are ignored; `MetadataUnavailableError`.
        """
        self._appends.batcher.guard.check()
        check_position("before", before)
        await self._roller.truncate(int(before), ignore_consumers=ignore_consumers)

    async def consumer(
        self, name: str, *, position: int | str | datetime | None = None, create: bool = False, lease: bool = False
    ) -> LogConsumer:
        """The consumer of that name, as `LogReader.consumer`. A cancelled call may have registered it."""
        guard, uid = self._appends.batcher.guard, self._roller.log_list.uid
        guard.check()
        end = LogEnd(self._end_at, self._position_at, self._lag_at, self._lag_at)
        return await opened(self._parts, self._name, uid, name, position, end, create=create, lease=lease)

    async def _end_at(self, position: int) -> int:
        if self.usable or position <= self._appends.acknowledged:
            return self._appends.acknowledged
        async with await self._read() as reader:  # another writer may have appended since this one ended
            return max(self._appends.acknowledged, reader.next_position)

    async def _position_at(self, time: datetime) -> int:
        async with await self._read() as reader:
            await self._confirm(reader)
            return await reader.position_at(time)

    async def _lag_at(self, position: int) -> ConsumerLag:
        async with await self._read() as reader:
            await self._confirm(reader)
            return await reader.lag_at(position)

    async def _confirm(self, reader: LogReader) -> None:
        """Let the reader read all that is acknowledged: bookies may not know yet how far that is."""
        if (last := self._appends.last_acknowledged) is not None:
            await reader.refresh(confirmed=last)

    async def flush(self) -> None:
        """Return when every entry that has its place so far is durable on the ack quorum; raises the writer's error.

        Without a producer it doesn't wait for an `append` that still waits for room in the window, or for the log to
        roll: that call ends by itself. Cancelling the call withdraws nothing.
        """
        self._appends.batcher.guard.check()
        if self._numbered is not None:
            await self._numbered.entered()
        await self._appends.flush()

    async def close(self) -> None:
        """Wait for what is pending, then close the log's last ledger. Closing twice is once.

        After a cancelled call, call it again: nothing can be appended any more. Raises the writer's error if it has
        failed. If the metadata store can't be reached, it may be tried again.
        """
        self._appends.batcher.guard.check()
        if self._numbered is not None:
            await self._numbered.close()
        await self._roller.close()

    def abandon(self) -> None:
        """Stop without closing anything: what is pending fails, and the next writer finds out where the log ends."""
        self._appends.batcher.guard.check()
        self._roller.abandon()

    async def __aenter__(self) -> LogWriter:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            self.abandon()


async def _lags(read: Callable[[], Awaitable[LogReader]]) -> dict[str, ConsumerLag]:
    """What each consumer of the log has yet to read."""
    async with await read() as reader:
        return {status.name: status.lag for status in await reader.consumers()}
