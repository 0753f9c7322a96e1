"""Compaction: what lives is copied and found, what is replaced or deleted meanwhile doesn't come back."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.hooks import target_of
from tests.sim.disk import SimulatedCrash
from tests.unit.storage.acknowledged_writes import copy_of
from tests.unit.storage.space.test_deletion import delete, logs, put
from tests.unit.storage.support import Batch, Host, check_living_bytes, read_all, reclaim
from tests.unit.storage.support import settings as bookie_settings
from tests.waiting import eventually, turns

from bkpy.config.reloading import take_over
from bkpy.errors import StorageFailedError
from bkpy.storage.entry_log.entry_log import log_name
from bkpy.storage.index.index import ledger_key, log_rows

if TYPE_CHECKING:
    from bkpy.storage.engine import LedgerStorage

MIB = 1 << 20
ENTRY = b"x" * 2000
KEEP, DROP = (1, 3, 5), (0, 2, 4)


async def fragmented(**values: Any) -> Host:
    """A bookie that was stopped, with three logs that are half dead once `DROP` is deleted."""
    host = Host(settings=bookie_settings(block_bytes=3000, **{"index_step_rows": 7, **values}))
    for part in range(3):
        storage = await host.boot()
        await put(storage, *(Batch(i, 10 * part + k, payload=b"%d" % i + ENTRY) for k in range(10) for i in range(6)))
        await storage.close()
    return host


async def check(storage: LedgerStorage, keep: tuple[int, ...] = KEEP) -> None:
    for ledger_id in range(6):
        wanted = dict.fromkeys(range(30), b"%d" % ledger_id + ENTRY) if ledger_id in keep else {}
        assert await read_all(storage, ledger_id, 0, 40) == (wanted, set())
    check_living_bytes(storage)
    storage.check_invariants()


def bytes_of_logs(host: Host) -> int:
    return sum(len(host.disk.contents(f"/b/ledgers0/{name}")) for name in logs(host))


async def test_what_lives_is_copied_and_the_rest_is_given_back() -> None:
    host = await fragmented()
    storage = await host.boot()
    for ledger_id in DROP:
        await delete(storage, ledger_id)
    before = bytes_of_logs(host)
    await check(storage)  # so that places of before are in the cache
    await reclaim(storage, 0.8)
    assert bytes_of_logs(host) < 0.6 * before
    assert storage.space.living > 0.95 * storage.space.bytes
    assert sum(host.reports.copied) == pytest.approx(before / 2, rel=0.1)
    await check(storage)
    copied = sum(host.reports.copied)
    await reclaim(storage, 0.99)
    assert sum(host.reports.copied) == copied, "there is nothing to be gained any more"
    host.disk.power_cut()
    storage = await host.boot()
    await check(storage)
    assert not host.reports.damages


async def test_many_small_logs_become_fewer_with_as_many_blocks_each_as_others() -> None:
    host = await fragmented(entry_log_blocks_max=1, compaction_commit_bytes=3000)
    assert len(logs(host)) > 100
    host.settings = bookie_settings(block_bytes=3000, entry_log_blocks_max=20, compaction_commit_bytes=3000)
    storage = await host.boot()
    for ledger_id in (*DROP, 1):
        await delete(storage, ledger_id)
    for ledger_id in (3, 5):
        await put(storage, *(Batch(ledger_id, k, payload=b"%d" % ledger_id + ENTRY) for k in range(0, 30, 2)))
    await storage.checkpoint()
    await reclaim(storage, 1.0)
    with storage.shards[0].store.read() as txn:
        rows = log_rows(txn)
    blocks = [row.blocks for row in rows.values() if row is not None]
    assert max(blocks) <= 20, "what is kept in memory of each block has no other bound"
    assert len(blocks) < 60
    await check(storage, (3, 5))


async def test_logs_in_which_enough_lives_are_left_alone() -> None:
    host = await fragmented()
    storage = await host.boot()
    before = logs(host)
    await delete(storage, 0)
    await reclaim(storage, 0.8)  # five of six live
    assert logs(host) == before
    await delete(storage, 2)
    await reclaim(storage, 0.8)
    assert len(logs(host)) < len(before)
    await check(storage, (1, 3, 4, 5))


async def test_it_is_due_now_and_then() -> None:
    host = await fragmented(
        compaction_minor_interval_s=100, compaction_major_interval_s=1000, compaction_minor_living_ratio=0.4
    )
    host.disk.capacity_bytes = 1 << 40
    storage = await host.boot()
    began = host.clock.now
    for ledger_id in DROP:
        await delete(storage, ledger_id)
    (reclaimer,) = storage.reclaimers
    ratios = []
    for seconds in (50, 150, 151, 1500, 1501):
        host.clock.now = began + seconds
        ratios.append(await reclaimer.ratio_due())
    assert ratios == [0.0, 0.4, 0.0, 0.8, 0.0]
    host.disk.capacity_bytes = host.disk.used_bytes() + MIB
    assert await reclaimer.ratio_due() == 0.8, "there is little space"


async def test_its_intervals_may_change_while_it_waits() -> None:
    host = await fragmented(
        compaction_minor_interval_s=1e6, compaction_major_interval_s=1e6, compaction_minor_living_ratio=0.4
    )
    host.disk.capacity_bytes = 1 << 40
    storage = await host.boot()
    began = host.clock.now
    (reclaimer,) = storage.reclaimers

    async def due_after(seconds: float, **values: float) -> float:
        host.clock.now = began + seconds
        take_over(host.settings, host.settings.model_copy(update=values), list(values))
        return await reclaimer.ratio_due()

    assert await due_after(150) == 0.0
    assert await due_after(151, compaction_minor_interval_s=100) == 0.4
    assert await due_after(152) == 0.0
    assert await due_after(153, compaction_major_interval_s=150) == 0.8
    assert await due_after(350, compaction_minor_interval_s=1e6, compaction_major_interval_s=1e6) == 0.0


@pytest.mark.parametrize("operation", ["pwritev", "fdatasync", "open", "unlink", "sync_dir"])
async def test_a_log_that_cannot_be_written_or_removed_is_told_and_tried_again(
    operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    host = await fragmented(reclaim_interval_s=0.001, compaction_major_interval_s=0.001, compaction_commit_bytes=9000)
    before = bytes_of_logs(host)
    storage = await host.boot()
    path = "/b/ledgers0" if operation == "sync_dir" else ".log"
    for nth in (1, 2, 3):
        host.disk.fail_at(nth, errno.EIO, operation=operation, path=path)
    for ledger_id in DROP:
        await delete(storage, ledger_id)

    def compacted() -> bool:
        host.clock.now += 1  # or compaction may have been due before there was anything to compact
        return host.reports.reclaim_failures >= 1 and bytes_of_logs(host) <= 0.6 * before

    await eventually(compacted, pause_s=0.001)
    assert not storage.failed.done()
    told = [record.getMessage() for record in caplog.records if "failed to reclaim space" in record.message]
    assert len(told) == host.reports.reclaim_failures
    assert all("/b/ledgers0" in message for message in told)
    await check(storage)
    host.disk.heal()
    await storage.close()
    storage = await host.boot()
    await check(storage)
    assert not host.reports.damages


async def test_a_log_that_cannot_be_removed_holds_up_no_compaction() -> None:
    host = await fragmented(entry_log_blocks_max=20)
    storage = await host.boot()
    stuck, before = logs(host)[0], bytes_of_logs(host)
    host.disk.fail_at(1, errno.EPERM, operation="unlink", path=stuck, repeat=True)
    for ledger_ids in (DROP, (1,)):
        for ledger_id in ledger_ids:
            await delete(storage, ledger_id)
        with pytest.raises(PermissionError, match=stuck):
            await reclaim(storage, 0.95)
    assert stuck in logs(host)
    assert storage.space.living > 0.95 * storage.space.bytes
    host.disk.heal()
    await reclaim(storage)
    assert stuck not in logs(host)
    assert bytes_of_logs(host) < 0.4 * before
    await check(storage, (3, 5))


async def test_what_a_log_that_was_given_up_has_is_what_was_written() -> None:
    """Blocks that waited to be written when an error came are not in the file."""
    host = await fragmented(compaction_commit_bytes=30_000)
    storage = await host.boot()
    for ledger_id in DROP:
        await delete(storage, ledger_id)
    host.disk.fail_at(3, errno.EIO, operation="fdatasync", path=".log")  # header, a first part, a second
    with pytest.raises(OSError, match="Input/output error"):
        await reclaim(storage, 0.8)
    await reclaim(storage, 0.8)
    with storage.shards[0].store.read() as txn:
        rows = log_rows(txn)
    for log_id, row in rows.items():
        assert row is not None
        assert row.bytes <= len(host.disk.contents(f"/b/ledgers0/{log_name(log_id)}"))
    assert [row for row in rows.values() if row is not None and not row.footer], "none was given up"
    await check(storage)


@pytest.mark.thorough
async def test_nothing_is_denied_at_any_moment_of_it() -> None:
    host = await fragmented(compaction_step_bytes=5000, compaction_commit_bytes=10_000, block_cache_bytes_max=1)
    storage = await host.boot()
    for ledger_id in DROP:
        await delete(storage, ledger_id)
    compacting = asyncio.ensure_future(reclaim(storage, 0.8))
    reads = 0
    while not compacting.done():
        for ledger_id in KEEP:
            found = await storage.read(ledger_id, reads % 30, 29, 3000)
            assert len(found.segments) >= 1
            assert not found.unknown
        reads += 1
    await compacting
    assert reads > 5
    await check(storage)
    assert not host.reports.damages


async def test_what_is_replaced_or_deleted_meanwhile_does_not_come_back() -> None:
    host = await fragmented()
    storage = await host.boot()
    for ledger_id in DROP:
        await delete(storage, ledger_id)
    compactor = storage.reclaimers[0].compactor
    commit, superseded = compactor.commit, 0

    async def late() -> None:
        nonlocal superseded
        if compactor.moves and not superseded:
            superseded = len(compactor.moves)
            await put(storage, Batch(1, 0, 5, payload=b"later"))  # takes ids over from blocks that were copied
            await storage.checkpoint()
            await delete(storage, 3)
            await storage.checkpoint()
            await delete(storage, 5)  # and this one is in the index still
        await commit()

    compactor.commit = late  # type: ignore[method-assign]
    await reclaim(storage, 0.8)
    assert superseded
    for _ in range(2):
        have, unknown = await read_all(storage, 1, 0, 40)
        assert have == {i: b"later" if i < 5 else b"1" + ENTRY for i in range(30)}
        assert not unknown
        for ledger_id in (3, 5):
            assert await read_all(storage, ledger_id, 0, 40) == ({}, set())
        await reclaim(storage, 0.8)
        check_living_bytes(storage)
        host.disk.power_cut()
        storage = await host.boot()
    assert not host.reports.damages


async def test_a_damaged_block_is_told_once_and_its_log_stays() -> None:
    host = await fragmented()
    storage = await host.boot()
    for ledger_id in DROP:
        await delete(storage, ledger_id)
    await storage.close()
    path = f"/b/ledgers0/{logs(host)[0]}"
    data = host.disk.contents(path)
    at = data.index(b"1" + ENTRY)
    host.disk.replace(path, data[:at] + b"7" + data[at + 1 :])
    storage = await host.boot()
    for _ in range(3):
        await reclaim(storage, 0.8)
    assert not await storage.reclaimers[0].compactor.compact(0.8, set()), "it isn't tried again and again"
    told = [what for what, _ in host.reports.damages if "isn't compacted" in what]
    assert len(told) == 1
    assert "ledger 1" in told[0]
    assert path.rpartition("/")[2] in logs(host)
    have, unknown = await read_all(storage, 1, 0, 29)
    assert have.keys() | unknown == set(range(30))
    assert 0 < len(unknown) < 10, "the other blocks are sound"
    for ledger_id in (3, 5):
        assert len((await read_all(storage, ledger_id, 0, 29))[0]) == 30
    check_living_bytes(storage)


def spoil(storage: LedgerStorage, key: bytes) -> bytes:
    """Damage one row of the index; returns what it was."""
    with storage.shards[0].store.write() as txn:
        value = txn.get(key)
        assert value is not None
        txn.put(key, bytes((value[0] ^ 1,)) + value[1:])
    return value


async def half_deleted(host: Host) -> tuple[LedgerStorage, str, str]:
    """One entry log with two ledgers, of which one was deleted; its name and its path."""
    storage = await host.boot()
    await put(storage, *(Batch(i, k, payload=ENTRY) for k in range(10) for i in range(2)))
    await storage.close()
    storage = await host.boot()
    await delete(storage, 0)
    (log,) = logs(host)
    return storage, log, f"/b/ledgers0/{log}"


async def test_of_a_log_without_a_block_that_can_be_read_no_copy_is_made() -> None:
    host = Host(settings=bookie_settings(block_bytes=3000))
    storage, log, path = await half_deleted(host)
    host.disk.unreadable.append((path, range(len(host.disk.contents(path)))))
    await reclaim(storage, 0.8)
    assert logs(host) == [log]
    told = [what for what, _ in host.reports.damages if "isn't compacted" in what]
    assert len(told) == 1, "once of a log, however many of its blocks can't be read"
    host.disk.unreadable.clear()
    assert len((await read_all(storage, 1, 0, 20))[0]) == 10
    check_living_bytes(storage)


async def test_a_log_that_could_not_be_read_for_a_while_is_compacted_in_the_next_major_round() -> None:
    host = Host(settings=bookie_settings(block_bytes=3000))
    storage, log, path = await half_deleted(host)
    host.disk.unreadable.append((path, range(len(host.disk.contents(path)))))
    await reclaim(storage, 0.8)
    host.disk.unreadable.clear()
    await reclaim(storage, 0.8)
    assert logs(host) == [log], "minor rounds leave it"
    host.clock.now += host.settings.compaction_major_interval_s
    await reclaim(storage, await storage.reclaimers[0].ratio_due())
    assert log not in logs(host)
    assert len((await read_all(storage, 1, 0, 20))[0]) == 10
    check_living_bytes(storage)


async def test_a_log_that_could_not_be_read_for_a_while_is_compacted_though_the_disk_stays_full() -> None:
    """Compaction is due all the time then, and so no round is the next major one."""
    host = Host(
        settings=bookie_settings(block_bytes=3000, compaction_major_interval_s=1000, compaction_free_bytes_min=0)
    )
    storage, log, path = await half_deleted(host)
    host.disk.capacity_bytes = host.disk.used_bytes() + MIB
    host.disk.unreadable.append((path, range(len(host.disk.contents(path)))))
    for _ in range(30):
        await reclaim(storage, await storage.reclaimers[0].ratio_due())
        host.disk.unreadable.clear()
        host.clock.now += 50
    assert log not in logs(host)
    assert len((await read_all(storage, 1, 0, 20))[0]) == 10
    check_living_bytes(storage)


async def test_a_log_that_is_gone_is_no_obstacle_to_the_others() -> None:
    host = await fragmented()
    storage = await host.boot()
    for ledger_id in DROP:
        await delete(storage, ledger_id)
    gone, *others = logs(host)
    host.disk.unlink(f"/b/ledgers0/{gone}")
    await reclaim(storage, 0.8)
    assert not [what for what, _ in host.reports.damages if "isn't compacted" in what]
    assert not set(others) & set(logs(host))
    have, unknown = await read_all(storage, 1, 0, 29)
    assert (len(have), len(unknown)) == (20, 10)


async def test_rows_of_a_ledger_whose_own_row_is_damaged_stay_as_they_are() -> None:
    host = await fragmented()
    storage = await host.boot()
    for ledger_id in DROP:
        await delete(storage, ledger_id)
    sound = spoil(storage, ledger_key(3))
    await reclaim(storage, 0.8)
    with storage.shards[0].store.write() as txn:
        txn.put(ledger_key(3), sound)
    check_living_bytes(storage)
    await reclaim(storage, 0.8)
    await check(storage)
    storage.release()


async def test_the_log_that_is_being_filled_is_closed_with_the_rest() -> None:
    host = await fragmented()
    storage = await host.boot()
    for ledger_id in DROP:
        await delete(storage, ledger_id)
    compactor = storage.reclaimers[0].compactor
    opened: list[Any] = []

    async def dies() -> None:
        opened.append(target_of(compactor))
        raise ValueError("a defect")

    compactor.commit = dies  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="a defect"):
        await reclaim(storage, 0.8)
    await storage.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        opened[0].sync()


async def test_it_keeps_to_its_rate() -> None:
    host = await fragmented(compaction_bytes_per_s=1_000_000, compaction_step_bytes=5000, index_step_pause_s=0.0001)
    storage = await host.boot()
    for ledger_id in DROP:
        await delete(storage, ledger_id)
    began = time.monotonic()
    await reclaim(storage, 0.8)
    assert time.monotonic() - began > 0.9 * sum(host.reports.copied) / 1_000_000


# --- little space -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", ["compaction_bytes_per_s", "index_step_pause_s"])
async def test_a_stop_does_not_wait_for_its_rate(bound: str) -> None:
    host = await fragmented()
    host.settings = host.settings.model_copy(update={bound: 1 if bound == "compaction_bytes_per_s" else 1e6})
    storage = await host.boot()
    for ledger_id in DROP:
        await delete(storage, ledger_id)
    await storage.checkpoint()
    reclaiming = asyncio.ensure_future(reclaim(storage, 0.8))
    await turns(500)
    assert not reclaiming.done()
    async with asyncio.timeout(20):
        await storage.close()
        await reclaiming
    storage = await host.boot()
    for ledger_id in KEEP:
        assert len((await read_all(storage, ledger_id, 0, 40))[0]) == 30
    check_living_bytes(storage)


async def test_it_works_on_a_disk_that_is_nearly_full_and_leaves_some_space() -> None:
    host = await fragmented(compaction_free_bytes_min=30_000)
    storage = await host.boot()
    for ledger_id in DROP:
        await delete(storage, ledger_id)
    await storage.checkpoint()
    host.disk.capacity_bytes = host.disk.used_bytes() + 110_000  # one log at a time
    least: list[int] = []
    host.disk.observer = lambda operation, path: least.append(host.disk.space(path)[0])
    await reclaim(storage, 0.8)
    assert min(least) > 20_000
    assert host.disk.space("/b")[0] > 200_000
    await check(storage)


async def test_without_space_for_a_copy_dead_logs_go_all_the_same() -> None:
    host = await fragmented()
    storage = await host.boot()
    for ledger_id in DROP:
        await delete(storage, ledger_id)
    await storage.checkpoint()
    host.disk.capacity_bytes = host.disk.used_bytes()
    before = logs(host)
    await reclaim(storage, 0.8)
    assert logs(host) == before
    for ledger_id in KEEP:
        await delete(storage, ledger_id)
    await reclaim(storage, 0.8)
    assert logs(host) == []


@pytest.mark.parametrize("operation", ["open", "pwritev", "fdatasync", "sync_dir", "commit"])
@pytest.mark.parametrize("nth", [1, 2, 5])
async def test_running_out_of_space_only_puts_it_off(operation: str, nth: int) -> None:
    host = await fragmented(compaction_commit_bytes=10_000, entry_log_write_bytes=3000)
    storage = await host.boot()
    for ledger_id in DROP:
        await delete(storage, ledger_id)
    await reclaim(storage)
    host.disk.fail_at(nth, errno.ENOSPC, operation=operation)
    with contextlib.suppress(OSError):  # where that operation isn't reached
        await reclaim(storage, 0.8)
    host.disk.heal()
    assert not storage.failed.done()
    for ledger_id in KEEP:
        assert len((await read_all(storage, ledger_id, 0, 40))[0]) == 30
    await reclaim(storage, 0.8)
    await check(storage)
    assert storage.space.living > 0.9 * storage.space.bytes
    await storage.close()
    storage = await host.boot()
    await check(storage)


@pytest.mark.thorough
@pytest.mark.parametrize("operation", ["pwritev", "fdatasync", "commit"])
async def test_running_out_of_space_leaves_no_log_without_a_row(operation: str) -> None:
    """Be it in the footer or in the transaction that is to store the row: nobody would ever look at such a log."""
    before = await fragmented(compaction_commit_bytes=50_000)
    failures = 0
    while True:
        host = copy_of(before)
        storage = await host.boot()
        for ledger_id in DROP:
            await delete(storage, ledger_id)
        await reclaim(storage)
        host.disk.fail_at(failures + 1, errno.ENOSPC, operation=operation)
        try:
            await reclaim(storage, 0.8)
        except OSError:
            failures += 1
        else:
            break
        host.disk.heal()
        await reclaim(storage, 0.8)
        with storage.shards[0].store.read() as txn:
            assert {int(name[:-4], 16) for name in logs(host)} == log_rows(txn).keys(), f"failure {failures}"
        await check(storage)
        storage.release()
    assert failures >= 3


# --- crashes ----------------------------------------------------------------------------------------------------------


async def compact_all(host: Host) -> LedgerStorage:
    storage = await host.boot()
    for ledger_id in DROP:
        await delete(storage, ledger_id)
    await reclaim(storage, 0.8)
    await storage.close()
    if storage.failed.done():  # in the background
        raise StorageFailedError("failed") from storage.failed.exception()
    return storage


@pytest.mark.thorough
@pytest.mark.scenario(50)
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.exhaustive) for part in (1, 2))])
@pytest.mark.parametrize("fault", ["crash", pytest.param("EIO", marks=pytest.mark.exhaustive)])
def test_a_fault_at_every_operation_of_it_loses_and_revives_nothing(fault: str, part: int) -> None:
    before = asyncio.run(fragmented(compaction_commit_bytes=30_000))
    whole = copy_of(before)
    asyncio.run(compact_all(whole))

    async def strike(nth: int) -> None:
        host = copy_of(before)
        if fault == "crash":
            host.disk.crash_at(nth)
        else:
            host.disk.fail_at(nth, errno.EIO)
        with pytest.raises((SimulatedCrash, StorageFailedError, OSError)):
            await compact_all(host)
        host.disk.heal()
        host.disk.rng.seed(nth)
        if nth % 2:
            host.disk.power_cut()
        else:
            host.disk.crash()
        storage = await host.boot()
        for ledger_id in KEEP:
            wanted = dict.fromkeys(range(30), b"%d" % ledger_id + ENTRY)
            assert await read_all(storage, ledger_id, 0, 40) == (wanted, set())
        for ledger_id in DROP:
            if (await storage.states((ledger_id,)))[ledger_id] is not None:
                await delete(storage, ledger_id)
        await reclaim(storage, 0.8)
        await check(storage)
        with storage.shards[0].store.read() as txn:
            rows = log_rows(txn)
        assert len([name for name in logs(host) if int(name[:-4], 16) not in rows]) <= 1, "a log that nobody counts"
        assert not host.reports.damages

    for nth in range(1 + part, whole.disk.operations - before.disk.operations + 1, 3):
        try:
            asyncio.run(strike(nth))
        except Exception as e:
            raise AssertionError(f"{fault} at operation {nth}") from e


async def test_a_stop_in_the_middle_leaves_a_log_with_a_row() -> None:
    host = await fragmented(compaction_step_bytes=1, compaction_commit_bytes=5000)
    storage = await host.boot()
    for ledger_id in DROP:
        await delete(storage, ledger_id)
    compacting = asyncio.ensure_future(reclaim(storage, 0.8))
    await eventually(lambda: host.reports.copied, pause_s=0.001)
    await turns(3)
    await storage.close()
    await compacting
    assert sum(host.reports.copied) < 100_000
    storage = await host.boot()
    assert storage.shards[0].unlisted_logs == {}
    await check(storage)
