"""`bkpy bookie recover` and `bkpy ledger explain` on real processes, killed while they are at it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from tests.command import PATIENCE_S, PRELOADED, as_json, bkpy, environment, start
from tests.conftest import run_elsewhere
from tests.unit.replication.repairing import whole
from tests.waiting import eventually

import bkpy as api
from bkpy.local import LocalCluster
from bkpy.metadata.cluster import open_cluster
from bkpy.protocol.ledger.ledger_metadata import LedgerState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.preloaded import Fork

SESSION_S = 4.0  # a busy machine may keep a process waiting for longer than a second or two
ENTRIES = 100
PAYLOAD = 2000


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Five bookies whose deaths are soon noticed, and that do nothing about them by themselves."""
    config = {"session_timeout_s": SESSION_S, "journal_max_size_mb": 4, "auto_recovery": False}
    cluster = LocalCluster(tmp_path_factory.mktemp("recovered"), bookies=5, config=config)
    try:
        run_elsewhere(cluster.start())
        yield cluster
    finally:
        run_elsewhere(cluster.stop())


@pytest.fixture
def local(once: LocalCluster) -> Iterator[LocalCluster]:
    """The same, all of them running, without ledgers."""
    run_elsewhere(once.start())
    try:
        yield once
    finally:
        run_elsewhere(forget(once))


async def forget(cluster: LocalCluster) -> None:
    """Delete its ledgers."""
    async with api.connect(cluster.connect_string) as client:
        async for ledger_id in client.list_ledgers():
            await client.delete_ledger(ledger_id)


