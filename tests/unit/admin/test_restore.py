"""A cluster whose metadata were lost, and restored from an older backup: no acknowledged entry is denied or lost."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import cluster_of, collector_of, storage_of
from tests.in_process import DEADLINE_S, InProcess, contents, rewrite, runtime_here
from tests.stepping import naming, run_to
from tests.unit.replication.repairing import Repairs, held
from tests.unit.replication.test_integrity import QUICK
from tests.waiting import eventually

from bkpy.admin.client import AdminClient
from bkpy.admin.cluster_health import Severity
from bkpy.admin.restore_confirmation import RestoreConfirmation
from bkpy.bookie.collector import LATER
from bkpy.client.client import audit_trail, log_parts, open_client, replication_context
from bkpy.client.read.range_reader import RangeReader
from bkpy.config.client import client_settings
from bkpy.config.recovery import RecoverySettings
from bkpy.config.shared import MetadataSettings
from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    ConfigError,
    CorruptDataError,
    IdentityError,
    LedgerRecoveryError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from bkpy.log.keeper import LogKeeper
from bkpy.metadata import paths
from bkpy.metadata.audit_trail import Actor, AuditTrail
from bkpy.metadata.backup import backup
from bkpy.metadata.backup.backup import back_up
from bkpy.metadata.backup.restore import restore_backup
from bkpy.metadata.cluster import open_cluster
from bkpy.metadata.logs.maintenance import LOG_NAME, LOG_UID, LogMaintenance
from bkpy.metadata.restore_record import encode_restore, read_reports, read_restore, write_report, write_restore
from bkpy.metadata.store.resolve import children_if_there, read_certainly
from bkpy.metadata.store.store import NodeExists
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.restore.restoring import RestoreState, is_kept
from bkpy.protocol.wire.messages import Status
from bkpy.storage.identity import read_cookie, write_cookie
from bkpy.storage.losses import Losses

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection
    from pathlib import Path

    from bkpy.bookie.node import BookieNode
    from bkpy.client.client import Client
    from bkpy.client.write.writer import LedgerWriter
    from bkpy.metadata.backup.restore import Restored
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.restore.restoring import Restore
    from bkpy.recovery.ledger_recovery import Everywhere

RESTORED = "/restored"
BEHIND_BACKUP = 10**9


class Lost(InProcess):
    """Bookies a, b, ... whose metadata are lost after a backup."""

    former: Client

    async def begin(self, names: str = "abcd", **settings: Any) -> None:
        await self.start(names, **{"gc_interval_s": 0.0, **QUICK, **settings})
        self.former = await self.client()

    @property
    def file(self) -> str:
        return str(self.directory / "backup")

    async def back_up(self) -> None:
        await back_up(cluster_of(self.former), runtime_here().files, self.file)

    async def lose_metadata(self) -> None:
        """Stop everything, and forget every node."""
        for node in self.nodes:
            await node.stop()
        for client in self.clients:
            await client.close()
        self.clients.clear()

    async def restore(self, root: str = RESTORED, also_from: Collection[str] = ()) -> Restored:
        self.root = root
        return await restore_backup(self.tree.session(), root, runtime_here().files, self.file, also_from=also_from)

    async def join(self, lost: str = "", absent: str = "", *, mending: bool = True) -> None:
        """Start the bookies on the restored metadata; `lost` ones on empty disks, all with checks if `mending`."""
        for node in list(self.nodes):
            name = node.settings.bookie_id
            if name in absent:
                self.nodes.remove(node)
                continue
            if name in lost:
                self.lose_disks(name)
            await self.start_node(name, mending=mending, rebuild=name in lost)

    async def lose_and_restore(self) -> None:
        """Behind a backup of now; all bookies have joined then, and nothing is confirmed."""
        await self.back_up()
        await self.lose_metadata()
        await self.restore()
        await self.join()

    async def confirm(self, **options: Any) -> Restore:
        client = await self.client()
        return await confirmation(client).run(**options)

    async def again(self, lost: str = "", **options: Any) -> Client:
        """All of that; a client of the restored cluster, once its bookies take entries."""
        await self.lose_metadata()
        await self.restore()
        await self.join(lost)
        await self.confirm(**options)
        await eventually(lambda: not any(storage_of(node).untrusted for node in self.nodes))
        return await self.client()


def confirmation(client: Client) -> RestoreConfirmation:
    return RestoreConfirmation(
        replication_context(client), RecoverySettings(drain_look_interval_s=0.05), audit_trail(client)
    )


@pytest.fixture
async def lost(tmp_path: Path) -> AsyncIterator[Lost]:
    cluster = Lost(tmp_path)
    await cluster.begin()
    yield cluster
    await cluster.stop()


@pytest.fixture
async def six(tmp_path: Path) -> AsyncIterator[Lost]:
    cluster = Lost(tmp_path)
    await cluster.begin("abcdef")
    yield cluster
    await cluster.stop()


def payloads(first: int, count: int) -> list[bytes]:
    return [b"%d" % number * 9 for number in range(first, first + count)]


async def opened(client: Client, sizes: tuple[int, int, int] = (3, 3, 2)) -> LedgerWriter:
    size, write_quorum, ack_quorum = sizes
    return await client.create_ledger(ensemble_size=size, write_quorum=write_quorum, ack_quorum=ack_quorum)


async def closed(client: Client, sizes: tuple[int, int, int] = (3, 3, 2), count: int = 20) -> int:
    writer = await opened(client, sizes)
    await writer.append_batch(payloads(0, count))
    await writer.close()
    return writer.ledger_id


async def move(client: Client, ledger_id: int, *names: str) -> None:
    """Move the bookies' copies to others, as a worker does."""
    repaired = await Repairs(client).run(ledger_id, set(names))
    assert not set(names) & set(await names_of(client, ledger_id)), repaired


async def replaced(cluster: Lost, writer: LedgerWriter, name: str) -> None:
    """The bookie is gone, and the writer has another one in its place."""
    await cluster.node(name).stop()

    async def moved_on() -> bool:
        await writer.append(b"more")
        return name not in writer.metadata.fragments[-1].bookies

    await eventually(moved_on)


async def names_of(client: Client, ledger_id: int) -> Collection[str]:
    return (await client.ledger_metadata(ledger_id)).needed_bookies


# --- what happened after the backup -----------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 2, 2)])
async def test_copies_that_were_moved_come_back_from_wherever_they_are(six: Lost, sizes: tuple[int, int, int]) -> None:
    ledger_id = await closed(six.former, sizes)
    await six.back_up()
    before = sorted(await names_of(six.former, ledger_id))
    await move(six.former, ledger_id, *before)
    client = await six.again(lost="".join(before))
    assert sorted(await names_of(client, ledger_id)) == before
    assert await contents(client, ledger_id) == payloads(0, 20)


@pytest.mark.thorough
async def test_a_ledger_that_was_closed_later_ends_where_it_was_closed(lost: Lost) -> None:
    writer = await opened(lost.former)
    await writer.append_batch(payloads(0, 10))
    await lost.back_up()
    await writer.append_batch(payloads(10, 20))
    await writer.close()
    client = await lost.again()
    assert (await client.ledger_metadata(writer.ledger_id)).last_entry == 29
    assert await contents(client, writer.ledger_id) == payloads(0, 30)


@pytest.mark.thorough
@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 2, 2)])
async def test_entries_behind_a_changed_ensemble_are_found_and_written_back(
    six: Lost, sizes: tuple[int, int, int]
) -> None:
    writer = await opened(six.former, sizes)
    await writer.append_batch(payloads(0, 10))
    await six.back_up()
    before = sorted(writer.metadata.fragments[-1].bookies)
    for name in before:
        await replaced(six, writer, name)
    await writer.append_batch(payloads(10, 30))
    count = writer.last_add_confirmed + 1
    assert not set(before) & set(writer.metadata.fragments[-1].bookies)
    client = await six.again()
    assert (await client.ledger_metadata(writer.ledger_id)).last_entry == count - 1
    found = await contents(client, writer.ledger_id)
    assert (found[:10], found[-30:], len(found)) == (payloads(0, 10), payloads(10, 30), count)


