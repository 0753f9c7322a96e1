"""A consumer of a log, as users have it: a named position. Retention keeps the entries from there on.

Invariant: the position is replaced only from a state that this object knows or has written; otherwise `commit` raises.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Self

from bkpy.client.arguments import check_position
from bkpy.client.lifetime import refuse_pickling
from bkpy.errors import BookKeeperError, ClientClosedError, ConfigError, NoSuchConsumerError
from bkpy.metadata.logs.consumers import LogConsumers, no_such_consumer
from bkpy.protocol.ledger.ledger_metadata import ENTRY_ID_MAX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bkpy.client.write.interfaces import ReplicationParts
    from bkpy.errors import ClientInfo
    from bkpy.log.parts import LogParts
    from bkpy.log.traffic import OpenLogs
    from bkpy.metadata.logs.consumers import ConsumerState
    from bkpy.runtime.loop_guard import LoopGuard

EARLIEST, LATEST = "earliest", "latest"


class ConsumerLag(NamedTuple):
    """What a consumer has yet to read."""

    entries: int
    """How many they are."""
    bytes: int
    """About how many bytes they have."""
    seconds: float
    """How old the first of them is, by this client's clock."""


class ConsumerStatus(NamedTuple):
    """A consumer, as `LogReader.consumers` returns it."""

    name: str
    """Its name."""
    position: int
    """The next position that it has to read."""
    since: float
    """When it committed that, in seconds since the epoch."""
    lag: ConsumerLag
    """What it has yet to read."""
    idle_s: float
    """For how long it has committed nothing though there was something to read, by this client's clock."""
    holder: ClientInfo | None
    """The client that has its lease."""


class LogEnd(NamedTuple):
    """What a consumer needs of the reader or the writer that made it.

    `end_at`: the position up to which the log is proved to reach, after another look if that is below its argument;
    `position_at`: the first position that isn't earlier; `lag_at`: what lies from a position on; `lag_apart`: the same
    by a reader of its own.
    """

    end_at: Callable[[int], Awaitable[int]]
    position_at: Callable[[datetime], Awaitable[int]]
    lag_at: Callable[[int], Awaitable[ConsumerLag]]
    lag_apart: Callable[[int], Awaitable[ConsumerLag]]


