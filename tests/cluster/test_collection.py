"""Collection on a real ZooKeeper and real disks: every layout, a server that lags behind, the command, and `du`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from tests.cluster.test_lagging_zookeeper import Lagging, lagging, session
from tests.command import PATIENCE_S, as_json, bkpy
from tests.conftest import run_elsewhere
from tests.hooks import cluster_of, collector_of, storage_of
from tests.in_process import rewrite
from tests.waiting import eventually

import bkpy as library
from bkpy.bookie.node import BookieNode
from bkpy.client.client import open_client
from bkpy.config.client import client_settings
from bkpy.config.loading import load_bookie_settings
from bkpy.local import LocalCluster
from bkpy.local.process import poll
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.connect import connect_store
from bkpy.metadata.ledgers.layout import LAYOUTS
from bkpy.protocol.ledger.ledger_metadata import Fragment
from bkpy.runtime.system import real_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from bkpy.bookie.collector import CollectionRun
    from bkpy.client.client import Client
    from bkpy.local.zookeeper import ZooKeeperServer
    from bkpy.metadata.store.store import MetadataStore

__all__ = ["lagging"]  # the fixture

SIZES = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 3}
MIB = 1 << 20


@contextlib.asynccontextmanager
async def bookie(store: MetadataStore, root: str, directory: Path, name: str) -> AsyncIterator[BookieNode]:
    """A bookie in this process, which collects when it is told to."""
    flags = {
        "metadata_uri": f"zk://127.0.0.1:1{root}",  # it is given its session
        "bookie_id": name,
        "listen": "127.0.0.1:0",
        "journal_directories": str(directory / name / "journal"),
        "ledger_directories": str(directory / name / "ledgers"),
        "journal_max_size_mb": "1",
        "gc_interval_s": "0",
    }
    node = BookieNode(load_bookie_settings(None, {}, flags), store, root, real_runtime())
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def collect(node: BookieNode) -> CollectionRun:
    run = collector_of(node).begin()
    assert run is not None
    await eventually(lambda: run.seconds is not None, "the run ends")
    return run


async def held(node: BookieNode) -> list[int]:
    return await storage_of(node).held_ledgers(-1, 1000)


async def ledger(client: Client) -> int:
    async with await client.create_ledger(**SIZES) as writer:
        await writer.append_batch([b"one", b"two"])
    return writer.ledger_id


@pytest.mark.scenario(51)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_every_layout(zookeeper: ZooKeeperServer, tmp_path: Path, layout: str) -> None:
    uri = f"zk://{zookeeper.connect_string}/collection-{layout}"
    async with contextlib.AsyncExitStack() as stack:

        async def connected() -> tuple[MetadataStore, str]:
            store, root = await connect_store(uri, real_runtime(), session_timeout_s=30.0)
            stack.push_async_callback(store.close)
            return store, root

        store, root = await connected()
        await init_cluster(store, root, layout)
        nodes = [
            await stack.enter_async_context(bookie(*await connected(), tmp_path, name)) for name in ("b1", "b2", "b3")
        ]
        client = await open_client(store, root, real_runtime(), client_settings())
        stack.push_async_callback(client.close)
        kept, gone, spare = [await ledger(client) for _ in range(3)]
        if layout == "long-hierarchical":
            assert await held(nodes[0]) == [kept, gone, spare]
        await client.delete_ledger(gone)
        ensemble = (await cluster_of(client).catalog.read(spare))[0].fragments[0].bookies
        two = tuple(name for name in ensemble if name != "b1")
        await rewrite(client, spare, fragments=(Fragment(0, two),), ensemble_size=2, write_quorum=2, ack_quorum=2)
        for node in nodes:
            run = await collect(node)
            mine = node.settings.bookie_id == "b1"
            assert (run.failed, run.gone, run.over_replicated) == ("", 1, int(mine))
            assert await held(node) == ([kept] if mine else [kept, spare])
        for ledger_id in (kept, spare):
            reader = await client.open_ledger(ledger_id)
            assert [entry.data async for entry in reader.read()] == [b"one", b"two"]
        assert await store.children(f"{root}/underreplication/locks") == []


@pytest.mark.exhaustive
@pytest.mark.scenario(51)
async def test_a_server_that_lags_behind_lists_only_when_it_has_caught_up(
    lagging: Lagging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with session(lagging.ensemble.servers[2]) as ahead, session(lagging.follower) as behind:
        await init_cluster(ahead, "/ledgers")
        async with bookie(behind, "/ledgers", tmp_path, "b1") as node:
            client = await open_client(ahead, "/ledgers", real_runtime(), client_settings())
            sizes = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
            gone = await client.create_ledger(**sizes)
            await gone.append(b"x")
            await gone.close()  # else it publishes its last add confirmed in a while, and what is stored to stays
            await client.delete_ledger(gone.ledger_id)
            lagging.hold()
            writer = await client.create_ledger(**sizes)
            await writer.append(b"nobody may deny this")
            path = cluster_of(client).catalog.path_of(writer.ledger_id)
            assert not await behind.exists(path)  # the server says so, and is wrong
            assert set(await held(node)) == {gone.ledger_id, writer.ledger_id}
            sync, waiting = behind.sync, asyncio.Event()

            async def catch_up(path: str) -> None:
                waiting.set()
                await sync(path)

            monkeypatch.setattr(behind, "sync", catch_up)
            run = collector_of(node).begin()
            assert run is not None
            await eventually(waiting.is_set, "the collector waits for the server")
            assert run.seconds is None
            lagging.release()
            await eventually(lambda: run.seconds is not None, "the run ends")
            assert (run.failed, run.kept, run.collected) == ("", {}, [gone.ledger_id])
            assert await held(node) == [writer.ledger_id]
            await writer.append(b"nor this")
            await writer.close()
            reader = await client.open_ledger(writer.ledger_id)
            assert [entry.data async for entry in reader.read()] == [b"nobody may deny this", b"nor this"]
            await client.close()


# --- processes, the command, and disks --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two bookies that collect when they are told to."""
    config = {
        "metrics_port": 0,
        "gc_interval_s": 0,
        "entry_log_max_size_mb": 1,
        "journal_max_size_mb": 1,
        "memtable_bytes_max": MIB,
        "checkpoint_interval_s": 0.2,
        "reclaim_interval_s": 0.2,
    }
    made = LocalCluster(tmp_path_factory.mktemp("collecting"), bookies=2, config=config)
    try:
        run_elsewhere(made.start())
        yield made
    finally:
        run_elsewhere(made.stop())


