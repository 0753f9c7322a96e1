"""How long a bookie that is told to stop takes for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.hooks import store_of
from tests.in_process import InProcess
from tests.unit.bookie.connection.raw import Raw, frame
from tests.waiting import eventually

from bkpy.metadata.store.memory import MemorySession
from bkpy.protocol.wire.messages import Op

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    import pytest


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


async def test_a_stop_waits_for_requests_of_connections_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = InProcess(tmp_path)
    await cluster.start("a")
    (node,) = cluster.nodes
    storage, waiting, go_on = cluster.storage("a"), asyncio.Event(), asyncio.Event()
    states = storage.states

    async def late(ledger_ids: Collection[int]) -> Any:
        waiting.set()
        await go_on.wait()
        return await states(ledger_ids)

    monkeypatch.setattr(storage, "states", late)
    raw = await Raw.connect(cluster)
    raw.send(frame(Op.READ_LAC, [0, 5]))
    await waiting.wait()
    raw.writer.close()
    await eventually(lambda: not cluster.connections("a"))
    stopping = asyncio.ensure_future(node.stop())
    await asyncio.sleep(1.0)
    go_on.set()
    at = asyncio.get_running_loop().time()
    await stopping
    assert asyncio.get_running_loop().time() - at < node.settings.stop_timeout_s / 2
    await asyncio.sleep(0.1)  # what fails is told of later
    assert not [record.getMessage() for record in caplog.records if record.exc_info]
    await store_of(node).close()
