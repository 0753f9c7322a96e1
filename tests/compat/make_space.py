"""Keep what bookies of this tree leave behind when they give space back, keep batches in place, or have no journal.

    python -m tests.compat.make_space NAME

Writes `tests/compat/spaces/NAME`: `bookies.tar.xz`, the directories of six bookies; `metadata.json`; `contents.json`,
the bookies' settings, and what the ledgers hold on which bookies, and which were deleted. As in `make`, settings name
directories relative to where the bookies run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import bkpy
from bkpy.local.process import free_port
from bkpy.local.zookeeper import ZooKeeperServer
from bkpy.metadata.cluster import init_cluster
from bkpy.metadata.connect import connect_store
from bkpy.runtime.ordered_store import LmdbStores
from bkpy.runtime.system import real_runtime
from bkpy.storage.at_risk import put_mark
from bkpy.storage.index.index import load_shard
from tests.waiting import eventually

from .software import BookieProcess, Software, dump_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bkpy.client.client import Client
    from bkpy.metadata.store.store import MetadataStore

SPACES = Path(__file__).parent / "spaces"
TWO = {"journal_directories": ["journal-1", "journal-2"], "ledger_directories": ["ledgers-1", "ledgers-2"]}
SMALL: dict[str, Any] = {
    "journal_max_size_mb": 1,
    "index_bytes_max": 16 << 20,
    "disk_free_bytes_min": 0,
    "disk_free_bytes_resume": 1,
    "compaction_free_bytes_min": 0,
    "journal_run_bytes_min": 10_000,
    "block_bytes": 4096,
    "entry_log_blocks_max": 5,
    "gc_interval_s": 0,
    "checkpoint_interval_s": 1,
}
# What only makes things happen soon, and slowly enough to be killed in the middle: not kept.
HURRIED: dict[str, Any] = {"reclaim_interval_s": 0.2, "compaction_major_interval_s": 0.2}
SLOW: dict[str, Any] = {"compaction_bytes_per_s": 20_000, "compaction_step_bytes": 1, "compaction_commit_bytes": 10_000}
SCRUBBED: dict[str, Any] = {
    "scrub_interval_s": 0,
    "scrub_bytes_per_s": 50_000,
    "scrub_step_bytes": 1,
    "scrub_save_interval_s": 0.1,
}

PAUSE_S = 0.05  # between two looks at a page: each takes the bookie some time
SETTINGS: dict[str, dict[str, Any]] = {
    "two": {**TWO, **SMALL},  # stopped, collected and compacted
    "kept": {**SMALL},  # killed in a round of the scrub; large batches stayed in its journal files
    "torn": {**TWO, **SMALL},  # killed in a compaction
    "memory": {**SMALL, "journal_write_data": False},  # stopped
    "lost": {**SMALL, "journal_write_data": False},  # killed
    "unsynced": {**SMALL, "journal_sync_data": False},  # killed
}
ALL = list(SETTINGS)
STOPPED = ("two", "memory")
LEFT_OUT = ("torn",)  # by what is written last: it is down by then


class Scenario:
    """Writes and deletes ledgers, and notes what the bookies must hold."""

    def __init__(self, directory: Path, uri: str, store: MetadataStore, root: str) -> None:
        self.ledgers: dict[str, dict[str, Any]] = {}
        self.bookies = {
            name: BookieProcess(name, directory / name, uri, **settings, **HURRIED)
            for name, settings in SETTINGS.items()
        }
        self.bookies["torn"].settings.update(SLOW)
        self.bookies["kept"].settings.update(SCRUBBED)
        for bookie in self.bookies.values():
            bookie.settings["metrics_port"] = free_port()
        self._uri = uri
        self._store = store
        self._root = root

    async def run(self) -> None:
        await asyncio.gather(*(b.start(Software.today(), self._store, self._root) for b in self.bookies.values()))
        async with bkpy.connect(self._uri) as client:
            for i in range(12):  # of every third one only what it shares logs with stays
                await self._write(client, f"small {i}", [(f"small {i} {k}; ", 50) for k in range(40)], ALL)
            for i in range(3):
                await self._write(client, f"large {i}", [(f"large {i} {k}; ", 500) for k in range(24)], ALL)
            await self._fenced(client)
            await asyncio.sleep(3)  # until it is in the indexes
            for name in [f"small {i}" for i in range(0, 12, 3)] + ["large 1"]:
                await client.delete_ledger(self.ledgers[name]["id"])
                self.ledgers[name]["deleted"] = True
            for bookie in self.bookies.values():
                await collect(bookie)
            await self._killed_in_compaction(self.bookies["torn"])
            for name in set(ALL) - set(LEFT_OUT):
                await reclaimed(self.bookies[name])
            await self._killed_in_scrub(self.bookies["kept"])
            left = [name for name in ALL if name not in (*LEFT_OUT, "kept")]
            await self._write(client, "last", [(f"last {k}; ", 20) for k in range(100)], left)
            for name in ("lost", "unsynced"):
                await self.bookies[name].kill()
            for name in STOPPED:
                await self.bookies[name].stop()

    async def _write(
        self, client: Client, name: str, entries: Sequence[tuple[str, int]], bookies: Sequence[str]
    ) -> None:
        count = len(bookies)
        async with await client.create_ledger(ensemble_size=count, write_quorum=count, ack_quorum=count) as writer:
            payloads = [text.encode() * times for text, times in entries]
            for at in range(0, len(payloads), 10):  # each of these becomes a block
                await writer.append_batch(payloads[at : at + 10])
        self.ledgers[name] = {"id": writer.ledger_id, "entries": entries, "bookies": bookies, "deleted": False}

    async def _fenced(self, client: Client) -> None:
        writer = await client.create_ledger(ensemble_size=len(ALL), write_quorum=len(ALL), ack_quorum=len(ALL))
        entries = [(f"fenced {k}", 1) for k in range(10)]
        await writer.append_batch([text.encode() for text, _ in entries])
        async with await client.recover_ledger(writer.ledger_id):
            pass
        self.ledgers["fenced"] = {"id": writer.ledger_id, "entries": entries, "bookies": ALL, "deleted": False}

    async def _killed_in_compaction(self, bookie: BookieProcess) -> None:
        async def under_way() -> bool:
            told = await metrics(bookie)
            assert told["bkpy_bookie_compacted_bytes_total"] == 0 or told["bkpy_bookie_compaction_bytes"] > 0
            return told["bkpy_bookie_compacted_bytes_total"] > 0

        await eventually(under_way)
        await bookie.kill()

    async def _killed_in_scrub(self, bookie: BookieProcess) -> None:
        await ask(bookie, "scrub", {})

        async def under_way() -> bool:
            (directory,) = (await ask(bookie, "scrub"))["directories"]
            return bool(0.2 * directory["total_bytes"] < directory["done_bytes"] < 0.8 * directory["total_bytes"])

        await eventually(under_way)
        await asyncio.sleep(0.3)  # until that is stored
        await bookie.kill()


async def ask(bookie: BookieProcess, page: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the bookie's page of that name answers."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{bookie.settings['metrics_port']}/{page}",
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    answer: dict[str, Any] = json.loads(await asyncio.to_thread(lambda: urllib.request.urlopen(request).read()))
    return answer


async def metrics(bookie: BookieProcess) -> dict[str, float]:
    """By name, of all labels together."""
    url = f"http://127.0.0.1:{bookie.settings['metrics_port']}/metrics"
    text = (await asyncio.to_thread(lambda: urllib.request.urlopen(url).read())).decode()
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name.partition("{")[0]] = found.get(name.partition("{")[0], 0) + float(value)
    return found


async def collect(bookie: BookieProcess) -> dict[str, Any]:
    """Have the bookie collect what was deleted; what it tells of the run."""
    run = (await ask(bookie, "gc", {}))["run"]

    async def ended() -> bool:
        nonlocal run
        run = (await ask(bookie, "gc"))["run"]
        return bool(run["outcome"] != "running")

    await eventually(ended, pause_s=PAUSE_S)
    assert run["outcome"] == "done", run
    told: dict[str, Any] = run
    return told


async def reclaimed(bookie: BookieProcess) -> None:
    """Return when nothing of deleted ledgers is left in the index, and compaction has copied what it will."""

    async def done() -> bool:
        told = await metrics(bookie)
        living, stored = told["bkpy_bookie_living_bytes"], told["bkpy_bookie_entry_log_bytes"]
        return not told["bkpy_bookie_deleted_ledgers"] and living >= 0.75 * stored

    await eventually(done, pause_s=PAUSE_S)


def as_of_another_boot(index: str) -> None:
    """Let the bookie be one whose machine has been started anew since it was killed."""
    store = LmdbStores().open(index, bytes_max=SMALL["index_bytes_max"])
    row = load_shard(store)
    assert row is not None
    assert len(row.at_risk) == 16
    put_mark(row, store, bytes(range(16)))
    store.close()


async def make(name: str) -> None:
    target = SPACES / name
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        async with ZooKeeperServer(directory / "zookeeper") as server:
            uri = f"zk://{server.connect_string}/ledgers"
            store, root = await connect_store(uri, real_runtime())
            try:
                await init_cluster(store, root)
                (directory / "bookies").mkdir()
                scenario = Scenario(directory / "bookies", uri, store, root)
                await scenario.run()
                nodes = await dump_tree(store, root)
            finally:
                await store.close()
        await asyncio.to_thread(as_of_another_boot, str(directory / "bookies" / "unsynced" / "ledgers" / "index"))
        contents = {"bookies": SETTINGS, "ledgers": scenario.ledgers}
        (target / "metadata.json").write_text(json.dumps(nodes, indent=1) + "\n")
        (target / "contents.json").write_text(json.dumps(contents, indent=1) + "\n")
        with tarfile.open(target / "bookies.tar.xz", "w:xz", preset=9) as archive:
            for bookie in ALL:
                archive.add(directory / "bookies" / bookie, bookie)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    asyncio.run(make(parser.parse_args().name))
