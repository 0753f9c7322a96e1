"""`bkpy cluster backup` and `restore` on real processes: the tree is wiped, and commands are killed on their way."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
from tests.command import PRELOADED, as_json, environment
from tests.command import bkpy as command
from tests.waiting import eventually

import bkpy
from bkpy.errors import UnauthorizedError
from bkpy.local import LocalCluster
from bkpy.metadata.connect import connect_store
from bkpy.metadata.store.resolve import children_if_there
from bkpy.runtime.process import process_runtime

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from bkpy.local.zookeeper import ZooKeeperServer
    from bkpy.metadata.store.store import MetadataStore

SETTINGS: dict[str, Any] = {
    "session_timeout_s": 4.0,
    "disk_free_bytes_min": 0,
    "gc_interval_s": 1.0,
}
KILLED = """\
import os, signal, sys
left = int(sys.argv[1])

from bkpy.metadata.store.zookeeper import store
multi = store.ZooKeeperStore.multi

async def counted(self, operations):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)  # before the transaction
    done = await multi(self, operations)
    if left == -1:
        os.kill(os.getpid(), signal.SIGKILL)  # behind the next one
    return done

store.ZooKeeperStore.multi = counted
from bkpy.cli import main
main(sys.argv[2:])
"""
ONE_BY_ONE = ("--set", "restore_nodes_max=1")
STEPS = range(1, 60)


class Moved(LocalCluster):
    """Whose bookies find their metadata under another root, once that is set."""

    root = "/ledgers"

    @property
    def connect_string(self) -> str:
        return super().connect_string.removesuffix("/ledgers") + self.root


async def wipe(store: MetadataStore, node: str) -> None:
    for name in await children_if_there(store, node):
        await wipe(store, f"{node}/{name}")
    await store.delete(node)


def killed(script: Path, step: int, *words: str, uri: str) -> subprocess.CompletedProcess[bytes]:
    script.write_text(KILLED)
    done = PRELOADED.run([str(script), str(step), *words], stdin=b"", env=environment(uri), timeout_s=100.0)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done


@pytest.mark.exhaustive
async def test_a_wiped_tree_is_restored_though_commands_are_killed(tmp_path: Path) -> None:
    file, script = str(tmp_path / "backup"), tmp_path / "killed.py"
    async with Moved(tmp_path / "cluster", 4, SETTINGS) as cluster:
        uri = cluster.connect_string
        async with bkpy.connect(uri) as client:
            async with await client.create_ledger() as writer:
                await writer.append_batch([b"%d" % number for number in range(100)])
            whole = writer.ledger_id
            growing = await client.create_ledger()
            await growing.append_batch([b"before"] * 10)
            async with await client.open_log("orders", create=True) as log:
                await log.append_batch([b"one", b"two"])
            made = await asyncio.to_thread(as_json, "cluster", "backup", file, uri=uri)
            assert (made["ledgers"], made["logs"]) == (3, 1)
            await growing.append_batch([b"after"] * 10)
            await growing.close()
            async with await client.create_ledger() as writer:
                await writer.append(b"later")
        for bookie in cluster.bookies:
            await bookie.stop()
        root = uri.rpartition("/")[2]
        restored = uri.removesuffix(root) + "restored"
        store, _ = await connect_store(uri, process_runtime(), session_timeout_s=10.0)
        try:
            await wipe(store, f"/{root}")
            folders = [str(one) for bookie in cluster.bookies for one in cluster.directories_of(bookie)]
            words = ("inspect", "salvage", *folders, "--to", str(tmp_path / "out"), "--backup", file)
            salvaged = await asyncio.to_thread(as_json, *words, uri=uri)
            assert (salvaged["ledgers"], salvaged["entries"], salvaged["damages"]) == (4, 123, 0)
            for step in STEPS:
                done = await asyncio.to_thread(
                    killed, script, step, *ONE_BY_ONE, "cluster", "restore", file, uri=restored
                )
                if done.returncode == 0:
                    break
            found = await asyncio.to_thread(as_json, "cluster", "restore", file, uri=restored)
            assert (found["ledgers"], found["state"]) == (3, "restored")
            cluster.root = "/restored"
            await asyncio.gather(*(bookie.start() for bookie in cluster.bookies))
            health = PRELOADED.run(
                ["cluster", "health", "--json"], stdin=b"", env=environment(restored), timeout_s=100.0
            )
            codes = [finding["code"] for finding in json.loads(health.stdout)["findings"]]
            assert health.returncode == 2
            assert "restore-unconfirmed" in codes
            await asyncio.to_thread(killed, script, 2, "cluster", "restore", "--confirm", uri=restored)
            done_by = await asyncio.to_thread(as_json, "cluster", "restore", "--confirm", uri=restored)
            assert done_by["state"] == "confirmed"
            async with bkpy.connect(restored) as client:
                assert [entry.data async for entry in (await client.open_ledger(whole)).read()] == [
                    b"%d" % number for number in range(100)
                ]
                entries = [entry.data async for entry in (await client.open_ledger(growing.ledger_id)).read()]
                assert entries == [b"before"] * 10 + [b"after"] * 10

                async def writable() -> int:
                    async with await client.create_ledger() as writer:
                        await writer.append(b"new")
                    return writer.ledger_id

                assert await eventually(writable, pause_s=0.2, meanwhile=bkpy.BookKeeperError) > found["kept_to"]
                async with await client.open_log("orders") as log:
                    assert await log.append(b"three") > 2
            for bookie in cluster.bookies:
                await bookie.stop()
            again = uri.removesuffix(root) + "again"
            words = ("cluster", "restore", file, "--also-from", found["instance_id"])
            assert (await asyncio.to_thread(as_json, *words, uri=again))["also_from"] == [found["instance_id"]]
            cluster.root = "/again"
            await asyncio.gather(*(bookie.start() for bookie in cluster.bookies))
            await asyncio.to_thread(as_json, "cluster", "restore", "--confirm", uri=again)
            async with bkpy.connect(again) as client:
                found_again = [entry.data async for entry in (await client.open_ledger(growing.ledger_id)).read()]
                assert found_again == entries
        finally:
            await store.close()


async def test_restored_nodes_get_the_access_lists_of_the_settings(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    uri, restored = (f"zk://{zookeeper.connect_string}/{name}" for name in ("open-cluster", "closed-cluster"))
    file = str(tmp_path / "backup")
    for words, where, variables in (
        (("init",), uri, {}),
        (("backup", file), uri, {}),
        (("restore", file), restored, {"BKPY_ZOOKEEPER_AUTH": "bkpy:very-secret"}),
    ):
        await asyncio.to_thread(command, "cluster", *words, uri=where, **variables)
    store, root = await connect_store(restored, process_runtime(), session_timeout_s=10.0)
    try:
        for path in ("RESTORE", "LAYOUT", "INSTANCEID", "cookies", "underreplication/disable"):
            with pytest.raises(UnauthorizedError):
                await store.get(f"{root}/{path}")
    finally:
        await store.close()
