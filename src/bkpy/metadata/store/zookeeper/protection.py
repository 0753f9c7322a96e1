"""Access control of an existing tree: every node gets the list that new nodes get."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bkpy.metadata.store.store import NoNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.metadata.store.zookeeper.store import ZooKeeperStore


async def protect_tree(store: ZooKeeperStore, root: str, at_once: int, seen: Callable[[int], None]) -> int:
    """Restrict `root` and all nodes below it to clients with one of the store's credentials. Returns their number.

    Handles `at_once` nodes at a time, and calls `seen` with the number so far. After a failure, call it again: that
    does no harm to nodes that have the list.
    """
    waiting, done = [root], 0
    while waiting:
        some, waiting = waiting[-at_once:], waiting[:-at_once]
        for below in await asyncio.gather(*(_protect_one(store, path) for path in some)):
            waiting += below
        done += len(some)
        seen(done)
    return done


async def _protect_one(store: ZooKeeperStore, path: str) -> list[str]:
    """Protect one node; returns the nodes below it. The creators of nodes that come meanwhile protect these."""
    try:
        await store.protect(path)
        return [f"{path}/{name}" for name in await store.children(path)]
    except NoNode:
        return []  # deleted meanwhile
