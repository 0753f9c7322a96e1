"""The world's metadata store, its followers that lag, and sessions with the latency of a network in between.

Calls of one session take effect, and are answered, in the order in which they were made, as ZooKeeper promises. A host
may be connected to a follower: what it reads and watches there is older than what the leader has, but never older than
its own writes, nor than its last `sync`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar, cast

from bkpy.errors import MetadataUnavailableError, UnauthorizedError
from bkpy.metadata.store.memory import MemorySession, MemoryStore
from bkpy.metadata.store.store import Check, Create, Delete, NoNode, parent_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Generator, Mapping, Sequence
    from contextvars import Context

    from bkpy.metadata.store.store import Operation, Watch
    from bkpy.runtime.interfaces import Runtime

    from .loop import SimLoop

T = TypeVar("T")


class SimMetadata(MemoryStore):
    """The leader's tree. Each change goes to the followers."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.followers: list[Follower] = []
        self._in_transaction = False

    def apply(self, operation: Operation, session_id: int, sequential: bool = False) -> str | int | None:
        result = super().apply(operation, session_id, sequential)
        if self.followers and not self._in_transaction:
            self._publish([result if isinstance(result, str) else operation.path])
        return result

    def apply_all(self, operations: Sequence[Operation], session_id: int) -> list[str | int | None]:
        self._in_transaction = True
        try:
            results = super().apply_all(operations, session_id)
        finally:
            self._in_transaction = False
        self._publish([operation.path for operation in operations if not isinstance(operation, Check)])
        return results

    def end_session(self, session_id: int) -> None:
        before = self.paths if self.followers else []
        super().end_session(session_id)
        if before:
            left = set(self.paths)
            self._publish([path for path in before if path not in left])

    def copy(self) -> Mapping[str, Any]:
        """What a backup has: all nodes but those that go with their sessions."""
        return {path: node for path in self.paths if not (node := self.state_of(path)).owner}

    def put_back(self, older: Mapping[str, Any]) -> None:
        """Go back to a copy, on all servers; whoever is connected has to begin a new session."""
        before = self.paths
        for path in sorted(before, reverse=True)[:-1]:  # but for the root
            super().apply(Delete(path, None), 0)
        for path in sorted(older)[1:]:
            super().apply(Create(path, older[path].data), 0)
        for path, was in older.items():
            node = self.node(path)
            node.version, node.written_ms, node.created = was.version, was.written_ms, was.created
        for follower in self.followers:
            follower.hear([*before, *self.paths])
            follower.catch_up()

    def state_of(self, path: str) -> Any:
        """A copy of the node; None if there is none."""
        try:
            node = self.node(path)
        except NoNode:
            return None
        return dataclasses.replace(node, children=set(node.children))

    def _publish(self, paths: Sequence[str]) -> None:
        for follower in self.followers:
            follower.hear(paths)


class Follower:
    """What one server of the store has of the leader's tree: everything up to `lag_s` ago, in order."""

    def __init__(self, leader: SimMetadata, loop: SimLoop, lag_s: float) -> None:
        self.lag_s = lag_s
        self._leader = leader
        self._loop = loop
        self._held: dict[str, Any] = {path: leader.state_of(path) for path in leader.paths}
        self._heard: deque[dict[str, Any]] = deque()  # what the leader has made of nodes
        self._watching: dict[tuple[str, bool], list[Watch]] = {}
        leader.followers.append(self)

    # --- for sessions -------------------------------------------------------------------------------------------------

    def node(self, path: str) -> Any:
        if path not in self._held:
            raise NoNode(path)
        return self._held[path]

    def arm(self, watch: Watch) -> None:
        self.disarm(watch)
        self._watching.setdefault((watch.path, watch.children), []).append(watch)

    def disarm(self, watch: Watch) -> None:
        watches = self._watching.get((watch.path, watch.children), [])
        if watch in watches:
            watches.remove(watch)

    # --- following ----------------------------------------------------------------------------------------------------

    def hear(self, paths: Sequence[str]) -> None:
        """The leader has changed these nodes, in one transaction."""
        touched = sorted({one for path in paths for one in (path, parent_of(path))})
        self._heard.append({path: self._leader.state_of(path) for path in touched})
        if self.lag_s:
            self._loop.call_later(self.lag_s, self._follow, context=self._loop.outside)
        else:
            self.catch_up()

    def _follow(self) -> None:
        if self._heard:  # else it has caught up
            self._take(self._heard.popleft())

    def catch_up(self) -> None:
        while self._heard:
            self._take(self._heard.popleft())

    def _take(self, nodes: Mapping[str, Any]) -> None:
        for path, node in nodes.items():
            before = self._held.pop(path, None)
            if node is not None:
                self._held[path] = node
            if before is None or node is None or before.version != node.version:
                self._wake(path, children=False)
            if before is None or node is None or before.children != node.children:
                self._wake(path, children=True)

    def _wake(self, path: str, *, children: bool) -> None:
        for watch in self._watching.pop((path, children), []):
            watch.wake()


