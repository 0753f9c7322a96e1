"""The metadata store interface: versioned nodes in a tree, sessions with ephemeral nodes, and watches.

Every write has three outcomes: done; refused (`StoreRefusal`: nothing changed); or unknown (`MetadataUnavailableError`
or `ClientClosedError` with `outcome_unknown`), which is never retried here, because only the caller knows how to tell
its own write from somebody else's. So nobody but `resolve.py` calls them, and makes values of their outcomes. Every
call ends within the store's `call_timeout_s`. After `close()` every call raises `ClientClosedError`.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import enum
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bkpy.errors import BookKeeperError

if TYPE_CHECKING:
    from bkpy.runtime.interfaces import Runtime


class StoreRefusal(BookKeeperError):  # noqa: N818 - a refusal is an answer, not a failure of the store
    """The store refused a call and changed nothing. `node` is the path, `index` the operation's place in a `multi`."""

    def __init__(self, node: str, index: int | None = None) -> None:
        super().__init__(f"{self._what} {node}")
        self.node = node
        self.index = index

    _what = "refused:"


class NodeExists(StoreRefusal):
    _what = "there is a node already:"


class NoNode(StoreRefusal):
    _what = "there is no node"


class BadVersion(StoreRefusal):
    _what = "the version has changed of"


class NotEmpty(StoreRefusal):
    _what = "there are children below"


class SessionState(enum.StrEnum):
    """CONNECTED. SUSPENDED: no connection, the session and its ephemeral nodes may live or not. EXPIRED: they are gone.

    After EXPIRED the store starts a new session by itself and becomes CONNECTED again, with another `session_id`.
    """

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"


@dataclass(frozen=True)
class Create:
    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True)
class Put:
    path: str
    data: bytes
    expected_version: int


@dataclass(frozen=True)
class Delete:
    path: str
    expected_version: int | None = None


@dataclass(frozen=True)
class Check:
    path: str
    expected_version: int


Operation = Create | Put | Delete | Check
SessionCallback = Callable[[SessionState], None]


class Watch:
    """Wakes its reader whenever a node, or its children, may have changed: `async for _ in store.watch(path)`.

    The first round comes at once. The watch is set anew before each round, so a reader that reads the node in every
    round misses no final state; changes between two rounds are one wake-up, and there may be one without a change. A
    lost connection is waited out, a lost session wakes every watch. Ends when it or the store is closed.
    """

    def __init__(
        self, path: str, children: bool, arm: Callable[[Watch], Awaitable[None]], forget: Callable[[Watch], None]
    ) -> None:
        self.path = path
        self.children = children
        self.closed = False
        self._arm = arm
        self._forget = forget
        self._changed = asyncio.Event()
        self._changed.set()

    def wake(self) -> None:
        self._changed.set()

    def close(self) -> None:
        self.closed = True
        self._changed.set()
        self._forget(self)

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> None:
        await self._changed.wait()
        if not self.closed:
            self._changed.clear()
            try:
                await self._arm(self)
            except BaseException:
                self._changed.set()  # not armed: the next round must not wait for a change that nobody reports
                raise
        if self.closed:
            raise StopAsyncIteration


class SessionEvents:
    """The current session state, and callbacks that are called at once, in order, when it changes."""

    def __init__(self) -> None:
        self.state = SessionState.SUSPENDED
        self._callbacks: list[SessionCallback] = []

    def subscribe(self, callback: SessionCallback) -> Callable[[], None]:
        self._callbacks.append(callback)

        def unsubscribe() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return unsubscribe

    def emit(self, state: SessionState) -> None:
        if state is self.state:
            return
        self.state = state
        for callback in list(self._callbacks):
            callback(state)

    @contextlib.asynccontextmanager
    async def while_there(self, grace_s: float) -> AsyncIterator[None]:
        """What waits in here ends with `TimeoutError` once the store has been away for so long."""
        loop = asyncio.get_running_loop()

        def changed(state: SessionState) -> None:
            if not patience.expired():
                patience.reschedule(None if state is SessionState.CONNECTED else loop.time() + grace_s)

        async with asyncio.timeout(None) as patience:
            unsubscribe = self.subscribe(changed)
            changed(self.state)
            try:
                yield
            finally:
                unsubscribe()


class MetadataStore(abc.ABC):
    """One session with the metadata store. Versions count the writes of a node from 0; a delete forgets them."""

    runtime: Runtime
    session_timeout_s: float
    call_timeout_s: float
    session_events: SessionEvents

    @property
    def state(self) -> SessionState:
        return self.session_events.state

    @property
    @abc.abstractmethod
    def session_id(self) -> int:
        """The session's id, 0 before the first connect. A changed id means that ephemeral nodes were lost."""

    @abc.abstractmethod
    async def create(self, path: str, data: bytes, *, ephemeral: bool = False, sequential: bool = False) -> str:
        """Create a node and return its path; `sequential` appends a ten-digit counter that no sibling ever had.

        Raises `NodeExists`, and `NoNode` when the parent is missing.
        """

    @abc.abstractmethod
    async def get(self, path: str) -> tuple[bytes, int]:
        """The node's value and version. Raises `NoNode`."""

    @abc.abstractmethod
    async def put(self, path: str, data: bytes, expected_version: int) -> int:
        """Replace the value if the version is the expected one; the new version. Raises `BadVersion`, `NoNode`."""

    @abc.abstractmethod
    async def delete(self, path: str, expected_version: int | None = None) -> None:
        """Remove the node. Raises `NoNode`, `BadVersion`, and `NotEmpty` when it has children."""

    @abc.abstractmethod
    async def children(self, path: str) -> list[str]:
        """The names of the node's children, sorted. Raises `NoNode`."""

    @abc.abstractmethod
    async def children_made(self, path: str) -> int:
        """How many children the node has had in its life, which is its next number for a `sequential` one.

        Raises `NoNode`. After 2**31 ZooKeeper begins to count again.
        """

    @abc.abstractmethod
    async def written_ms(self, path: str) -> int:
        """When the node's value was written last, in ms since the epoch by the store's clock. Raises `NoNode`."""

    @abc.abstractmethod
    async def exists(self, path: str) -> bool: ...

    @abc.abstractmethod
    async def multi(self, operations: Sequence[Operation]) -> list[str | int | None]:
        """All operations or none. Results: a path for `Create`, a version for `Put`, None otherwise.

        Raises the refusal of the first operation that failed, with its `index`.
        """

    @abc.abstractmethod
    async def sync(self, path: str) -> None:
        """Return when later reads see every write that was done before this call, by anybody."""

    @abc.abstractmethod
    def watch(self, path: str, *, children: bool = False) -> Watch:
        """A watch on the node (created, changed, deleted) or on its children (and its deletion)."""

    @abc.abstractmethod
    async def close(self) -> None:
        """End the session, and with it its ephemeral nodes, within about a second. May be called again."""


_PATH = re.compile(r"/|(?:/(?!\.{0,2}(?:/|\Z))[^/]+)+", re.DOTALL)


def check_path(path: str) -> None:
    """Raise `ValueError` unless `path` is absolute with plain components, as a node's path must be."""
    if not _PATH.fullmatch(path):
        raise ValueError(f"{path!r} is no node path")


def parent_of(path: str) -> str:
    return path.rsplit("/", 1)[0] or "/"
