"""A cluster of an earlier version becomes today's, bookie by bookie, while clients of both write; nothing is lost.

Each bookie is today's program on the directories that the earlier one left. When all of them are, one is lost for good,
and the others, which know how by now, make anew what it had.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest

import bkpy
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.connect import connect_store
from bkpy.runtime.system import real_runtime
from tests.command import bkpy as command
from tests.faults.healing import CONFIG, Healing, until
from tests.faults.load import Load
from tests.faults.oracle import check, check_replicas
from tests.unit.replication.repairing import whole

from .software import STATES, BookieProcess, RemoteClient, Software

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from bkpy.local.zookeeper import ZooKeeperServer
    from bkpy.metadata.store.store import MetadataStore

VERSIONS = sorted(path.name for path in STATES.iterdir())
ENSEMBLE = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}
BETWEEN = 100  # entries that each writer writes while a version is as it is
OLD_PAUSE_S = 0.02  # between two batches of the old client: what matters is that some are under way at any time
BATCH = [f"entry {i} " * (i % 9) for i in range(20)]
# Of every version; the journals are taken over with what no checkpoint has.
SETTINGS: dict[str, Any] = {"journal_max_size_mb": 4, "session_timeout_s": CONFIG["session_timeout_s"]}


class Rolling:
    """Four bookies of the earlier version."""

    def __init__(self, version: str, directory: Path, zookeeper: ZooKeeperServer) -> None:
        wheel = next((STATES / version).glob("*.whl"))
        self.old = Software.unpacked(wheel, directory / "software")
        self.uri = f"zk://{zookeeper.connect_string}/rolling-{version}-{directory.name}"
        self.bookies = {
            name: BookieProcess(
                name,
                directory / name,
                self.uri,
                **SETTINGS,
                journal_directories=[str(directory / name / "journal")],
                ledger_directories=[str(directory / name / "ledgers")],
            )
            for name in ("a", "b", "c", "d")
        }

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[tuple[MetadataStore, str]]:
        """The earlier version's cluster, and its metadata; whatever runs is stopped in the end."""
        store, root = await connect_store(self.uri, real_runtime())
        try:
            await init_cluster(store, root)
            await asyncio.gather(*(bookie.start(self.old, store, root) for bookie in self.bookies.values()))
            yield store, root
        finally:
            await store.close()
            await asyncio.gather(*(bookie.kill() for bookie in self.bookies.values()))

    async def upgrade(self, name: str, store: MetadataStore, root: str, *, cleanly: bool) -> None:
        """As docs/how-to/upgrades.md says: stop, start the new version on what is there, its own settings."""
        bookie = self.bookies[name]
        await (bookie.stop() if cleanly else bookie.kill())
        bookie.settings |= CONFIG
        await bookie.start(Software.today(), store, root)


class OldWriter:
    """A client of the earlier version that appends all the time."""

    def __init__(self, client: RemoteClient, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.acknowledged: list[str] = []
        self._client = client
        self._stopping = False
        self._task = asyncio.create_task(self._write())

    @classmethod
    async def start(cls, client: RemoteClient, ensemble: list[str]) -> OldWriter:
        return cls(client, await client.do("create", ensemble=ensemble, write_quorum=3, ack_quorum=2))

    async def _write(self) -> None:
        while not self._stopping:
            entries = [f"{len(self.acknowledged) + i}: {entry}" for i, entry in enumerate(BATCH)]
            await self._client.do("append", ledger_id=self.ledger_id, entries=entries)
            self.acknowledged += entries
            await asyncio.sleep(OLD_PAUSE_S)

    async def more(self, count: int) -> None:
        wanted = len(self.acknowledged) + count

        async def there() -> bool:
            if self._task.done():
                self._task.result()
            return len(self.acknowledged) >= wanted

        await until(there, f"{count} further entries by the old client")

    async def close(self) -> None:
        self._stopping = True
        await self._task
        await self._client.do("close", ledger_id=self.ledger_id)


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_cluster_is_upgraded_bookie_by_bookie_under_load(
    version: str, tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    rolling = Rolling(version, tmp_path, zookeeper)
    async with (
        rolling.running() as (store, root),
        bkpy.connect(rolling.uri, add_timeout_s=10.0) as client,
        _old_client(rolling) as old,
    ):
        healing = Healing(rolling.uri, client)
        await healing.write(3)  # none of them on all four: one is going to be lost
        # Those that are upgraded would soon take one that is away for lost, and close what is being written on it.
        await asyncio.to_thread(command, "autorecovery", "disable", uri=rolling.uri)
        writing = await OldWriter.start(old, ["a", "b", "c"])
        async with Load(await client.create_ledger(**ENSEMBLE), outstanding=4, pause_s=0.04) as load:
            following = asyncio.create_task(load.follow(await client.open_ledger(load.writer.ledger_id)))
            versions = dict.fromkeys(rolling.bookies, version)
            assert await asyncio.to_thread(_versions, rolling.uri) == versions
            for number, name in enumerate(rolling.bookies):
                await asyncio.gather(load.more(BETWEEN), writing.more(BETWEEN))
                await rolling.upgrade(name, store, root, cleanly=number % 2 == 0)
                await until(_sees(client, name), f"the client sees {name} again")
                versions[name] = bkpy.__version__
                assert await asyncio.to_thread(_versions, rolling.uri) == versions
            await asyncio.gather(load.more(BETWEEN), writing.more(BETWEEN))
        if load.error is not None:
            raise load.error
        await load.writer.close()
        await writing.close()
        await following

        for ledger_id, promises in healing.promises.items():
            await check(client, promises)
            await whole(client, ledger_id)  # each of its bookies has its share, as it was written before the upgrade
        await check(client, load.promises)
        await check_replicas(client, load.writer.ledger_id)
        assert await old.do("read", ledger_id=writing.ledger_id) == writing.acknowledged
        assert await _read(client, writing.ledger_id) == writing.acknowledged

        await asyncio.to_thread(command, "autorecovery", "enable", uri=rolling.uri)
        await rolling.bookies["b"].kill()

        async def copied() -> bool:
            return not await healing.naming("b")

        # What was written meanwhile misses entries on each of the four, so that it would need more of them to be whole.
        await until(copied, "what b had is made anew")
        await healing.demand()
        async with bkpy.connect(rolling.uri) as fresh:
            await check(fresh, load.promises)
            assert await _read(fresh, writing.ledger_id) == writing.acknowledged
        assert await old.do("read", ledger_id=writing.ledger_id) == writing.acknowledged


def _versions(uri: str) -> dict[str, str]:
    """Which each bookie says that it runs."""
    bookies = json.loads(command("bookies", "list", "--json", uri=uri).stdout)
    return {bookie["bookie_id"]: bookie["version"] for bookie in bookies}


async def _read(client: bkpy.Client, ledger_id: int) -> list[str]:
    async with await client.open_ledger(ledger_id) as reader:
        return [entry.data.decode("latin-1") async for entry in reader.read()]


@contextlib.asynccontextmanager
async def _old_client(rolling: Rolling) -> AsyncIterator[RemoteClient]:
    old = await RemoteClient.start(rolling.old, rolling.uri, add_timeout_s=10.0)
    try:
        yield old
    finally:
        await old.kill()


def _sees(client: bkpy.Client, name: str) -> Callable[[], Awaitable[bool]]:
    async def seen() -> bool:
        return name in client.bookies

    return seen
