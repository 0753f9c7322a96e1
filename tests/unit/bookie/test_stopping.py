"""How long a bookie that is told to stop takes for it."""

from __future__ import annotations

import asyncio
import errno
import gc
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import store_of
from tests.in_process import InProcess
from tests.unit.bookie.connection.raw import Raw, frame
from tests.unit.storage.support import Batch, add
from tests.waiting import eventually

from bkpy.errors import StorageFailedError
from bkpy.metadata.store.memory import MemorySession
from bkpy.protocol.wire.messages import Op

if TYPE_CHECKING:
    from collections.abc import Collection
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
    assert not stopping.done()
    go_on.set()
    at = asyncio.get_running_loop().time()
    await stopping
    assert asyncio.get_running_loop().time() - at < node.settings.stop_timeout_s / 2
    await asyncio.sleep(0.1)  # what fails is told of later
    assert not [record.getMessage() for record in caplog.records if record.exc_info]
    await store_of(node).close()


@pytest.mark.parametrize("place", ["journal", "ledgers"])
async def test_a_stop_in_which_a_disk_fails_is_none_in_order(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so, once: no traceback of an error that nobody has taken follows."""
    cluster = InProcess(tmp_path)
    await cluster.start("a")
    node, storage = cluster.node("a"), cluster.storage("a")
    await storage.states((1,))
    adding = add(storage, Batch(1, 0))
    cluster.disks["a"].fail_at(1, errno.EIO, path=place)
    with pytest.raises(StorageFailedError, match="Input/output error"):
        await node.stop()
    assert not adding.done() or place == "ledgers"
    await store_of(node).close()
    cluster.nodes.clear()
    del node, storage
    gc.collect()
    told = [record for record in caplog.records if record.name == "asyncio" or "stopped" in record.getMessage()]
    assert not told
