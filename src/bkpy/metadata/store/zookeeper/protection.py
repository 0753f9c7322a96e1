"""Access control of a tree that is there already: every node gets the list that new nodes get."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bkpy.metadata.store.store import NoNode

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.metadata.store.zookeeper.store import ZooKeeperStore


async def protect_tree(store: ZooKeeperStore, root: str, at_once: int, seen: Callable[[int], None]) -> int:
    """Let only those who have one of the store's credentials touch `root` and what is below; how many nodes that are.

    `at_once` nodes at a time; `seen` is told how many were done so far. What fails in the middle is done again by
    another call: it does no harm to nodes that have the list.
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
    """The nodes below it. What is created meanwhile is created by those who protect it themselves."""
    try:
        await store.protect(path)
        return [f"{path}/{name}" for name in await store.children(path)]
    except NoNode:
        return []  # deleted meanwhile
