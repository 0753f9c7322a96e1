"""Writes whose outcome is found out: conditional writes, tried again until it is certain what became of them.

Sound because each of them can take effect at most once (a node is created once, a version passes once, what is deleted
never comes back) and because the caller's value is unlike anybody else's (it carries the writer's token), so that
reading it back tells who wrote it.

Invariants: this is the only module that sends writes to a `MetadataStore` and the only one that looks at
`outcome_unknown`; once an attempt has an unknown outcome, every failure of what follows is unknown as well.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, assert_never

from bkpy.errors import BookKeeperError, MetadataConflictError
from bkpy.metadata.store.outcome import (
    Changed,
    CreateOutcome,
    DeleteOutcome,
    Done,
    Exists,
    Gone,
    Missing,
    NotDone,
    PutOutcome,
    Superseded,
    Unknown,
    escalate_unknown,
)
from bkpy.metadata.store.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    MetadataStore,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    Put,
    StoreRefusal,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")

ID_PREFIX = "ID-"


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What a call returned."""

    value: T


async def attempt(call: Awaitable[T]) -> Answer[T] | StoreRefusal | NotDone | Unknown:
    """One call of a store. Reads have no unknown outcome."""
    try:
        return Answer(await call)
    except StoreRefusal as refusal:
        # What was raised keeps the frames that it came through, and all that their callers have. A value must not.
        return type(refusal)(refusal.node, refusal.index)
    except BookKeeperError as error:
        return Unknown(error) if error.outcome_unknown else NotDone(error)


async def create_certainly(
    store: MetadataStore, operation: Create, *others: Create | Put | Delete | Check, attempts_max: int
) -> CreateOutcome:
    """Create the node, in one transaction with `others` if there are any.

    `Missing` with an `index` names the node of a `Check` that was refused: it is gone, or has another version. With
    more than one attempt that must be for good.
    """
    unknown: Unknown | None = None
    for _ in range(attempts_max):
        result = await attempt(store.multi([operation, *others]))
        match result:
            case Answer():
                return Done(0)
            case NodeExists():
                if unknown is None or result.index != 0:
                    return Exists(result.node)
                return await _whose_node(store, operation)
            case NoNode():
                return Missing(result.node, result.index or 0)
            case BadVersion() if result.index:
                return Missing(result.node, result.index)
            case Unknown():
                unknown = result
            case NotDone():
                return escalate_unknown(result, unknown is not None)
            case StoreRefusal():
                raise result  # of `others`: none of theirs can be refused otherwise
            case _:
                assert_never(result)
    assert unknown is not None
    return unknown


async def _whose_node(store: MetadataStore, operation: Create) -> CreateOutcome:
    """Who made the node that is there, after an attempt with an unknown outcome."""
    found = await _read_back(store, operation.path)
    if isinstance(found, Unknown):
        return found
    if found is not None and found[0] == operation.data:
        return Done(found[1])
    # A value at its first version is as it was created. Of one that was changed or deleted since, nobody can tell.
    return Exists(operation.path) if found is not None and found[1] == 0 else Superseded()


async def put_certainly(
    store: MetadataStore, path: str, data: bytes, expected_version: int, *others: Operation, attempts_max: int
) -> PutOutcome:
    """Replace the value, if its version is the expected one, in one transaction with `others` if there are any.

    `Missing` with an `index` names the node of one that was refused: it is gone, has another version, or is there and
    was to be created. What was refused once must be refused for ever, or until the value has another version: they are
    of nodes that are never made again, as one below a name that is unlike any other.
    """
    unknown: Unknown | None = None
    for _ in range(attempts_max):
        result = await attempt(_put(store, Put(path, data, expected_version), others))
        match result:
            case Answer():
                return Done(result.value)
            case BadVersion() | NoNode() | NodeExists() if result.index:
                # The value was the expected one, and no attempt can take effect any more.
                return Missing(result.node, result.index)
            case BadVersion():
                return Changed() if unknown is None else await whose_value(store, path, data, expected_version)
            case NoNode():
                return Missing(path)
            case Unknown():
                unknown = result
            case NotDone():
                return escalate_unknown(result, unknown is not None)
            case StoreRefusal():
                raise result  # a put is refused for no other reason
            case _:
                assert_never(result)
    assert unknown is not None
    return unknown