def disk_usage(directory: Path) -> int:
    """Bytes on the disk, as `du` counts them."""
    used = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # it has just gone
            used += path.stat().st_blocks * 512 if path.is_file() else 0
    return used


@pytest.mark.exhaustive
@pytest.mark.scenario(51)
async def test_ledgers_are_deleted_and_the_disk_falls(local: LocalCluster) -> None:
    uri = local.connect_string
    disks = [b.directory / "ledgers" for b in local.bookies]
    async with library.connect(uri) as client:
        sizes = {"ensemble_size": 2, "write_quorum": 2, "ack_quorum": 2}
        kept = await client.create_ledger(**sizes)
        await kept.append_batch([b"kept"] * 100)
        zombie = await client.create_ledger(**sizes)
        await zombie.append(b"before")
        ids = []
        for _ in range(4):
            async with await client.create_ledger(**sizes) as writer:
                for _ in range(40):
                    await writer.append_batch([bytes(100_000)])
            ids.append(writer.ledger_id)
        # All that was written: else the space that is reclaimed later is less than what was deleted.
        assert await poll(lambda: _uses(disks, more_than=15 * MIB), PATIENCE_S)
        full = [disk_usage(disk) for disk in disks]
        for ledger_id in (*ids, zombie.ledger_id):
            await client.delete_ledger(ledger_id)

        first, second = (b.id for b in local.bookies)
        assert as_json("bookie", "gc", "--bookie", first, uri=uri)["run"] is None
        shown = bkpy("bookie", "gc", "--bookie", first, uri=uri).stdout.decode()
        assert "has not collected since its start" in shown
        would = as_json("bookie", "gc", "--dry-run", "--bookie", first, uri=uri)
        assert (would["bookie_id"], would["run"]["gone"], would["run"]["outcome"]) == (first, 5, "done")
        done = as_json("bookie", "gc", "--now", "--bookie", first, uri=uri)
        assert (done["run"]["gone"], done["run"]["number"], done["run"]["dry_run"]) == (5, 2, False)
        assert done["run"]["collected"] == [*sorted((*ids, zombie.ledger_id))]
        shown = bkpy("bookie", "gc", "--now", "--bookie", second, uri=uri).stdout.decode()
        assert ["deleted", "ledgers", "collected", "5"] in [line.split() for line in shown.splitlines()]
        with pytest.raises(library.LedgerFencedError):
            await zombie.append(b"after")

        limits = [used - 12 * MIB for used in full]
        assert await poll(lambda: _uses(disks, less_than=limits), PATIENCE_S), (full, [*map(disk_usage, disks)])
        await kept.append(b"still open")
        await kept.close()
        reader = await client.open_ledger(kept.ledger_id)
        assert [entry.data async for entry in reader.read()] == [*[b"kept"] * 100, b"still open"]


