"""A bookie that has lost its disks gets back what it had, denies nothing meanwhile, and takes entries afterwards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of, mender_of, pool_of, service_of, storage_of
from tests.in_process import DEADLINE_S, InProcess, runtime_here
from tests.unit.replication.repairing import held, whole
from tests.waiting import eventually

from bkpy.config.recovery import RecoverySettings
from bkpy.errors import BookieUnavailableError, BookKeeperError, IdentityError, LedgerFencedError
from bkpy.metadata import paths
from bkpy.metadata.replication.locks import LedgerLock, LedgerLocks
from bkpy.metadata.replication.underreplication import LossReason, LostBookie, UnderreplicationQueue
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status
from bkpy.replication.overview import overview
from bkpy.storage.losses import Losses

if TYPE_CHECKING:
    from bkpy.bookie.node import BookieNode
    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata

QUICK = {
    "worker_report_interval_s": 0.02,
    "integrity_retry_interval_s": 0.05,
    "integrity_look_interval_s": 0.2,
    "open_ledger_grace_s": 0.1,
}
SIZES = ((3, 3, 2), (3, 2, 2))


@pytest.fixture
async def quick(tmp_path: Any) -> Any:
    local = InProcess(tmp_path)
    await local.start("abcd", **QUICK)
    yield local
    await local.stop()


async def written(client: Client, sizes: tuple[int, int, int], count: int = 50) -> int:
    """A closed ledger; its id."""
    writer = await new_writer(client, sizes)
    for part in range(5):
        await writer.append_batch([b"%d" % (part * 100 + i) * 20 for i in range(count // 5)])
    await writer.close()
    return writer.ledger_id


async def new_writer(client: Client, sizes: tuple[int, int, int]) -> LedgerWriter:
    size, write_quorum, ack_quorum = sizes
    return await client.create_ledger(ensemble_size=size, write_quorum=write_quorum, ack_quorum=ack_quorum)


async def lost(cluster: InProcess, name: str) -> None:
    """The bookie is gone, and its disks with it."""
    await cluster.node(name).stop()
    cluster.lose_disks(name)


async def rebuilt(cluster: InProcess, name: str) -> BookieNode:
    return await cluster.start_node(name, mending=True, rebuild=True)


async def all_whole(cluster: InProcess, *ledger_ids: int) -> None:
    """Every bookie has what it is named for. By a new client, which has lost no connection yet."""
    client = await cluster.client()
    for ledger_id in ledger_ids:
        await whole(client, ledger_id)


def done(node: BookieNode) -> bool:
    status = mender_of(node).status()
    return not (status["in_doubt"] or status["left"] or status["waiting"])


async def answer(cluster: InProcess, name: str, ledger_id: int, last: int) -> tuple[set[int], set[int]]:
    """What the bookie has of entries 0 to `last`, and what it can't tell."""
    client = await cluster.client()
    found = set(await held(client, ledger_id, name, last))
    unknown: set[int] = set()
    first = 0
    while first <= last:
        head = m.pack([0, ledger_id, first, last, 1 << 20])
        frame = await pool_of(client).channel(name).call(Op.READ, head, timeout_s=10.0)
        assert m.reply_status(frame.head) == Status.OK
        reply = m.decode_read_reply(frame.head)
        for low, high in reply.unknown:
            unknown.update(range(low, high + 1))
        first = reply.examined_to + 1
    return found, unknown - found


async def test_empty_directories_under_a_known_id_are_refused(quick: InProcess) -> None:
    await lost(quick, "a")
    with pytest.raises(IdentityError, match="--rebuild"):
        await quick.start_node("a")


async def test_what_is_half_there_is_not_rebuilt(quick: InProcess) -> None:
    await written(await quick.client(), (4, 4, 3))
    await quick.node("a").stop()
    quick.lose_disks("a", "journal")
    with pytest.raises(IdentityError, match="all directories empty"):
        await rebuilt(quick, "a")


