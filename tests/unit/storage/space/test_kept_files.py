"""Journal files in which batches have stayed, as logs among others: compacted, read meanwhile, gone when dead."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from typing import TYPE_CHECKING, Any

import pytest
from tests.sim.disk import SimulatedCrash
from tests.unit.storage.acknowledged_writes import copy_of
from tests.unit.storage.space.test_deletion import delete, put
from tests.unit.storage.support import Batch, Host, check_living_bytes, read_all, reclaim
from tests.unit.storage.support import settings as bookie_settings

from bkpy.errors import StorageFailedError
from bkpy.storage.entry_log.entry_log import KEPT
from bkpy.storage.index.index import block_rows, decode_block_row, log_rows

if TYPE_CHECKING:
    from bkpy.storage.engine import LedgerStorage

ENTRY = b"x" * 5000
KEEP, DROP = (1, 3), (0, 2)
ENTRIES = 6


async def kept_files(parts: int = 3, **values: Any) -> Host:
    """A bookie that was stopped, with all it stores in that many journal files, which it has let go of."""
    tiny: dict[str, Any] = {"journal_run_bytes_min": 1, "journal_run_share_min": 0.0, "journal_max_backups": 0}
    host = Host(settings=bookie_settings(**{"index_step_rows": 7, **tiny, **values}))
    each = ENTRIES // parts
    for part in range(parts):
        storage = await host.boot()
        for k in range(each):
            await put(storage, *(Batch(i, each * part + k, payload=b"%d" % i + ENTRY) for i in range(4)))
        await storage.close()
    assert len(kept_names(host)) == parts
    return host


def kept_names(host: Host) -> list[str]:
    return [name for name in host.disk.listdir("/b/ledgers0") if name.endswith(".txn")]


def rows_in_kept_files(storage: LedgerStorage) -> int:
    with storage.shards[0].store.read() as txn:
        return sum(bool(decode_block_row(*row).place.log_id & KEPT) for row in block_rows(txn))


async def drop(storage: LedgerStorage) -> None:
    for ledger_id in DROP:
        if (await storage.states((ledger_id,)))[ledger_id] is not None:
            await delete(storage, ledger_id)


async def check(storage: LedgerStorage, keep: tuple[int, ...] = KEEP) -> None:
    for ledger_id in range(4):
        wanted = dict.fromkeys(range(ENTRIES), b"%d" % ledger_id + ENTRY) if ledger_id in keep else {}
        assert await read_all(storage, ledger_id, 0, ENTRIES + 3) == (wanted, set())
    check_living_bytes(storage)
    storage.check_invariants()


async def test_what_lives_is_copied_to_a_log_and_the_files_go() -> None:
    host = await kept_files()
    storage = await host.boot()
    assert rows_in_kept_files(storage) == 4 * ENTRIES
    await drop(storage)
    await reclaim(storage, 0.8)
    assert kept_names(host) == []
    assert rows_in_kept_files(storage) == 0
    assert sum(host.reports.copied) == pytest.approx(2 * ENTRIES * len(ENTRY), rel=0.1)
    await check(storage)
    host.disk.power_cut()
    await check(await host.boot())
    assert not host.reports.damages


async def test_files_in_which_enough_lives_are_left_alone() -> None:
    host = await kept_files(parts=1)
    storage = await host.boot()
    (name,) = kept_names(host)
    with storage.shards[0].store.read() as txn:
        (row,) = (row for log_id, row in log_rows(txn).items() if log_id & KEPT)
    assert row is not None
    assert row.living is not None
    living = row.living / row.bytes
    await reclaim(storage, living - 0.01)
    assert kept_names(host) == [name]
    await reclaim(storage, living + 0.01)
    assert kept_names(host) == []
    await check(storage, (0, 1, 2, 3))


async def test_a_file_is_there_until_the_last_of_its_ledgers_is_deleted() -> None:
    host = await kept_files()
    names = kept_names(host)
    storage = await host.boot()
    for ledger_id in range(4):
        assert kept_names(host) == names
        await check(storage, tuple(range(ledger_id, 4)))
        await delete(storage, ledger_id)
        await reclaim(storage)
    assert kept_names(host) == []
    await check(storage, ())
    host.disk.power_cut()
    await check(await host.boot(), ())


@pytest.mark.parametrize("first", ["the journal", "the ledger directory"])
async def test_the_space_is_back_when_both_names_are_gone(first: str) -> None:
    """The journal may still have the file, as a backup; whichever name goes first, the other one's file is whole."""
    host = Host(settings=bookie_settings(journal_run_bytes_min=1, journal_run_share_min=0.0, journal_max_backups=1))
    storage = await host.boot()
    await put(storage, *(Batch(i, k, payload=b"%d" % i + ENTRY) for k in range(ENTRIES) for i in range(4)))
    await storage.close()
    storage = await host.boot()
    (name,) = kept_names(host)
    path = f"/b/ledgers0/{name}"
    assert host.disk.links(path) == 2
    journal = next(file for file in host.journal_files() if host.disk.links(file) == 2)
    whole = host.disk.contents(path)
    if first == "the journal":
        for life in range(3):
            await put(storage, Batch(9 + life, 0))
            await storage.close()
            storage = await host.boot()
        assert journal not in host.journal_files()
        assert (host.disk.links(path), host.disk.contents(path)) == (1, whole)
        await check(storage, (0, 1, 2, 3))
    for ledger_id in range(4):
        await delete(storage, ledger_id)
    await reclaim(storage)
    assert name not in kept_names(host)
    if first == "the ledger directory":
        assert (host.disk.links(journal), host.disk.contents(journal)) == (1, whole)
    await check(storage, ())
    host.disk.power_cut()
    await check(await host.boot(), ())


