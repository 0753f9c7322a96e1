"""The public client for administration: each call does to the cluster what its docstring says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of, pool_of
from tests.in_process import DEADLINE_S, InProcess, contents
from tests.unit.client.support import payload
from tests.unit.replication.repairing import hanging_copies, locked, whole
from tests.unit.replication.worker.test_ledger_repair import closed, lose
from tests.waiting import eventually

import bkpy
from bkpy.client.client import log_parts
from bkpy.config.recovery import RecoverySettings
from bkpy.errors import BookieUnavailableError, ClientClosedError, ConfigError, NoSuchLogError
from bkpy.metadata.replication.locks import LedgerLock, LedgerLocks
from bkpy.metadata.replication.underreplication import LossReason, LostBookie, UnderreplicationQueue
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.log.log_sinks import with_batch

if TYPE_CHECKING:
    from bkpy.admin.bookie_recovery import BookieRecoveryReport, RecoveryProgress
    from bkpy.client.client import Client

QUICK: dict[str, Any] = {
    "drain_look_interval_s": 0.02,
    "decommission_patience_s": 0.2,
    "repair_pause_min_s": 0.02,
    "repair_pause_max_s": 0.1,
    "open_ledger_grace_s": 0.3,
}


async def admin_of(cluster: InProcess) -> bkpy.AdminClient:
    return bkpy.AdminClient(await cluster.client(), RecoverySettings(**QUICK))


async def record(client: Client, ledger_id: int, *names: str) -> None:
    """As the auditor records a ledger that misses these bookies."""
    cluster = cluster_of(client)
    queue = UnderreplicationQueue(cluster.store, cluster.root, cluster.store.runtime)
    await queue.add(ledger_id, {name: LostBookie(1, LossReason.LOST.value) for name in names})


# --- re-replication -------------------------------------------------------------------------------------------------


async def test_records_of_under_replicated_ledgers_are_listed_and_shown(five: InProcess) -> None:
    admin = await admin_of(five)
    ledgers = [(await closed(admin.client, 3)).ledger_id for _ in range(3)]
    assert [ledger_id async for ledger_id in admin.list_under_replicated()] == []
    for ledger_id in (ledgers[2], ledgers[0]):
        await record(admin.client, ledger_id, "a")
    assert [ledger_id async for ledger_id in admin.list_under_replicated()] == [ledgers[0], ledgers[2]]
    assert await admin.under_replication(ledgers[1]) is None
    found = await admin.under_replication(ledgers[0])
    assert found is not None
    assert found.lost["a"].reason == "lost"
    status = await admin.replication_status()
    assert (status["marked"], status["ledgers_by_bookie"]) == (2, {"a": 2})


async def test_auto_recovery_is_switched_and_an_auditor_named(five: InProcess) -> None:
    admin = await admin_of(five)
    assert await admin.auditor() is None
    for enabled in (False, True):
        await admin.set_auto_recovery(enabled)
        assert (await admin.replication_status())["enabled"] is enabled


async def test_a_lock_names_its_holder(five: InProcess) -> None:
    admin = await admin_of(five)
    writer = await closed(admin.client, 3)
    cluster = cluster_of(admin.client)
    locks = LedgerLocks(cluster.store, cluster.root, "a mover", cluster.store.runtime)
    assert await admin.list_locks() == []
    lock = await locks.take(writer.ledger_id)
    assert isinstance(lock, LedgerLock)
    assert [(held.ledger_id, held.holder) for held in await admin.list_locks()] == [(writer.ledger_id, "a mover")]
    assert (await admin.describe_replication(writer.ledger_id)).locked_by == "a mover"
    await locks.release(lock)
    assert (await admin.describe_replication(writer.ledger_id)).locked_by is None


async def test_missing_copies_are_described_and_unreadable_entries_found(five: InProcess) -> None:
    admin = await admin_of(five)
    writer = await closed(admin.client, 6)
    described = await admin.describe_replication(writer.ledger_id)
    assert (described.record, described.plan.copies) == (None, ())
    gone = writer.ensemble[0]
    await lose(five, admin.client, gone)
    assert admin.registered_bookies == set("abcde") - {gone}
    await record(admin.client, writer.ledger_id, gone)
    described = await admin.describe_replication(writer.ledger_id)
    assert described.record is not None
    assert described.metadata.ledger_id == writer.ledger_id
    (copy,) = described.plan.copies
    assert copy.old == gone
    read: list[int] = []
    assert await admin.unreadable_entries(described.metadata, copy, ranges_max=9, on_read=read.append) == []
    assert read[-1] == 5


# --- finding ledgers --------------------------------------------------------------------------------------------------


async def test_ledgers_are_found_by_what_they_are(five: InProcess) -> None:
    admin = bkpy.AdminClient(await five.client(), RecoverySettings(**QUICK, audit_reads_at_once=2))
    client = admin.client
    red = await client.create_ledger(custom_metadata={"colour": b"red", "size": b"1"})
    blue = await client.create_ledger(custom_metadata={"colour": b"blue"})
    some = [await closed(client, 1) for _ in range(3)]
    await record(client, some[1].ledger_id, "a")

    async def found(**wanted: Any) -> list[int]:
        return [metadata.ledger_id async for metadata in admin.find_ledgers(**wanted)]

    everything = sorted([red.ledger_id, blue.ledger_id, *(one.ledger_id for one in some)])
    assert await found() == everything
    assert await found(state="OPEN") == sorted([red.ledger_id, blue.ledger_id])
    assert await found(custom={"colour": b"red"}) == [red.ledger_id]
    assert await found(custom={"colour": b"red", "size": b"2"}) == []
    assert await found(missing_copies=True) == [some[1].ledger_id]
    assert await found(missing_copies=True, state="OPEN") == []
    assert await found(since=blue.metadata.created_ms / 1000 + 1e6) == []
    assert await found(since=blue.metadata.created_ms / 1000, custom={"colour": b"blue"}) == [blue.ledger_id]
    assert await found(bookie=red.ensemble[0], custom={"colour": b"red"}) == [red.ledger_id]
    assert await found(bookie="none") == []
    with pytest.raises(ConfigError, match="state is one of OPEN, IN_RECOVERY, CLOSED, not 'open'"):
        admin.find_ledgers(state="open")
    await red.close()
    await blue.close()


# --- ledgers --------------------------------------------------------------------------------------------------------


async def test_bookies_report_their_last_entries(five: InProcess) -> None:
    admin = await admin_of(five)
    writer = await closed(admin.client, 4)
    gone = writer.ensemble[0]
    await lose(five, admin.client, gone)
    found = await admin.last_entries(writer.metadata)
    assert isinstance(found.pop(gone), BookieUnavailableError)
    assert found == dict.fromkeys(writer.ensemble[1:], 3)


async def test_a_ledger_is_closed_without_its_password(five: InProcess) -> None:
    admin = await admin_of(five)
    writer = await (await five.client()).create_ledger(password=b"secret")
    await writer.append(payload(0))
    writer.abandon()
    metadata = await admin.close_ledger(writer.ledger_id)
    assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 0)


async def test_a_loss_is_surveyed_and_then_accepted(five: InProcess) -> None:
    admin = await admin_of(five)
    writer = await (await five.client()).create_ledger(password=b"secret")
    for i in range(3):
        await writer.append(payload(i))
    writer.abandon()
    gone = writer.ensemble[:2]
    await lose(five, admin.client, *gone)
    survey = await admin.survey_ledger(writer.ledger_id, password=b"secret")
    assert (survey.last_entry, survey.metadata.state) == (2, LedgerState.IN_RECOVERY)
    metadata = await admin.accept_loss(writer.ledger_id, survey.last_entry, password=b"secret")
    assert (metadata.state, metadata.last_entry) == (LedgerState.CLOSED, 2)
    assert metadata.accepted_loss is not None
    assert metadata.accepted_loss.bookies.keys() == set(gone)
    with pytest.raises(bkpy.UnauthorizedError):
        await admin.survey_ledger(writer.ledger_id, password=b"another")


async def test_no_more_is_given_up_than_the_caller_accepts(five: InProcess) -> None:
    """Entries that the survey found are gone when the caller has agreed."""
    admin = await admin_of(five)
    writer = await (await five.client()).create_ledger()
    for i in range(3):
        await writer.append(payload(i))
    writer.abandon()
    await lose(five, admin.client, *writer.ensemble[:2])
    survey = await admin.survey_ledger(writer.ledger_id)
    assert survey.last_entry == 2
    await lose(five, admin.client, writer.ensemble[2])
    with pytest.raises(bkpy.LedgerRecoveryError):
        await admin.accept_loss(writer.ledger_id, survey.last_entry)
    assert (await admin.client.ledger_metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY


# --- bookies --------------------------------------------------------------------------------------------------------


async def test_a_bookie_answers_while_it_runs(five: InProcess) -> None:
    admin = await admin_of(five)
    assert await admin.is_reachable("a")
    await lose(five, admin.client, "a")
    assert not await admin.is_reachable("a")


async def test_the_ledgers_of_a_lost_bookie_are_recovered(five: InProcess) -> None:
    admin = await admin_of(five)
    writers = [await closed(admin.client, 5) for _ in range(4)]
    gone = writers[0].ensemble[0]
    named = [writer.ledger_id for writer in writers if gone in writer.ensemble]
    with pytest.raises(ConfigError, match="is running"):
        await admin.recover_bookie(gone)
    await lose(five, admin.client, gone)
    with pytest.raises(BookieUnavailableError, match="no writable bookie"):
        await admin.recover_bookie(gone, target="unknown")
    planned = await admin.recover_bookie(gone, dry_run=True)
    assert (planned.named_by, planned.ledgers, planned.seconds) == (len(named), len(named), None)
    assert gone in (await admin.client.ledger_metadata(named[0])).fragments[0].bookies
    scanned: list[int] = []
    progress: list[RecoveryProgress] = []
    report = await admin.recover_bookie(gone, on_scanned=scanned.append, on_progress=progress.append)
    assert (report.named_by, report.ledgers, report.stuck, report.unreadable) == (len(named), len(named), {}, [])
    assert report.entries == planned.entries == 5 * len(named)
    assert (scanned[-1], progress[-1].ledgers_done) == (4, len(named))
    for ledger_id in named:
        assert gone not in (await whole(admin.client, ledger_id)).fragments[0].bookies
        assert await contents(admin.client, ledger_id) == [payload(i) for i in range(5)]


async def test_a_ledger_is_stuck_where_no_bookie_can_take_the_place(cluster: InProcess) -> None:
    admin = await admin_of(cluster)
    writer = await closed(admin.client, 5)
    await lose(cluster, admin.client, "a")
    report = await admin.recover_bookie("a")
    assert (report.named_by, report.ledgers, report.stuck.keys()) == (1, 0, {writer.ledger_id})


async def test_each_ledger_that_is_left_is_named_however_many_a_worker_remembers(cluster: InProcess) -> None:
    admin = bkpy.AdminClient(await cluster.client(), RecoverySettings(**QUICK, stuck_ledgers_max=1))
    ledgers = {(await closed(admin.client, 1)).ledger_id for _ in range(3)}
    await lose(cluster, admin.client, "a")
    report = await admin.recover_bookie("a")
    assert (report.named_by, report.ledgers, report.stuck.keys()) == (3, 0, ledgers)


async def test_all_copies_go_to_the_target(five: InProcess) -> None:
    admin = await admin_of(five)
    writers = [await closed(admin.client, 5, ensemble_size=2, write_quorum=2, ack_quorum=2) for _ in range(6)]
    gone = writers[0].ensemble[0]
    named = [writer for writer in writers if gone in writer.ensemble]
    (target, *_) = sorted(set("abcde") - {name for writer in named for name in writer.ensemble})
    await lose(five, admin.client, gone)
    report = await admin.recover_bookie(gone, target=target)
    assert report.ledgers == len(named)
    for writer in named:
        assert target in (await whole(admin.client, writer.ledger_id)).fragments[0].bookies


async def test_ledgers_with_unreadable_metadata_are_reported(cluster: InProcess) -> None:
    admin = await admin_of(cluster)
    writer = await closed(admin.client, 5)
    await spoil_metadata(admin.client, writer.ledger_id)
    await cluster.start_node("d")
    await lose(cluster, admin.client, "a")
    for dry_run in (True, False):
        report = await admin.recover_bookie("a", dry_run=dry_run)
        assert (report.named_by, report.unreadable) == (0, [writer.ledger_id])


async def spoil_metadata(client: Client, ledger_id: int) -> None:
    cluster = cluster_of(client)
    path = cluster.catalog.layout.path_of(cluster.root, ledger_id)
    _, version = await cluster.store.get(path)
    await cluster.store.put(path, b"garbage", version)


async def waiting_recovery(cluster: InProcess) -> tuple[Client, int, asyncio.Task[BookieRecoveryReport]]:
    """A recovery of bookie a, which waits for the writer of an open ledger; its client, and the ledger."""
    client = await cluster.client()
    admin = bkpy.AdminClient(client, RecoverySettings(**{**QUICK, "open_ledger_grace_s": 1000.0}))
    writer = await (await cluster.client()).create_ledger()
    await writer.append(payload(0))
    writer.abandon()
    await cluster.start_node("d")
    await lose(cluster, client, "a")
    progress: list[RecoveryProgress] = []
    recovering = asyncio.create_task(admin.recover_bookie("a", on_progress=progress.append))
    await eventually(lambda: bool(progress and progress[-1].postponed))
    return client, writer.ledger_id, recovering


async def test_a_bookie_that_comes_back_ends_its_recovery(cluster: InProcess) -> None:
    client, ledger_id, recovering = await waiting_recovery(cluster)
    await cluster.start_node("a")
    with pytest.raises(ConfigError, match="0 of 1 ledgers"):
        async with asyncio.timeout(DEADLINE_S):
            await recovering
    assert (await client.ledger_metadata(ledger_id)).state is LedgerState.OPEN


@pytest.mark.parametrize("comes_back", [False, True])
async def test_a_recovery_that_ends_inside_of_a_ledger_leaves_it_to_others(
    five: InProcess, monkeypatch: pytest.MonkeyPatch, comes_back: bool
) -> None:
    """The client that has recovered the bookie goes on, and with it the session that holds its locks."""
    admin = await admin_of(five)
    writer = await closed(admin.client, 5)
    gone = writer.ensemble[0]
    await lose(five, admin.client, gone)
    with hanging_copies(monkeypatch) as hangs:
        recovering = asyncio.create_task(admin.recover_bookie(gone))
        await hangs.wait()
        assert locked(five) == [writer.ledger_id]
        if comes_back:
            await five.start_node(gone)
        else:
            recovering.cancel()
        await asyncio.wait([recovering])
        assert recovering.cancelled() is not comes_back
    await eventually(lambda: not locked(five))


async def test_a_recovery_ends_with_its_client(cluster: InProcess) -> None:
    client, _, recovering = await waiting_recovery(cluster)
    await client.close()
    with pytest.raises(ClientClosedError, match="1 of 1 ledgers still name the bookie"):
        async with asyncio.timeout(DEADLINE_S):
            await recovering


async def test_a_bookie_is_drained_and_decommissioned(five: InProcess) -> None:
    admin = await admin_of(five)
    writers = [await closed(admin.client, 5) for _ in range(3)]
    victim = writers[0].ensemble[0]
    named = sum(victim in writer.ensemble for writer in writers)
    assert await admin.cancel_drain(victim) is False
    await admin.start_drain(victim)
    scanned: list[int] = []
    progress = await admin.drain_progress(victim, on_scanned=scanned.append)
    assert (progress.draining, progress.ledgers, scanned[-1]) == (True, named, 3)
    assert await admin.cancel_drain(victim) is True
    assert not (await admin.drain_progress(victim)).draining
    await admin.start_drain(victim)
    seen: list[int] = []
    done = await admin.wait_for_drain(victim, on_progress=lambda now: seen.append(now.ledgers))
    assert (done.draining, done.ledgers) == (True, 0)
    assert (max(seen), seen[-1]) == (named, 0)
    asked: list[int] = []
    found = await admin.decommission(victim, confirm=lambda looked: asked.append(looked.ledgers))
    assert found.scan.clear
    assert asked == [3]
    with pytest.raises(BookieUnavailableError):
        await admin.decommission(victim)


async def test_a_confirmation_that_raises_keeps_the_bookie(five: InProcess) -> None:
    admin = await admin_of(five)
    await admin.start_drain("a")
    await admin.wait_for_drain("a")
    await asyncio.sleep(1)  # the bookie has said that it refuses entries

    def refuse(looked: object) -> None:
        raise KeyError("no")

    async def refuse_later(looked: object) -> None:
        refuse(looked)

    with pytest.raises(KeyError):
        await admin.decommission("a", confirm=refuse)
    with pytest.raises(KeyError):
        await admin.decommission("a", confirm=refuse_later)
    assert (await admin.drain_progress("a")).draining
    scanned: list[int] = []
    await closed(admin.client, 1)
    assert (await admin.decommission("a", on_scanned=scanned.append)).scan.clear
    assert scanned[-1] == 1


async def test_a_new_bookie_gets_its_share(cluster: InProcess) -> None:
    admin = await admin_of(cluster)
    ledgers = [(await closed(admin.client, 10)).ledger_id for _ in range(6)]
    await cluster.start_node("d")
    await eventually(lambda: "d" in admin.client.bookies)
    planned = await admin.rebalance(dry_run=True)
    assert (planned.dry_run, planned.seconds, planned.fragments) == (True, None, 0)
    assert planned.moves > 0
    for ledger_id in ledgers:
        assert "d" not in (await admin.client.ledger_metadata(ledger_id)).fragments[0].bookies
    scanned: list[int] = []
    moved: list[tuple[int, int]] = []
    report = await admin.rebalance(on_scanned=scanned.append, on_moved=lambda *now: moved.append(now))
    assert scanned[-1] == 6
    assert moved[0][0] == 0
    assert moved[-1][0] == report.size
    assert (report.moves, report.failed) == (report.fragments, {})
    assert report.bookies["d"].before == 0 < report.bookies["d"].after <= report.share
    assert sum(load.before for load in report.bookies.values()) == sum(load.after for load in report.bookies.values())
    for ledger_id in ledgers:
        await whole(admin.client, ledger_id)


# --- named logs -----------------------------------------------------------------------------------------------------


async def test_a_log_is_created_described_and_truncated(cluster: InProcess) -> None:
    admin = await admin_of(cluster)
    assert await admin.create_log("orders", password=b"secret", retention_s=60.0) is True
    assert await admin.create_log("orders") is False
    with pytest.raises(ConfigError, match="digest"):
        await admin.create_log("bills", digest="md5")
    with pytest.raises(NoSuchLogError):
        await admin.describe_log("bills")
    assert (await admin.describe_log("orders")).writer is None
    writer = await admin.client.open_log("orders", password=b"secret", roll_entries=2)
    for i in range(7):
        await writer.append(payload(i))
    described = await admin.describe_log("orders")
    assert described.writer is not None
    assert described.log_list.retention_s == 60.0
    with pytest.raises(bkpy.UnauthorizedError):
        await admin.truncate_log("orders", 3)
    reader = await admin.client.read_log("orders", password=b"secret")
    await reader.consumer("billing", position=0, create=True)
    with pytest.raises(ConfigError, match="billing"):
        await admin.truncate_log("orders", 3, password=b"secret")
    log_list = await admin.truncate_log("orders", 3, password=b"secret", ignore_consumers=True)
    assert log_list.first_position == 3
    assert (await admin.describe_log("orders", fresh=False)).log_list.first_position == 3
    await asyncio.sleep(1.0)  # the writer publishes its last entry
    log_list = await admin.truncate_log("orders", 7, password=b"secret", ignore_consumers=True)
    assert (log_list.first_position, len(log_list.open_segments)) == (7, 1)
    await reader.close()
    await writer.close()


async def test_consumers_are_listed_and_deleted(cluster: InProcess) -> None:
    admin = await admin_of(cluster)
    await admin.create_log("orders")
    reader = await admin.client.read_log("orders")
    await reader.consumer("billing", position=0, create=True)
    assert {name: state.position for name, state in (await admin.log_consumers("orders")).items()} == {"billing": 0}
    assert await admin.delete_log_consumer("orders", "billing") is True
    assert await admin.delete_log_consumer("orders", "billing") is False
    assert await admin.log_consumers("orders") == {}
    await reader.close()


async def test_sinks_are_listed_and_forgotten(cluster: InProcess) -> None:
    admin = await admin_of(cluster)
    await admin.create_log("orders")
    assert await admin.log_sinks("orders") == {}
    await commit_as_a_sink(admin.client, "orders", "load", 4)
    assert await admin.log_sinks("orders") == {"load": 4}
    assert await admin.delete_log_sink("orders", "another") is False
    assert await admin.delete_log_sink("orders", "load") is True
    assert await admin.log_sinks("orders") == {}


async def commit_as_a_sink(client: Client, name: str, writer_id: str, batch: int) -> None:
    logs = log_parts(client).logs
    log_list, version = await logs.read(name, fresh=True)
    await logs.write(name, with_batch(log_list, writer_id, batch, (), logs.now_ms(), 10), version)


# --- the client -----------------------------------------------------------------------------------------------------


async def test_it_works_in_the_session_of_its_client_and_ends_with_it(cluster: InProcess) -> None:
    client = await cluster.client()
    admin = bkpy.AdminClient(client)
    assert admin.client is client
    writer = await closed(client, 1)
    channels = pool_of(client)
    assert await admin.is_reachable(writer.ensemble[0])
    assert pool_of(admin.client) is channels
    await client.close()
    with pytest.raises(ClientClosedError):
        await admin.close_ledger(writer.ledger_id)


async def test_the_former_names_of_a_client_warn(cluster: InProcess) -> None:
    client = await cluster.client()
    writer = await closed(client, 2)
    with pytest.warns(DeprecationWarning, match=r"Client\.upkeep"):
        assert client.upkeep.cluster is cluster_of(client)
    with pytest.warns(DeprecationWarning, match=r"Client\.logs"):
        assert await client.logs.names() == []
    with pytest.warns(DeprecationWarning, match=r"Client\.last_entries"):
        assert set((await client.last_entries(writer.metadata)).values()) == {1}
    await bkpy.AdminClient(client).create_log("orders")
    log_list = (await bkpy.AdminClient(client).describe_log("orders")).log_list
    with pytest.warns(DeprecationWarning, match=r"Client\.create_segment"):
        segment = await client.create_segment("orders", log_list, b"")
    await segment.append(bytes(8) + b"x")
    await segment.close()
    with pytest.warns(DeprecationWarning, match=r"Client\.open_segment"):
        reader = await client.open_segment(segment.ledger_id)
    assert reader.last_add_confirmed == 0