@pytest.mark.thorough
async def test_a_ledger_is_closed_with_its_entries_on_ack_quorums_of_the_bookies_that_it_names(six: Lost) -> None:
    writer = await opened(six.former)
    await writer.append_batch(payloads(0, 10))
    await six.back_up()
    before = sorted(writer.metadata.fragments[-1].bookies)
    for name in before:
        await replaced(six, writer, name)
    await writer.append_batch(payloads(10, 10))
    last = writer.last_add_confirmed
    await six.lose_metadata()
    await six.restore()
    await six.join(mending=False)  # so that no bookie copies what it misses
    client = await six.client()
    confirming = asyncio.create_task(confirmation(client).run())
    await eventually(lambda: _state(six), until=lambda state: state is RestoreState.CLOSED)
    confirming.cancel()
    await asyncio.wait([confirming])
    metadata = await client.ledger_metadata(writer.ledger_id)
    assert metadata.last_entry == last
    copies = [set(await held(client, writer.ledger_id, name, last)) for name in metadata.fragments[-1].bookies]
    assert all(sum(number in some for some in copies) >= 2 for number in range(last + 1)), copies


async def _state(lost: Lost) -> RestoreState | None:
    found = await read_restore(lost.tree.session(), RESTORED)
    return None if found is None else found.restore.state


@pytest.mark.thorough
async def test_a_bookie_that_came_after_the_backup_has_what_only_it_holds(lost: Lost) -> None:
    writer = await opened(lost.former, (2, 2, 2))
    await writer.append_batch(payloads(0, 10))
    await lost.back_up()
    for name in "efg":
        await lost.start_node(name)
    for name in "abcd":
        await replaced(lost, writer, name)
    await writer.append_batch(payloads(50, 10))
    assert set(writer.metadata.fragments[-1].bookies) <= set("efg")
    count = writer.last_add_confirmed + 1
    client = await lost.again()
    assert (await client.ledger_metadata(writer.ledger_id)).last_entry == count - 1
    found = await contents(client, writer.ledger_id)
    assert found[-10:] == payloads(50, 10)
    assert found[:10] == payloads(0, 10)


@pytest.mark.thorough
async def test_a_deleted_ledger_comes_back_unreadable_and_is_named_before_the_restore_ends(lost: Lost) -> None:
    ledger_id = await closed(lost.former)
    other = await closed(lost.former)
    await lost.back_up()
    await lost.former.delete_ledger(ledger_id)
    for node in lost.nodes:
        run = collector_of(node).begin()
        assert run is not None
        await eventually(lambda run=run: run.seconds is not None)
    await lost.lose_metadata()
    await lost.restore()
    await lost.join()
    with pytest.raises(ConfigError, match=f"can't get all entries of 1 ledgers: {ledger_id}"):
        await lost.confirm()
    client = await lost.client()
    with pytest.raises(BookKeeperError) as raised:
        await contents(client, ledger_id)
    assert not isinstance(raised.value, NoSuchEntryError)  # never denied
    await client.delete_ledger(ledger_id)
    await eventually(lambda: _reported_whole(lost))
    assert (await lost.confirm()).state is RestoreState.CONFIRMED
    assert await contents(client, other) == payloads(0, 20)


async def _reported_whole(lost: Lost, bookies: int = 1) -> bool:
    session = lost.tree.session()
    found = await read_restore(session, RESTORED)
    reports = {} if found is None else await read_reports(session, RESTORED, found.version)
    return len(reports) >= bookies and all(not report.left for report in reports.values())


@pytest.mark.thorough
async def test_a_ledger_that_was_created_later_is_kept_until_an_operator_decides(lost: Lost) -> None:
    await closed(lost.former)
    await lost.back_up()
    later = await closed(lost.former)
    holders = [
        node.settings.bookie_id for node in lost.nodes if node.settings.bookie_id in await names_of(lost.former, later)
    ]
    client = await lost.again()
    with pytest.raises(NoSuchLedgerError):
        await client.ledger_metadata(later)
    new = await opened(client)
    assert new.ledger_id > BEHIND_BACKUP
    await new.append(b"new")
    for name in holders:
        run = collector_of(lost.node(name)).begin()
        assert run is not None
        await eventually(lambda run=run: run.seconds is not None)
        assert (run.gone, run.failed) == (0, ""), run
        assert run.kept[LATER] >= 1
        assert await lost.storage(name).has_entries(later)
    await lost.confirm(collect_later=True)
    run = collector_of(lost.node(holders[0])).begin()
    assert run is not None
    await eventually(lambda: run.seconds is not None)
    assert later in run.collected
    await new.close()
    assert await contents(client, new.ledger_id) == [b"new"]


async def test_a_recovery_that_had_begun_is_ended_where_it_ended(lost: Lost) -> None:
    writer = await opened(lost.former)
    await writer.append_batch(payloads(0, 10))
    await rewrite(lost.former, writer.ledger_id, state=LedgerState.IN_RECOVERY)
    await lost.back_up()
    await lost.former.recover_ledger(writer.ledger_id)
    ended = await lost.former.ledger_metadata(writer.ledger_id)
    client = await lost.again()
    assert (await client.ledger_metadata(writer.ledger_id)).last_entry == ended.last_entry == 9


@pytest.mark.thorough
async def test_a_log_that_rolled_gives_out_no_position_twice(lost: Lost) -> None:
    log = await lost.former.open_log("orders", create=True, roll_entries=5)
    for number in range(12):
        await log.append(b"%d" % number)
    await lost.back_up()
    for number in range(12, 40):
        await log.append(b"%d" % number)
    await log.close()
    client = await lost.again()
    reader = await client.read_log("orders")
    found = [(entry.position, entry.data) async for entry in reader.read()]
    assert found == [(number, b"%d" % number) for number in range(len(found))]
    assert len(found) >= 12
    log = await client.open_log("orders")
    assert await log.append(b"after") >= 40
    await log.close()


@pytest.mark.thorough
async def test_a_log_without_a_writer_at_the_backup_gives_out_no_position_twice(lost: Lost) -> None:
    async with await lost.former.open_log("orders", create=True) as log:
        await log.append_batch(payloads(0, 5))
    async with await lost.former.open_log("empty", create=True):
        pass
    await lost.back_up()
    for name in ("orders", "empty"):
        async with await lost.former.open_log(name) as log:
            await log.append_batch(payloads(5, 5))
    client = await lost.again()
    for name in ("orders", "empty"):
        async with await client.open_log(name) as log:
            assert await log.append(b"after") >= 10


@pytest.mark.thorough
async def test_a_ledger_that_its_log_does_not_name_in_the_backup_is_no_orphan(lost: Lost) -> None:
    log = await lost.former.open_log("orders", create=True)
    await log.append(b"one")
    uid = (await log_parts(lost.former).logs.read("orders"))[0].uid
    await log.close()
    ledger_id = await closed(lost.former)
    custom = {LOG_NAME: b"orders", LOG_UID: uid.encode()}  # it was added to the list behind the reading of that
    await rewrite(lost.former, ledger_id, custom_metadata=custom)
    await lost.lose_and_restore()
    deleted: list[bool] = []
    for collect_later in (None, False, True):
        if collect_later is not None:
            await lost.confirm(collect_later=collect_later)
        client = await lost.client()
        cluster = cluster_of(client)
        keeper = LogKeeper(
            cluster,
            replication_context(client).fence,
            cluster.store.runtime,
            RecoverySettings(log_retention_interval_s=0.01, log_orphan_interval_s=0.02, log_orphan_grace_s=0.0),
        )
        keeping = asyncio.create_task(keeper.run())
        await asyncio.sleep(1.0)
        keeping.cancel()
        await asyncio.wait([keeping])
        deleted.append(ledger_id not in [one async for one in cluster.catalog.ids()])
    assert deleted == [False, False, True]


