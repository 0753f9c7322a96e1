"""Writes whose outcome is found out: the three conditional writes, tried again until it is certain what became of them.

Sound because each of them can take effect at most once (a node is created once, a version passes once) and because the
caller's value is unlike anybody else's (it carries the writer's token), so that reading it back tells who wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence

from bkpy.errors import MetadataUnavailableError
from bkpy.metadata.store import BadVersion, Create, MetadataStore, NodeExists, NoNode, Operation

ATTEMPTS_MAX = 5


async def create_certainly(store: MetadataStore, operation: Create, *others: Operation) -> None:
    """Create the node, in one transaction with `others` if there are any. Raises what `multi` raises.

    Raises `NodeExists` only when the node is somebody else's, and `MetadataUnavailableError` with `outcome_unknown`
    only when the store stayed unreachable after a write was sent.
    """
    unknown = False
    for _ in range(ATTEMPTS_MAX):
        try:
            await store.multi([operation, *others])
            return
        except NodeExists as refusal:
            if unknown and refusal.index == 0 and await _holds(store, operation.path, operation.data):
                return
            raise
        except MetadataUnavailableError as error:
            unknown = _still_unknown(error, unknown)
    raise _given_up(operation.path)


async def put_certainly(store: MetadataStore, path: str, data: bytes, expected_version: int) -> int:
    """Replace the value; the new version. Raises `BadVersion` when somebody else's write came first, and `NoNode`."""
    unknown = False
    for _ in range(ATTEMPTS_MAX):
        try:
            return await store.put(path, data, expected_version)
        except BadVersion:
            if unknown and await store.get(path) == (data, expected_version + 1):
                return expected_version + 1
            raise
        except MetadataUnavailableError as error:
            unknown = _still_unknown(error, unknown)
    raise _given_up(path)


async def delete_certainly(store: MetadataStore, path: str, expected_version: int | None = None) -> None:
    """Remove the node. Raises `NoNode` only if it was missing before the first attempt, and `BadVersion`."""
    unknown = False
    for _ in range(ATTEMPTS_MAX):
        try:
            await store.delete(path, expected_version)
            return
        except NoNode:
            if unknown:
                return
            raise
        except MetadataUnavailableError as error:
            unknown = _still_unknown(error, unknown)
    raise _given_up(path)


async def ensure_path(store: MetadataStore, path: str) -> None:
    """Create the node and its parents, with empty values, as far as they are missing."""
    parts = path.strip("/").split("/")
    for depth in range(1, len(parts) + 1):
        node = "/" + "/".join(parts[:depth])
        if not await store.exists(node):
            try:
                await create_certainly(store, Create(node, b""))
            except NodeExists:
                continue  # somebody else made it at the same time


async def read_if_there(store: MetadataStore, path: str) -> tuple[bytes, int] | None:
    """Value and version of a node that may be missing."""
    try:
        return await store.get(path)
    except NoNode:
        return None


async def children_if_there(store: MetadataStore, path: str) -> Sequence[str]:
    """Children of a node that may be missing, sorted."""
    try:
        return await store.children(path)
    except NoNode:
        return ()


async def _holds(store: MetadataStore, path: str, data: bytes) -> bool:
    found = await read_if_there(store, path)
    return found is not None and found[0] == data


def _still_unknown(error: MetadataUnavailableError, unknown: bool) -> bool:
    """Whether an attempt so far may have taken effect; raises if another attempt is pointless."""
    if error.outcome_unknown:
        return True
    # This attempt was not sent, so the store has been unreachable for a whole deadline.
    error.outcome_unknown = unknown
    raise error


def _given_up(path: str) -> MetadataUnavailableError:
    return MetadataUnavailableError(
        f"the connection was lost in {ATTEMPTS_MAX} attempts in a row to write {path}", outcome_unknown=True
    )