class SimSession(MemorySession):
    """A session that lives until its process says so, or for `session_timeout_s` after its death."""

    def __init__(
        self,
        tree: MemoryStore,
        rng: random.Random,
        latency_s: tuple[float, float],  # of each way
        *,
        session_timeout_s: float = 10.0,
        call_timeout_s: float = 10.0,
    ) -> None:
        super().__init__(tree, session_timeout_s, call_timeout_s)
        self._rng = rng
        self.latency_s = latency_s
        self._asked_at = self._answered_at = 0.0
        self._losing: asyncio.Future[None] | None = None
        self._calls_left: int | None = None
        self.follower: Follower | None = None  # to which it is connected; None for the leader
        self._set: dict[Watch, None] = {}
        self.on_write: Callable[[], None] | None = None  # called when one has taken effect, before it is answered
        self.forbidden: set[str] = set()  # nodes that access control keeps from this session

    # --- reads, by the server that the session is connected to --------------------------------------------------------

    async def _look(self, path: str, of: Callable[[Any], T]) -> T:
        return await self._call(lambda: of((self.follower or self.tree).node(path)), write=False)

    async def get(self, path: str) -> tuple[bytes, int]:
        data = await self._look(path, lambda node: (node.data, node.version))
        if path in self.forbidden:
            raise UnauthorizedError(f"access control forbids this on {path}")
        return data

    async def children(self, path: str) -> list[str]:
        return await self._look(path, lambda node: sorted(node.children))

    async def children_made(self, path: str) -> int:
        return await self._look(path, lambda node: int(node.created))

    async def written_ms(self, path: str) -> int:
        return await self._look(path, lambda node: int(node.written_ms))

    async def exists(self, path: str) -> bool:
        try:
            return await self._look(path, lambda node: True)
        except NoNode:
            return False

    async def sync(self, path: str) -> None:
        await super().sync(path)
        if self.follower is not None:
            self.follower.catch_up()

    def watch(self, path: str, *, children: bool = False) -> Watch:
        watch = super().watch(path, children=children)
        self._set[watch] = None
        return watch

    async def _arm(self, watch: Watch) -> None:
        await super()._arm(watch)
        if self.follower is not None and not watch.closed:
            self.tree.disarm(watch)
            self.follower.arm(watch)

    def _forget(self, watch: Watch) -> None:
        super()._forget(watch)
        self._set.pop(watch, None)
        if self.follower is not None:
            self.follower.disarm(watch)

    # --- faults -------------------------------------------------------------------------------------------------------

    def move_to(self, follower: Follower) -> None:
        """Connect to a server that has all that this session has seen; watches are set there anew."""
        self.follower = follower
        for watch in list(self._set):
            watch.wake()

    def lose_reply(self, calls: int) -> asyncio.Future[None]:
        """Lose the reply to the next write; answer `calls` calls more, and then lose the connection until `resume`.

        The future is done when the reply was lost.
        """
        self._losing = asyncio.get_running_loop().create_future()
        self._calls_left = calls
        return self._losing

    def keep_replies(self) -> None:
        """Take back what `lose_reply` has asked for, as far as it hasn't happened."""
        self._losing = self._calls_left = None

    async def _call(self, function: Callable[[], T], *, write: bool) -> T:
        loop = cast("SimLoop", asyncio.get_running_loop())
        self._asked_at = max(self._asked_at, loop.time() + self._delay())
        await _Pause(loop, self._asked_at - loop.time())
        try:
            result = await self.perform(function, write=write)
            if write and self.on_write is not None:
                self.on_write()
            if write and self._losing is not None and not self._losing.done():
                self._losing.set_result(None)
                raise MetadataUnavailableError("the connection was lost during a write", outcome_unknown=True)
            return result
        finally:
            if write and self.follower is not None:
                self.follower.catch_up()  # a server answers when it has the write itself
            if self._losing is not None:
                self._count()
            self._answered_at = max(self._answered_at, loop.time() + self._delay())
            await _Pause(loop, self._answered_at - loop.time())

    def _delay(self) -> float:
        shortest, longest = self.latency_s
        return shortest + (longest - shortest) * self._rng.random()  # as `Random.uniform` draws it

    def _count(self) -> None:
        """One call more was answered since the reply that was lost."""
        if self._losing is None or not self._losing.done() or self._calls_left is None:
            return
        self._calls_left -= 1
        if self._calls_left < 0:
            self.keep_replies()
            self.suspend()

    def forgotten(self) -> None:
        """The store has not heard of the process for the session's timeout."""
        self.tree.end_session(self.session_id)


class _Pause:
    """`asyncio.sleep`, whose timer itself wakes the task: runs are largely made of calls of the metadata store."""

    __slots__ = ("_asyncio_future_blocking", "_cancelled", "_delay", "_loop", "_timer", "_wake")

    def __init__(self, loop: SimLoop, delay: float) -> None:
        loop.next_number()  # as a future does: sets of futures keep their order, and seeds their runs
        self._loop = loop
        self._delay = delay
        self._cancelled = False

    def __await__(self) -> Generator[Any, None, None]:
        self._asyncio_future_blocking = True  # what a task asks of a future, and what it then calls
        yield self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(self, wake: Callable[[Any], None], *, context: Context) -> None:
        self._wake = wake, context
        self._timer = self._loop.call_later(self._delay, wake, self, context=context)

    def cancel(self, msg: Any = None) -> bool:
        if self._cancelled:
            return False
        self._cancelled = True
        self._timer.cancel()
        self._loop.call_soon(self._wake[0], self, context=self._wake[1])
        return True

    def result(self) -> None:
        del self._timer, self._wake  # a cycle: it would keep the task, and what that has, until a collection
        if self._cancelled:
            raise asyncio.CancelledError