@pytest.mark.thorough
async def test_retention_waits_for_the_confirmation(lost: Lost) -> None:
    await AdminClient(lost.former).create_log("orders", retention_s=10.0)
    for number in range(4):
        async with await lost.former.open_log("orders") as log:
            await log.append(b"%d" % number)
    await lost.back_up()
    await lost.lose_metadata()
    await asyncio.sleep(20.0)
    await lost.restore()
    await lost.join()
    kept: list[int] = []
    for confirmed in (False, True):
        if confirmed:
            await lost.confirm()
        client = await lost.client()
        cluster = cluster_of(client)
        keeper = LogKeeper(
            cluster,
            replication_context(client).fence,
            cluster.store.runtime,
            RecoverySettings(log_retention_interval_s=0.01),
        )
        keeping = asyncio.create_task(keeper.run())
        await asyncio.sleep(1.0)
        keeping.cancel()
        await asyncio.wait([keeping])
        kept.append(len([ledger_id async for ledger_id in cluster.catalog.ids()]))
    assert kept[0] >= 4 > kept[1]


async def test_a_bookie_some_of_whose_directories_have_joined_goes_on(lost: Lost) -> None:
    await closed(lost.former, (4, 4, 3))
    await lost.back_up()
    await lost.lose_metadata()
    restore = (await lost.restore()).restore
    files = lost.runtime("a").files
    journal = str(lost.directory / "a" / "journal")
    cookie = read_cookie(files, journal)
    assert cookie is not None
    write_cookie(files, journal, cookie._replace(instance_id=restore.instance_id))
    node = await lost.start_node("a", mending=True)
    assert storage_of(node).untrusted


@pytest.mark.thorough
async def test_a_restored_cluster_is_backed_up_and_restored_again(lost: Lost) -> None:
    first = await closed(lost.former)
    await lost.back_up()
    later = await closed(lost.former)
    client = await lost.again()
    second = await closed(client)
    files, file = runtime_here().files, f"{lost.file}2"
    await back_up(cluster_of(client), files, file)
    third = await opened(client)
    await third.append(b"third")
    await lost.lose_metadata()
    lost.root = "/restored-again"
    restored = await restore_backup(lost.tree.session(), lost.root, files, file)
    assert restored.restore.kept_from <= later  # still what may be the only copies
    await lost.join()
    await lost.confirm()
    await eventually(lambda: not any(storage_of(node).untrusted for node in lost.nodes))
    client = await lost.client()
    for ledger_id in (first, second):
        assert await contents(client, ledger_id) == payloads(0, 20)
    new = await opened(client)
    assert new.ledger_id > third.ledger_id > second > BEHIND_BACKUP
    for node in lost.nodes:
        run = collector_of(node).begin()
        assert run is not None
        await eventually(lambda run=run: run.seconds is not None)
        assert (run.gone, run.failed) == (0, ""), run


async def test_a_bookie_that_has_lost_a_ledgers_key_keeps_nobody_from_closing_it_and_shows_its_entries(
    lost: Lost,
) -> None:
    writer = await opened(lost.former, (4, 4, 3))
    await writer.append_batch(payloads(0, 10))
    name = writer.metadata.fragments[-1].bookies[0]
    await lost.lose_and_restore()
    state = (await lost.storage(name).states((writer.ledger_id,)))[writer.ledger_id]
    assert state is not None
    state.key = b""  # as behind a damaged journal
    await lost.confirm()
    assert await contents(await lost.client(), writer.ledger_id) == payloads(0, 10)


# --- before the confirmation ------------------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_nothing_is_denied_written_or_collected_before_the_confirmation(lost: Lost) -> None:
    ledger_id = await closed(lost.former)
    writer = await opened(lost.former)
    await writer.append_batch(payloads(0, 5))
    await lost.back_up()
    later = await closed(lost.former)
    await lost.lose_metadata()
    await lost.restore()
    await lost.join()
    client = await lost.client()
    assert await contents(client, ledger_id) == payloads(0, 20)  # what is there is read
    with pytest.raises(BookKeeperError, match="bookies"):
        await opened(client)
    with pytest.raises(LedgerRecoveryError):  # an ordinary recovery has no denials to end it by
        await client.recover_ledger(writer.ledger_id)
    for node in lost.nodes:
        assert storage_of(node).untrusted
        run = collector_of(node).begin()
        assert run is not None
        await eventually(lambda run=run: run.seconds is not None)
        assert run.failed == "unconfirmed"
    await asyncio.sleep(10 * QUICK["integrity_look_interval_s"])  # checks of integrity had the time to trust themselves
    assert all(storage_of(node).untrusted for node in lost.nodes)
    assert [later in await storage_of(node).held_ledgers(-1, 100) for node in lost.nodes].count(True) == 3
    admin = AdminClient(client)
    for refused in (
        admin.set_auto_recovery(True),
        admin.decommission("a", lost=True),
        admin.accept_loss(ledger_id, 0),
        admin.recover_bookie("gone"),
        admin.wait_for_drain("a"),
        admin.rebalance(),
    ):
        with pytest.raises(ConfigError, match="isn't confirmed yet"):
            await refused
    health = await admin.health()
    assert health.worst is Severity.RISK
    assert "restore-unconfirmed" in [finding.code for finding in health.findings]
    await client.delete_ledger(ledger_id)
    with pytest.raises(ConfigError, match="isn't confirmed"):
        await back_up(cluster_of(client), runtime_here().files, f"{lost.file}2")


@pytest.mark.thorough
async def test_a_client_of_the_former_cluster_is_refused(lost: Lost) -> None:
    ledger_id = await closed(lost.former)
    await lost.back_up()
    for node in lost.nodes:
        await node.stop()
    await lost.restore()
    await lost.join()
    with pytest.raises(BookKeeperError) as raised:
        await contents(lost.former, ledger_id)
    assert not isinstance(raised.value, NoSuchEntryError)


async def test_an_absent_bookie_keeps_the_restore_unconfirmed_until_it_is_given_up(lost: Lost) -> None:
    writer = await opened(lost.former)
    await writer.append_batch(payloads(0, 10))
    absent = sorted(writer.metadata.fragments[-1].bookies)[0]
    await lost.back_up()
    await lost.lose_metadata()
    await lost.restore()
    await lost.join(absent=absent)
    with pytest.raises(ConfigError, match=f"bookie {absent} isn't here"):
        await lost.confirm()
    metadata, _ = await cluster_of(await lost.client()).catalog.read(writer.ledger_id)
    assert metadata.state is not LedgerState.CLOSED
    with pytest.raises(ConfigError, match="can't be given up"):
        await lost.confirm(without={"b" if absent == "a" else "a"})
    assert (await lost.confirm(without={absent})).state is RestoreState.CONFIRMED
    assert await contents(await lost.client(), writer.ledger_id) == payloads(0, 10)


@pytest.mark.thorough
@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 2, 2)])
async def test_entries_are_kept_though_all_bookies_that_the_backup_names_are_gone(
    six: Lost, sizes: tuple[int, int, int]
) -> None:
    ledger_id = await closed(six.former, sizes)
    await six.back_up()
    before = sorted(await names_of(six.former, ledger_id))
    await move(six.former, ledger_id, *before)
    await six.lose_metadata()
    await six.restore()
    await six.join(absent="".join(before))
    await six.confirm(without=set(before))
    await eventually(lambda: not any(storage_of(node).untrusted for node in six.nodes))
    for node in six.nodes:
        run = collector_of(node).begin()
        assert run is not None
        await eventually(lambda run=run: run.seconds is not None)
    client = await six.client()
    assert not set(before) & set(await names_of(client, ledger_id))
    assert await contents(client, ledger_id) == payloads(0, 20)