async def test_nothing_is_denied_at_any_moment_of_it() -> None:
    host = await kept_files(compaction_step_bytes=5000, compaction_commit_bytes=10_000, block_cache_bytes_max=1)
    storage = await host.boot()
    await drop(storage)
    compacting = asyncio.ensure_future(reclaim(storage, 0.8))
    reads = 0
    while not compacting.done():
        for ledger_id in KEEP:
            found = await storage.read(ledger_id, reads % ENTRIES, ENTRIES - 1, 6000)
            assert len(found.segments) >= 1
            assert not found.unknown
        reads += 1
    await compacting
    assert reads > 5
    assert kept_names(host) == []
    await check(storage)
    assert not host.reports.damages


async def test_a_file_that_the_journal_writes_over_while_it_is_read_is_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A read has its rows, and the file open; then these batches are copied, and the journal has the file to itself."""
    host = await kept_files(parts=1, block_cache_bytes_max=1)
    (name,) = kept_names(host)
    path = f"/b/ledgers0/{name}"
    storage = await host.boot()
    await check(storage, (0, 1, 2, 3))  # it is open from now on
    (shard,) = storage.shards
    load, superseded = shard.load_blocks, list[str]()

    async def not_yet(log_id: int) -> None:
        pass  # it waits behind the read

    async def overtake(*arguments: Any) -> Any:
        if not superseded:
            superseded.append(name)
            file = host.disk.open(path)  # as the journal has it, by another name
            with monkeypatch.context() as late:
                late.setattr(shard, "forget_log", not_yet)
                await reclaim(storage, 0.99)
            assert not host.disk.exists(path)
            file.write_durably([b"another" * 10_000], 0)
            file.close()
        return await load(*arguments)

    monkeypatch.setattr(shard, "load_blocks", overtake)
    found = await storage.read(1, 0, ENTRIES - 1, 1 << 20)
    assert superseded
    assert not found.unknown
    assert len(found.segments) == ENTRIES
    assert not host.reports.damages
    await check(storage, (0, 1, 2, 3))


async def test_a_batch_that_rotted_is_told_once_and_its_file_stays() -> None:
    host = await kept_files()
    path = f"/b/ledgers0/{kept_names(host)[0]}"
    host.disk.flip(path, host.disk.contents(path).index(b"1" + ENTRY) + 50, 1)
    storage = await host.boot()
    await drop(storage)
    for _ in range(3):
        await reclaim(storage, 0.8)
    assert not await storage.reclaimers[0].compactor.compact(0.8, set()), "it isn't tried again and again"
    told = [what for what, _ in host.reports.damages if "isn't compacted" in what]
    assert len(told) == 1
    assert "ledger 1" in told[0]
    assert [f"/b/ledgers0/{name}" for name in kept_names(host)] == [path]
    have, unknown = await read_all(storage, 1, 0, ENTRIES - 1)
    assert (len(have), unknown) == (ENTRIES - 1, {0})
    assert len((await read_all(storage, 3, 0, ENTRIES - 1))[0]) == ENTRIES


LIVES = [(True, 1), (False, 1), (True, 1), (True, 2), (False, 2), (True, 3), (False, 3)]


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("journals", [1, 2])
async def test_staying_is_switched_on_and_off_between_starts_and_directories_are_added(
    journals: int, clean: bool
) -> None:
    host = Host()
    wanted: dict[int, dict[int, bytes]] = {ledger_id: {} for ledger_id in range(4)}
    stayed = []
    for life, (in_place, directories) in enumerate(LIVES):
        host.settings = bookie_settings(
            journals=journals,
            ledgers=directories,
            journal_as_entry_log=in_place,
            journal_run_bytes_min=1,
            journal_run_share_min=0.0,
            journal_max_backups=0,
        )
        storage = await host.boot()
        for ledger_id, entries in wanted.items():
            assert await read_all(storage, ledger_id, 0, 40) == (entries, set())
            payload = b"%d of %d " % (ledger_id, life) + ENTRY
            await put(storage, Batch(ledger_id, 3 * life, 3, payload=payload))
            entries.update(dict.fromkeys(range(3 * life, 3 * life + 3), payload))
        if life % 3:
            await storage.checkpoint()
        if life == 4:
            await delete(storage, 0)
            wanted[0] = {}
        if life in (2, 5):
            await reclaim(storage, 0.9)
        stayed.append(rows_in_kept_files(storage))
        for ledger_id, entries in wanted.items():
            assert await read_all(storage, ledger_id, 0, 40) == (entries, set())
        check_living_bytes(storage)
        storage.check_invariants()
        assert not host.reports.damages
        if clean:
            await storage.close()
        else:
            host.disk.power_cut()
    assert max(stayed) > 0


# --- faults -----------------------------------------------------------------------------------------------------------


async def compact_all(host: Host) -> None:
    storage = await host.boot()
    await drop(storage)
    await reclaim(storage, 0.8)
    await storage.close()
    if storage.failed.done():  # in the background
        raise StorageFailedError("failed") from storage.failed.exception()


@pytest.mark.thorough
@pytest.mark.scenario(50)
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.exhaustive) for part in (1, 2))])
@pytest.mark.parametrize("fault", ["crash", "EIO", "ENOSPC"])
def test_a_fault_at_every_operation_of_it_loses_and_revives_nothing(fault: str, part: int) -> None:
    before = asyncio.run(kept_files(compaction_commit_bytes=12_000))
    whole = copy_of(before)
    asyncio.run(compact_all(whole))
    assert kept_names(whole) == []

    async def strike(nth: int) -> None:
        host = copy_of(before)
        if fault == "crash":
            host.disk.crash_at(nth)
        else:
            host.disk.fail_at(nth, getattr(errno, fault))
        with contextlib.suppress(SimulatedCrash, StorageFailedError, OSError):
            await compact_all(host)
            assert fault == "ENOSPC", "nothing else is only put off"
        host.disk.heal()
        host.disk.rng.seed(nth)
        if nth % 2:
            host.disk.power_cut()
        else:
            host.disk.crash()
        storage = await host.boot()
        for ledger_id in KEEP:
            wanted = dict.fromkeys(range(ENTRIES), b"%d" % ledger_id + ENTRY)
            assert await read_all(storage, ledger_id, 0, ENTRIES + 3) == (wanted, set())
        await drop(storage)
        await reclaim(storage, 0.8)
        await check(storage)
        assert kept_names(host) == []
        assert not host.reports.damages

    for nth in range(1 + part, whole.disk.operations - before.disk.operations + 1, 3):
        try:
            asyncio.run(strike(nth))
        except Exception as e:
            raise AssertionError(f"{fault} at operation {nth}") from e
