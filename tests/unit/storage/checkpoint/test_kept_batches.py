"""Large batches stay in their journal files: which ones, what becomes of the files, and what a crash makes of it."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
from typing import TYPE_CHECKING, Any

import pytest
from crc32c import crc32c
from tests.examples import stride
from tests.hooks import flush_worker, journal_worker
from tests.sim.disk import SimDisk, SimulatedCrash
from tests.sim.store import SimStores
from tests.unit.storage.acknowledged_writes import AcknowledgedWrites, copy_of, dropped, kept, restart, whole_life
from tests.unit.storage.support import (
    INSTANCE,
    Batch,
    Host,
    Reports,
    Stall,
    add,
    check_living_bytes,
    read_all,
    reclaim,
    records,
)
from tests.unit.storage.support import settings as bookie_settings
from tests.waiting import turns

from bkpy.errors import CorruptDataError, StorageFailedError
from bkpy.runtime.system import real_runtime
from bkpy.storage.entry_log.entry_log import KEPT, BlockReader, Place, kept_in, kept_log_id, log_id_of, log_name
from bkpy.storage.index.ids import Ids
from bkpy.storage.index.index import BlockRow, KeptBatch, decode_block_row, load_shard, log_key, scan_blocks
from bkpy.storage.open import open_storage
from bkpy.storage.reads.blocks import read_block
from bkpy.storage.space.deletion import hide
from bkpy.storage.tools.inspect.ledger import LedgerInspection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bkpy.storage.engine import LedgerStorage

LARGE = b"L" * 100_000
TINY: dict[str, Any] = {"journal_run_bytes_min": 1, "journal_run_share_min": 0.0}  # every batch is a large one


def files(host: Host, suffix: str, shard: int = 0) -> list[str]:
    """Paths of the logs of a ledger directory: `.log`, or `.txn` for journal files."""
    directory = host.settings.ledger_directories[shard]
    return [f"{directory}/{name}" for name in host.disk.listdir(directory) if name.endswith(suffix)]


def places(host: Host, ledger_id: int, shard: int = 0) -> list[Place]:
    """Where the index says that the ledger's entries are."""
    store = SimStores(host.disk).open(f"{host.settings.ledger_directories[shard]}/index")
    with store.read() as txn:
        found = [decode_block_row(*row).place for row in scan_blocks(txn, ledger_id, 0, 1 << 40)]
    store.close()
    return found


def stayed(host: Host, ledger_id: int, shard: int = 0) -> list[bool]:
    return [bool(place.log_id & KEPT) for place in places(host, ledger_id, shard)]


async def put(storage: LedgerStorage, *batches: Batch) -> None:
    await storage.states({batch.ledger_id for batch in batches})
    await add(storage, *batches)


async def check(storage: LedgerStorage, wanted: dict[int, dict[int, bytes]]) -> None:
    for ledger_id, entries in wanted.items():
        assert await read_all(storage, ledger_id, 0, 99) == (entries, set())


# --- which ones stay --------------------------------------------------------------------------------------------------


async def test_a_large_batch_is_not_written_again() -> None:
    host = Host()
    storage = await host.boot()
    await put(storage, Batch(1, 0, payload=LARGE))
    await put(storage, Batch(1, 1, 2, payload=LARGE))
    written: list[str] = []
    host.disk.observer = lambda operation, path: written.append(path) if operation == "pwritev" else None
    await storage.checkpoint()
    host.disk.observer = None
    assert written == [], "no entry log"
    (file,) = files(host, ".txn")
    assert host.disk.links(file) == 2
    assert stayed(host, 1) == [True, True]
    await check(storage, {1: dict.fromkeys(range(3), LARGE)})
    host.disk.power_cut(dropped)
    await check(await host.boot(), {1: dict.fromkeys(range(3), LARGE)})
    assert not host.reports.damages


@pytest.mark.parametrize(("size", "stays"), [(65_536, True), (65_535, False)])
async def test_a_batch_is_large_from_the_setting_on(size: int, stays: bool) -> None:
    host = Host()
    storage = await host.boot()
    await put(storage, Batch(1, 0, payload=b"x" * (size - 32)))
    await storage.checkpoint()
    assert stayed(host, 1) == [stays]
    assert len(files(host, ".log")) == (not stays)
    assert len(files(host, ".txn")) == stays