@pytest.mark.parametrize("sizes", SIZES)
async def test_a_bookie_that_lost_all_gets_it_back(quick: InProcess, sizes: tuple[int, int, int]) -> None:
    client = await quick.client()
    ledgers = [await written(client, sizes) for _ in range(6)]
    await lost(quick, "a")
    node = await rebuilt(quick, "a")
    await eventually(lambda: done(node))
    client = await quick.client()
    for ledger_id in ledgers:
        metadata = await whole(client, ledger_id)
        if any("a" in fragment.bookies for fragment in metadata.fragments):
            _, unknown = await answer(quick, "a", ledger_id, 60)
            assert not unknown
    # It takes entries again, and those of new ledgers are denied as ever.
    await eventually(lambda: not quick.service("a").read_only)
    later = await written(client, (4, 4, 3))
    await whole(client, later)
    _, unknown = await answer(quick, "a", later, 80)
    assert not unknown


@pytest.mark.scenario(52)
async def test_what_is_left_to_rebuild_is_reported_from_the_start(quick: InProcess) -> None:
    """To operators who look at the status of re-replication, and as metrics; and that it is over."""
    client = await quick.client()
    for _ in range(3):
        await written(client, (4, 4, 3))
    cluster = cluster_of(client)
    settings = RecoverySettings()
    assert (await overview(cluster, settings))["rebuilding"] == {}
    await lost(quick, "a")
    others = [name for name in "bcd" if name != "a"]
    for name in others:
        quick.hang(name)  # so that nothing can be copied yet
    node = await rebuilt(quick, "a")
    registry = service_of(node).metrics.registry
    await eventually(lambda: mender_of(node).status()["to_rebuild"] == 3)
    await eventually(lambda: registry.get_sample_value("bkpy_integrity_to_rebuild") == 3)
    assert registry.get_sample_value("bkpy_integrity_in_doubt") == 1

    async def reported(ledgers: int, rebuilding: list[str]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                found = await overview(cluster, settings)
                if (found["ledgers"], list(found["rebuilding"])) == (ledgers, rebuilding):
                    assert found["workers"] == []
                    assert found["marked"] == 0
                    return
                assert found["ledgers"] > 0 or not rebuilding  # never nothing while it goes on
                await asyncio.sleep(0.01)

    await reported(3, ["a"])
    for name in others:
        await quick.restart(name)
    await eventually(lambda: done(node))
    await reported(0, [])
    await eventually(lambda: registry.get_sample_value("bkpy_integrity_to_rebuild") == 0)


async def test_until_then_nothing_is_denied_and_nothing_is_taken(quick: InProcess) -> None:
    client = await quick.client()
    ledger_id = await written(client, (4, 4, 3))
    await lost(quick, "a")
    await quick.start_node("a", rebuild=True)  # without anything that mends it
    found, unknown = await answer(quick, "a", ledger_id, 99)
    assert not found
    assert unknown == set(range(100))
    assert quick.service("a").read_only
    _, unknown = await answer(quick, "a", 10**6, 9)  # a ledger that nobody knows
    assert unknown == set(range(10))
    await quick.restart("a")  # that lasts
    _, unknown = await answer(quick, "a", ledger_id, 99)
    assert unknown == set(range(100))


@pytest.mark.scenario(52)
async def test_another_ledger_of_before_stays_unknown(quick: InProcess) -> None:
    client = await quick.client()
    ledger_id = await written(client, (3, 3, 2))
    ensemble = (await client.ledger_metadata(ledger_id)).fragments[0].bookies
    (spare,) = set("abcd").difference(ensemble)
    await lost(quick, spare)
    node = await rebuilt(quick, spare)
    await eventually(lambda: done(node))
    _, unknown = await answer(quick, spare, ledger_id, 9)
    assert unknown == set(range(10))
    _, unknown = await answer(quick, spare, ledger_id + 10**6, 9)
    assert not unknown


async def test_an_open_ledger_is_recovered_once_its_writer_had_the_time_to_leave(quick: InProcess) -> None:
    client = await quick.client()
    writer = await new_writer(client, (4, 4, 3))
    acknowledged = [await writer.append(b"%d" % i) for i in range(10)]
    await lost(quick, "a")
    node = await rebuilt(quick, "a")
    await eventually(lambda: done(node))
    metadata = await whole(await quick.client(), writer.ledger_id)
    assert metadata.state is LedgerState.CLOSED
    assert metadata.last_entry >= acknowledged[-1]


async def left(cluster: InProcess) -> tuple[LedgerWriter, str]:
    """A writer that lives, and a bookie of its ledger that it has left, whose disks are gone."""
    client = await cluster.client()
    writer = await new_writer(client, (3, 3, 2))
    await writer.append(b"before")
    name = (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies[0]
    await lost(cluster, name)
    await writer.append(b"behind")  # another bookie takes its place
    return writer, name


async def test_a_ledger_that_its_writer_has_left_is_recovered_so_that_its_limbo_ends(quick: InProcess) -> None:
    writer, name = await left(quick)
    node = await rebuilt(quick, name)
    await eventually(lambda: done(node))
    assert (await whole(await quick.client(), writer.ledger_id)).last_entry == 1
    with pytest.raises(LedgerFencedError):
        await writer.append(b"too late")


async def test_however_few_may_wait_at_once_each_has_its_turn(quick: InProcess) -> None:
    quick.settings["stuck_ledgers_max"] = 1
    client = await quick.client()
    writers = [await new_writer(client, (4, 4, 3)) for _ in range(2)]
    for writer in writers:
        await writer.append(b"open")
    await lost(quick, "a")
    node = await rebuilt(quick, "a")
    await eventually(lambda: done(node))
    await all_whole(quick, *(writer.ledger_id for writer in writers))


async def test_a_writer_that_closes_its_ledger_in_time_is_not_ended(quick: InProcess) -> None:
    quick.settings["open_ledger_grace_s"] = 3600
    writer, name = await left(quick)
    node = await rebuilt(quick, name)
    await eventually(lambda: mender_of(node).status()["waiting"] == [writer.ledger_id])
    assert quick.service(name).read_only
    await writer.append(b"goes on")
    await writer.close()
    await eventually(lambda: done(node))
    assert (await whole(await quick.client(), writer.ledger_id)).last_entry == 2


async def test_a_ledger_that_comes_to_name_the_bookie_later_is_left_to_its_writer(quick: InProcess) -> None:
    client = await quick.client()
    writer = await new_writer(client, (3, 3, 2))
    await writer.append(b"elsewhere")
    ensemble = (await client.ledger_metadata(writer.ledger_id)).fragments[0].bookies
    (spare,) = set("abcd").difference(ensemble)
    await lost(quick, spare)
    node = await rebuilt(quick, spare)
    await eventually(lambda: done(node) and not quick.service(spare).read_only)
    await quick.node(ensemble[0]).stop()
    await writer.append(b"here")
    while len((await client.ledger_metadata(writer.ledger_id)).fragments) == 1:
        await writer.append(b"which an ack quorum had before")
        await asyncio.sleep(0.05)
    assert mender_of(node).begin()
    await eventually(lambda: not mender_of(node).status()["asked"])
    await asyncio.sleep(5 * QUICK["open_ledger_grace_s"])
    assert done(node)
    last = await writer.append(b"goes on")
    _, unknown = await answer(quick, spare, writer.ledger_id, last)
    assert unknown == set(range(last + 1)), "what it had of the ledger isn't known"
    await writer.close()
    metadata = await client.ledger_metadata(writer.ledger_id)
    assert [spare in fragment.bookies for fragment in metadata.fragments] == [False, True]
    assert mender_of(node).begin()
    await eventually(lambda: done(node) and not mender_of(node).status()["asked"])
    named_for = set(range(metadata.fragments[1].first_entry, last + 1))
    assert await answer(quick, spare, writer.ledger_id, last + 1) == (named_for, set())


async def test_a_look_through_a_sound_bookie_ends_no_writer(quick: InProcess) -> None:
    client = await quick.client()
    ledger_id = await written(client, (4, 4, 3))
    writer = await new_writer(client, (4, 4, 3))
    await writer.append(b"goes")
    await quick.node("a").stop()
    node = await quick.start_node("a", mending=True)
    for _ in range(2):
        assert mender_of(node).begin()
        await eventually(lambda: not mender_of(node).status()["asked"])
        await asyncio.sleep(5 * QUICK["open_ledger_grace_s"])
    assert done(node)
    await writer.append(b"on")
    await writer.close()
    await all_whole(quick, ledger_id)


async def test_a_failed_attempt_ends_no_writer(quick: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sound bookie finds a row of an open ledger damaged, and can't do anything about it at first."""
    client = await quick.client()
    writer = await new_writer(client, (4, 4, 3))
    await writer.append(b"before")
    await quick.node("a").stop()
    looks = 0
    missing_ranges = Losses.missing_ranges

    async def fail_once(losses: Losses, metadata: LedgerMetadata) -> Any:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise BookieUnavailableError("somebody else has the ledger's lock")
        return await missing_ranges(losses, metadata)

    monkeypatch.setattr(Losses, "missing_ranges", fail_once)
    node = await quick.start_node("a", mending=True)
    storage = storage_of(node)
    info = (await storage.states((writer.ledger_id,)))[writer.ledger_id]
    storage.shards[info.shard].distrust(info, "a row of its blocks is damaged")
    await storage.checkpoint()
    await eventually(lambda: looks > 5)  # the next ones would wait for the writer, and then end it
    assert done(node)
    assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.OPEN
    await writer.append(b"behind")
    await writer.close()
    await all_whole(quick, writer.ledger_id)


async def test_limbo_does_not_end_while_somebody_has_the_lock(quick: InProcess) -> None:
    client = await quick.client()
    ledger_id = await written(client, (4, 4, 3))
    locks = LedgerLocks(cluster_of(client).store, "/ledgers", "worker", runtime_here())
    lock = await locks.take(ledger_id)
    assert isinstance(lock, LedgerLock)
    await lost(quick, "a")
    node = await rebuilt(quick, "a")
    await eventually(lambda: not mender_of(node).status()["in_doubt"])
    assert mender_of(node).status()["left"] == [{"ledger_id": ledger_id, "why": "somebody else has the ledger's lock"}]
    found, unknown = await answer(quick, "a", ledger_id, 60)
    assert found == set(range(50))
    assert unknown == set(range(50, 61))
    await locks.release(lock)
    await eventually(lambda: done(node))


async def test_limbo_ends_under_the_lock_of_its_ledger(quick: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that copied something here before the loss can't swap it in any more, nor get the lock for it."""
    client = await quick.client()
    ledgers = {await written(client, (4, 4, 3)) for _ in range(3)}
    locked: dict[int, bool] = {}
    end = Losses.end

    async def end_and_note(losses: Losses, metadata: LedgerMetadata) -> bool:
        ended = await end(losses, metadata)
        locked[metadata.ledger_id] = f"/ledgers/{paths.LOCKS}/L{metadata.ledger_id:019}" in quick.tree.paths
        return ended

    monkeypatch.setattr(Losses, "end", end_and_note)
    await lost(quick, "a")
    node = await rebuilt(quick, "a")
    await eventually(lambda: done(node))
    assert locked == dict.fromkeys(ledgers, True)


@pytest.mark.thorough
async def test_what_nobody_can_give_is_told_and_gets_back_later(quick: InProcess) -> None:
    client = await quick.client()
    ledger_id = await written(client, (4, 4, 3))
    for name in "abcd":
        await quick.node(name).stop()
    quick.lose_disks("a")
    node = await rebuilt(quick, "a")
    await eventually(lambda: bool(mender_of(node).status()["left"]))
    for name in "bcd":
        await quick.start_node(name)
    await eventually(lambda: done(node))
    await all_whole(quick, ledger_id)


@pytest.mark.parametrize("reason", [LossReason.LOST, LossReason.REBUILDING, LossReason.RETURNED])
async def test_the_mark_of_a_ledger_that_is_whole_again_goes(quick: InProcess, reason: LossReason) -> None:
    client = await quick.client()
    ledgers = [await written(client, (4, 4, 3)) for _ in range(3)]
    marks = UnderreplicationQueue(cluster_of(client).store, "/ledgers", runtime_here())
    await marks.add(ledgers[0], {"a": LostBookie(1, reason.value), "b": LostBookie(1)})
    others = {ledgers[1]: LossReason.DRAINING, ledgers[2]: LossReason.CHECK}
    for ledger_id, reason in others.items():
        await marks.add(ledger_id, {"a": LostBookie(1, reason.value)})
    await lost(quick, "a")
    node = await rebuilt(quick, "a")
    await eventually(lambda: done(node))
    mark = await marks.read(ledgers[0])
    assert mark is not None
    assert set(mark.lost) == {"b"}
    for ledger_id in others:
        mark = await marks.read(ledger_id)
        assert mark is not None
        assert set(mark.lost) == {"a"}


async def test_a_second_bookie_of_that_id_can_not_be_rebuilt(quick: InProcess) -> None:
    disk = quick.disks.pop("a")  # another machine has the same paths
    node = quick.new_node("a", rebuild=True)
    with pytest.raises(BookKeeperError):
        async with asyncio.timeout(20):
            await node.start()
    quick.disks["a"] = disk


async def test_what_the_scrub_found_is_copied_from_others(quick: InProcess) -> None:
    client = await quick.client()
    ledger_id = await written(client, (4, 4, 3))
    await quick.restart("a")  # so that it is in the entry log
    await quick.node("a").stop()
    assert quick.rewrite_disks("a", b"107" * 20, b"106" * 20, files=".log") == 1
    node = await quick.start_node("a", mending=True)
    scrub = storage_of(node).scrub
    assert scrub.begin()
    await eventually(lambda: scrub.damage_count == 1)
    _, unknown = await answer(quick, "a", ledger_id, 49)
    assert unknown
    await eventually(lambda: scrub.damage_count == 0)
    await all_whole(quick, ledger_id)


async def test_a_start_without_the_flag_goes_on_with_a_rebuild(quick: InProcess) -> None:
    client = await quick.client()
    ledgers = [await written(client, (3, 3, 2)) for _ in range(5)]
    await lost(quick, "a")
    await (await rebuilt(quick, "a")).stop()
    node = await quick.start_node("a", mending=True)
    await eventually(lambda: done(node))
    await all_whole(quick, *ledgers)
    assert not storage_of(node).untrusted


async def test_a_ledger_that_could_not_be_recovered_is_not_forgotten_by_a_restart(quick: InProcess) -> None:
    """The bookie had nothing of it any more, not even a row; others were away when it looked."""
    writer, name = await left(quick)
    others = set("abcd") - {name}
    for other in others:
        await quick.node(other).stop()
    node = await rebuilt(quick, name)
    await eventually(lambda: not mender_of(node).status()["in_doubt"])
    assert [one["ledger_id"] for one in mender_of(node).status()["left"]] == [writer.ledger_id]
    await node.stop()
    for other in others:
        await quick.start_node(other)
    client = await quick.client()
    await (await client.recover_ledger(writer.ledger_id)).close()
    node = await quick.start_node(name, mending=True)
    async with asyncio.timeout(DEADLINE_S):
        while (await answer(quick, name, writer.ledger_id, 0))[0] != {0}:
            await asyncio.sleep(0.1)
    await eventually(lambda: done(node))
    await all_whole(quick, writer.ledger_id)


@pytest.mark.thorough
async def test_a_defect_costs_no_more_than_the_one_ledger(quick: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are mended beside it have their locks, which would be kept as long as the bookie runs."""
    client = await quick.client()
    ledgers = [await written(client, (4, 4, 3)) for _ in range(6)]
    missing_ranges = Losses.missing_ranges

    async def unless_the_third(losses: Losses, metadata: Any) -> Any:
        assert metadata.ledger_id != ledgers[2]
        return await missing_ranges(losses, metadata)

    monkeypatch.setattr(Losses, "missing_ranges", unless_the_third)
    await lost(quick, "a")
    node = await rebuilt(quick, "a")
    await eventually(lambda: not mender_of(node).status()["in_doubt"])
    assert [one["ledger_id"] for one in mender_of(node).status()["left"]] == [ledgers[2]]
    monkeypatch.undo()
    await eventually(lambda: done(node))
    await all_whole(quick, *ledgers)
