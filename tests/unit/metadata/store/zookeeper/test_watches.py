"""Setting a watch while the server is in trouble, or the node is made or deleted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiozk import exc, protocol
from tests.hooks import session_of
from tests.in_process import DEADLINE_S

from bkpy.metadata.store.zookeeper.store import ZooKeeperStore
from bkpy.runtime.system import real_runtime


async def test_a_server_in_trouble_is_asked_for_a_watch_again_but_not_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = ZooKeeperStore([("127.0.0.1", 1)], real_runtime())
    turns, asked = 300, 0

    async def answer(request: Any, *, write: bool) -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        if turns:
            raise exc.OperationTimeout

    monkeypatch.setattr(session_of(store), "call", answer)
    watching = asyncio.ensure_future(anext(store.watch("/node")))
    while turns:
        await asyncio.sleep(0)
        turns -= 1
    assert asked < 100  # once a pause; it would be every other turn of the loop
    async with asyncio.timeout(DEADLINE_S):
        await watching
    await store.close()


class OneNode:
    """What a server does with the only node it has or not, which others make and delete before the requests of `acts`.

    It reports a change to a watch of that kind that is set, once.
    """

    def __init__(self, store: ZooKeeperStore, acts: dict[int, str]) -> None:
        self._watches = session_of(store).watches
        self._acts = acts
        self._asked = 0
        self.there = False
        self._set: set[str] = set()

    async def answer(self, request: Any, *, write: bool) -> None:
        await asyncio.sleep(0)
        self._asked += 1
        if (act := self._acts.get(self._asked)) is not None:
            self.change(act)
        children = isinstance(request, protocol.GetChildrenRequest)
        if self.there or not children:
            self._set.add("children" if children else "node")
        if not self.there:
            raise exc.NoNode

    def change(self, act: str) -> None:
        """The node is made or deleted, or gets a child."""
        events = protocol.WatchEvent
        self.there = act != "deleted"
        kinds = {"made": "node", "deleted": "node children", "child": "children"}[act].split()
        types = {"made": events.CREATED, "deleted": events.DELETED, "child": events.CHILDREN_CHANGED}
        if not self._set.isdisjoint(kinds):
            self._set.difference_update(kinds)
            self._watches.dispatch(SimpleNamespace(path="/node", type=types[act]))


@pytest.mark.parametrize("acts", [{}, {1: "made"}, {2: "made"}, {2: "made", 3: "deleted"}, {2: "made", 4: "deleted"}])
async def test_a_watch_on_children_misses_none_though_the_node_is_made_while_it_is_set(
    monkeypatch: pytest.MonkeyPatch, acts: dict[int, str]
) -> None:
    store = ZooKeeperStore([("127.0.0.1", 1)], real_runtime())
    server = OneNode(store, acts)
    monkeypatch.setattr(session_of(store), "call", server.answer)
    watch = store.watch("/node", children=True)
    async with asyncio.timeout(DEADLINE_S):
        await anext(watch)
        for act in ("child", "child", "deleted") if server.there else ("made", "child", "deleted"):
            round_ = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0)
            server.change(act)
            await round_
    await store.close()