@pytest.mark.parametrize(("small", "stays"), [(95_000, True), (105_000, False)])
async def test_a_file_is_kept_if_enough_of_it_is_large(small: int, stays: bool) -> None:
    host = Host()
    storage = await host.boot()
    await put(storage, Batch(1, 0, payload=LARGE), *(Batch(2, i, payload=b"s" * (small // 5)) for i in range(5)))
    await storage.checkpoint()
    assert stayed(host, 1) == [stays]
    assert not any(stayed(host, 2))
    # A file that is kept anyway may as well hold more.
    await put(storage, *(Batch(2, 5 + i, payload=b"s" * 30_000) for i in range(5)))
    await put(storage, Batch(1, 1, payload=LARGE))
    await storage.checkpoint()
    assert stayed(host, 1) == [stays, stays]


async def test_small_batches_between_large_ones_are_gathered() -> None:
    host = Host()
    storage = await host.boot()
    sizes = [100_000, 10, 20, 100_000, 30, 100_000, 100_000]
    await put(storage, *(Batch(1, i, payload=b"%d" % i * size) for i, size in enumerate(sizes)))
    await storage.checkpoint()
    assert stayed(host, 1) == [True, False, True, False, True, True]
    await check(storage, {1: {i: b"%d" % i * size for i, size in enumerate(sizes)}})


async def test_what_overlaps_or_has_gaps_is_written() -> None:
    host = Host()
    storage = await host.boot()
    await put(storage, Batch(1, 0, 2, payload=LARGE), Batch(2, 0, 3, 2, payload=LARGE))
    await storage.checkpoint()
    assert stayed(host, 1) == [True]
    assert not any(stayed(host, 2))
    await put(storage, Batch(1, 1, 2, payload=b"later" * 20_000))
    await storage.checkpoint()
    assert stayed(host, 1) == [True, False]
    wanted = {0: LARGE, 1: b"later" * 20_000, 2: b"later" * 20_000}
    await check(storage, {1: wanted, 2: dict.fromkeys((0, 2, 4), LARGE)})


@pytest.mark.parametrize("off", ["setting", "file system", "no hard links"])
async def test_without_the_setting_or_links_everything_is_written(off: str) -> None:
    host = Host(settings=bookie_settings(journal_as_entry_log=off != "setting"))
    if off != "setting":
        host.disk.no_links = errno.EXDEV if off == "file system" else errno.EPERM
    storage = await host.boot()
    tried: list[str] = []
    host.disk.observer = lambda operation, path: tried.append(path) if operation == "link" else None
    for i in range(3):
        await put(storage, Batch(1, i, payload=LARGE))
        await storage.checkpoint()
    assert stayed(host, 1) == [False] * 3
    assert len(tried) == (off != "setting"), "it is tried once"
    store = SimStores(host.disk).open(f"{host.settings.ledger_directories[0]}/index")
    row = load_shard(store)
    assert row is not None
    assert not row.keeps, "the version before can still start here"
    await check(storage, {1: dict.fromkeys(range(3), LARGE)})


async def test_a_setting_that_was_turned_off_leaves_what_stayed() -> None:
    host = Host(settings=bookie_settings(journal_max_backups=0))
    storage = await host.boot()
    await put(storage, Batch(1, 0, payload=LARGE))
    await storage.close()
    host.settings = bookie_settings(journal_max_backups=0, journal_as_entry_log=False)
    for i in range(1, 4):
        storage = await host.boot()
        await put(storage, Batch(1, i, payload=LARGE))
        await storage.close()
    assert stayed(host, 1) == [True, False, False, False]
    await check(await host.boot(), {1: dict.fromkeys(range(4), LARGE)})


# --- the mark ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("synced_before_the_flush", [False, True])
async def test_what_is_above_the_mark_is_written(synced_before_the_flush: bool) -> None:
    host = Host()
    storage = await host.boot()
    await put(storage, Batch(1, 0, payload=LARGE))
    journal, flush = Stall(journal_worker(storage.journals[0])), Stall(flush_worker(storage.shards[0]))
    journal.begin()
    late = add(storage, Batch(1, 1, payload=LARGE))
    await turns()
    flush.begin()
    checkpoint = asyncio.ensure_future(storage.checkpoint())
    await turns()  # sealed, with the mark before the batch that isn't synced
    if synced_before_the_flush:
        journal.end()
        await late
    flush.end()
    await turns()
    assert stayed(host, 1) == [True, False]
    if not synced_before_the_flush:
        journal.end()
    await asyncio.gather(checkpoint, late)
    host.disk.power_cut(dropped)
    await check(await host.boot(), {1: dict.fromkeys(range(2), LARGE)})


async def test_a_replay_writes_what_it_read() -> None:
    host = Host()
    storage = await host.boot()
    for i in range(3):
        await put(storage, Batch(1, i, payload=LARGE))
    host.disk.crash()
    storage = await host.boot()
    assert not any(stayed(host, 1))
    await check(storage, {1: dict.fromkeys(range(3), LARGE)})


@pytest.mark.parametrize("seed", range(8))
async def test_a_torn_frame_behind_a_batch_that_stayed_is_cut(seed: int) -> None:
    host = Host()
    storage = await host.boot()
    await put(storage, Batch(1, 0, payload=LARGE))
    await storage.checkpoint()
    host.disk.crash_at(1, operation="fdatasync")
    await storage.states((1,))
    late = add(storage, Batch(1, 1, payload=b"torn" * 30_000))
    await asyncio.wait({late, storage.failed}, return_when=asyncio.FIRST_COMPLETED)
    host.disk.heal()
    host.disk.rng.seed(seed)
    host.disk.power_cut()
    for _ in range(2):
        storage = await host.boot()
        have, unknown = await read_all(storage, 1, 0, 9)
        assert have[0] == LARGE
        assert not unknown
        await storage.close()


# --- the files --------------------------------------------------------------------------------------------------------


async def test_a_kept_file_outlives_its_name_in_the_journal_and_is_never_overwritten() -> None:
    host = Host(settings=bookie_settings(journal_max_backups=0))
    storage = await host.boot()
    contents: dict[str, bytes] = {}
    for i in range(12):
        await put(storage, Batch(1, i, payload=bytes([i]) * 400_000))
        await storage.checkpoint()
        contents |= {path: host.disk.contents(path) for path in files(host, ".txn")[:-1]}
    assert len(files(host, ".txn")) >= 6
    assert len(host.journal_files()) == 1
    assert {path: host.disk.contents(path) for path in contents} == contents
    assert [host.disk.links(path) for path in files(host, ".txn")[:-1]] == [1] * len(contents)
    host.disk.power_cut(dropped)
    storage = await host.boot()
    await check(storage, {1: {i: bytes([i]) * 400_000 for i in range(12)}})
    await storage.checkpoint()
    assert {path: host.disk.contents(path) for path in contents} == contents


async def test_backups_of_the_journal_are_kept_beside() -> None:
    host = Host(settings=bookie_settings(journal_max_backups=2))
    storage = await host.boot()
    for i in range(12):
        await put(storage, Batch(1, i, payload=bytes([i]) * 400_000))
    await storage.checkpoint()
    assert len(host.journal_files()) == 3


async def test_a_file_that_was_given_up_is_recycled_again() -> None:
    host = Host(settings=bookie_settings(journal_max_backups=3))
    storage = await host.boot()
    await put(storage, Batch(1, 0, payload=LARGE))
    await storage.checkpoint()
    (file,) = files(host, ".txn")
    renamed: list[str] = []
    host.disk.observer = lambda operation, path: renamed.append(path) if operation == "rename" else None
    for i in range(16):
        await put(storage, *(Batch(2, 50 * i + j, payload=b"s" * 20_000) for j in range(25)))
        await storage.checkpoint()
        if i == 3:
            host.disk.unlink(file)  # as collection does, here while the journal has its name as well
    assert f"{host.settings.journal_directories[0]}/{kept_name(file)}" in renamed


def kept_name(path: str) -> str:
    """The name in the journal directory of a journal file that is kept."""
    log_id = log_id_of(path.rpartition("/")[2])
    assert log_id is not None
    return f"{kept_in(log_id)[1]:016x}.txn"


async def test_a_file_gets_its_row_when_the_marks_have_passed_it() -> None:
    host = Host(settings=bookie_settings(journal_max_backups=0))
    storage = await host.boot()
    for i in range(2):
        await put(storage, Batch(1, i, payload=bytes([i]) * 400_000))
    await storage.checkpoint()
    (first,) = files(host, ".txn")
    assert listed(host) == set(), "more may come to stay in it"
    for i in range(2, 6):
        await put(storage, Batch(1, i, payload=bytes([i]) * 400_000))
    await storage.checkpoint()
    assert first in listed(host)
    assert files(host, ".txn")[-1] not in listed(host)
    host.disk.power_cut(dropped)
    storage = await host.boot()
    assert listed(host) == set(files(host, ".txn")), "after a crash nothing more stays in any of them"
    await storage.close()


async def test_at_a_clean_stop_all_files_get_their_rows() -> None:
    host = Host()
    storage = await host.boot()
    await put(storage, Batch(1, 0, payload=LARGE))
    await storage.close()
    assert listed(host) == set(files(host, ".txn"))
    assert len(listed(host)) == 1


async def test_a_file_goes_when_its_ledgers_are_deleted() -> None:
    host = Host(settings=bookie_settings(journal_max_backups=0))
    storage = await host.boot()
    for i in range(8):
        await put(storage, Batch(1, i, payload=bytes([i]) * 400_000))
        await put(storage, Batch(2, i, payload=LARGE))
        await storage.checkpoint()
    before, used = files(host, ".txn"), host.disk.used_bytes()
    hidden = await hide(storage, 1)
    assert hidden is not None
    await hidden.delete()
    await reclaim(storage)
    check_living_bytes(storage)
    assert files(host, ".txn") == before, "something lives in all of them"
    hidden = await hide(storage, 2)
    assert hidden is not None
    await hidden.delete()
    await reclaim(storage)
    assert files(host, ".txn") == before[-1:], "the journal's own file"
    assert host.disk.used_bytes() < used - (len(before) - 2) * (1 << 20)
    host.disk.power_cut(dropped)
    storage = await host.boot()
    await reclaim(storage)
    assert files(host, ".txn") == []


def listed(host: Host) -> set[str]:
    """The kept files that have a row."""
    store = SimStores(host.disk).open(f"{host.settings.ledger_directories[0]}/index")
    with store.read() as txn:
        found = {path for path in files(host, ".txn") if txn.get(log_key(log_id_of(path.rpartition("/")[2]) or 0))}
    store.close()
    return found


async def test_batches_of_two_journals_stay() -> None:
    host = Host(settings=bookie_settings(journals=2, journal_max_backups=0))
    storage = await host.boot()
    for round_ in range(4):
        for ledger_id in range(4):
            await put(storage, Batch(ledger_id, round_, payload=bytes([ledger_id]) * 300_000))
    await put(storage, Batch(0, 4, payload=LARGE), Batch(1, 4, payload=LARGE))  # taken apart
    await storage.checkpoint()
    for ledger_id in range(4):
        assert stayed(host, ledger_id) == [True] * 4 + [False] * (ledger_id < 2)
    wanted = {i: dict.fromkeys(range(4), bytes([i]) * 300_000) for i in range(4)}
    wanted[0][4] = wanted[1][4] = LARGE
    for _ in range(2):
        host.disk.power_cut(dropped)
        storage = await host.boot()
        await check(storage, wanted)
        await storage.checkpoint()
    assert {kept_in(log_id_of(path.rpartition("/")[2]) or 0)[0] for path in files(host, ".txn")} == {0, 1}


async def test_nothing_more_stays_when_a_directory_was_added() -> None:
    host = Host(settings=bookie_settings(journal_max_backups=0))
    storage = await host.boot()
    await put(storage, Batch(0, 0, payload=LARGE), Batch(1, 0, payload=LARGE))
    await storage.close()
    host.settings = bookie_settings(journal_max_backups=0, ledgers=2)
    storage = await host.boot()
    for ledger_id in range(4):
        await put(storage, Batch(ledger_id, 1, payload=LARGE))
    await storage.close()
    assert [stayed(host, i) for i in (0, 1)] == [[True, False]] * 2, "in the directory where they were"
    assert not any(stayed(host, 3, 1))
    storage = await host.boot()
    await check(storage, {i: dict.fromkeys(range(2) if i < 2 else (1,), LARGE) for i in range(4)})


# --- crashes and errors -----------------------------------------------------------------------------------------------


async def life(host: Host, writes: AcknowledgedWrites) -> None:
    """Files that roll, checkpoints of files that are open and of files that are passed, small batches, a clean stop."""
    storage = await host.boot()
    for i in range(9):
        await writes.add(storage, Batch(1 + i % 2, i, payload=bytes([i]) * 200_000))
        await writes.add(storage, Batch(3, i, payload=b"small"))
        if i % 3 == 1:
            await storage.checkpoint()
    await storage.close()


def life_host() -> Host:
    return Host(settings=bookie_settings(journal_max_backups=0))


def operations() -> list[str]:
    """The operations of the disk that `life` takes."""
    found: list[str] = []
    host = life_host()
    host.disk.observer = lambda operation, path: found.append(operation)
    asyncio.run(life(host, AcknowledgedWrites()))
    return found


LIFE = operations()


@pytest.mark.thorough
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.exhaustive) for part in (1, 2))])
def test_a_crash_at_every_operation_while_batches_stay(part: int) -> None:
    assert "link" in LIFE

    async def crash(nth: int) -> None:
        host, writes = life_host(), AcknowledgedWrites()
        host.disk.crash_at(nth)
        with pytest.raises((SimulatedCrash, StorageFailedError)):
            await life(host, writes)
        host.disk.heal()
        ends: list[Callable[[SimDisk], None]] = [
            SimDisk.crash if nth % 2 else lambda disk: disk.power_cut(kept),
            lambda disk: disk.power_cut(dropped),
            lambda disk: disk.power_cut(),
        ]
        for i, end in enumerate(ends):
            other = copy_of(host)
            other.disk.rng.seed(1000 * nth + i)
            end(other.disk)
            await restart(other, writes)

    for nth, operation in enumerate(LIFE, 1):
        if nth % 3 == (part + 1) % 3 or (part == 0 and operation in ("link", "unlink", "rename")):
            asyncio.run(crash(nth))


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(2))
def test_a_crash_at_every_operation_where_every_batch_stays(part: int) -> None:
    async def crash(nth: int) -> bool:
        host, writes = Host(settings=bookie_settings(journals=2, block_bytes=4096, **TINY)), AcknowledgedWrites()
        host.disk.crash_at(nth)
        try:
            await whole_life(host, writes)
        except (SimulatedCrash, StorageFailedError):
            assert host.disk.dead
        crashed = host.disk.dead
        host.disk.heal()
        host.disk.rng.seed(nth)
        host.disk.power_cut()
        await restart(host, writes)
        return crashed

    nth = 1 + part
    while asyncio.run(crash(nth)):
        nth += 2 * stride()
    assert nth > 40


