"""Keep a version: its wheel, and what a cluster of its bookies and clients leaves behind.

    python -m tests.compat.make WHEEL NAME    (a wheel: python -m pip wheel --no-deps --wheel-dir DIR .)

Writes `tests/compat/states/NAME`: the wheel; `bookies.tar.xz`, the directories of four bookies; `metadata.json`, the
nodes below the cluster's root in ZooKeeper; `contents.json`, the bookies' settings, and what ledgers and logs hold. Two
bookies were stopped and two were killed with journals that nobody has replayed. Their settings name directories
relative to where they run: cookies hold the paths as given, and a copy elsewhere must be the same bookie's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bkpy.local.zookeeper import ZooKeeperServer
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.connect import connect_store
from bkpy.runtime.system import real_runtime
from tests.waiting import eventually

from .raw import last_entries
from .software import STATES, BookieProcess, RemoteClient, RemoteError, Software, dump_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bkpy.metadata.store.store import MetadataStore

TWO = {"journal_directories": ["journal-1", "journal-2"], "ledger_directories": ["ledgers-1", "ledgers-2"]}
SMALL = {"journal_max_size_mb": 1, "index_bytes_max": 16 << 20, "disk_free_bytes_min": 0}

SETTINGS: dict[str, dict[str, Any]] = {
    "a": {**TWO, **SMALL},  # stopped
    "b": {**SMALL},  # killed
    "c": {**TWO, **SMALL},  # killed
    "d": {**SMALL},  # stopped; gets another ledger directory on the way
}
ALL = list(SETTINGS)
STOPPED, KILLED = ("a", "d"), ("b", "c")
LARGE_BYTES = 200_000


class Scenario:
    """Writes the ledgers, one after the other, and notes what they must hold."""

    def __init__(self, software: Software, directory: Path, uri: str, store: MetadataStore, root: str) -> None:
        self.ledgers: dict[str, dict[str, Any]] = {}
        self.logs: dict[str, dict[str, Any]] = {}
        self.bookies = {name: BookieProcess(name, directory / name, uri, **SETTINGS[name]) for name in ALL}
        self._software = software
        self._uri = uri
        self._store = store
        self._root = root

    async def run(self) -> None:
        await asyncio.gather(*(self._start(name) for name in ALL))
        client = await self._client()
        await self._closed(client, "replicated", write_quorum=4, ack_quorum=4)
        await self._closed(client, "striped in twos", write_quorum=2, ack_quorum=2)
        await self._closed(client, "password", write_quorum=3, ack_quorum=3, password="sesame")
        await self._closed(client, "empty", 0, write_quorum=4, ack_quorum=4)
        await self._large(client, "large, checkpointed")
        await self._without_c_and_d(client)
        # From here on, everything is in the journals of those that are going to be killed, and nowhere else.
        await self._closed(client, "journaled", write_quorum=4, ack_quorum=4)
        await self._closed(client, "striped in threes", write_quorum=3, ack_quorum=3)
        await self._closed(client, "hmac", write_quorum=4, ack_quorum=4, password="sesame", digest="hmac-sha256")
        await self._large(client, "large, journaled")
        await self._deferred(client)
        await self._caller_ids(client)
        await self._recovered(client)
        await self._logs(client)
        await self._left_open(client)
        for name in KILLED:
            await self.bookies[name].kill()
        for name in STOPPED:
            await self.bookies[name].stop()
        await client.kill()

    async def _start(self, name: str) -> None:
        await self.bookies[name].start(self._software, self._store, self._root)

    async def _client(self, **settings: Any) -> RemoteClient:
        return await RemoteClient.start(self._software, self._uri, **settings)

    async def _write(
        self,
        client: RemoteClient,
        name: str,
        entries: list[tuple[str, int]],
        *,
        password: str = "",
        ensemble: Sequence[str] = ALL,
        **options: Any,
    ) -> int:
        """Create a ledger and append the entries, each a text that is repeated; not closed."""
        ledger_id: int = await client.do("create", ensemble=ensemble, password=password, custom_metadata={}, **options)
        payloads = [text * times for text, times in entries]
        if options.get("caller_ids"):
            backwards = list(range(len(payloads)))[::-1]
            await client.do("append", ledger_id=ledger_id, entries=payloads[::-1], ids=backwards)
        else:
            await client.do("append", ledger_id=ledger_id, entries=payloads)
        self.ledgers[name] = {
            "id": ledger_id,
            "password": password,
            "state": "OPEN",
            "entries": entries,  # all that was acknowledged
            "confirmed": len(entries) - 1,  # as far as a reader may read now
            "fenced_on": [],
            **{key: options[key] for key in ("write_quorum", "ack_quorum")},
        }
        return ledger_id

    async def _closed(self, client: RemoteClient, name: str, count: int = 60, **options: Any) -> None:
        await self._close(client, name, [(f"{name} {i}; ", i % 7) for i in range(count)], **options)

    async def _large(self, client: RemoteClient, name: str) -> None:
        """More than a journal file holds."""
        await self._close(client, name, [("0123456789", LARGE_BYTES // 10)] * 12, write_quorum=4, ack_quorum=4)

    async def _close(self, client: RemoteClient, name: str, entries: list[tuple[str, int]], **options: Any) -> None:
        await client.do("close", ledger_id=await self._write(client, name, entries, **options))
        self.ledgers[name]["state"] = "CLOSED"

    async def _without_c_and_d(self, client: RemoteClient) -> None:
        """A writer that replaces c, and a recovery that gives up: its ledger is fenced on a and b."""
        first, second = [[(f"moved {i}", 1) for i in range(n, n + 10)] for n in (0, 10)]
        moved = await self._write(client, "moved", first, ensemble=["b", "c"], write_quorum=2, ack_quorum=2)
        entries = [(f"unfinished {i}", 1) for i in range(10)]
        ledger_id = await self._write(client, "in recovery", entries, write_quorum=4, ack_quorum=2)
        await self._everywhere(ledger_id, 9, 9)
        for name in ("c", "d"):
            await self.bookies[name].stop()
        await client.do("append", ledger_id=moved, entries=[text for text, _ in second])
        await client.do("close", ledger_id=moved)
        self.ledgers["moved"].update(entries=first + second, confirmed=19, state="CLOSED")
        other = await self._client(read_timeout_s=1.0)
        with pytest.raises(RemoteError, match="LedgerRecoveryError"):
            await other.do("recover", ledger_id=ledger_id)
        await other.kill()
        self.ledgers["in recovery"].update(state="IN_RECOVERY", fenced_on=["a", "b"])
        self.bookies["d"].settings["ledger_directories"] = ["ledgers", "more-ledgers"]
        await self.bookies["b"].stop()  # which writes a checkpoint
        await asyncio.gather(*(self._start(name) for name in ("b", "c", "d")))

    async def _deferred(self, client: RemoteClient) -> None:
        entries = [(f"deferred {i}", 1) for i in range(20)]
        ledger_id = await self._write(client, "deferred", entries, write_quorum=4, ack_quorum=4, deferred_sync=True)
        assert await client.do("force", ledger_id=ledger_id) == 19
        await client.do("close", ledger_id=ledger_id)
        self.ledgers["deferred"]["state"] = "CLOSED"

    async def _caller_ids(self, client: RemoteClient) -> None:
        """Appended backwards."""
        entries = [(f"chosen {i}", 1) for i in range(20)]
        await self._close(client, "caller ids", entries, write_quorum=4, ack_quorum=4, caller_ids=True)

    async def _recovered(self, client: RemoteClient) -> None:
        """From a writer that was killed; fenced on all."""
        writer = await self._client()
        entries = [(f"recovered {i}", 1) for i in range(30)]
        ledger_id = await self._write(writer, "recovered", entries, write_quorum=4, ack_quorum=4)
        await writer.kill()
        assert len(await client.do("recover", ledger_id=ledger_id)) == 30
        self.ledgers["recovered"].update(state="CLOSED", fenced_on=ALL)

    async def _left_open(self, client: RemoteClient) -> None:
        """By writers that were killed, one after it had told how far readers may read."""
        for name, interval_s in (("open, told", 0.02), ("open, not told", 0.0)):
            writer = await self._client(explicit_lac_interval_s=interval_s)
            entries = [(f"{name} {i}", 1) for i in range(15)]
            ledger_id = await self._write(writer, name, entries, write_quorum=4, ack_quorum=4)
            if interval_s:
                assert len(await client.do("tail", ledger_id=ledger_id, count=15)) == 15
                await self._everywhere(ledger_id, 14, 14)
            await writer.kill()
        self.ledgers["open, not told"]["confirmed"] = (
            len(await client.do("read", ledger_id=self.ledgers["open, not told"]["id"])) - 1
        )
        assert self.ledgers["open, not told"]["confirmed"] < 14

    async def _logs(self, client: RemoteClient) -> None:
        """One that was truncated and has a consumer, one with a password, and one whose writer was killed."""
        await self._log(client, "orders", 36, roll_entries=10)
        await client.do("register_consumer", name="orders", consumer="billing", position=20)
        await client.do("truncate_log", name="orders", before=12)
        await client.do("close_log", name="orders")
        self.logs["orders"].update(first=12, consumers={"billing": 20})
        await self._log(client, "secret", 5, password="sesame", digest="hmac-sha256", retention_s=1e9)
        await client.do("close_log", name="secret")
        writer = await self._client()
        await self._log(writer, "unfinished", 25, roll_entries=10)
        await writer.kill()

    async def _log(self, client: RemoteClient, name: str, count: int, **options: Any) -> None:
        assert await client.do("open_log", name=name, ensemble=ALL, write_quorum=4, ack_quorum=4, **options) == 0
        entries = [f"{name} {i}" for i in range(count)]
        assert await client.do("append_to_log", name=name, entries=entries) == count
        password = options.get("password", "")
        self.logs[name] = {"password": password, "entries": entries, "first": 0, "consumers": {}}

    async def _everywhere(self, ledger_id: int, highest: int, told: int) -> None:
        """Return when every bookie has that entry, and was told of that last add confirmed."""

        async def there() -> bool:
            addresses = [bookie.address for bookie in self.bookies.values()]
            return {await last_entries(address, ledger_id) for address in addresses} == {(highest, told)}

        await eventually(there)


async def make(wheel: Path, name: str) -> None:
    target = STATES / name
    target.mkdir(parents=True)
    kept = shutil.copy(wheel, target)
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        software = Software.unpacked(Path(kept), directory / "software")
        async with ZooKeeperServer(directory / "zookeeper") as server:
            uri = f"zk://{server.connect_string}/ledgers"
            store, root = await connect_store(uri, real_runtime())
            try:
                await init_cluster(store, root)
                (directory / "bookies").mkdir()
                scenario = Scenario(software, directory / "bookies", uri, store, root)
                await scenario.run()
                nodes = await dump_tree(store, root)
            finally:
                await store.close()
        contents = {"bookies": {b.id: b.settings for b in scenario.bookies.values()}, "ledgers": scenario.ledgers}
        contents["logs"] = scenario.logs
        (target / "metadata.json").write_text(json.dumps(nodes, indent=1) + "\n")
        (target / "contents.json").write_text(json.dumps(contents, indent=1) + "\n")
        with tarfile.open(target / "bookies.tar.xz", "w:xz", preset=9) as archive:
            for bookie in ALL:
                archive.add(directory / "bookies" / bookie, bookie)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("name")
    arguments = parser.parse_args()
    asyncio.run(make(arguments.wheel, arguments.name))