class LogConsumer:
    """One name among a log's consumers; made by `LogReader.consumer` or `LogWriter.consumer`.

    Retention and truncation go no further than it. For one process at a time: of two with the same name, one gets an
    error from its next `commit`; with a lease, from `consumer`. `close` gives up the lease.
    """

    __reduce__ = refuse_pickling

    def __init__(
        self,
        consumers: LogConsumers,
        log: str,
        name: str,
        state: ConsumerState,
        end: LogEnd,
        guard: LoopGuard,
        open_logs: OpenLogs,
        shared: ReplicationParts,
    ) -> None:
        self._guard = guard
        self._shared = shared
        self._consumers = consumers
        self._log = log
        self._name = name
        self._state = state
        self._end = end
        self._open_logs = open_logs
        self._closed = False
        self._deleted = False

    @property
    def log(self) -> str:
        """The name of the log."""
        return self._log

    @property
    def name(self) -> str:
        """Its name, which no other consumer of the log has."""
        return self._name

    @property
    def position(self) -> int:
        """The next position that it has to read: all below have been dealt with."""
        return self._state.position

    def __repr__(self) -> str:
        return f"<LogConsumer log={self._log} name={self._name} position={self.position}>"

    async def commit(self, position: int) -> None:
        """Say that everything below `position` has been dealt with. It may lie before the present one, to read again.

        A cancelled call may have recorded it, and another call may follow. Raises `MetadataConflictError` if another
        process uses the name, `ConsumerLockedError` if another client has its lease or if this one has lost it with its
        session, `TruncatedError` for a step back to what is not there any more, `ConfigError` for a position past what
        is proved to be acknowledged, `NoSuchLogError`, `MetadataUnavailableError`, `NoSuchConsumerError` after
        `delete`. What its reader doesn't know yet costs a `refresh`, with the errors of that.
        """
        self._check_open()
        if self._deleted:
            raise NoSuchConsumerError(f"consumer {self._name} of log {self._log} was deleted by this object")
        check_position("position", position)
        self._state = await self._consumers.commit(self._name, position, self._state)

    async def lag(self) -> ConsumerLag:
        """What it has yet to read by now. Raises what `LogReader.refresh` and `read` do."""
        self._check_open()
        return await self._end.lag_at(self.position)

    async def delete(self) -> None:
        """Forget the consumer: nothing is kept for it any more. A cancelled call may have done it.

        Raises `NoSuchLogError`, `MetadataUnavailableError`.
        """
        self._guard.check()
        self._open_logs.consumers.pop(self, None)
        await self._consumers.delete(self._name)
        self._deleted = True

    async def close(self) -> None:
        """Give up the lease, if it has one; the consumer stays. Raises `MetadataUnavailableError`, and can be repeated.

        A call that fails or is cancelled goes on in the background until the lease has ended. Without this it ends with
        the client's session.
        """
        self._guard.check()
        self._closed = True
        self._open_logs.consumers.pop(self, None)
        if self._consumers.leased:
            await _give_up(self._consumers, self._name, self._shared)

    def _check_open(self) -> None:
        self._guard.check()
        if self._closed:
            raise ClientClosedError(f"consumer {self._name} of log {self._log} is closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def opened(
    parts: LogParts,
    log: str,
    uid: str,
    name: str,
    position: int | str | datetime | None,
    end: LogEnd,
    *,
    create: bool,
    lease: bool,
) -> LogConsumer:
    """The consumer of that name of the log with this `uid`. See `LogReader.consumer`."""
    check_begin(position)
    consumers = LogConsumers(parts.logs, log, uid, end.end_at)
    state = await consumers.find(name)
    if state is None:
        if not create:
            raise no_such_consumer(log, name)
        state = await consumers.register(name, await _begin(position, end))
    if lease:
        try:
            state = await consumers.lock(name, parts.label)
        except BookKeeperError:  # it may have been taken
            with contextlib.suppress(BookKeeperError):
                await _give_up(consumers, name, parts.shared)
            raise
        except asyncio.CancelledError:
            _give_up_later(consumers, name, parts.shared)
            raise
    consumer = LogConsumer(consumers, log, name, state, end, parts.shared.pool.guard, parts.open_logs, parts.shared)
    parts.open_logs.consumers[consumer] = end.lag_apart
    return consumer


async def _give_up(consumers: LogConsumers, name: str, shared: ReplicationParts) -> None:
    """End the lease now. If that fails, go on in the background: nobody else would end it before the session does."""
    try:
        await consumers.unlock(name)
    except (BookKeeperError, asyncio.CancelledError):
        _give_up_later(consumers, name, shared)
        raise


def _give_up_later(consumers: LogConsumers, name: str, shared: ReplicationParts) -> None:
    unlocking = consumers.unlock_at_last(name, shared.settings.tail_poll_s)
    shared.runtime.spawn(unlocking, name=f"end of the lease of consumer {name}")


def check_begin(position: int | str | datetime | None) -> None:
    """`ConfigError` unless a consumer can begin there."""
    if isinstance(position, datetime):
        if position.tzinfo is None:
            raise ConfigError(
                f"the time {position} has no time zone: give datetime(..., tzinfo=timezone.utc), or another"
            )
    elif isinstance(position, str):
        if position not in (EARLIEST, LATEST):
            raise ConfigError(f"position is a number, {EARLIEST!r}, {LATEST!r} or a datetime, not {position!r}")
    elif position is not None:
        check_position("position", position)


async def _begin(position: int | str | datetime | None, end: LogEnd) -> int | None:
    """Where a new consumer begins; None is where the log does at that moment."""
    if isinstance(position, datetime):
        return await end.position_at(position)
    if position == LATEST:
        return await end.end_at(ENTRY_ID_MAX)
    return None if isinstance(position, str) else position
