"""A disk without space: what couldn't be written whole is given back, and the next start finds no less."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from tests.unit.storage.acknowledged_writes import AcknowledgedWrites
from tests.unit.storage.journal.test_journal import Journal
from tests.unit.storage.support import INSTANCE, Batch, Host, add, read_all
from tests.unit.storage.support import settings as bookie_settings

from bkpy.errors import StorageFailedError
from bkpy.runtime.system import real_runtime
from bkpy.storage.journal.format import PAGE_BYTES, FrameKind
from bkpy.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bkpy.storage.engine import LedgerStorage

MIB = 1 << 20
ENTRY = b"x" * 100_000


async def used(host: Host) -> None:
    """A bookie with something to replay, and then without power."""
    storage = await host.boot()
    for i in range(8):
        await add(storage, Batch(1, i, payload=ENTRY))
    host.disk.power_cut()


async def check_life(host: Host) -> None:
    storage = await host.boot()
    assert await read_all(storage, 1, 0, 7) == (dict.fromkeys(range(8), ENTRY), set())
    await add(storage, Batch(2, 0))
    await storage.close()


@pytest.mark.parametrize("operation", ["allocate", "pwritev", "fdatasync"])
async def test_a_journal_file_that_cannot_be_begun_goes(operation: str) -> None:
    host = Host()
    await used(host)
    files, bytes_ = host.journal_files(), host.disk.used_bytes()
    for _ in range(4):
        # The only file that a start writes in a journal's directory.
        host.disk.fail_at(1, errno.ENOSPC, operation=operation, path="journal")
        with pytest.raises(StorageFailedError, match="No space left"):
            await host.boot()
        host.disk.crash()
        host.disk.heal()
        assert host.journal_files() == files
    assert host.disk.used_bytes() < bytes_ + 4 * MIB, "at most what the replay was checkpointed to"
    await check_life(host)


async def test_a_start_that_cannot_begin_a_file_of_one_journal_leaves_none_of_another() -> None:
    host = Host(settings=bookie_settings(journals=2))
    await used(host)
    files = host.journal_files(0), host.journal_files(1)
    for _ in range(4):
        host.disk.fail_at(1, errno.ENOSPC, operation="allocate", path="journal1")
        with pytest.raises(StorageFailedError, match="No space left"):
            await host.boot()
        assert (host.journal_files(0), host.journal_files(1)) == files
        host.disk.crash()
        host.disk.heal()
    host.disk.power_cut()
    await check_life(host)


@pytest.mark.parametrize("operation", ["allocate", "pwritev", "fdatasync", "sync_dir"])
@pytest.mark.parametrize("recycled", [False, True])
def test_a_file_that_cannot_be_begun_goes_also_if_it_was_another_before(operation: str, recycled: bool) -> None:
    journal = Journal(backups=0)
    if recycled:
        journal.write(b"before")
        journal.open(journal.writer.position)
        journal.writer.retain(journal.writer.position.file_id)
    before = journal.files
    journal.disk.fail_at(1, errno.ENOSPC, operation=operation)
    with pytest.raises(OSError, match="No space left"):
        journal.writer.begin_file()
    assert journal.files == (before[1:] if recycled else before)
    assert journal.replay(journal.writer.position).damages == []


async def test_files_that_earlier_starts_left_behind_make_room_for_the_next() -> None:
    host = Host()
    await used(host)
    files = host.journal_files()
    for i in range(1, 4):  # reserved in part, and nothing in them
        host.disk.replace(f"/b/journal0/{int(files[-1][-20:-4], 16) + i:016x}.txn", bytes(700_000))
    host.disk.capacity_bytes = host.disk.used_bytes() + MIB  # for the index and the log of the replay
    host.disk.fail_at(1, errno.ENOSPC, operation="pwritev", path="ledgers")  # also if that has to be tried again
    with pytest.raises(StorageFailedError, match="No space left"):
        await host.boot()
    host.disk.crash()
    await check_life(host)


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("nth", range(1, 6))
async def test_starts_that_fail_at_a_commit_of_the_index_reserve_nothing_for_good(nth: int, power: bool) -> None:
    """Of the journal's disk, each time as much as a whole file: the index may lie on another one, which is full."""
    host = Host()
    await used(host)

    def reserved() -> int:
        return sum(len(host.disk.contents(path)) for path in host.journal_files())

    failed, before = 0, reserved()
    for _ in range(4):
        host.disk.fail_at(nth, errno.ENOSPC, operation="commit")
        try:
            (await host.boot()).release()
        except StorageFailedError:
            failed += 1
            assert reserved() <= before + failed * 2 * PAGE_BYTES
        else:
            break
        if power:
            host.disk.power_cut()
        host.disk.crash()
        host.disk.heal()
    host.disk.crash()
    host.disk.heal()
    await check_life(host)


@pytest.mark.parametrize("nth", range(1, 6))
async def test_entry_logs_that_no_checkpoint_refers_to_go(nth: int) -> None:
    host = Host(settings=bookie_settings(entry_log_write_bytes=200_000, entry_log_max_size_mb=1))
    await used(host)

    def logs() -> list[str]:
        return [name for name in host.disk.listdir("/b/ledgers0") if name.endswith(".log")]

    assert not logs()
    for _ in range(3):
        host.disk.fail_at(nth, errno.ENOSPC, operation="pwritev", path=".log")
        with pytest.raises(StorageFailedError, match="No space left"):
            await host.boot()
        assert not logs()
        host.disk.crash()
        host.disk.heal()
    await check_life(host)


