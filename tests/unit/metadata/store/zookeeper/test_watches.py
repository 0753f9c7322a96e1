"""Setting a watch while the server is in trouble."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiozk import exc
from tests.hooks import session_of
from tests.in_process import DEADLINE_S

from bkpy.metadata.store.zookeeper.store import ZooKeeperStore
from bkpy.runtime.system import real_runtime

if TYPE_CHECKING:
    import pytest


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
