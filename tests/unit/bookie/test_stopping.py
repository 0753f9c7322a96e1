"""How long a bookie that is told to stop takes for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.hooks import store_of
from tests.in_process import InProcess

from bkpy.metadata.store.memory import MemorySession

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_bookie_does_not_wait_for_a_metadata_store_that_is_away(tmp_path: Path) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("ab")
    for late, node in enumerate(cluster.nodes):
        store = store_of(node)
        assert isinstance(store, MemorySession)
        started = asyncio.get_running_loop().time()
        if late:  # it goes away while the bookie stops
            stopping = asyncio.ensure_future(node.stop())
            await asyncio.sleep(0)
            store.suspend()
            await stopping
        else:
            store.suspend()
            await node.stop()
        assert asyncio.get_running_loop().time() - started < store.call_timeout_s / 2
        await store.close()
