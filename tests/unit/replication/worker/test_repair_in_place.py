"""Bookies that merely lack entries, where no other bookie can take their place: they get them where they are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of
from tests.in_process import DEADLINE_S, InProcess, rewrite
from tests.sim.disk import EntryStatus
from tests.unit.client.support import payload
from tests.unit.client.write.test_closing_lingers import recorded
from tests.unit.replication.repairing import held, whole
from tests.unit.replication.worker.test_ledger_repair import ENTRIES, closed, lose
from tests.unit.replication.worker.test_worker import healer
from tests.waiting import eventually

from bkpy.client.client import replication_context
from bkpy.config.recovery import RecoverySettings
from bkpy.errors import DigestMismatchError
from bkpy.metadata.replication.underreplication import LossReason, LostBookie, UnderreplicationRecord
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerState
from bkpy.replication.auditor.held_entries import Held, held_entries
from bkpy.replication.context import incomplete_bookies
from bkpy.replication.overview import overview
from bkpy.replication.worker import ledger_repair
from bkpy.replication.worker.fragment_copy import Failed
from bkpy.replication.worker.ledger_repair import LedgerRepair

if TYPE_CHECKING:
    from tests.unit.replication.worker.test_worker import Healer

    from bkpy.client.client import Client
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.rereplication import Copy

NO_TARGET = "no writable bookie is outside the ensemble"


async def named_without_entries(client: Client, *, quorum: int = 3) -> tuple[LedgerMetadata, list[str]]:
    """A closed ledger that two bookies have all of, with a fragment for each of the others, who have nothing of it."""
    writer = await closed(client, ensemble_size=2, write_quorum=2, ack_quorum=2)
    missing = sorted(client.bookies.keys() - set(writer.ensemble))
    long = ENTRIES // len(missing)
    fragments = tuple(Fragment(long * number, (name, *writer.ensemble)) for number, name in enumerate(missing))
    sizes = {"ensemble_size": 3, "write_quorum": quorum}
    return await rewrite(client, writer.ledger_id, fragments=fragments, **sizes), missing


async def stuck(one: Healer) -> str:
    await eventually(lambda: one.worker.status()["stuck"] == 1)
    (why,) = one.worker.status()["stuck_ledgers"].values()
    assert isinstance(why, str)
    return why


@pytest.mark.scenario(61)
async def test_a_ledger_each_of_whose_bookies_is_named_already_is_whole_again(four: InProcess) -> None:
    """Outside of each of its two ensembles there is but the one that lacks entries in the other one."""
    client = await four.client()
    metadata, missing = await named_without_entries(client)
    async with healer(four) as one:
        await one.mark(metadata.ledger_id, *missing, reason=LossReason.CHECK)
        told = await overview(cluster_of(client), RecoverySettings())
        assert (told["stuck"], told["bytes_left"]) == (0, metadata.length)
        one.start()
        await one.unmarked()
        assert one.worker.status()["stuck"] == 0
        assert (one.worker.count.fragments, one.worker.count.entries) == (2, ENTRIES)
    assert await whole(client, metadata.ledger_id) == metadata
    for name, first in zip(missing, (0, ENTRIES // 2), strict=True):  # and nothing else
        found = await held(client, metadata.ledger_id, name, ENTRIES - 1)
        assert sorted(found) == list(range(first, first + ENTRIES // 2))


async def test_a_striped_share_and_no_more_of_the_ledger(cluster: InProcess) -> None:
    client = await cluster.client(batch_bytes_max=500, read_bytes=1000)
    metadata, (name,) = await named_without_entries(client, quorum=2)
    async with healer(cluster) as one:
        await one.mark(metadata.ledger_id, name, reason=LossReason.REBUILDING)
        one.start()
        await one.unmarked()
    assert await whole(client, metadata.ledger_id) == metadata
    found = await held(client, metadata.ledger_id, name, ENTRIES - 1)
    assert sorted(found) == [n for n in range(ENTRIES) if n % 3 != 1]


async def test_what_is_damaged_on_the_disk_is_there_again(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await closed(client)
    node = cluster.node("a")
    await node.stop()
    assert cluster.rewrite_disks("a", payload(7), b"?" * len(payload(7)))
    await cluster.start_node("a")
    await eventually(lambda: "a" in client.bookies)
    async with healer(cluster) as one:
        await eventually(lambda: "a" in one.bookies())
        with pytest.raises((DigestMismatchError, AssertionError)):
            await whole(client, writer.ledger_id)
        await one.mark(writer.ledger_id, "a", reason=LossReason.CHECK)
        one.start()
        await one.unmarked()
    await whole(client, writer.ledger_id)


@pytest.mark.parametrize("reason", [LossReason.LOST, LossReason.DRAINING])
async def test_a_bookie_that_is_to_go_gets_nothing(cluster: InProcess, reason: LossReason) -> None:
    client = await cluster.client()
    mark = UnderreplicationRecord(1, {"a": LostBookie(1, reason), "b": LostBookie(1, LossReason.CHECK)}, 0)
    assert incomplete_bookies(mark, replication_context(client).directory) == {"b"}
    await lose(cluster, client, "b")
    assert incomplete_bookies(mark, replication_context(client).directory) == frozenset()


async def test_a_bookie_that_takes_no_entries_gets_them_when_it_does(cluster: InProcess) -> None:
    client = await cluster.client()
    metadata, (name,) = await named_without_entries(client)
    await cluster.node(name).set_read_only(True, "for a test")
    async with healer(cluster) as one:
        await eventually(lambda: name in one.client.read_only_bookies)
        await one.mark(metadata.ledger_id, name, reason=LossReason.CHECK)
        one.start()
        assert NO_TARGET in await stuck(one)
        await cluster.node(name).set_read_only(False, "for a test")
        await one.unmarked()
    assert await whole(client, metadata.ledger_id) == metadata


async def test_a_bookie_that_is_away_for_just_that_moment_gets_its_entries(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was here when the attempt began, and is here again when it ends: no news of it follows."""
    client = await cluster.client()
    metadata, (name,) = await named_without_entries(client)
    async with healer(cluster) as one:
        await one.mark(metadata.ledger_id, name, reason=LossReason.CHECK)
        directory, read, away = replication_context(one.client).directory, LedgerRepair.read, []

        async def read_as_it_goes(self: LedgerRepair, ledger_id: int) -> Any:
            found = await read(self, ledger_id)
            if not away:
                away.append(name)
                here, directory.bookies = directory.bookies, {k: v for k, v in directory.bookies.items() if k != name}
                asyncio.get_running_loop().call_soon(setattr, directory, "bookies", here)
            return found

        monkeypatch.setattr(LedgerRepair, "read", read_as_it_goes)
        one.start()
        await one.unmarked()
        assert away
    assert await whole(client, metadata.ledger_id) == metadata


