"""Moving copies to new bookies: whole, verified, and no more of them than the new ones lack."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of
from tests.in_process import InProcess, contents
from tests.unit.client.support import payload
from tests.unit.replication.repairing import hanging_copies, locked, whole
from tests.waiting import eventually

from bkpy.admin.client import AdminClient
from bkpy.admin.rebalance import Rebalancer
from bkpy.client.client import replication_context
from bkpy.config.recovery import RecoverySettings
from bkpy.metadata.bookies.draining import Drains
from bkpy.metadata.replication.locks import LedgerLock, LedgerLocks
from bkpy.protocol.repair.rebalance import shares
from bkpy.replication.worker.ledger_repair import LOCKED

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from bkpy.client.client import Client
    from bkpy.protocol.repair.rebalance import Balance, Move


def rebalancer(client: Client, **settings: Any) -> Rebalancer:
    cluster = cluster_of(client)
    runtime = cluster.store.runtime
    locks = LedgerLocks(cluster.store, cluster.root, "by hand", runtime)
    return Rebalancer(replication_context(client), locks, RecoverySettings(**settings), runtime)


async def write_all(client: Client, count: int, **sizes: int) -> list[int]:
    found = []
    for _ in range(count):
        writer = await client.create_ledger(**sizes)
        for i in range(10):
            await writer.append(payload(i))
        await writer.close()
        found.append(writer.ledger_id)
    return found


async def another(cluster: InProcess, client: Client, name: str) -> None:
    await cluster.start_node(name)
    await eventually(lambda: name in client.bookies)


@pytest.mark.thorough
async def test_a_new_bookie_gets_its_share_of_closed_ledgers_and_no_more(cluster: InProcess) -> None:
    client = await cluster.client()
    ledgers = await write_all(client, 6)
    ledgers += await write_all(client, 3, ensemble_size=3, write_quorum=2, ack_quorum=2)
    writer = await client.create_ledger()
    await writer.append(b"open")
    await another(cluster, client, "d")
    one = rebalancer(client)
    balance = await one.look()
    assert one.loads["d"] == 0
    share = balance.share
    assert 0 < one.planned <= share
    await one.run(balance)
    assert not one.failed
    assert one.count.fragments == one.moves > 0
    assert one.done == one.taken["d"] <= share
    loads = dict.fromkeys("abcd", 0)
    largest = 0
    for ledger_id in ledgers:
        metadata = await whole(client, ledger_id)
        assert await contents(client, ledger_id) == [payload(i) for i in range(10)]
        for name, size in shares(metadata).items():
            loads[name] += size
            largest = max(largest, size)
    assert loads == {name: load - one.given.get(name, 0) + one.taken.get(name, 0) for name, load in one.loads.items()}
    # Each of the three others has at most what is less than a ledger's copy above its share.
    assert share - loads["d"] < 3 * largest
    again = rebalancer(client)
    await again.run(await again.look())
    assert again.moves == 0
    assert "d" not in (await client.ledger_metadata(writer.ledger_id)).fragments[-1].bookies
    await writer.close()


async def test_a_plan_moves_nothing(cluster: InProcess) -> None:
    client = await cluster.client()
    ledgers = await write_all(client, 4)
    await another(cluster, client, "d")
    one = rebalancer(client)
    planned = [move async for moves in one.plan(await one.look()) for move in moves]
    assert {move.target for move in planned} == {"d"}
    for ledger_id in ledgers:
        assert "d" not in shares(await client.ledger_metadata(ledger_id))


async def test_a_ledger_that_somebody_else_works_on_stays_as_it_is_and_is_told_of(cluster: InProcess) -> None:
    client = await cluster.client()
    ledgers = await write_all(client, 4)
    await another(cluster, client, "d")
    tree = cluster_of(client)
    locks = LedgerLocks(tree.store, tree.root, "somebody", tree.store.runtime)
    held = [await locks.take(ledger_id) for ledger_id in ledgers]
    one = rebalancer(client)
    await one.run(await one.look())
    assert one.moves == 0
    assert set(one.failed.values()) == {LOCKED}
    for lock in held:
        assert isinstance(lock, LedgerLock)
        await locks.release(lock)


async def test_a_ledger_that_is_deleted_meanwhile_is_not_counted_as_moved(cluster: InProcess) -> None:
    client = await cluster.client()
    ledgers = await write_all(client, 4)
    await another(cluster, client, "d")
    one = rebalancer(client)
    balance = await one.look()
    planned = [moves async for moves in one.plan(balance)]
    for ledger_id in ledgers:
        await client.delete_ledger(ledger_id)

    async def plan(balance: Balance) -> AsyncGenerator[list[Move], None]:
        for moves in planned:
            yield moves

    one.plan = plan  # type: ignore[method-assign]
    await one.run(balance)
    assert planned
    assert (one.moves, one.done, one.given, one.taken, one.failed) == (0, 0, {}, {}, {})


async def test_bookies_that_are_to_leave_have_no_share(cluster: InProcess) -> None:
    client = await cluster.client()
    await write_all(client, 6)
    await another(cluster, client, "d")
    await another(cluster, client, "e")
    whole_share = (await rebalancer(client).look()).share
    parts = cluster_of(client)
    await Drains(parts.store, parts.root, parts.store.runtime, RecoverySettings()).begin("e")
    await eventually(lambda: "e" in replication_context(client).directory.draining)
    one = rebalancer(client)
    balance = await one.look()
    assert one.loads["e"] == 0
    assert balance.share == whole_share * 5 // 4
    assert "e" not in balance.room


async def test_what_a_draining_bookie_has_is_no_part_of_the_shares_and_is_not_moved_here(cluster: InProcess) -> None:
    client = await cluster.client()
    await write_all(client, 6)
    await another(cluster, client, "d")
    parts = cluster_of(client)
    await Drains(parts.store, parts.root, parts.store.runtime, RecoverySettings()).begin("a")
    await eventually(lambda: "a" in replication_context(client).directory.draining)
    one = rebalancer(client)
    balance = await one.look()
    assert one.loads["a"] > balance.share
    assert "a" not in balance.surplus
    assert balance.share == sum(one.loads[name] for name in "bcd") // 3
    planned = [move async for moves in one.plan(balance) for move in moves]
    assert "a" not in {move.source for move in planned}


async def test_a_target_that_is_gone_costs_nothing(cluster: InProcess) -> None:
    client = await cluster.client()
    ledgers = await write_all(client, 4)
    await another(cluster, client, "d")
    one = rebalancer(client)
    balance = await one.look()
    cluster.kill("d")
    await one.run(balance)
    assert one.moves == 0
    assert one.failed
    for ledger_id in ledgers:
        assert set(shares(await whole(client, ledger_id))) == set("abc")


async def test_one_that_is_cancelled_inside_of_ledgers_leaves_them_to_others(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client goes on, and with it the session that holds its locks."""
    client = await cluster.client()
    await write_all(client, 4)
    await another(cluster, client, "d")
    admin = AdminClient(client)
    with hanging_copies(monkeypatch) as hangs:
        moving = asyncio.create_task(admin.rebalance())
        await hangs.wait()
        assert locked(cluster)
        moving.cancel()
        await asyncio.wait([moving])
        assert moving.cancelled()
    await eventually(lambda: not locked(cluster))
    assert (await admin.rebalance()).moves > 0
