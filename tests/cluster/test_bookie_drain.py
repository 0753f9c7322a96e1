"""`bkpy bookie drain` and `decommission` on real processes: under load, cancelled and killed in the middle."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.cluster.test_bookie_recover import names, write
from tests.command import PATIENCE_S, as_json, bkpy, start
from tests.conftest import run_elsewhere
from tests.unit.replication.repairing import whole
from tests.waiting import eventually

import bkpy as api
from bkpy.local import LocalCluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.preloaded import Fork

SESSION_S = 4.0  # a busy machine may keep a process waiting for longer than a second or two
LEDGERS = 24


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    """Four bookies, which look after what is under-replicated by themselves, slowly enough to be caught at it."""
    config = {"session_timeout_s": SESSION_S, "journal_max_size_mb": 4, "copy_bytes_per_s_max": 80_000}
    config |= {"copy_bytes_per_s_min": 80_000, "copies_at_once": 1, "audit_look_interval_s": 0.5}
    cluster = LocalCluster(tmp_path, bookies=4, config=config)
    try:
        run_elsewhere(cluster.start())
        yield cluster
    finally:
        run_elsewhere(cluster.stop())


async def told(uri: str, *words: str) -> Any:
    """What a command prints, while all that goes on here goes on."""
    return await asyncio.to_thread(as_json, *words, uri=uri)


def draining(uri: str, bookie_id: str) -> Fork:
    words = ["--set", f"session_timeout_s={SESSION_S}", "bookie", "drain", bookie_id, "--json"]
    return start(*words, uri=uri)


@pytest.mark.exhaustive
@pytest.mark.scenario(60)
async def test_a_bookie_leaves_under_load_though_it_is_cancelled_and_killed_in_the_middle(local: LocalCluster) -> None:
    uri = local.connect_string
    async with api.connect(uri) as client:
        ledger_ids = [await write(client) for _ in range(LEDGERS)]
        leaver = local.bookies[0].id
        refused = bkpy("bookie", "decommission", leaver, "--yes", uri=uri, status=1)
        assert b"drain it first" in refused.stderr
        idle = await client.create_ledger()
        await idle.append(b"idle")
        busy = await client.create_ledger()
        over = asyncio.Event()

        async def load() -> int:
            count = 0
            while not over.is_set():
                assert await busy.append(b"%d" % count) == count
                count += 1
                await asyncio.sleep(0.05)  # some hundred of them meet every step of the drain
            return count

        loading = asyncio.create_task(load())
        first = len(await names(client, ledger_ids, leaver))

        async def some_left() -> bool:
            return len(await names(client, ledger_ids, leaver)) < first

        # Cancelled in the middle: it takes entries again, and keeps what it has.
        command = draining(uri, leaver)
        await eventually(some_left, "a ledger has left", pause_s=0.2)
        assert (await told(uri, "bookie", "drain", leaver, "--status"))["draining"]
        assert (await told(uri, "bookie", "drain", leaver, "--cancel"))["cancelled"]
        out, _ = await asyncio.to_thread(command.communicate, timeout=PATIENCE_S)
        assert (command.returncode, json.loads(out)["done"]) == (1, False)

        async def takes_entries() -> bool:
            return leaver in client.bookies

        async def no_marks() -> bool:
            return bool((await told(uri, "autorecovery", "status"))["ledgers"] == 0)

        await eventually(takes_entries, "it takes entries again", pause_s=0.2)
        await eventually(no_marks, "the marks are void", pause_s=0.2)
        # Killed in the middle, the command as well as the bookie that drains: it is draining when it comes back.
        left = await names(client, ledger_ids, leaver)
        assert left
        command = draining(uri, leaver)
        await eventually(lambda: _fewer(client, left, leaver), "another ledger has left", pause_s=0.2)
        command.kill()
        command.communicate()
        await local.bookies[0].kill()
        await local.bookies[0].start()
        again = await told(uri, "bookie", "drain", leaver)
        assert (again["done"], again["refuses"], again["ledgers"], again["blocked"]) == (True, True, 0, {})
        assert leaver not in (*idle.ensemble, *busy.ensemble)
        assert (idle.usable, busy.usable) == (True, True)
        gone = await told(uri, "bookie", "decommission", leaver, "--yes")
        assert (gone["decommissioned"], gone["named_by"]) == (True, 0)
        refused = bkpy("bookie", "decommission", leaver, "--yes", uri=uri, status=1)
        assert b"knows no such bookie" in refused.stderr
        over.set()
        count = await loading
        await idle.close()
        await busy.close()
        await local.bookies[0].stop()
        for ledger_id in (*ledger_ids, idle.ledger_id, busy.ledger_id):
            metadata = await whole(client, ledger_id)
            assert not any(leaver in fragment.bookies for fragment in metadata.fragments)
        assert (await client.ledger_metadata(busy.ledger_id)).last_entry == count - 1


async def _fewer(client: api.Client, ledger_ids: list[int], bookie_id: str) -> bool:
    return len(await names(client, ledger_ids, bookie_id)) < len(ledger_ids)