async def interrupted_confirmation(lost: Lost, client: Client, *, without: BookieNode) -> None:
    """All bookies have joined, and all but this one, which goes, have reported."""
    confirming = asyncio.create_task(confirmation(client).run())
    await eventually(lambda: _state(lost), until=lambda state: state is RestoreState.CLOSED)
    await eventually(lambda: _reported_whole(lost, 3))
    confirming.cancel()
    await asyncio.wait([confirming])
    await without.stop()
    lost.nodes.remove(without)


@pytest.mark.thorough
async def test_bookies_that_are_gone_since_a_former_call_are_replaced_as_well(lost: Lost) -> None:
    ledger_id = await closed(lost.former, (1, 1, 1))
    await lost.back_up()
    (gone,) = await names_of(lost.former, ledger_id)
    others = sorted(set("abcd") - {gone})
    # Another one than takes the place.
    await Repairs(lost.former, target=others[ledger_id % 3]).run(ledger_id, {gone})
    assert gone not in await names_of(lost.former, ledger_id)
    await lost.lose_metadata()
    lost.lose_disks(gone)
    await lost.restore()
    await lost.join(absent=gone)
    client = await lost.client()
    node = await lost.start_node(gone, rebuild=True)  # without a check: it never reports
    await interrupted_confirmation(lost, client, without=node)
    await lost.confirm(without={gone})
    assert not {gone, others[ledger_id % 3]} & set(await names_of(await lost.client(), ledger_id))
    await eventually(lambda: not any(storage_of(node).untrusted for node in lost.nodes))
    assert await contents(await lost.client(), ledger_id) == payloads(0, 20)


async def test_of_two_confirmations_the_one_whose_reports_will_never_come_ends(lost: Lost) -> None:
    await lost.back_up()
    await lost.lose_metadata()
    await lost.restore()
    await lost.join(absent="ab")
    await lost.start_node("b")  # without a check: it never reports
    first = asyncio.create_task(confirmation(await lost.client()).run(without={"a"}))
    await eventually(lambda: _reported_whole(lost, 2))
    session = lost.tree.session()
    found = await read_restore(session, RESTORED)
    assert found is not None
    await write_restore(session, RESTORED, found.restore.with_fewer(), found.version)  # as the second one does
    with pytest.raises(MetadataConflictError, match="another call goes on with the restore"):
        await asyncio.wait_for(first, 60)


@pytest.mark.thorough
async def test_reports_stay_when_a_confirmation_that_gives_up_a_bookie_is_interrupted(lost: Lost) -> None:
    ledger_id = await closed(lost.former)
    await lost.back_up()
    await lost.lose_metadata()
    await lost.restore()
    await lost.join(absent="ab")
    slow = await lost.start_node("b")  # without a check: it never reports
    session, versions = lost.tree.session(), set()
    for _ in range(3):
        confirming = asyncio.create_task(confirmation(await lost.client()).run(without={"a"}))
        await eventually(lambda: _reported_whole(lost, 2))
        await asyncio.sleep(1.0)
        confirming.cancel()
        await asyncio.wait([confirming])
        found = await read_restore(session, RESTORED)
        assert found is not None
        assert set(await read_reports(session, RESTORED, found.version)) == {"c", "d"}
        versions.add(found.version)
    assert len(versions) == 1
    await slow.stop()
    lost.nodes.remove(slow)
    await lost.start_node("b", mending=True)
    assert (await lost.confirm(without={"a"})).state is RestoreState.CONFIRMED
    assert await contents(await lost.client(), ledger_id) == payloads(0, 20)


async def test_a_bookie_that_is_given_up_in_place_of_another_one_is_replaced_as_well(lost: Lost) -> None:
    """Reports of before were of the places that bookies had while it was the other one that was away."""
    ledger_id = await closed(lost.former, (1, 1, 1))
    (gone,) = await names_of(lost.former, ledger_id)
    other = min(set("abcd") - {gone})
    await lost.back_up()
    await lost.lose_metadata()
    await lost.restore()
    await lost.join(absent=gone + other)
    node = await lost.start_node(gone)  # without a check: it never reports
    confirming = asyncio.create_task(confirmation(await lost.client()).run(without={other}))
    await eventually(lambda: _reported_whole(lost, 2))
    confirming.cancel()
    await asyncio.wait([confirming])
    await node.stop()
    lost.nodes.remove(node)
    await lost.start_node(other, mending=True)
    with pytest.raises(ConfigError, match=f"can't get all entries of 1 ledgers: {ledger_id}"):
        await lost.confirm(without={gone})
    assert gone not in await names_of(await lost.client(), ledger_id)


@pytest.mark.thorough
async def test_a_bookie_that_was_given_up_in_vain_and_is_back_keeps_the_last_copies(lost: Lost) -> None:
    """Others had its places by then, and had reported of the places that they had before."""
    ledger_id, striped = await closed(lost.former, (1, 1, 1)), await closed(lost.former, (4, 1, 1))
    (gone,) = await names_of(lost.former, ledger_id)
    await lost.back_up()
    await lost.lose_metadata()
    await lost.restore()
    await lost.join(absent=gone)
    node = await lost.start_node(gone)  # without a check: it never reports
    await interrupted_confirmation(lost, await lost.client(), without=node)
    with pytest.raises(ConfigError, match=rf"of 1 ledgers \({striped}\) .* start further bookies"):
        await lost.confirm(without={gone})
    await lost.start_node(gone, mending=True)
    assert (await lost.confirm()).state is RestoreState.CONFIRMED
    await eventually(lambda: not any(storage_of(node).untrusted for node in lost.nodes))
    for node in lost.nodes:
        run = collector_of(node).begin()
        assert run is not None
        await eventually(lambda run=run: run.seconds is not None)
    client = await lost.client()
    for one in (ledger_id, striped):
        assert await contents(client, one) == payloads(0, 20)


@pytest.mark.thorough
async def test_entries_without_a_place_are_named_before_they_are_given_up(lost: Lost) -> None:
    ledger_id = await closed(lost.former, (4, 1, 1))
    await lost.back_up()
    await lost.lose_metadata()
    await lost.restore()
    await lost.join(absent="a")
    with pytest.raises(ConfigError, match=rf"of 1 ledgers \({ledger_id}\) no bookie that is left"):
        await lost.confirm(without={"a"})
    assert (await lost.confirm(without={"a"}, accept_loss=True)).state is RestoreState.CONFIRMED


@pytest.mark.parametrize("given_up", [("a", "b"), None])
async def test_a_record_may_have_no_bookies_that_were_given_up(lost: Lost, given_up: tuple[str, ...] | None) -> None:
    await lost.back_up()
    restore = dataclasses.replace((await lost.restore()).restore, given_up=given_up or ())
    fields = json.loads(encode_restore(restore))
    if given_up is None:
        del fields["given_up"]
    session, path = lost.tree.session(), f"{RESTORED}/{paths.RESTORE}"
    await session.put(path, json.dumps(fields).encode(), (await session.get(path))[1])
    found = await read_restore(session, RESTORED)
    assert found is not None
    assert found.restore == restore


async def test_a_new_bookie_waits_for_the_confirmation(lost: Lost) -> None:
    await lost.back_up()
    await lost.lose_metadata()
    await lost.restore()
    with pytest.raises(IdentityError, match="before that is confirmed"):
        await lost.start_node("x")
    await lost.join()
    await lost.confirm()
    assert not storage_of(await lost.start_node("x")).untrusted


