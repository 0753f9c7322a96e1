"""A client and bookies of a cluster whose ZooKeeper has three servers survive the loss of one, whichever it is."""

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
from bkpy.runtime.system import real_runtime

DEADLINE_S = 60


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
    store, root = await connect_store(uri, runtime, session_timeout_s=6.0)
    node = BookieNode(load_bookie_settings(None, {}, flags), store, root, runtime)
    await node.start()
    try:
        yield node
    finally:
        await node.stop()
        await store.close()


@pytest.mark.exhaustive
async def test_the_loss_of_any_one_zookeeper_server(tmp_path: Path) -> None:
    ensemble = ZooKeeperEnsemble(tmp_path / "zookeeper", servers=3)
    await ensemble.start()
    try:
        uri = f"zk://{ensemble.connect_string}/ledgers"
        store, root = await connect_store(uri, real_runtime())
        await init_cluster(store, root)
        await store.close()
        async with (
            bookie(uri, tmp_path, "a"),
            bookie(uri, tmp_path, "b"),
            bookie(uri, tmp_path, "c"),
            bkpy.connect(uri, session_timeout_s=6.0) as client,
        ):
            for server in ensemble.servers:
                writer = await client.create_ledger()
                await writer.append(b"before")
                await server.kill()
                await writer.append(b"after")

                async def closed(writer: bkpy.LedgerWriter = writer) -> bool:
                    await writer.close()
                    return True

                # While the servers elect a leader, the outcome may be unknown; the next try finds it out.
                await eventually(closed, meanwhile=bkpy.MetadataUnavailableError)
                metadata = await client.ledger_metadata(writer.ledger_id)
                assert (metadata.state, metadata.last_entry) == ("CLOSED", 1)
                await server.start()
                reader = await client.open_ledger(writer.ledger_id)
                assert [e.data async for e in reader.read()] == [b"before", b"after"]
    finally:
        await ensemble.stop()