@pytest.mark.thorough
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_an_error_at_every_operation_while_batches_stay(error: int) -> None:
    async def fail(nth: int) -> None:
        host, writes = life_host(), AcknowledgedWrites()
        host.disk.fail_at(nth, error)
        with pytest.raises((StorageFailedError, OSError)):
            await life(host, writes)
        host.disk.crash()
        host.disk.heal()
        await restart(host, writes)

    for nth, operation in enumerate(LIFE, 1):
        if operation in ("link", "sync_dir", "unlink", "commit"):
            asyncio.run(fail(nth))


@pytest.mark.parametrize("operation", ["sync_dir", "pwritev"])
async def test_a_checkpoint_that_fails_takes_its_names_back(operation: str) -> None:
    host = Host()
    storage = await host.boot()
    await put(storage, Batch(1, 0, payload=LARGE), Batch(2, 0, payload=b"small"))
    host.disk.fail_at(1, errno.ENOSPC, operation=operation, path="ledgers0")
    with pytest.raises(StorageFailedError, match="No space"):
        await storage.checkpoint()
    assert files(host, ".txn") == []
    host.disk.power_cut(dropped)
    host.disk.heal()
    await check(await host.boot(), {1: {0: LARGE}, 2: {0: b"small"}})


# --- reading ----------------------------------------------------------------------------------------------------------