async def _put(store: MetadataStore, put: Put, others: Sequence[Operation]) -> int:
    if not others:
        return await store.put(put.path, put.data, put.expected_version)
    version = (await store.multi([put, *others]))[0]
    assert isinstance(version, int)
    return version


async def write_while(
    store: MetadataStore, unchanged: Check, operations: Sequence[Create | Put]
) -> Done | Changed | NotDone:
    """Write nodes that nobody uses as yet, while another node has a version.

    `Changed`: it has another one, and nothing is written. `Done`: they may be there, as the caller has to find out: the
    reply may be lost, or another client may have written one of them.
    """
    result = await attempt(store.multi([unchanged, *operations]))
    match result:
        case BadVersion() | NoNode() if not result.index:
            return Changed()
        case NotDone():
            return result
        case Answer() | Unknown() | StoreRefusal():
            return Done(0)
        case _:
            assert_never(result)


async def whose_value(store: MetadataStore, path: str, data: bytes, expected_version: int) -> PutOutcome:
    """Who wrote the value that is there, after an attempt with an unknown outcome."""
    found = await _read_back(store, path)
    if isinstance(found, Unknown):
        return found
    if found is None:
        return Missing(path)
    if found[1] != expected_version + 1:
        return Superseded()
    return Done(found[1]) if found[0] == data else Changed()


async def delete_certainly(
    store: MetadataStore, path: str, expected_version: int | None = None, *, attempts_max: int
) -> DeleteOutcome:
    """Remove the node. For one that may come back, `attempts_max` is 1: a second attempt could remove its successor."""
    return await _delete(lambda: store.delete(path, expected_version), attempts_max)


async def delete_together(
    store: MetadataStore, unique: Delete, *others: Delete | Check | Create, attempts_max: int
) -> DeleteOutcome:
    """Remove several nodes in one transaction, and make others with them. `unique` has a name that no other gets.

    So however often it is tried, the others are removed with this one or not at all. `Missing` and `Changed`: nothing
    was removed. They are certain where another node was refused: then `unique` was there, and no try has removed it.
    """
    return await _delete(lambda: store.multi([unique, *others]), attempts_max)


async def _delete(attempt_it: Callable[[], Awaitable[object]], attempts_max: int) -> DeleteOutcome:
    unknown: Unknown | None = None
    for _ in range(attempts_max):
        result = await attempt(attempt_it())
        match result:
            case Answer():
                return Gone()
            case NoNode():
                return Missing(result.node, result.index or 0) if unknown is None or result.index else Gone()
            case BadVersion() | NotEmpty():
                return Changed() if unknown is None or result.index else Superseded()
            case Unknown():
                unknown = result
            case NotDone():
                return escalate_unknown(result, unknown is not None)
            case StoreRefusal():
                raise result  # a delete is refused for no other reason
            case _:
                assert_never(result)
    assert unknown is not None
    return unknown


async def take_number(
    store: MetadataStore, parent: str, token: str, *, attempts_max: int
) -> tuple[int, str] | Missing | NotDone:
    """The next number under `parent`, and the node that holds it for this session; its value is `token`.

    A number whose reply got lost is skipped: its node goes with the session, and nobody ever gets it. That of a call
    that is cancelled goes at once; the call can't wait for that.
    """
    lost: BookKeeperError | None = None
    path, data = f"{parent}/{ID_PREFIX}", token.encode()
    for _ in range(attempts_max):
        try:
            result = await attempt(store.create(path, data, ephemeral=True, sequential=True))
        except asyncio.CancelledError:
            store.runtime.spawn(_discard_number(store, parent, data), name=f"discard a number of {parent}")
            raise
        match result:
            case Answer():
                return int(result.value.removeprefix(path)), result.value
            case NoNode():
                return Missing(parent)
            case Unknown():
                lost = result.error
            case NotDone():
                return result
            case StoreRefusal():
                raise result  # no number is given twice
            case _:
                assert_never(result)
    assert lost is not None
    return NotDone(lost)


async def _discard_number(store: MetadataStore, parent: str, data: bytes) -> None:
    """Remove the node under `parent` with this value, if there is one. Without the store, it goes with the session."""
    nodes = await attempt(_children_beginning(store, parent, ID_PREFIX))
    for node in nodes.value if isinstance(nodes, Answer) else ():
        found = await attempt(read_if_there(store, node))
        if isinstance(found, Answer) and found.value is not None and found.value[0] == data:
            await delete_certainly(store, node, attempts_max=1)