async def test_an_entry_log_stays_if_a_commit_that_refers_to_it_may_have_happened() -> None:
    host = Host()
    await used(host)
    host.disk.fail_at(1, errno.EIO, operation="commit")
    with pytest.raises(StorageFailedError, match="Input/output"):
        await host.boot()
    assert [name for name in host.disk.listdir("/b/ledgers0") if name.endswith(".log")]
    host.disk.crash()
    host.disk.heal()
    await check_life(host)


async def test_a_log_that_a_checkpoint_refers_to_stays_though_the_next_fails() -> None:
    host = Host(settings=bookie_settings(journal_as_entry_log=False))
    storage = await host.boot()
    await add(storage, Batch(1, 0, payload=ENTRY))
    await storage.checkpoint()
    await add(storage, Batch(1, 1, payload=ENTRY))
    host.disk.fail_at(1, errno.ENOSPC, operation="pwritev", path=".log")
    with pytest.raises(StorageFailedError, match="No space left"):
        await storage.checkpoint()
    host.disk.power_cut()
    host.disk.heal()
    storage = await host.boot()
    assert set((await read_all(storage, 1, 0, 1))[0]) == {0, 1}


def test_a_full_disk_in_the_middle_of_a_life_is_told_and_nothing_is_left() -> None:
    journal = Journal(file_bytes=MIB)
    journal.write(b"x" * 900_000)
    before = journal.files
    journal.disk.capacity_bytes = journal.disk.used_bytes() + 500_000
    with pytest.raises(OSError, match="No space left"):
        journal.writer.write(FrameKind.RECORDS, 1, [b"x" * 900_000])
    assert journal.files == before
    assert len(journal.replay().bodies) == 1


def rolling_host() -> Host:
    """Large entries roll the journal and the entry log; no backups, so that files are recycled at once."""
    values = {"journal_max_backups": 0, "entry_log_max_size_mb": 1, "block_bytes": 300_000}
    return Host(settings=bookie_settings(**values))


async def rolling_life(host: Host, writes: AcknowledgedWrites) -> None:
    """A start, appends, fences, checkpoints, files that are rolled, and an end in order."""
    storage = await host.boot()
    try:
        for i in range(8):
            await writes.add(storage, Batch(1, i, payload=bytes([i]) * 400_000))
            if i % 4 == 3:
                await writes.fence(storage, 10 + i)
                await storage.checkpoint()
    finally:
        await storage.close()


async def without_space_from(nth: int) -> bool:
    """The disk is full from that operation on; whether the bookie's life had got that far."""
    host, writes = rolling_host(), AcknowledgedWrites()
    host.disk.fail_at(nth, errno.ENOSPC, repeat=True)
    try:
        await rolling_life(host, writes)
    except StorageFailedError:
        pass
    else:
        return False
    used_bytes = host.disk.used_bytes()
    for _ in range(3):  # whoever starts it again and again makes nothing worse
        with pytest.raises(StorageFailedError, match="No space left"):
            await host.boot()
        host.disk.crash()
        assert host.disk.used_bytes() <= used_bytes
    host.disk.heal()
    storage = await host.boot()
    await writes.check(storage)
    await writes.add(storage, Batch(1, 20))
    await storage.close()
    return True


@pytest.mark.thorough
@pytest.mark.scenario(49)
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_disk_that_is_full_from_any_operation_on(step: int) -> None:
    nth = 1
    while asyncio.run(without_space_from(nth)):
        nth += step
    assert nth > 40


@pytest.mark.thorough
@pytest.mark.scenario(49)
@pytest.mark.parametrize("step", [2, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_disk_without_space_at_any_operation_of_a_start(step: int) -> None:
    """Once, or from then on: the next start, with space, has everything."""

    async def start(nth: int, repeat: bool) -> bool:
        host = Host()
        await used(host)
        host.disk.fail_at(nth, errno.ENOSPC, repeat=repeat)
        try:
            (await host.boot()).release()
        except StorageFailedError:
            failed = True
        else:
            failed = False
        host.disk.crash()
        host.disk.heal()
        await check_life(host)
        return failed

    for repeat in (False, True):
        nth = 1
        while asyncio.run(start(nth, repeat)):
            nth += step
        assert nth > 10


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    image, mount = tmp_path / "image", tmp_path / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(48 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(mount)], check=True)
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.privileged
async def test_failed_starts_take_no_space_of_a_real_disk(small_disk: Path) -> None:
    settings = bookie_settings(str(small_disk / "b"), journal_max_size_mb=8, index_bytes_max=1 << 24)

    def free() -> int:
        return real_runtime().files.space(str(small_disk))[0]

    async def start(cookie: bytes | None) -> LedgerStorage:
        return await open_storage(settings, real_runtime(), instance_id=INSTANCE, expected_cookie=cookie)

    storage = await start(None)
    cookie = storage.cookie
    await add(storage, Batch(1, 0))
    storage.release()
    with (small_disk / "other").open("wb") as other:
        os.posix_fallocate(other.fileno(), 0, free() - 5 * MIB)
    before = free()
    for _ in range(4):
        with pytest.raises(StorageFailedError, match="No space left"):
            await start(cookie)
        assert abs(free() - before) < MIB
    (small_disk / "other").unlink()
    storage = await start(cookie)
    assert set((await read_all(storage, 1, 0, 0))[0]) == {0}
    await storage.close()
