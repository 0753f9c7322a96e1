"""A consumer of a log, as users have it: a named position. Retention keeps the entries from there on.

Invariant: the position is replaced only from a state that this object knows or has written; otherwise `commit` raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.client.arguments import check_position
from bkpy.client.lifetime import refuse_pickling
from bkpy.metadata.logs.consumers import LogConsumers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bkpy.metadata.logs.catalog import LogStore
    from bkpy.metadata.logs.consumers import ConsumerState
    from bkpy.runtime.loop_guard import LoopGuard


class LogConsumer:
    """One name among a log's consumers; made by `LogReader.consumer` or `LogWriter.consumer`.

    Retention and truncation go no further than it. For one process at a time: of two with the same name, one gets an
    error from its next `commit`.
    """

    __reduce__ = refuse_pickling

    def __init__(self, consumers: LogConsumers, log: str, name: str, state: ConsumerState, guard: LoopGuard) -> None:
        self._guard = guard
        self._consumers = consumers
        self._log = log
        self._name = name
        self._state = state

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
        process uses the name, `TruncatedError` for a step back to what is not there any more, `ConfigError` for a
        position past the log's end, `NoSuchLogError`, `MetadataUnavailableError`. What its reader doesn't know yet
        costs a `refresh`, with the errors of that.
        """
        self._guard.check()
        check_position("position", position)
        self._state = await self._consumers.commit(self._name, position, self._state)

    async def delete(self) -> None:
        """Forget the consumer: nothing is kept for it any more. A cancelled call may have done it.

        Raises `NoSuchLogError`, `MetadataUnavailableError`.
        """
        self._guard.check()
        await self._consumers.delete(self._name)


async def registered(
    logs: LogStore,
    log: str,
    uid: str,
    name: str,
    position: int | None,
    known_end: Callable[[int], Awaitable[int]],
    guard: LoopGuard,
) -> LogConsumer:
    """The consumer of that name of the log with this `uid`; a new one begins at `position`, or where the log does.

    `known_end` is that of `LogConsumers`.
    Raises `TruncatedError` for a position that is gone, `ConfigError` for one past the end, `NoSuchLogError`,
    `MetadataUnavailableError`.
    """
    if position is not None:
        check_position("position", position)
    consumers = LogConsumers(logs, log, uid, known_end)
    return LogConsumer(consumers, log, name, await consumers.register(name, position), guard)