async def take_turn(
    store: MetadataStore, parent: str, token: str, data: bytes, *, attempts_max: int
) -> str | Missing | NotDone:
    """A place in the line under `parent`, for this session: the node, whose name begins with `token`.

    `token` is unlike any other. When that is not done, there may be such a node all the same: see `leave_line`.
    """
    lost: BookKeeperError | None = None
    for _ in range(attempts_max):
        result = await attempt(store.create(f"{parent}/{token}-", data, ephemeral=True, sequential=True))
        match result:
            case Answer():
                return result.value
            case NoNode():
                return Missing(parent)
            case Unknown():
                lost = result.error
                found = await attempt(_children_beginning(store, parent, f"{token}-"))
                if isinstance(found, NotDone | Unknown):
                    return NotDone(found.error)
                if isinstance(found, Answer) and found.value:
                    return found.value[0]
            case NotDone():
                return result
            case StoreRefusal():
                raise result  # no number is given twice
            case _:
                assert_never(result)
    assert lost is not None
    return NotDone(lost)


async def leave_line(store: MetadataStore, parent: str, token: str) -> Gone | NotDone:
    """Remove the places that `take_turn` has taken, or may have taken. `Gone`: there is certainly none any more.

    A request of a connection that was lost can't arrive any more, once the session has another one.
    """
    found = await attempt(_children_beginning(store, parent, f"{token}-"))
    if isinstance(found, NotDone | Unknown):
        return NotDone(found.error)
    for node in found.value if isinstance(found, Answer) else ():
        outcome = await delete_certainly(store, node, attempts_max=1)
        if isinstance(outcome, NotDone | Unknown):
            return NotDone(outcome.error)
    return Gone()


async def _children_beginning(store: MetadataStore, parent: str, prefix: str) -> list[str]:
    """The nodes whose names begin like this, as a server knows them that has caught up."""
    await store.sync(parent)
    return [f"{parent}/{name}" for name in await children_if_there(store, parent) if name.startswith(prefix)]


async def ensure_path(store: MetadataStore, path: str, *, attempts_max: int) -> Done | NotDone:
    """Create the node and its parents, with empty values, as far as they are missing.

    When that is not done, some of them may be there all the same, which does no harm.
    """
    parts = path.strip("/").split("/")
    for depth in range(1, len(parts) + 1):
        node = "/" + "/".join(parts[:depth])
        there = await attempt(store.exists(node))
        if isinstance(there, Answer) and there.value:
            continue
        if isinstance(there, StoreRefusal):
            raise there  # a read is never refused
        if isinstance(there, NotDone | Unknown):
            return NotDone(there.error)
        outcome = await create_certainly(store, Create(node, b""), attempts_max=attempts_max)
        match outcome:
            case Done() | Exists() | Superseded():
                continue  # it is there
            case Missing():
                return NotDone(MetadataConflictError(f"somebody deletes what is above {outcome.node}"))
            case NotDone() | Unknown():
                return NotDone(outcome.error)
            case _:
                assert_never(outcome)
    return Done(0)


async def read_if_there(store: MetadataStore, path: str) -> tuple[bytes, int] | None:
    """Value and version of a node that may be missing, as the server knows it: it may lag behind."""
    try:
        return await store.get(path)
    except NoNode:
        return None


async def read_certainly(store: MetadataStore, path: str) -> tuple[bytes, int] | None:
    """Value and version of a node; None only if it is certainly missing.

    What is there costs one call. A server that knows of no node is made to catch up before it is believed.
    """
    found = await read_if_there(store, path)
    if found is None:
        await store.sync(path)
        found = await read_if_there(store, path)
    return found


async def children_if_there(store: MetadataStore, path: str) -> Sequence[str]:
    """Children of a node that may be missing, sorted."""
    try:
        return await store.children(path)
    except NoNode:
        return ()


async def _read_back(store: MetadataStore, path: str) -> tuple[bytes, int] | Unknown | None:
    """What is there, after an attempt with an unknown outcome."""
    try:
        await store.sync(path)
        return await read_if_there(store, path)
    except BookKeeperError as error:
        return Unknown(error)
