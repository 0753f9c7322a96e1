"""`bkpy cluster rebalance` on real processes, killed while it is at it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.command import as_json, bkpy, start
from tests.conftest import run_elsewhere
from tests.hooks import cluster_of
from tests.unit.replication.repairing import whole
from tests.waiting import eventually

import bkpy as api
from bkpy.local import LocalCluster
from bkpy.metadata.replication.locks import held_locks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.preloaded import Fork

SESSION_S = 2.0  # of the command that is killed: its locks are held as long
LEDGERS = 8
ENTRIES = 50


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path, bookies=3, config={"journal_max_size_mb": 4})
    try:
        run_elsewhere(cluster.start())
        yield cluster
    finally:
        run_elsewhere(cluster.stop())


def moving_slowly(uri: str) -> Fork:
    words = ["--set", f"session_timeout_s={SESSION_S}", "cluster", "rebalance", "--copy_bytes_per_s_max", "300000"]
    return start(*words, uri=uri)


@pytest.mark.exhaustive
async def test_a_new_bookie_gets_its_share_though_the_command_is_killed_meanwhile(local: LocalCluster) -> None:
    uri = local.connect_string
    async with api.connect(uri) as client:
        ledgers = []
        for _ in range(LEDGERS):
            writer = await client.create_ledger()
            for i in range(ENTRIES):
                writer.append_nowait(b"%06d" % i * 400)
            await writer.close()
            ledgers.append(writer.ledger_id)
        new = (await local.add_bookie()).id
        await eventually(lambda: new in client.bookies, "the new bookie is seen")

        async def named() -> int:
            found = [await client.ledger_metadata(ledger_id) for ledger_id in ledgers]
            return sum(new in fragment.bookies for metadata in found for fragment in metadata.fragments)

        planned = await asyncio.to_thread(as_json, "cluster", "rebalance", "--dry-run", uri=uri)
        assert planned["dry_run"]
        assert planned["moves"] == 6  # of 24 copies
        assert await named() == 0
        running = moving_slowly(uri)
        await eventually(named, "a ledger has moved", pause_s=0.02)
        running.kill()
        running.communicate()
        cluster = cluster_of(client)  # where its locks are as long as its session
        await eventually(lambda: held_locks(cluster.store, cluster.root), until=lambda held: not held)
        done = await asyncio.to_thread(as_json, "cluster", "rebalance", uri=uri)
        assert done["failed"] == {}
        assert await named() == 6
        assert len({load["after"] for load in done["bookies"].values()}) == 1
        for ledger_id in ledgers:
            await whole(client, ledger_id)
    shown = await asyncio.to_thread(bkpy, "cluster", "rebalance", "--dry-run", uri=uri)
    assert b"planned: 0 moves" in shown.stdout