async def test_rot_in_a_journal_file_is_unknown_and_nothing_else_is() -> None:
    host = Host()
    storage = await host.boot()
    for i in range(3):
        await put(storage, Batch(1, 2 * i, 2, payload=LARGE))
    await storage.checkpoint()
    host.disk.flip(files(host, ".txn")[0], places(host, 1)[1].offset + 12_345)
    assert await read_all(storage, 1, 0, 9) == (dict.fromkeys((0, 1, 4, 5), LARGE), {2, 3})
    assert "doesn't hold the batch" in host.reports.damages[0][0]
    assert host.reports.damages[0][1] == files(host, ".txn")[0]


async def test_a_kept_file_that_is_gone_is_unknown() -> None:
    host = Host()
    storage = await host.boot()
    await put(storage, Batch(1, 0, payload=LARGE))
    await storage.close()
    host.disk.unlink(files(host, ".txn")[0])
    storage = await host.boot()
    assert await read_all(storage, 1, 0, 9) == ({}, {0})


async def test_an_inspection_verifies_what_stayed() -> None:
    host = Host()
    storage = await host.boot()
    await put(storage, Batch(1, 0, 2, payload=LARGE))
    await storage.close()
    directory = host.settings.ledger_directories[0]
    (file,) = files(host, ".txn")
    for damaged in (False, True):
        if damaged:
            host.disk.flip(file, places(host, 1)[0].offset + 70_000)
        store = SimStores(host.disk).open(f"{directory}/index")
        journals = host.settings.journal_directories
        looked = LedgerInspection(host.disk, {directory: store}, journals, 1, read_bytes=4096, ranges_max=9).run()
        (block,) = [finding for finding in looked if finding.kind == "block" or finding.damage]
        assert block.path == file
        assert bool(block.damage) == damaged
        store.close()


