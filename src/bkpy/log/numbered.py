"""The appends of a log's writer whose producer numbers them: a repeated one finds out what became of the first.

    its number is in the log       its position, at once
    it is on its way               waits for its outcome
    it is the next one             is appended

An append takes its number when it is called. If the window is full, or the log rolls, it waits in `_waiting`, and goes
on there when its call is cancelled: otherwise those behind it would have numbers behind a gap.

Invariants: entries go to the batcher in the order of their numbers; a number that was taken is added or the writer has
failed; of cancelled calls at most `write_window_entries` wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bkpy.client.arguments import payload_of, payloads_of
from bkpy.client.iteration import raised_where_awaited
from bkpy.errors import BookKeeperError, ClientClosedError, SequenceError, WouldBlock
from bkpy.protocol.log.log_producers import Sequences
from bkpy.protocol.wire.records import NUMBERED_STAMP_BYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from bkpy.client.write.batcher import AppendBatcher
    from bkpy.config.client import ClientSettings
    from bkpy.log.appends import LogAppends
    from bkpy.protocol.log.log_position import LogPosition
    from bkpy.protocol.log.log_producers import Producer
    from bkpy.runtime.interfaces import Runtime


@dataclass(eq=False, slots=True)
class _Waiting:
    """An append that has its number and no room yet. `added` has the future of its outcome; None once the writer has
    failed before.
    """

    payloads: list[bytes]
    sequence: int
    size: int
    batch: bool
    added: asyncio.Future[asyncio.Future[int] | asyncio.Future[range] | None]


class NumberedAppends:
    """Of one writer. `located` finds the ledger of an acknowledged entry.

    `append`, `append_nowait` and `append_batch` are those of `LogWriter`.
    """

    __slots__ = (
        "_appends",
        "_cancelled",
        "_cancelled_max",
        "_closing",
        "_entering",
        "_located",
        "_name",
        "_runtime",
        "_sequences",
        "_waiting",
    )

    def __init__(
        self,
        log: str,
        name: str,
        producer: Producer,
        *,
        appends: LogAppends,
        located: Callable[[int], Awaitable[LogPosition]],
        settings: ClientSettings,
        runtime: Runtime,
    ) -> None:
        self._name = log
        self._appends = appends
        self._located = located
        self._runtime = runtime
        self._sequences = Sequences(log, name, producer, appends.next_position)
        self._waiting: deque[_Waiting] = deque()
        self._entering: asyncio.Task[None] | None = None  # adds what waits
        self._cancelled = 0  # calls that were cancelled, of appends that wait
        self._cancelled_max = settings.write_window_entries
        self._closing = False

    @property
    def last_sequence(self) -> int:
        """See `LogWriter.last_sequence`."""
        return self._sequences.last(self._appends.acknowledged)

    # --- appending --------------------------------------------------------------------------------------------------

    async def append(self, data: bytes, sequence: int | None) -> LogPosition:
        payload, number = payload_of(data), self._sequences.check(sequence)
        position = self._position_of(number)
        if position is not None:
            return await self._repeated(position)
        size = len(payload) + NUMBERED_STAMP_BYTES
        self._check(size)
        if self._enters(size, 1):
            return await self._add(payload, number, size)  # type: ignore[return-value]  # as the batcher makes it
        added = await self._wait_for_room([payload], number, size, batch=False)
        return await added  # type: ignore[return-value]

    def append_nowait(self, data: bytes, sequence: int | None) -> asyncio.Future[LogPosition]:
        payload, number = payload_of(data), self._sequences.check(sequence)
        position = self._position_of(number)
        if position is not None:
            return self._runtime.spawn(
                self._repeated(position), name=f"repeated append to log {self._name}", on_death=raised_where_awaited
            )
        size = len(payload) + NUMBERED_STAMP_BYTES
        self._check(size)
        if not self._enters(size, 1):
            raise self._appends.would_block()
        return self._add(payload, number, size)  # type: ignore[return-value]

    async def append_batch(self, entries: Sequence[bytes], first_sequence: int | None) -> range:
        payloads = payloads_of(entries)
        first = self._sequences.check(first_sequence)
        if not payloads:
            return range(self._appends.next_position, self._appends.next_position)
        self._sequences.check(first + len(payloads) - 1)
        begin, known = self._known(first, len(payloads))
        left = payloads[known:]
        if not left:
            return range(begin, await self._outcome(begin + known - 1) + 1)
        size = sum(map(len, left)) + NUMBERED_STAMP_BYTES * len(left)
        self._check(max(map(len, left)) + NUMBERED_STAMP_BYTES)
        if self._enters(size, len(left)):
            added: asyncio.Future[range] = self._add_batch(left, first + known, size)
        else:
            added = await self._wait_for_room(left, first + known, size, batch=True)  # type: ignore[assignment]
        return range(begin, (await added).stop)

    def _known(self, first: int, count: int) -> tuple[int, int]:
        """The position of the first of these numbers, and how many of them have been appended.

        Raises `SequenceError` if the positions of all of them are not consecutive.
        """
        begin = self._position_of(first)
        if begin is None:
            return self._sequences.following(first), 0
        known = 1
        while known < count:
            position = self._position_of(first + known)
            following = self._sequences.following(first + known) if position is None else position
            if following != begin + known:
                raise SequenceError(
                    f"the first {known} of {count} entries, from number {first} on, are in log {self._name} from "
                    f"position {begin} on, and number {first + known} is not behind them. Nothing was written: append "
                    "the others by themselves"
                )
            if position is None:
                break
            known += 1
        return begin, known

    def _position_of(self, number: int) -> int | None:
        return self._sequences.position_of(number)

    def _check(self, largest: int) -> None:
        """Raise what an append could never get past, before it takes its number."""
        if self._closing:
            raise ClientClosedError(f"the writer of log {self._name} is closed")
        self._appends.check(largest)

    def _enters(self, size: int, count: int) -> bool:
        return not self._waiting and self._appends.window.enter(size, count)

    def _add(self, payload: bytes, number: int, size: int) -> asyncio.Future[int]:
        self._sequences.claim(number)
        return self._batcher_from(number).add(payload, size)

    def _add_batch(self, payloads: list[bytes], number: int, size: int) -> asyncio.Future[range]:
        self._sequences.claim(number, len(payloads))
        return self._batcher_from(number).add_batch(payloads, size)

    def _batcher_from(self, number: int) -> AppendBatcher:
        """The last ledger's batcher, whose next entry gets this number."""
        batcher = self._appends.batcher
        if not batcher.next_id:
            batcher.number_from(number)
        return batcher

    async def _repeated(self, position: int) -> LogPosition:
        return await self._located(await self._outcome(position))

    async def _outcome(self, position: int) -> int:
        """The position, once the append that it was assigned to has succeeded. Raises what it failed with."""
        while self._waiting and self._appends.next_position <= position:
            await asyncio.shield(self._waiting[-1].added)
        if position >= self._appends.acknowledged:
            try:
                await self._appends.flush()
            except BookKeeperError:
                if position >= self._appends.acknowledged:
                    raise
        return position

    # --- appends that wait for room ---------------------------------------------------------------------------------

    async def _wait_for_room(
        self, payloads: list[bytes], number: int, size: int, *, batch: bool
    ) -> asyncio.Future[int] | asyncio.Future[range]:
        if self._cancelled >= self._cancelled_max:
            raise WouldBlock(
                f"{self._cancelled} cancelled appends to log {self._name} wait for room, and go on: repeat them"
            )
        self._sequences.claim(number, len(payloads))
        waiting = _Waiting(payloads, number, size, batch, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._entering is None:
            self._entering = self._runtime.spawn(self._enter_waiting(), name=f"appends to log {self._name}")
        try:
            added = await asyncio.shield(waiting.added)
        except asyncio.CancelledError:
            if not waiting.added.done():
                self._cancelled += 1
                waiting.added.add_done_callback(self._cancelled_left)
            raise
        if added is None:
            raise self._appends.failure()
        return added

    def _cancelled_left(self, _: object) -> None:
        self._cancelled -= 1

    async def _enter_waiting(self) -> None:
        """Add what waits, in its order, as there is room."""
        waiting = self._waiting
        try:
            while waiting:
                one = waiting[0]
                # Whatever the bookies of a ledger take that came meanwhile: its number is taken, and others lie behind.
                await self._appends.admit(0, one.size, len(one.payloads))
                batcher = self._batcher_from(one.sequence)
                one.added.set_result(
                    batcher.add_batch(one.payloads, one.size) if one.batch else batcher.add(one.payloads[0], one.size)
                )
                waiting.popleft()  # last: what can't be added fails with those behind it
        except Exception as error:  # what waits has numbers, and others lie behind: the writer ends, unless it has
            if self._appends.error is None:
                self._appends.fail(BookKeeperError(f"appends to log {self._name} failed: {error!r}"))
            for one in waiting:
                if not one.added.done():
                    one.added.set_result(None)
            waiting.clear()
            if not isinstance(error, BookKeeperError):
                raise
        finally:
            self._entering = None

    async def entered(self) -> None:
        """Return when no append waits that has its number now. Later ones may: there may always be some."""
        if self._waiting:
            await asyncio.shield(self._waiting[-1].added)

    # --- the end ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Take no new number, and return when no append waits."""
        self._closing = True
        while self._waiting:
            await self.entered()