async def test_the_last_fragment_of_an_open_ledger_is_left_to_its_writer(cluster: InProcess) -> None:
    """It has no end, so that nothing which belongs to it could be said to be there. What has an end is copied."""
    client = await cluster.client()
    writer = await client.create_ledger()
    await writer.append(payload(0))
    async with healer(cluster) as one:
        await one.mark(writer.ledger_id, "a", reason=LossReason.CHECK)
        one.start()
        assert NO_TARGET in await stuck(one)
        assert one.worker.count.entries == 0
        await writer.append(payload(1))
        await writer.close()
        await one.unmarked()
        assert one.worker.count.entries == 2
    assert (await whole(client, writer.ledger_id)).state is LedgerState.CLOSED


async def test_a_mark_stays_while_one_of_two_copies_fails(four: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each bookie is taken off it when all of its places are whole."""
    client = await four.client()
    metadata, (first, other) = await named_without_entries(client)
    copy, failing = LedgerRepair.copy, True

    async def fail_for_one(repair: LedgerRepair, metadata: LedgerMetadata, which: Copy, target: str) -> Any:
        return Failed("for a test") if failing and target == other else await copy(repair, metadata, which, target)

    monkeypatch.setattr(LedgerRepair, "copy", fail_for_one)
    async with healer(four) as one:
        await one.mark(metadata.ledger_id, first, other, reason=LossReason.CHECK)
        one.start()
        async with asyncio.timeout(DEADLINE_S):
            while (mark := await one.marks.read(metadata.ledger_id)) is None or set(mark.lost) != {other}:
                await asyncio.sleep(0.005)
        failing = False
        await one.unmarked()
    await whole(client, metadata.ledger_id)


# --- what a bookie returns before it has synced it --------------------------------------------------------------------


async def lose_power(cluster: InProcess) -> None:
    """Bookie b restarts without what it has not synced."""
    left = cluster.disks["b"].clone()
    left.power_cut(lambda dirty: EntryStatus.DROPPED)
    left.heal()
    cluster.disks["b"].unstall()
    await cluster.node("b").stop()
    cluster.disks["b"] = left
    await cluster.start_node("b")


async def unsynced_by_b(cluster: InProcess, client: Client) -> int:
    """A closed ledger of four entries, of which b has synced one."""
    writer = await client.create_ledger()
    await writer.append(b"synced")
    cluster.disks["b"].stall("journal")
    await writer.append_batch([b"entry"] * 3)
    await writer.close()
    assert await recorded(client, writer.ledger_id) == {"b": LossReason.RETURNED}
    return writer.ledger_id


@pytest.mark.thorough
async def test_a_bookie_that_returns_what_it_has_not_synced_stays_recorded(cluster: InProcess) -> None:
    client = await cluster.client()
    ledger_id = await unsynced_by_b(cluster, client)
    async with healer(cluster) as one:
        one.start()
        try:
            await eventually(lambda: one.worker.status()["postponed"] == 1)
            assert await recorded(client, ledger_id) == {"b": LossReason.RETURNED}
        finally:
            await lose_power(cluster)
        await one.unmarked()
    assert set(await held(client, ledger_id, "b", 3)) == {0, 1, 2, 3}


async def test_a_bookie_that_restarts_behind_what_it_returned_is_not_taken_for_one_that_has_it(
    cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has lost what it returned, and syncs the last entry again."""
    client = await cluster.client()
    ledger_id = await unsynced_by_b(cluster, client)

    async def and_then_power_fails(*given: Any) -> Held:
        monkeypatch.undo()
        returned = await held_entries(*given)
        await lose_power(cluster)
        return returned

    async with healer(cluster) as one:
        monkeypatch.setattr(ledger_repair, "held_entries", and_then_power_fails)
        one.start()
        await one.unmarked()
    assert set(await held(client, ledger_id, "b", 3)) == {0, 1, 2, 3}