@pytest.mark.exhaustive
async def test_two_bookies_collect_the_spare_copies_of_one_ledger_at_the_same_time(tmp_path: Path) -> None:
    """As processes, by one lock: each of them has collected all of its own in the end, and no other copy is touched."""
    config = {"metrics_port": 0, "gc_interval_s": 0, "journal_max_size_mb": 1}
    async with LocalCluster(tmp_path / "cluster", bookies=3, config=config) as cluster:
        uri = cluster.connect_string
        keeper, *others = (bookie.id for bookie in cluster.bookies)
        async with library.connect(uri) as client:
            ids = [await ledger(client) for _ in range(10)]
            for ledger_id in ids:
                change = {"fragments": (Fragment(0, (keeper,)),), "ensemble_size": 1}
                await rewrite(client, ledger_id, **change, write_quorum=1, ack_quorum=1)
            collected: dict[str, list[int]] = {name: [] for name in others}
            runs = 0
            while not all(len(done) == len(ids) for done in collected.values()):
                runs += 1
                assert runs < 10, "a ledger that another one locks is left for the next run, not for ever"
                told = await asyncio.gather(
                    *(asyncio.to_thread(as_json, "bookie", "gc", "--now", "--bookie", name, uri=uri) for name in others)
                )
                for run in (answer["run"] for answer in told):
                    assert run["outcome"] == "done", run
                for name, answer in zip(others, told, strict=True):
                    collected[name] += answer["run"]["collected"]
            assert all(sorted(done) == ids for done in collected.values())
            assert as_json("bookie", "gc", "--now", "--bookie", keeper, uri=uri)["run"]["collected"] == []
            for ledger_id in ids:
                reader = await client.open_ledger(ledger_id)
                assert [entry.data async for entry in reader.read()] == [b"one", b"two"]


async def _uses(disks: list[Path], *, more_than: int = 0, less_than: list[int] | None = None) -> bool:
    used = [disk_usage(disk) for disk in disks]
    return min(used) > more_than and (
        less_than is None or all(u < limit for u, limit in zip(used, less_than, strict=True))
    )


async def test_the_command_says_what_it_lacks(local: LocalCluster, cluster: LocalCluster) -> None:
    uri = local.connect_string
    told: list[tuple[list[Any], str | None, int, str]] = [
        (["--now"], uri, 2, "which bookie? Give --admin HOST:PORT, or --bookie ID and --connect URI"),
        (["--now", "--bookie", "nobody"], uri, 1, "no such bookie is registered now"),
        (["--now", "--bookie", cluster.bookies[0].id], cluster.connect_string, 1, "run it with a metrics_port"),
        (["--admin", "127.0.0.1:1"], None, 1, "no bookie answers at 127.0.0.1:1"),
        (["--admin", local.bookies[0].address], None, 1, "no metrics page"),
        (["--admin", "here"], None, 1, "--admin: 'here' is not HOST:PORT"),
        (["--admin", f"127.0.0.1:{local.zookeeper.port}"], None, 1, "no bookie answers at"),
    ]
    for arguments, where, status, words in told:
        (message,) = bkpy("bookie", "gc", *arguments, uri=where, status=status).stderr.decode().splitlines()
        assert words in message
    async with library.connect(uri) as client:
        assert len(client.bookies) == 2
    port = await _metrics_port(uri, local.bookies[0].id)
    found = as_json("bookie", "gc", "--now", "--admin", f"127.0.0.1:{port}", uri=uri)
    assert (found["bookie_id"], found["run"]["outcome"]) == (local.bookies[0].id, "done")
    other = local.bookies[1].id
    message = bkpy("bookie", "gc", "--admin", f"127.0.0.1:{port}", "--bookie", other, uri=uri, status=1).stderr
    assert f"is bookie {local.bookies[0].id}, not {other}" in message.decode()


async def _metrics_port(uri: str, bookie_id: str) -> int:
    store, root = await connect_store(uri, real_runtime(), session_timeout_s=30.0)
    try:
        from bkpy.metadata.bookies.registration import decode_registration

        value, _ = await store.get(f"{root}/available/{bookie_id}")
        return decode_registration(bookie_id, value, read_only=False).metrics_port
    finally:
        await store.close()
