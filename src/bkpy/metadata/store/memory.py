"""The metadata store in memory: one tree, any number of sessions, nothing that isn't deterministic.

It behaves as ZooKeeper does, tested by the same contract: versions, sequences that are never reused, ephemeral nodes
that go with their session, one-shot watches under `Watch`, calls that wait while the session is suspended and fail at
their deadline. Two fault points make a write's outcome unknown: `metadata.request_lost` (not applied) and
`metadata.reply_lost` (applied).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from bkpy.errors import ClientClosedError, MetadataUnavailableError
from bkpy.metadata.store.store import (
    BadVersion,
    Create,
    Delete,
    MetadataStore,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Put,
    SessionEvents,
    SessionState,
    StoreRefusal,
    Watch,
    check_path,
    parent_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bkpy.runtime.interfaces import Runtime

T = TypeVar("T")


@dataclass
class _Node:
    data: bytes
    version: int = 0
    owner: int = 0  # the session of an ephemeral node
    written_ms: int = 0
    created: int = 0  # children ever created, the source of sequence numbers
    children: set[str] = field(default_factory=set)


class MemoryStore:
    """The tree. `session()` opens a handle on it; tests and simulators suspend and expire the handles."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._nodes: dict[str, _Node] = {"/": _Node(b"")}
        self._watches: dict[tuple[str, bool], list[Watch]] = {}
        self._last_session_id = 0

    def session(self, *, session_timeout_s: float = 10.0, call_timeout_s: float = 10.0) -> MemorySession:
        """A new connected session."""
        return MemorySession(self, session_timeout_s, call_timeout_s)

    @property
    def paths(self) -> list[str]:
        """All nodes there are, the root included."""
        return list(self._nodes)

    def watched(self, path: str, *, children: bool = False) -> bool:
        """Whether a watch is set that has not fired."""
        return bool(self._watches.get((path, children)))

    def new_session_id(self) -> int:
        self._last_session_id += 1
        return self._last_session_id

    def check_invariants(self) -> None:
        for path, node in self._nodes.items():
            assert path == "/" or path.rsplit("/", 1)[1] in self._nodes[parent_of(path)].children, path
            assert all(self.join(path, name) in self._nodes for name in node.children), path
            assert not (node.owner and node.children), f"the ephemeral node {path} has children"

    @staticmethod
    def join(parent: str, name: str) -> str:
        return f"{parent.rstrip('/')}/{name}"

    def node(self, path: str) -> _Node:
        check_path(path)
        node = self._nodes.get(path)
        if node is None:
            raise NoNode(path)
        return node

    def arm(self, watch: Watch) -> None:
        self.disarm(watch)  # it may still be set, when its reader was woken by something else
        self._watches.setdefault((watch.path, watch.children), []).append(watch)

    def disarm(self, watch: Watch) -> None:
        watches = self._watches.get((watch.path, watch.children), [])
        if watch in watches:
            watches.remove(watch)

    def _wake(self, path: str, children: bool) -> None:
        for watch in self._watches.pop((path, children), []):
            watch.wake()

    def apply(self, operation: Operation, session_id: int, sequential: bool = False) -> str | int | None:
        """Apply one operation whole or raise its refusal."""
        if isinstance(operation, Create):
            return self._create(operation, session_id, sequential)
        node = self.node(operation.path)
        if operation.expected_version is not None and node.version != operation.expected_version:
            raise BadVersion(operation.path)
        if isinstance(operation, Put):
            node.data = operation.data
            node.version += 1
            node.written_ms = self._now_ms()
            self._wake(operation.path, False)
            return node.version
        if isinstance(operation, Delete):
            if node.children:
                raise NotEmpty(operation.path)
            self._remove(operation.path)
        return None

    def _create(self, operation: Create, session_id: int, sequential: bool) -> str:
        check_path(operation.path + "0" if sequential else operation.path)
        parent_path = parent_of(operation.path)
        parent = self._nodes.get(parent_path)
        if parent is None or parent.owner:  # an ephemeral node can't have children
            raise NoNode(operation.path)
        # The counter is ZooKeeper's: 32 bits, and negative when they overflow.
        counter = (parent.created + 2**31) % 2**32 - 2**31
        path = f"{operation.path}{counter:010d}" if sequential else operation.path
        if path in self._nodes:
            raise NodeExists(path)
        parent.created += 1
        parent.children.add(path.rsplit("/", 1)[1])
        owner = session_id if operation.ephemeral else 0
        self._nodes[path] = _Node(operation.data, owner=owner, written_ms=self._now_ms())
        for watched in ((path, False), (path, True), (parent_path, True)):
            self._wake(*watched)
        return path

    def _now_ms(self) -> int:
        return int(self.runtime.clock.time() * 1000)

    def _remove(self, path: str) -> None:
        del self._nodes[path]
        parent_path = parent_of(path)
        self._nodes[parent_path].children.discard(path.rsplit("/", 1)[1])
        for watched in ((path, False), (path, True), (parent_path, True)):
            self._wake(*watched)

    def apply_all(self, operations: Sequence[Operation], session_id: int) -> list[str | int | None]:
        """Apply all or none: a refusal restores the tree as it was (and may have woken a watch for nothing)."""
        for operation in operations:
            check_path(operation.path)
        touched = {path for operation in operations for path in (operation.path, parent_of(operation.path))}
        before = {path: _copy(self._nodes[path]) if path in self._nodes else None for path in sorted(touched)}
        results: list[str | int | None] = []
        for index, operation in enumerate(operations):
            try:
                results.append(self.apply(operation, session_id))
            except StoreRefusal as refusal:
                for path, node in before.items():
                    if node is None:
                        self._nodes.pop(path, None)
                    else:
                        self._nodes[path] = node
                raise type(refusal)(refusal.node, index) from None
        return results

    def end_session(self, session_id: int) -> None:
        """Remove the session's ephemeral nodes."""
        for path in sorted(path for path, node in self._nodes.items() if node.owner == session_id):
            self._remove(path)


