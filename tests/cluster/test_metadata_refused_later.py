"""Credentials that ZooKeeper takes at first and refuses on a later connection: the session can't go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.cluster.metadata_harness import DEADLINE_S
from tests.cluster.zookeeper_proxy import ZooKeeperProxy
from tests.hooks import present_later

from bkpy.errors import UnauthorizedError
from bkpy.metadata.store.zookeeper.store import ZooKeeperStore
from bkpy.runtime.system import real_runtime

if TYPE_CHECKING:
    from bkpy.local.zookeeper import ZooKeeperServer


async def test_who_watches_is_told_that_the_session_has_ended(zookeeper: ZooKeeperServer) -> None:
    proxy = ZooKeeperProxy(zookeeper.port)
    await proxy.start()
    auth = [("digest", b"somebody:secret")]
    store = ZooKeeperStore([("127.0.0.1", proxy.port)], real_runtime(), session_timeout_s=2 * DEADLINE_S, auth=auth)
    await store.start(DEADLINE_S)
    watch = store.watch("/watched")
    await anext(watch)
    told = asyncio.ensure_future(anext(watch))
    present_later(store, [("no-such-scheme", b"x")])
    await proxy.reset()
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(UnauthorizedError):
            await told
    await store.close()
    await proxy.stop()