async def write(client: api.Client, *, close: bool = True, **sizes: int) -> int:
    writer = await client.create_ledger(**sizes)
    for i in range(ENTRIES):
        writer.append_nowait(b"%06d" % i * (PAYLOAD // 6))
    await writer.flush()
    if close:
        await writer.close()
    else:
        writer.abandon()
    return writer.ledger_id


async def names(client: api.Client, ledger_ids: list[int], bookie_id: str) -> list[int]:
    """The ledgers among these that name the bookie."""
    found = [(i, await client.ledger_metadata(i)) for i in ledger_ids]
    return [i for i, metadata in found if any(bookie_id in fragment.bookies for fragment in metadata.fragments)]


def recovering(uri: str, bookie_id: str, *options: object) -> Fork:
    """The command, slow enough to be caught at it."""
    words = ["--set", f"session_timeout_s={SESSION_S}", "bookie", "recover", bookie_id, *map(str, options), "--json"]
    words += ["--copy_bytes_per_s_max", "400000", "--open_ledger_grace_s", "0.5"]
    return start(*words, uri=uri)


@pytest.mark.exhaustive
@pytest.mark.scenario(59)
async def test_what_a_killed_bookie_had_is_copied_whatever_dies_meanwhile(local: LocalCluster) -> None:
    uri = local.connect_string
    async with api.connect(uri) as client:
        sizes = [{"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}] * 5
        sizes += [{"ensemble_size": 3, "write_quorum": 2, "ack_quorum": 2}] * 3
        ledger_ids = [await write(client, **one) for one in sizes]
        ledger_ids.append(await write(client, close=False))
        dead = local.bookies[0]
        refused = bkpy("bookie", "recover", dead.id, uri=uri, status=1)
        assert b"is running" in refused.stderr
        await dead.kill()

        async def gone() -> bool:
            return dead.id not in client.bookies

        await eventually(gone, "its registration ends", pause_s=0.2)
        lost = await names(client, ledger_ids, dead.id)
        assert lost
        explained = as_json("ledger", "explain", lost[0], uri=uri)
        assert explained["fragments"][0]["bookies"][dead.id] == "away"
        assert explained["to_do"]
        assert as_json("ledger", "explain", lost[0], "--read", uri=uri)["in_the_way"] == []
        planned = as_json("bookie", "recover", dead.id, "--dry-run", uri=uri)
        assert (planned["named_by"], planned["stuck"]) == (len(lost), {})
        assert await names(client, ledger_ids, dead.id) == lost

        async def some_done() -> bool:
            return len(await names(client, lost, dead.id)) < len(lost)

        worker = recovering(uri, dead.id)
        await eventually(some_done, "a ledger is done", pause_s=0.2)
        worker.kill()
        worker.communicate()
        # Another bookie is killed now, source of some and target of others, and comes back.
        worker = recovering(uri, dead.id)
        other = local.bookies[1]
        await other.kill()
        await other.start()
        out, err = await asyncio.to_thread(worker.communicate, timeout=PATIENCE_S)
        assert worker.returncode in (0, 1), err.decode()
        told = json.loads(out)
        if told["stuck"]:  # it was away for too long
            done = PRELOADED.run(
                ["bookie", "recover", dead.id, "--json"], stdin=b"", env=environment(uri), timeout_s=PATIENCE_S
            )
            assert done.returncode == 0, done.stdout.decode()
        assert await names(client, ledger_ids, dead.id) == []
        for ledger_id in ledger_ids:
            metadata = await whole(client, ledger_id) if ledger_id in lost else await client.ledger_metadata(ledger_id)
            if ledger_id in lost:
                assert metadata.state is LedgerState.CLOSED
                assert metadata.last_entry == ENTRIES - 1
        again = as_json("bookie", "recover", dead.id, uri=uri)
        assert (again["named_by"], again["entries"]) == (0, 0)
        assert "all its copies" in bkpy("ledger", "explain", lost[0], uri=uri).stdout.decode()


@pytest.mark.exhaustive
async def test_metadata_that_can_not_be_read_hold_up_no_other_ledger(local: LocalCluster) -> None:
    uri = local.connect_string
    async with api.connect(uri) as client, local.metadata() as (store, root):
        ledger_ids = [await write(client, ensemble_size=4, write_quorum=3, ack_quorum=2) for _ in range(3)]
        damaged, *others = ledger_ids
        (dead, *_) = [b for b in local.bookies if await names(client, others, b.id) == others]
        path = (await open_cluster(store, root)).catalog.path_of(damaged)
        sound, version = await store.get(path)
        await store.put(path, b"damaged", version)
        await dead.kill()

        async def gone() -> bool:
            return dead.id not in client.bookies

        await eventually(gone, "its registration ends", pause_s=0.2)
        done = PRELOADED.run(["bookie", "recover", dead.id, "--json"], stdin=b"", env=environment(uri), timeout_s=60)
        assert done.returncode == 1, done.stderr.decode()
        told = json.loads(done.stdout)
        assert (told["ledgers"], told["unreadable"]) == (2, [damaged])
        assert await names(client, others, dead.id) == []
        await store.put(path, sound, (await store.get(path))[1])


async def test_what_nobody_has_is_said_by_name(local: LocalCluster) -> None:
    uri = local.connect_string
    async with api.connect(uri) as client:
        ledger_id = await write(client, ensemble_size=2, write_quorum=2, ack_quorum=2)
        first, other = (await client.ledger_metadata(ledger_id)).fragments[0].bookies
        for bookie in local.bookies:
            if bookie.id in (first, other):
                await bookie.stop()

        async def gone() -> bool:
            return not {first, other} & client.bookies.keys()

        await eventually(gone, "their registrations end", pause_s=0.2)
    done = PRELOADED.run(["bookie", "recover", first, "--json"], stdin=b"", env=environment(uri), timeout_s=PATIENCE_S)
    assert done.returncode == 1
    (why,) = json.loads(done.stdout)["stuck"].values()
    assert f"entries 0 to {ENTRIES - 1}" in why
    assert first in why
    assert other in why
    told = bkpy("ledger", "explain", ledger_id, uri=uri).stdout.decode()
    assert "in the way" in told
    assert "has to come back" in told