def _copy(node: _Node) -> _Node:
    return _Node(node.data, node.version, node.owner, node.written_ms, node.created, set(node.children))


class MemorySession(MetadataStore):
    """One client's session with a `MemoryStore`."""

    def __init__(self, tree: MemoryStore, session_timeout_s: float, call_timeout_s: float) -> None:
        self.runtime = tree.runtime
        self.session_timeout_s = session_timeout_s
        self.call_timeout_s = call_timeout_s
        self.session_events = SessionEvents()
        self._tree = tree
        self._session_id = tree.new_session_id()
        self._expired = False
        self._closed = False
        self._watches: dict[Watch, None] = {}  # a set whose order is that of creation, so that runs repeat
        self._connected = asyncio.Event()
        self._connected.set()
        self.session_events.emit(SessionState.CONNECTED)

    @property
    def tree(self) -> MemoryStore:
        """The store that this is a session with."""
        return self._tree

    @property
    def session_id(self) -> int:
        return self._session_id

    # --- faults that tests and the simulator cause ---------------------------------------------------------------

    def suspend(self) -> None:
        """Cut the connection: calls wait for `resume` until their deadline."""
        self._connected.clear()
        self.session_events.emit(SessionState.SUSPENDED)

    def resume(self) -> None:
        """Connect again. A session that expired meanwhile is notified now, and a new one starts."""
        if self._expired:
            self._renew()
        self._connected.set()
        self.session_events.emit(SessionState.CONNECTED)

    def expire(self) -> None:
        """Expire the session. A connected client is notified at once, a suspended one when it resumes."""
        self._tree.end_session(self._session_id)
        self._expired = True
        if self._connected.is_set() and not self._closed:
            self.resume()

    def _renew(self) -> None:
        self._expired = False
        self.session_events.emit(SessionState.EXPIRED)
        self._session_id = self._tree.new_session_id()
        for watch in list(self._watches):
            watch.wake()

    # --- calls ------------------------------------------------------------------------------------------------------

    async def _call(self, function: Callable[[], T], *, write: bool) -> T:
        if self._closed:
            raise ClientClosedError("the metadata session is closed")
        await asyncio.sleep(0)  # no call of a real store returns within the caller's tick of the event loop
        result = await self.perform(function, write=write)
        if write:
            await asyncio.sleep(0)  # a call that is cancelled before its reply has come has been made
        return result

    async def perform(self, function: Callable[[], T], *, write: bool) -> T:
        """The call at the store, which a simulator makes after a latency of its own."""
        if not self._connected.is_set():
            try:
                async with asyncio.timeout(self.call_timeout_s):
                    await self._connected.wait()
            except TimeoutError:
                raise MetadataUnavailableError(
                    f"the metadata store could not be reached for {self.call_timeout_s} s"
                ) from None
        if self._closed:
            raise ClientClosedError("the metadata session was closed during the call")
        if not write:
            return function()
        if self.runtime.faults.sometimes("metadata.request_lost"):
            raise MetadataUnavailableError("the connection was lost during a write", outcome_unknown=True)
        result = function()
        if self.runtime.faults.sometimes("metadata.reply_lost"):
            raise MetadataUnavailableError("the connection was lost during a write", outcome_unknown=True)
        return result

    async def _apply(self, operation: Operation, sequential: bool = False) -> str | int | None:
        return await self._call(lambda: self._tree.apply(operation, self._session_id, sequential), write=True)

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False, sequential: bool = False) -> str:
        return str(await self._apply(Create(path, bytes(data), ephemeral), sequential))

    async def get(self, path: str) -> tuple[bytes, int]:
        def look() -> tuple[bytes, int]:  # what it is then: a transaction that fails leaves nodes that never were
            node = self._tree.node(path)
            return node.data, node.version

        return await self._call(look, write=False)

    async def put(self, path: str, data: bytes, expected_version: int) -> int:
        version = await self._apply(Put(path, bytes(data), expected_version))
        assert isinstance(version, int)
        return version

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        await self._apply(Delete(path, expected_version))

    async def children(self, path: str) -> list[str]:
        return await self._call(lambda: sorted(self._tree.node(path).children), write=False)

    async def children_made(self, path: str) -> int:
        return await self._call(lambda: self._tree.node(path).created, write=False)

    async def written_ms(self, path: str) -> int:
        return await self._call(lambda: self._tree.node(path).written_ms, write=False)

    async def exists(self, path: str) -> bool:
        try:
            await self._call(lambda: self._tree.node(path), write=False)
        except NoNode:
            return False
        return True

    async def multi(self, operations: Sequence[Operation]) -> list[str | int | None]:
        return await self._call(lambda: self._tree.apply_all(operations, self._session_id), write=True)

    async def sync(self, path: str) -> None:
        check_path(path)
        await self._call(lambda: None, write=False)

    def watch(self, path: str, *, children: bool = False) -> Watch:
        check_path(path)
        watch = Watch(path, children, self._arm, self._forget)
        self._watches[watch] = None
        if self._closed:
            watch.close()
        return watch

    def _forget(self, watch: Watch) -> None:
        self._tree.disarm(watch)
        self._watches.pop(watch, None)

    async def _arm(self, watch: Watch) -> None:
        # A lost connection doesn't end a watch, so there is no deadline here.
        await self._connected.wait()
        if not watch.closed:
            self._tree.arm(watch)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._connected.set()
        for watch in list(self._watches):
            watch.close()
        self._tree.end_session(self._session_id)
        self.session_events.emit(SessionState.EXPIRED)