def stored(data: bytes, first: int, entries: int) -> tuple[BlockReader, BlockRow]:
    """A journal file that holds that, and the row that says so."""
    disk = SimDisk()
    disk.make_dirs("/d")
    log_id = kept_log_id(2, 77)
    assert log_id is not None
    disk.replace(f"/d/{log_name(log_id)}", b"before" + data + b"behind")
    row = BlockRow(Ids(first, entries), Place(log_id, 6, len(data)), KeptBatch(first, entries, crc32c(data)))
    return BlockReader(disk, "/d"), row


def test_no_flipped_byte_and_no_other_length_is_taken() -> None:
    data = records(1, range(5, 9), b"payload")
    for i in range(len(data)):
        reader, row = stored(data[:i] + bytes([data[i] ^ 1 << i % 8]) + data[i + 1 :], 5, 4)
        assert row.kept is not None
        with pytest.raises(CorruptDataError):
            read_block(reader, 1, row._replace(kept=row.kept._replace(checksum=crc32c(data))), 4096)
    reader, row = stored(data, 5, 4)
    assert bytes(read_block(reader, 1, row, 4096).data) == data
    for change in (-1, 1, 1000):
        with pytest.raises(CorruptDataError):
            read_block(reader, 1, row._replace(place=row.place._replace(length=len(data) + change)), 4096)
    with pytest.raises(CorruptDataError):
        read_block(reader, 1, row._replace(place=row.place._replace(offset=5)), 4096)