async def test_a_bookie_that_starts_again_withdraws_its_report_before_it_is_registered(lost: Lost) -> None:
    """A confirmation counts the reports of registered bookies, and the disks may be others now."""
    await lost.back_up()
    await lost.lose_metadata()
    await lost.restore()
    session = lost.tree.session()
    for name in "ab":
        await write_report(session, RESTORED, name, 1, [])
    await lost.start_node("a", mending=True)
    assert set(await read_reports(session, RESTORED, 1)) == {"b"}


@pytest.mark.thorough
async def test_a_ledger_that_a_bookie_fails_to_look_at_is_not_reported_as_complete(
    lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_id = await closed(lost.former)
    await lost.back_up()
    await lost.lose_metadata()
    await lost.restore()
    missing_ranges = Losses.missing_ranges
    failing = {ledger_id}

    async def fail(losses: Losses, metadata: LedgerMetadata) -> Any:
        if metadata.ledger_id in failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return await missing_ranges(losses, metadata)

    monkeypatch.setattr(Losses, "missing_ranges", fail)
    await lost.join()
    with pytest.raises(ConfigError, match=f"can't get all entries of 1 ledgers: {ledger_id}\n"):
        await lost.confirm()
    failing.clear()
    await eventually(lambda: _reported_whole(lost, 4))
    await lost.confirm()
    client = await lost.client()
    assert await contents(client, ledger_id) == payloads(0, 20)


@pytest.mark.thorough
async def test_entries_are_not_given_up_because_a_bookie_that_has_them_fails_for_a_while(
    lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though losses are accepted: with the confirmation their last copy would be collected."""
    ledger_id = await closed(lost.former, (1, 1, 1))
    await lost.back_up()
    before = await names_of(lost.former, ledger_id)
    await move(lost.former, ledger_id, *before)
    await lost.lose_metadata()
    await lost.restore()
    blocks, failing = RangeReader.blocks, [True]

    def fail(reader: RangeReader, *args: Any, **options: Any) -> Any:
        if failing:
            raise BookieUnavailableError("the bookie gave no answer in time")
        return blocks(reader, *args, **options)

    monkeypatch.setattr(RangeReader, "blocks", fail)
    await lost.join(lost="".join(before))
    with pytest.raises(ConfigError, match=f"can't get all entries of 1 ledgers: {ledger_id}; it tries 1 of them again"):
        await lost.confirm()
    confirming = asyncio.create_task(lost.confirm(accept_loss=True))
    await asyncio.sleep(5.0)
    failing.clear()
    assert (await asyncio.wait_for(confirming, 60)).state is RestoreState.CONFIRMED
    assert await contents(await lost.client(), ledger_id) == payloads(0, 20)


@pytest.mark.thorough
async def test_entries_are_not_given_up_that_a_bookie_has_which_joins_late(lost: Lost) -> None:
    """One that came after the backup: nothing there says that it is to be waited for."""
    ledger_id = await closed(lost.former, (1, 1, 1))
    await lost.back_up()
    await lost.start_node("e")
    before: set[str] = set()
    while (names := set(await names_of(lost.former, ledger_id))) != {"e"}:
        before |= names
        await move(lost.former, ledger_id, *names)
    await lost.lose_metadata()
    await lost.restore()
    await lost.join(absent="e", lost="".join(before))
    with pytest.raises(ConfigError, match=f"can't get all entries of 1 ledgers: {ledger_id}\n"):
        await lost.confirm()
    session = lost.tree.session()
    found = await read_restore(session, RESTORED)
    assert found is not None
    late = await lost.start_node("e")  # it has reported before the others look again
    await write_report(session, RESTORED, late.settings.bookie_id, found.version, [])
    assert (await lost.confirm(accept_loss=True)).state is RestoreState.CONFIRMED
    assert await contents(await lost.client(), ledger_id) == payloads(0, 20)


@pytest.mark.thorough
async def test_an_acknowledged_entry_that_is_nowhere_keeps_the_ledger_open(lost: Lost) -> None:
    writer = await opened(lost.former, (2, 2, 2))
    await writer.append_batch(payloads(0, 10))
    await lost.back_up()
    first = writer.metadata.fragments[0].bookies
    await lost.start_node("e")
    for name in first:  # both are replaced, and later entries prove that those of before were acknowledged
        await replaced(lost, writer, name)
    await writer.append_batch(payloads(10, 2))
    await lost.lose_metadata()
    await lost.restore()
    await lost.join(lost="".join(first))
    with pytest.raises(LedgerRecoveryError, match="was acknowledged, and no bookie has it"):
        await lost.confirm()
    metadata, _ = await cluster_of(await lost.client()).catalog.read(writer.ledger_id)
    assert metadata.state is LedgerState.IN_RECOVERY
    assert (await lost.confirm(accept_loss=True)).state is RestoreState.CONFIRMED


@pytest.mark.thorough
async def test_a_ledger_that_stays_open_waits_for_no_bookie_that_is_given_up(lost: Lost) -> None:
    """Its metadata still name that one, for only closed ledgers get others into places."""
    writer = await opened(lost.former, (3, 3, 2))
    await writer.append_batch(payloads(0, 10))
    replaced_one, absent, _ = writer.ensemble
    await replaced(lost, writer, replaced_one)
    await lost.back_up()
    await lost.lose_metadata()
    await lost.restore()
    await lost.join(lost="abcd".replace(absent, ""), absent=absent)
    with pytest.raises(LedgerRecoveryError):
        await lost.confirm(without={absent})
    async with asyncio.timeout(DEADLINE_S):
        assert (await lost.confirm(without={absent}, accept_loss=True)).state is RestoreState.CONFIRMED


@pytest.mark.thorough
@pytest.mark.parametrize("given_up", [False, True])
async def test_an_entry_of_which_the_last_copy_is_damaged_keeps_the_ledger_open(lost: Lost, given_up: bool) -> None:
    """A bookie in limbo denies nothing either. But it says that it had this entry."""
    writer = await opened(lost.former, (2, 2, 2))
    await writer.append_batch(payloads(0, 10))
    await lost.back_up()
    first, second = writer.ensemble
    for name in (first, second):
        await storage_of(lost.node(name)).checkpoint()
    await lost.lose_metadata()
    for name in (first,) if given_up else (first, second):
        assert lost.rewrite_disks(name, payloads(0, 10)[9], b"?" * len(payloads(0, 10)[9]))
    await lost.restore()
    await lost.join(absent=second if given_up else "")
    without = [second] if given_up else []
    with pytest.raises(LedgerRecoveryError, match="too few bookies can tell whether the entry exists"):
        await lost.confirm(without=without)
    metadata, _ = await cluster_of(await lost.client()).catalog.read(writer.ledger_id)
    assert metadata.state is LedgerState.IN_RECOVERY
    assert (await lost.confirm(without=without, accept_loss=True)).state is RestoreState.CONFIRMED


@pytest.mark.thorough
async def test_no_ledger_is_closed_without_a_bookie_that_joins_meanwhile(lost: Lost) -> None:
    """One that came after the backup: its entries of the ledgers that are still open would be cut off."""
    writers = [await opened(lost.former, (2, 2, 2)) for _ in range(2)]
    for writer in writers:
        await writer.append_batch(payloads(0, 10))
    await lost.back_up()
    for name in "efg":
        await lost.start_node(name)
    for name in "abcd":
        await replaced(lost, writers[1], name)
    await writers[1].append_batch(payloads(50, 10))
    await lost.lose_metadata()
    await lost.restore()
    await lost.join(absent="efg")
    context = replication_context(await lost.client())

    async def joined_meanwhile(ledger_id: int, everywhere: Everywhere) -> LedgerMetadata:
        closed_now = await context.recover_everywhere(ledger_id, everywhere)
        if len(lost.nodes) == 4:
            for name in "efg":
                await lost.start_node(name, mending=True)
        return closed_now

    one_at_a_time = RecoverySettings(integrity_ledgers_at_once=1)
    confirming = RestoreConfirmation(context._replace(recover_everywhere=joined_meanwhile), one_at_a_time, None)
    with pytest.raises(MetadataConflictError, match="bookies e, f, g have joined"):
        await confirming.run()
    assert await _state(lost) is RestoreState.RESTORED
    await lost.confirm()
    found = await contents(await lost.client(), writers[1].ledger_id)
    assert (found[:10], found[-10:]) == (payloads(0, 10), payloads(50, 10))


async def test_a_ledger_that_is_deleted_while_ledgers_are_closed_is_no_obstacle(lost: Lost) -> None:
    writers = [await opened(lost.former) for _ in range(2)]
    for writer in writers:
        await writer.append_batch(payloads(0, 10))
    await lost.lose_and_restore()
    client = await lost.client()
    context = replication_context(client)

    async def deleted_before(ledger_id: int, everywhere: Everywhere) -> LedgerMetadata:
        if ledger_id == writers[0].ledger_id:
            await client.delete_ledger(ledger_id)
        return await context.recover_everywhere(ledger_id, everywhere)

    settings = RecoverySettings(drain_look_interval_s=0.05)
    confirming = RestoreConfirmation(context._replace(recover_everywhere=deleted_before), settings, None)
    assert (await confirming.run()).state is RestoreState.CONFIRMED
    assert await contents(client, writers[1].ledger_id) == payloads(0, 10)


@pytest.mark.thorough
async def test_a_ledger_is_not_given_up_because_the_metadata_store_is_away(lost: Lost) -> None:
    """Though losses are accepted: its entries are there, and the next call closes it."""
    writer = await opened(lost.former)
    await writer.append_batch(payloads(0, 10))
    await lost.lose_and_restore()
    context = replication_context(await lost.client())

    async def away(ledger_id: int, everywhere: Everywhere) -> LedgerMetadata:
        raise MetadataUnavailableError("the connection was lost")

    confirming = RestoreConfirmation(context._replace(recover_everywhere=away), RecoverySettings(), None)
    with pytest.raises(MetadataUnavailableError):
        await confirming.run(accept_loss=True)
    assert await _state(lost) is RestoreState.RESTORED
    await lost.confirm(accept_loss=True)
    client = await lost.client()
    assert await contents(client, writer.ledger_id) == payloads(0, 10)


@pytest.mark.thorough
async def test_a_ledger_is_not_given_up_because_a_bookie_gives_no_answer(lost: Lost) -> None:
    """Though losses are accepted: what that bookie has is no loss, and the next call closes the ledger."""
    writer = await opened(lost.former)
    await writer.append_batch(payloads(0, 10))
    await lost.lose_and_restore()
    context = replication_context(await lost.client())

    async def without_one(ledger_id: int, everywhere: Everywhere) -> LedgerMetadata:
        await lost.node("b").stop()  # it was there when the call began
        return await context.recover_everywhere(ledger_id, everywhere)

    confirming = RestoreConfirmation(context._replace(recover_everywhere=without_one), RecoverySettings(), None)
    with pytest.raises(LedgerRecoveryError, match="no loss that can be accepted"):
        await confirming.run(accept_loss=True)
    assert await _state(lost) is RestoreState.RESTORED
    await lost.start_node("b", mending=True)
    await lost.confirm(accept_loss=True)
    client = await lost.client()
    assert await contents(client, writer.ledger_id) == payloads(0, 10)


@pytest.mark.parametrize("names", ["b", "abcd"])
async def test_a_ledger_is_not_given_up_because_bookies_do_not_allow_the_operator_to_fence_it(
    lost: Lost, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose name may administer, and is not among those that may write."""
    writer = await opened(lost.former)
    await writer.append_batch(payloads(0, 10))
    await lost.lose_and_restore()
    for name in names:
        monkeypatch.setattr(lost.server(name), "greet", lambda *_: (Status.FORBIDDEN, "this name may do nothing"))
    with pytest.raises(LedgerRecoveryError, match=r"this name may do nothing(.|\n)*no loss that can be accepted"):
        await lost.confirm(accept_loss=True)
    assert await _state(lost) is RestoreState.RESTORED
    monkeypatch.undo()
    await lost.confirm(accept_loss=True)
    client = await lost.client()
    assert await contents(client, writer.ledger_id) == payloads(0, 10)


async def test_a_bookie_without_its_disk_joins_only_with_all_its_ledgers_in_limbo(lost: Lost) -> None:
    ledger_id = await closed(lost.former)
    await lost.back_up()
    await lost.lose_metadata()
    await lost.restore()
    name = sorted(dataclasses.replace(await _metadata(lost, ledger_id)).needed_bookies)[0]
    lost.lose_disks(name)
    with pytest.raises(IdentityError, match="--rebuild"):
        await lost.start_node(name, mending=True)
    node = await lost.start_node(name, mending=True, rebuild=True)
    assert storage_of(node).untrusted


async def _metadata(lost: Lost, ledger_id: int) -> Any:
    return (await (await open_cluster(lost.tree.session(), lost.root)).catalog.read(ledger_id))[0]


# --- the file, and the empty root -------------------------------------------------------------------------------------


async def test_a_backup_replaces_no_file_and_leaves_none_that_is_not_whole(lost: Lost) -> None:
    await lost.back_up()
    with pytest.raises(ConfigError, match="exists"):
        await lost.back_up()
    assert [path.name for path in lost.directory.iterdir() if path.is_file()] == ["backup"]
    assert (lost.directory / "backup").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", ["cut", "flipped", "behind", "empty"])
async def test_of_a_damaged_backup_nothing_is_restored(lost: Lost, damage: str) -> None:
    await closed(lost.former)
    await lost.back_up()
    path = lost.directory / "backup"
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
    path.write_bytes({"cut": data[:-20], "behind": data + data, "empty": b""}.get(damage, bytes(data)))
    with pytest.raises(CorruptDataError, match="nothing of it is used"):
        await lost.restore()
    assert not [node for node in lost.tree.paths if node.startswith(RESTORED)]


async def test_a_root_that_is_not_empty_or_the_former_one_is_refused(lost: Lost) -> None:
    await lost.back_up()
    files, session = runtime_here().files, lost.tree.session()
    with pytest.raises(ConfigError, match="another root"):
        await restore_backup(session, "/ledgers", files, lost.file)
    with pytest.raises(ConfigError, match="inside the tree"):
        await restore_backup(session, "/ledgers/below", files, lost.file)
    await session.create("/other", b"")
    await session.create("/other/something", b"")
    with pytest.raises(ConfigError, match="isn't empty"):
        await restore_backup(session, "/other", files, lost.file)
    first = await restore_backup(session, RESTORED, files, lost.file)
    assert not first.done
    assert (await restore_backup(session, RESTORED, files, lost.file)).done
    await closed(lost.former)
    await back_up(cluster_of(lost.former), files, f"{lost.file}2")
    with pytest.raises(ConfigError, match="another backup"):
        await restore_backup(session, RESTORED, files, f"{lost.file}2")


@pytest.mark.parametrize("confirmed", [True, False])
async def test_bookies_that_have_joined_another_restored_cluster_join_once_it_is_named(
    lost: Lost, confirmed: bool
) -> None:
    """The first one is lost as well, or was of another backup; a copy was moved in it, and a ledger closed."""
    whole, growing = await closed(lost.former), await opened(lost.former)
    await growing.append_batch(payloads(0, 10))
    await lost.back_up()
    await growing.append_batch(payloads(10, 10))
    await lost.lose_metadata()
    first = (await lost.restore()).restore
    await lost.join()
    later = -1
    if confirmed:
        await lost.confirm()
        await eventually(lambda: not any(storage_of(node).untrusted for node in lost.nodes))
        client = await lost.client()
        later = await closed(client)
        assert await contents(client, growing.ledger_id) == payloads(0, 20)
        await lost.start_node("e", mending=True)
        taken, _ = sorted(set("abcd") & set(await names_of(client, whole)))[:2]
        await move(client, whole, taken)
    await lost.lose_metadata()
    await asyncio.sleep(1.0)
    second = (await lost.restore("/again")).restore
    with pytest.raises(
        IdentityError, match=f"belongs to cluster {first.instance_id}.*--also-from {first.instance_id}`"
    ):
        await lost.join()
    named = await lost.restore("/again", also_from=[first.instance_id])
    assert named.done
    assert named.restore == second.joined_from([first.instance_id])
    await lost.join()
    await lost.confirm()
    await eventually(lambda: not any(storage_of(node).untrusted for node in lost.nodes))
    client = await lost.client()
    assert await contents(client, whole) == payloads(0, 20)
    assert await contents(client, growing.ledger_id) == payloads(0, 20)
    assert is_kept(named.restore, later) == confirmed
    for node in lost.nodes:
        run = collector_of(node).begin()
        assert run is not None
        await eventually(lambda run=run: run.seconds is not None)
    if confirmed:
        assert sum([later in await storage_of(node).held_ledgers(-1, 1 << 20) for node in lost.nodes]) == 3
    newest = await closed(client)
    assert newest > named.restore.kept_to >= max(first.kept_to, later)
    assert await contents(client, newest) == payloads(0, 20)


async def test_directories_that_are_found_again_do_not_shut_out_the_bookie_that_was_rebuilt_for_them(
    lost: Lost,
) -> None:
    ledger_id = await closed(lost.former, (4, 4, 3))
    await lost.back_up()
    await lost.lose_metadata()
    found_again = lost.disks.pop("a")
    await lost.restore()
    for name in "abcd":
        await lost.start_node(name, mending=True, rebuild=name == "a")
    session = lost.tree.session()
    cookie, _ = await session.get(f"{RESTORED}/cookies/a")
    in_use, lost.disks["a"] = lost.disks["a"], found_again
    second = lost.new_node("a")
    with pytest.raises(IdentityError, match=r"is registered.* has joined the restored cluster with other dir"):
        await second.start()
    await second.stop()
    lost.disks["a"] = in_use
    assert (await session.get(f"{RESTORED}/cookies/a"))[0] == cookie
    await lost.node("a").stop()
    await lost.start_node("a", mending=True)
    await lost.confirm()
    assert await contents(await lost.client(), ledger_id) == payloads(0, 20)


async def test_clusters_whose_bookies_may_join_are_recorded(lost: Lost) -> None:
    """At the beginning, or by a further call, each once; nobody's own is one of them."""
    await lost.back_up()
    session, files = lost.tree.session(), runtime_here().files
    for root, names in (("/one", ["x", "y"]), ("/other", ["y"])):
        trail = AuditTrail(session, root, runtime_here(), client_settings(), Actor("alice", "ops-1, pid 7"))
        made = await restore_backup(session, root, files, lost.file, also_from=names, trail=trail)
        assert made.restore.also_from == tuple(names)
        own = (made.restore.instance_id, made.restore.former)
        for more in ([], ["x", "y", "x", *own], ["x"]):
            again = await restore_backup(session, root, files, lost.file, also_from=more, trail=trail)
        assert again.restore.also_from == ("x", "y")
        details = [record.details for record in await trail.read(await trail.names())]
        assert [one for one in details if "may join" in one] == (
            ["bookies of x, y may join"] if root == "/other" else []
        )
        assert [one.rpartition(f"cluster {made.restore.former}")[2] for one in details if "backup of" in one] == [
            "".join(f", and bookies of {name}" for name in names)
        ]


@pytest.mark.thorough
async def test_ledgers_that_exist_before_a_backup_are_in_it_whatever_is_created_meanwhile(lost: Lost) -> None:
    before = [await closed(lost.former, count=1) for _ in range(3)]
    log = await lost.former.open_log("orders", create=True, roll_entries=2)
    await log.append_batch(payloads(0, 6))
    stopping = asyncio.Event()

    async def create() -> list[int]:
        created = []
        while not stopping.is_set():
            created.append(await closed(lost.former, count=1))
            await log.append(b"more")
        return created

    creating = asyncio.create_task(create())
    await asyncio.sleep(0.01)
    await lost.back_up()
    stopping.set()
    created = await creating
    await log.close()
    client = await lost.again()
    there = [ledger_id async for ledger_id in client.list_ledgers()]
    assert set(before) <= set(there)
    found = await read_restore(lost.tree.session(), RESTORED)
    assert found is not None
    assert all(found.restore.kept_from <= ledger_id for ledger_id in set(created) - set(there))
    positions = [entry.position async for entry in (await client.read_log("orders")).read()]
    assert positions == list(range(len(positions)))
    assert len(positions) >= 6


@pytest.mark.parametrize("before", [0, 3])
async def test_a_log_whose_open_ledger_is_deleted_during_a_backup_can_be_opened_behind_the_restore(
    lost: Lost, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    """It was empty, and the next writer has another one. Lists are read first."""
    async with await lost.former.open_log("orders", create=True) as log:
        for number in range(before):
            await log.append(b"%d" % number)
    first = await lost.former.open_log("orders")  # whose ledger stays empty
    given: list[int] = []

    async def taken_over(store: MetadataStore, path: str) -> Any:
        if "logs/orders" in path and not given:
            second = await lost.former.open_log("orders")
            given.append(await second.append(b"during the backup"))
        return await children_if_there(store, path)

    monkeypatch.setattr(backup, "children_if_there", taken_over)
    await lost.back_up()
    assert given == [before]
    with pytest.raises(BookKeeperError):
        await first.append(b"late")
    client = await lost.again()
    async with await client.open_log("orders") as log:
        assert await log.append(b"after") > before
    reader = await client.read_log("orders")
    assert [entry.data async for entry in reader.read()] == [*(b"%d" % number for number in range(before)), b"after"]


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["list", "uid"])
@pytest.mark.parametrize("begun", [False, True], ids=["whole", "deletion begun"])
async def test_a_log_that_is_deleted_during_a_backup_is_deleted_again_behind_the_restore(
    lost: Lost, monkeypatch: pytest.MonkeyPatch, where: str, begun: bool
) -> None:
    """Wherever in it the backup is: it has read the list alone, or the nodes that all logs have below it, too."""
    async with await lost.former.open_log("orders", create=True) as log:
        await log.append_batch(payloads(0, 6))
    logs = log_parts(lost.former).logs
    log_list, version = await logs.read("orders")
    if begun:
        await logs.write("orders", dataclasses.replace(log_list, deleted=True), version)

    async def delete(client: Client) -> None:
        if begun:
            maintenance = LogMaintenance(log_parts(client).logs, log_parts(client).catalog)
            await maintenance.maintain("orders", replication_context(client).fence)
        else:
            await client.delete_log("orders")

    async def deleted_then(store: MetadataStore, path: str) -> Any:
        found = await read_certainly(store, path)
        if path.endswith("logs/orders"):
            await delete(lost.former)
        return found

    async def deleted_first(store: MetadataStore, path: str) -> Any:
        if path.endswith(f"logs/orders/{log_list.uid}"):
            await delete(lost.former)
        return await children_if_there(store, path)

    if where == "list":
        monkeypatch.setattr(backup, "read_certainly", deleted_then)
    else:
        monkeypatch.setattr(backup, "children_if_there", deleted_first)
    await lost.back_up()
    client = await lost.again()
    await delete(client)
    async with await client.open_log("orders", create=True) as log:
        assert await log.append(b"first") == 0


async def test_a_log_that_is_made_again_during_a_backup_is_deleted_behind_the_restore(
    lost: Lost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backup has the list of the first one: what is below the second one belongs to no list in it."""
    async with await lost.former.open_log("orders", create=True) as log:
        await log.append_batch(payloads(0, 6))

    async def made_again_then(store: MetadataStore, path: str) -> Any:
        found = await read_certainly(store, path)
        if path.endswith("logs/orders"):
            await lost.former.delete_log("orders")
            async with await lost.former.open_log("orders", create=True) as again:
                await again.append(b"new")
        return found

    monkeypatch.setattr(backup, "read_certainly", made_again_then)
    await lost.back_up()
    client = await lost.again()
    await client.delete_log("orders")
    async with await client.open_log("orders", create=True) as log:
        assert await log.append(b"first") == 0


async def test_all_nodes_that_outlive_sessions_are_in_a_backup_whatever_their_names_are(lost: Lost) -> None:
    session = lost.tree.session()
    async with await lost.former.open_log("lease-1", create=True) as log:
        await log.append(b"one")
        uid = (await log_parts(lost.former).logs.read("lease-1"))[0].uid
        below = f"/ledgers/logs/lease-1/{uid}"
        kept = ["cookies/lease", "cookies/lease-2", "retired/lease-3", "logs-deleted/lease-4"]
        with contextlib.suppress(NodeExists):
            await session.create("/ledgers/retired", b"")
        with contextlib.suppress(NodeExists):
            await session.create("/ledgers/logs-deleted", b"")
        await session.create(f"{below}/consumers/lease-5", b"{}")
        await session.create(f"{below}/consumers/lease-5/lease-0123", b"", ephemeral=True)
        for path in kept:
            await session.create(f"/ledgers/{path}", b"{}")
        assert await session.exists(f"{below}/lease")  # the writer's
        await lost.back_up()
    await restore_backup(session, RESTORED, runtime_here().files, lost.file)
    there = _below(lost, RESTORED)
    assert {f"/{path}" for path in kept} <= there
    ours = {path for path in there if path.startswith(f"/logs/lease-1/{uid}/")}
    assert f"/logs/lease-1/{uid}/consumers/lease-5" in ours
    assert not [path for path in ours if path.endswith(("/lease", "lease-0123"))]


async def test_a_restore_in_transactions_of_one_node_is_the_same(lost: Lost) -> None:
    await closed(lost.former)
    async with await lost.former.open_log("orders", create=True) as log:
        await log.append(b"one")
    await lost.back_up()
    files, session = runtime_here().files, lost.tree.session()
    await restore_backup(session, "/one", files, lost.file, settings=MetadataSettings(restore_nodes_max=1))
    assert _below(lost, "/one") == await _tree_after(lost, "/many")


@pytest.mark.thorough
async def test_a_restore_that_is_interrupted_at_any_step_is_invisible_and_goes_on(lost: Lost) -> None:
    await closed(lost.former)
    async with await lost.former.open_log("orders", create=True) as log:
        await log.append(b"one")
    await lost.back_up()
    files = runtime_here().files
    whole = await _tree_after(lost, "/whole")
    for late in (False, True):
        at = 0
        while True:
            root = f"/restored-{at}-{late}"
            session = lost.tree.session()
            with naming("restore", at, late):
                reached = await run_to(restore_backup(session, root, files, lost.file), at, late, None)
                found = await read_restore(session, root)
                visible = await session.exists(f"{root}/{paths.INSTANCE_ID}")
                assert visible == (found is not None and found.restore.state is RestoreState.RESTORED)
                await restore_backup(session, root, files, lost.file)
                assert _below(lost, root) == whole
            await session.close()
            if not reached:
                break
            at += 1 if at < 12 else 7


async def test_a_restore_goes_on_though_time_has_passed(lost: Lost) -> None:
    """A log's last ledger that was closed by a recovery, and not by its log's writer, gets the record of a loss."""
    log = await lost.former.open_log("orders", create=True)
    await log.append(b"one")
    log.abandon()
    logs = log_parts(lost.former).logs
    (segment,) = (await logs.read("orders"))[0].open_segments
    await AdminClient(lost.former).close_ledger(segment.ledger_id)
    await lost.back_up()
    session, files = lost.tree.session(), runtime_here().files
    settings = MetadataSettings(restore_nodes_max=1)
    for at in range(0, 1000, 5):
        await asyncio.sleep(1.0)
        if not await run_to(restore_backup(session, RESTORED, files, lost.file, settings=settings), at, False, None):
            break
    restored = await restore_backup(session, RESTORED, files, lost.file)
    assert restored.done
    loss = (await (await open_cluster(session, RESTORED)).catalog.read(segment.ledger_id))[0].accepted_loss
    assert loss is not None
    assert 0 < loss.at_ms <= runtime_here().clock.time() * 1000


async def _tree_after(lost: Lost, root: str) -> set[str]:
    await restore_backup(lost.tree.session(), root, runtime_here().files, lost.file)
    return _below(lost, root)


def _below(lost: Lost, root: str) -> set[str]:
    return {node.removeprefix(root) for node in lost.tree.paths if node.startswith(f"{root}/")}


@pytest.mark.thorough
async def test_a_confirmation_that_is_interrupted_at_any_step_goes_on(lost: Lost) -> None:
    writer = await opened(lost.former)
    await writer.append_batch(payloads(0, 10))
    await lost.back_up()
    await writer.append_batch(payloads(10, 10))
    await lost.lose_metadata()
    await lost.restore()
    await lost.join()
    for at in (0, 1, 2, 3, 5, 8, 12, 16, 20, 25, 30):
        client = await lost.client()
        await run_to(confirmation(client).run(), at, False, None)
        await client.close()
        lost.clients.remove(client)
    assert (await lost.confirm()).state is RestoreState.CONFIRMED
    assert await contents(await lost.client(), writer.ledger_id) == payloads(0, 20)


async def test_a_restore_and_its_confirmation_are_recorded_with_who_did_them(lost: Lost) -> None:
    await closed(lost.former, (4, 4, 3))
    await lost.back_up()
    await lost.lose_metadata()
    actor = Actor("alice", "ops-1, pid 7")
    session = lost.tree.session()
    trail = AuditTrail(session, RESTORED, runtime_here(), client_settings(), actor)
    for _ in range(2):  # the second one finds it done
        await restore_backup(session, RESTORED, runtime_here().files, lost.file, trail=trail)
    lost.root = RESTORED
    await lost.join()
    client = await open_client(lost.tree.session(), RESTORED, runtime_here(), client_settings(), actor=actor)
    lost.clients.append(client)
    confirming = confirmation(client)
    for options in ({}, {}, {"collect_later": True}, {"collect_later": True}):
        await confirming.run(**options)  # each second one finds it done
    found = await trail.read(await trail.names())
    assert [(record.act, record.subject, record.done, record.actor) for record in found] == [
        ("restore", RESTORED, True, actor)
    ] * 3
    from_backup, confirmed, later = (record.details for record in found)
    assert from_backup.startswith("from a backup of cluster ")
    assert confirmed == "confirmed without none, losses not accepted"
    assert later == "ledgers created after the backup may be collected"


async def test_a_bookie_that_is_interrupted_as_it_joins_is_in_limbo_once_it_has_joined(lost: Lost) -> None:
    await closed(lost.former, (4, 4, 3))
    await lost.back_up()
    await lost.lose_metadata()
    await lost.restore()
    for at in (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15):
        node = lost.new_node("a", mending=True)
        await run_to(node.start(), at, False, None)
        await node.stop()
    node = await lost.start_node("a", mending=True)
    assert storage_of(node).untrusted
    info = (await storage_of(node).states(tuple(await storage_of(node).held_ledgers(-1, 10)))).values()
    assert info
    assert all(state is not None and state.limbo for state in info)
