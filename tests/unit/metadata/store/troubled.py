"""A session with the store in memory that goes wrong, call by call, as a script says."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from bkpy.errors import ClientClosedError, MetadataUnavailableError, UnauthorizedError
from bkpy.metadata.store.memory import MemorySession, MemoryStore
from bkpy.metadata.store.store import Create, Delete, Operation, Put

T = TypeVar("T")
OpeningStep = Callable[[], Any]

AWAY, CLOSED, REQUEST_LOST, REPLY_LOST = "away", "closed", "request lost", "reply lost"


class Troubled(MemorySession):
    """Each call takes the next turn of the script; when that has ended, all goes well.

    A turn that is a function is somebody else's act, right before the call. `calls` counts, `applied` holds the writes
    of this session that took effect, `read` the nodes whose values it has asked for. Nodes in `forbidden` belong to
    others: this session may not read or list them. `before_each` is somebody else's part as well, before each call.
    """

    def __init__(self, tree: MemoryStore, script: Iterable[str | OpeningStep | None] = ()) -> None:
        super().__init__(tree, 10.0, 10.0)
        self.script = deque(script)
        self.calls = 0
        self.applied: list[Operation] = []
        self.read: list[str] = []
        self.forbidden: set[str] = set()
        self.before_each: Callable[[], Awaitable[None]] | None = None

    async def _call(self, function: Callable[[], T], *, write: bool) -> T:
        if self.before_each is not None:
            await self.before_each()
        self.calls += 1
        trouble = self.script.popleft() if self.script else None
        if trouble == AWAY:
            raise MetadataUnavailableError("the store is away")
        if trouble == CLOSED:
            raise ClientClosedError("the session is closed")
        if trouble == REQUEST_LOST and write:
            raise MetadataUnavailableError("the request was lost", outcome_unknown=True)
        if callable(trouble):
            trouble()
        result = await super()._call(function, write=write)
        if trouble == REPLY_LOST and write:
            raise MetadataUnavailableError("the reply was lost", outcome_unknown=True)
        return result

    async def get(self, path: str) -> tuple[bytes, int]:
        self._check_access(path)
        self.read.append(path)
        return await super().get(path)

    async def children(self, path: str) -> list[str]:
        self._check_access(path)
        return await super().children(path)

    def _check_access(self, path: str) -> None:
        if path in self.forbidden:
            raise UnauthorizedError(f"access control forbids this on {path}")

    async def _apply(self, operation: Operation, sequential: bool = False) -> str | int | None:
        def apply() -> str | int | None:
            result = self.tree.apply(operation, self.session_id, sequential)
            self.applied.append(operation)
            return result

        return await self._call(apply, write=True)

    async def multi(self, operations: Any) -> list[str | int | None]:
        def apply() -> list[str | int | None]:
            results = self.tree.apply_all(operations, self.session_id)
            self.applied.extend(operations)
            return results

        return await self._call(apply, write=True)


class Somebody:
    """Another client's acts on one node, for a script. What can't be done is not done."""

    def __init__(self, tree: MemoryStore, path: str) -> None:
        self.tree = tree
        self.path = path

    def _try(self, operation: Operation) -> None:
        if isinstance(operation, Create) == (self.path in self.tree.paths):
            return
        self.tree.apply(operation, 0)

    def puts(self, data: bytes) -> OpeningStep:
        def act() -> None:
            if self.path in self.tree.paths:
                self._try(Put(self.path, data, self.tree.node(self.path).version))

        return act

    def creates(self, data: bytes) -> OpeningStep:
        return lambda: self._try(Create(self.path, data))

    def deletes(self) -> None:
        self._try(Delete(self.path))