@pytest.mark.parametrize(
    "sizes", [[100] * 200, [0] * 300, [5000] * 7, [1, 2], [9000], list(range(150)), [7] * 99 + [8]]
)
@pytest.mark.parametrize("run_bytes", [1, 200, 4096])
def test_a_walk_may_begin_about_every_few_kilobytes(sizes: list[int], run_bytes: int) -> None:
    parts = [records(1, [10 + i], b"x" * size) for i, size in enumerate(sizes)]
    reader, row = stored(b"".join(parts), 10, len(sizes))
    block = read_block(reader, 1, row, run_bytes)
    begins = [sum(map(len, parts[:i])) for i in range(len(parts))]
    assert block.runs[0] == (0, 0)
    assert all(begins[rank] == offset for rank, offset in block.runs)
    assert block.ids.first == 10
    assert block.ids.count == len(sizes)
    ends = [*(offset for _, offset in block.runs[1:]), len(block.data)]
    longest = max(map(len, parts))
    assert all(end - begin < run_bytes + longest for (_, begin), end in zip(block.runs, ends, strict=True))


@pytest.mark.parametrize("seed", range(50))
def test_a_batch_that_lies_about_its_records_has_a_table_nevertheless(seed: int) -> None:
    rng = random.Random(seed)
    data = records(1, range(rng.randrange(1, 30)), b"x" * rng.randrange(50))
    data = bytes(byte if rng.random() < 0.99 else rng.randrange(256) for byte in data)[
        : rng.randrange(1, len(data) + 1)
    ]
    entries = rng.randrange(1, 40)
    reader, row = stored(data, 0, entries)
    runs = read_block(reader, 1, row, rng.choice((1, 100))).runs
    assert runs[0] == (0, 0)
    assert all(a[0] < b[0] < entries and a[1] < b[1] < len(data) for a, b in itertools.pairwise(runs))


