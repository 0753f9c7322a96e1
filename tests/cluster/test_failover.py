"""A session, a client and bookies survive the loss of any one of three ZooKeeper servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.waiting import eventually

import bkpy
from bkpy.bookie.node import BookieNode
from bkpy.config.loading import load_bookie_settings
from bkpy.local.process import free_port
from bkpy.local.zookeeper import ZooKeeperEnsemble
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.connect import connect_store
from bkpy.metadata.store.zookeeper.store import ZooKeeperStore
from bkpy.runtime.system import real_runtime

DEADLINE_S = 60
SESSION_S = 20.0  # a server allows no more; an election on a busy machine takes less


@asynccontextmanager
async def bookie(uri: str, directory: Path, name: str) -> AsyncIterator[BookieNode]:
    flags = {
        "metadata_uri": uri,
        "bookie_id": name,
        "listen": f"127.0.0.1:{free_port()}",
        "journal_directories": str(directory / name / "journal"),
        "ledger_directories": str(directory / name / "ledgers"),
    }
    runtime = real_runtime()
    store, root = await connect_store(uri, runtime, session_timeout_s=SESSION_S)
    node = BookieNode(load_bookie_settings(None, {}, flags), store, root, runtime)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()
        await store.close()


async def put_somehow(store: ZooKeeperStore, path: str, version: int) -> int:
    """Put until it is certain that it was done once."""
    while True:
        try:
            return await store.put(path, b"x", version)
        except bkpy.MetadataUnavailableError:
            await store.sync(path)
            if (await store.get(path))[1] == version + 1:
                return version + 1


@pytest.mark.exhaustive
async def test_the_loss_of_any_one_zookeeper_server(tmp_path: Path) -> None:
    async with ZooKeeperEnsemble(tmp_path / "zookeeper", servers=3) as ensemble:
        uri = f"zk://{ensemble.connect_string}/ledgers"
        store, root = await connect_store(uri, real_runtime(), session_timeout_s=SESSION_S)
        assert isinstance(store, ZooKeeperStore)
        await init_cluster(store, root)
        counter = await store.create("/counter", b"", ephemeral=True)
        session, version = store.session_id, 0
        async with (
            bookie(uri, tmp_path, "a"),
            bookie(uri, tmp_path, "b"),
            bookie(uri, tmp_path, "c"),
            bkpy.connect(uri, session_timeout_s=SESSION_S) as client,
        ):
            for server in ensemble.servers:
                await ensemble.start()  # the server that was killed last
                writer = await client.create_ledger()
                await writer.append(b"before")
                watch = store.watch(counter)
                await anext(watch)
                await server.kill()
                await writer.append(b"after")
                async with asyncio.timeout(DEADLINE_S):
                    version = await put_somehow(store, counter, version)
                    await anext(watch)
                watch.close()

                async def closed(writer: bkpy.LedgerWriter = writer) -> bool:
                    await writer.close()
                    return True

                # While the servers elect a leader, the outcome may be unknown; the next try finds it out.
                await eventually(closed, meanwhile=bkpy.MetadataUnavailableError)
                rest = ",".join(other.connect_string for other in ensemble.servers if other is not server)
                async with bkpy.connect(f"zk://{rest}/ledgers") as another:
                    metadata = await another.ledger_metadata(writer.ledger_id)
                    assert (metadata.state, metadata.last_entry) == ("CLOSED", 1)
                    reader = await another.open_ledger(writer.ledger_id)
                    assert [e.data async for e in reader.read()] == [b"before", b"after"]
        assert await store.get(counter) == (b"x", version)
        assert version == 3
        assert store.session_id == session
        await store.close()
    assert all(server.pid is None for server in ensemble.servers)