@pytest.mark.parametrize("bytes_max", [1, 500, 40_000, 1 << 20])
async def test_reads_begin_and_end_inside_batches_that_stayed(bytes_max: int) -> None:
    host = Host(settings=bookie_settings(block_cache_bytes_max=1, **TINY))
    storage = await host.boot()
    rng = random.Random(bytes_max)
    wanted: dict[int, bytes] = {}
    first = 0
    while first < 100:
        batch = Batch(1, first, rng.randrange(1, 30), payload=b"%d" % first * rng.choice((1, 100, 1000)))
        wanted |= dict.fromkeys(batch.ids, batch.payload)
        await put(storage, batch)
        first = batch.ids[-1] + 1
        if rng.random() < 0.3:
            await storage.checkpoint()
    await storage.checkpoint()
    for _ in range(30):
        low = rng.randrange(100)
        high = rng.randrange(low, 110)
        have, unknown = await read_all(storage, 1, low, high, bytes_max)
        assert have == {i: wanted[i] for i in range(low, high + 1) if i in wanted}
        assert not unknown


@pytest.mark.thorough
async def test_large_batches_on_a_real_disk(tmp_path: Path) -> None:
    settings = bookie_settings(str(tmp_path), journals=2, journal_max_backups=0)
    cookie = None
    entries = {i: bytes([i]) * 150_000 for i in range(20)}
    for boot in range(3):
        reports = Reports()
        storage = await open_storage(
            settings, real_runtime(), instance_id=INSTANCE, expected_cookie=cookie, observer=reports
        )
        cookie = storage.cookie
        if boot == 0:
            for i, payload in entries.items():
                await put(storage, Batch(1 + i % 2, i, payload=payload))
            await storage.checkpoint()
        for ledger_id in (1, 2):
            have, unknown = await read_all(storage, ledger_id, 0, 30)
            assert (have, unknown) == ({i: p for i, p in entries.items() if 1 + i % 2 == ledger_id}, set())
        assert not reports.damages
        await storage.close()
    names = [f"{directory}/{name}" for directory in settings.ledger_directories for name in os.listdir(directory)]
    kept_files = [name for name in names if name.endswith(".txn")]
    assert len(kept_files) >= 2
    assert {os.stat(name).st_nlink for name in kept_files} == {1}
    assert not [name for name in names if name.endswith(".log")]


def test_ids_of_journal_files_as_logs() -> None:
    assert kept_log_id(3, 0x18F00000000) == (1 << 63) + (3 << 48) + 0x18F00000000
    assert kept_in((1 << 63) + (3 << 48) + 0x18F00000000) == (3, 0x18F00000000)
    assert kept_log_id(0, 1 << 48) is None
    assert kept_log_id(1 << 15, 1) is None
    log_id = kept_log_id((1 << 15) - 1, (1 << 48) - 1)
    assert log_id == (1 << 64) - 1
    assert log_id_of(log_name(log_id)) == log_id
    assert log_id_of("0000018f00000000.txn") is None, "a journal file, not one that is kept"
    assert log_id_of(log_name(7)) == 7


def test_no_file_is_kept_whose_id_is_out_of_range() -> None:
    async def run() -> None:
        host = Host()
        host.clock.now = 2.0**49 / 1000
        storage = await host.boot()
        await put(storage, Batch(1, 0, payload=LARGE))
        await storage.checkpoint()
        assert stayed(host, 1) == [False]
        await check(storage, {1: {0: LARGE}})

    asyncio.run(run())


async def test_what_was_never_synced_does_not_stay_in_the_journal() -> None:
    for synced in (True, False):
        host = Host(settings=bookie_settings(journal_sync_data=synced, **TINY))
        storage = await host.boot()
        await put(storage, Batch(1, 0, payload=LARGE))
        await storage.checkpoint()
        await storage.close()
        assert any(stayed(host, 1)) == synced
