"""The simulated disk keeps what a disk must keep, and loses what a disk may lose."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .disk import SimDisk, SimFile, SimulatedCrash
from .platter import SECTOR_BYTES, Dirty, EntryStatus
from .world import World


def keep(item: Dirty) -> EntryStatus:
    return EntryStatus.KEPT


def drop(item: Dirty) -> EntryStatus:
    return EntryStatus.DROPPED


def new_disk(seed: int = 0, **kwargs: object) -> SimDisk:
    disk = SimDisk(seed, **kwargs)
    disk.make_dirs("/d")
    return disk


def durable_file(disk: SimDisk, path: str = "/d/f", data: bytes = b"") -> SimFile:
    file = disk.open(path, create=True)
    if data:
        file.pwritev([data], 0)
    file.fdatasync()
    disk.sync_dir("/d")
    return file


def test_reads_see_writes_at_any_offset() -> None:
    disk = new_disk()
    file = disk.open("/d/f", create=True)
    assert file.pwritev([b"abc", memoryview(b"def")], 510) == 6
    assert file.size() == 516
    assert file.pread(600, 508) == b"\0\0abcdef"
    assert file.pread(10, 516) == b""


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(0, 3000), st.binary(min_size=1, max_size=1200)),
            st.tuples(st.just("truncate"), st.integers(0, 3000), st.just(b"")),
            st.tuples(st.just("sync"), st.just(0), st.just(b"")),
        ),
        max_size=12,
    ),
    st.integers(),
)
def test_a_power_cut_loses_nothing_that_was_synced_and_invents_nothing(
    calls: list[tuple[str, int, bytes]], seed: int
) -> None:
    disk = new_disk(seed)
    file = durable_file(disk)
    versions = [b""]  # the contents at the last sync, and after each change since
    for call, offset, data in calls:
        content = bytearray(versions[-1])
        if call == "write":
            file.pwritev([data], offset)
            content.extend(bytes(max(0, offset + len(data) - len(content))))
            content[offset : offset + len(data)] = data
        elif call == "truncate":
            file.truncate(offset)
            content = content[:offset] + bytes(max(0, offset - len(content)))
        else:
            file.fdatasync()
            versions = []
        versions.append(bytes(content))
        assert disk.contents("/d/f") == versions[-1]

    disk.power_cut()

    after = disk.contents("/d/f")
    assert len(after) in {len(versions[0]), len(versions[-1])}
    width = max(map(len, versions))
    padded = [version.ljust(width, b"\0") for version in versions]
    for i, byte in enumerate(after):
        assert byte in {version[i] for version in padded} | {0}
    if len(versions) == 1:
        assert after == versions[0]


def test_sectors_are_decided_one_by_one() -> None:
    disk = new_disk()
    file = durable_file(disk, data=b"o" * SECTOR_BYTES * 3)
    file.pwritev([b"n" * SECTOR_BYTES * 3], 0)
    assert disk.dirty() == [Dirty("sector", "/d/f", i) for i in range(3)]
    disk.power_cut(lambda item: EntryStatus.KEPT if item.index == 1 else EntryStatus.DROPPED)
    assert disk.contents("/d/f") == b"o" * SECTOR_BYTES + b"n" * SECTOR_BYTES + b"o" * SECTOR_BYTES


def test_a_torn_sector_mixes_two_versions() -> None:
    seen = set()
    for seed in range(50):
        disk = new_disk(seed)
        file = durable_file(disk, data=b"o" * SECTOR_BYTES)
        file.pwritev([b"n" * SECTOR_BYTES], 0)
        disk.power_cut(lambda item: EntryStatus.TORN)
        seen.add(disk.contents("/d/f").count(b"n"))
    assert len([n for n in seen if 0 < n < SECTOR_BYTES]) > 20


def test_size_and_contents_are_decided_apart() -> None:
    disk = new_disk()
    file = durable_file(disk)
    file.pwritev([b"x" * SECTOR_BYTES], 0)
    longer, shorter = disk.clone(), disk.clone()
    longer.power_cut(lambda item: EntryStatus.KEPT if item.kind == "size" else EntryStatus.DROPPED)
    assert longer.contents("/d/f") == bytes(SECTOR_BYTES)
    shorter.power_cut(lambda item: EntryStatus.KEPT if item.kind == "sector" else EntryStatus.DROPPED)
    assert shorter.contents("/d/f") == b""
    assert disk.contents("/d/f") == b"x" * SECTOR_BYTES


def test_a_name_is_durable_only_after_sync_dir() -> None:
    disk = new_disk()
    file = disk.open("/d/f", create=True)
    file.pwritev([b"x"], 0)
    file.fdatasync()
    kept, dropped = disk.clone(), disk.clone()
    kept.power_cut(keep)
    assert kept.contents("/d/f") == b"x"
    dropped.power_cut(drop)
    assert not dropped.exists("/d/f")
    disk.sync_dir("/d")
    disk.power_cut(drop)
    assert disk.contents("/d/f") == b"x"


def test_rename_is_atomic_and_unlink_may_come_undone() -> None:
    disk = new_disk()
    durable_file(disk, "/d/old", b"old")
    durable_file(disk, "/d/new", b"new")
    disk.rename("/d/new", "/d/old")
    assert disk.listdir("/d") == ["old"]
    undone = disk.clone()
    undone.power_cut(drop)
    assert (undone.contents("/d/old"), undone.contents("/d/new")) == (b"old", b"new")
    disk.power_cut(keep)
    assert disk.contents("/d/old") == b"new"
    assert disk.listdir("/d") == ["old"]

    disk.unlink("/d/old")
    disk.power_cut(drop)
    assert disk.contents("/d/old") == b"new"


def test_a_renamed_file_is_decided_about_once_under_both_names() -> None:
    disk = new_disk()
    file = disk.open("/d/tmp", create=True)
    file.pwritev([b"x" * SECTOR_BYTES], 0)
    disk.rename("/d/tmp", "/d/f")
    assert [item for item in disk.dirty() if item.kind == "sector"] == [Dirty("sector", "/d/tmp", 0)]
    disk.power_cut(keep)
    assert disk.contents("/d/f") == b"x" * SECTOR_BYTES


def test_a_process_crash_keeps_the_page_cache_and_kills_handles_and_locks() -> None:
    disk = new_disk()
    file = disk.open("/d/f", create=True)
    file.pwritev([b"x"], 0)
    held = disk.lock("/d/lock")
    held.__enter__()
    with pytest.raises(BlockingIOError), disk.lock("/d/lock"):
        pass
    disk.crash()
    assert disk.contents("/d/f") == b"x"
    with pytest.raises(SimulatedCrash):
        file.pwritev([b"y"], 0)
    with disk.lock("/d/lock"):
        held.__exit__(None, None, None)  # a late exit of the dead process doesn't release the living one's
        with pytest.raises(BlockingIOError), disk.lock("/d/lock"):
            pass


def steps(disk: SimDisk) -> None:
    disk.make_dirs("/a")
    file = disk.open("/a/f", create=True)
    file.allocate(4096)
    file.pwritev([b"x" * 1000], 0)
    file.fdatasync()
    disk.sync_dir("/a")
    file.truncate(10)
    disk.rename("/a/f", "/a/g")
    disk.unlink("/a/g")


def test_crash_at_every_operation() -> None:
    whole = SimDisk()
    seen: list[str] = []
    whole.observer = lambda operation, path: seen.append(operation)
    steps(whole)
    assert seen == ["make_dirs", "open", "allocate", "pwritev", "fdatasync", "sync_dir", "truncate", "rename", "unlink"]
    for n in range(1, whole.operations + 1):
        disk = SimDisk()
        crashes: list[int] = []
        disk.on_crash = lambda disk=disk, crashes=crashes: crashes.append(disk.operations)
        disk.crash_at(n)
        with pytest.raises(SimulatedCrash):
            steps(disk)
        assert crashes == [n]
        with pytest.raises(SimulatedCrash):
            disk.make_dirs("/b")
        disk.crash()
        disk.make_dirs("/b")


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_fail_at_every_operation(error: int) -> None:
    whole = SimDisk()
    steps(whole)
    for n in range(1, whole.operations + 1):
        disk = SimDisk()
        disk.fail_at(n, error)
        with pytest.raises(OSError, match="/a") as raised:
            steps(disk)
        assert raised.value.errno == error
        disk.make_dirs("/b")


def test_faults_pick_an_operation_and_a_path_and_may_go_on() -> None:
    disk = new_disk()
    one, two = durable_file(disk, "/d/one", b"1"), durable_file(disk, "/d/two", b"2")
    disk.fail_at(2, errno.EIO, operation="pread", path="two", repeat=True)
    assert (one.pread(1, 0), two.pread(1, 0)) == (b"1", b"2")
    for _ in range(2):
        with pytest.raises(OSError, match="two"):
            two.pread(1, 0)
    assert one.pread(1, 0) == b"1"
    disk.heal()
    assert two.pread(1, 0) == b"2"


def test_a_failed_write_leaves_a_prefix() -> None:
    lengths = set()
    for seed in range(40):
        disk = new_disk(seed)
        file = disk.open("/d/f", create=True)
        disk.fail_at(1, errno.EIO, operation="pwritev")
        with pytest.raises(OSError, match="f"):
            file.pwritev([b"x" * 100], 0)
        assert disk.contents("/d/f") == b"x" * file.size()
        lengths.add(file.size())
    assert len(lengths) > 10


def test_after_a_failed_fdatasync_the_kernel_calls_the_pages_clean() -> None:
    lost = 0
    for seed in range(40):
        disk = new_disk(seed)
        file = durable_file(disk, data=b"o" * SECTOR_BYTES * 8)
        file.pwritev([b"n" * SECTOR_BYTES * 8], 0)
        disk.fail_at(1, errno.EIO, operation="fdatasync")
        with pytest.raises(OSError, match="f"):
            file.fdatasync()
        file.fdatasync()  # says yes, and has written nothing
        assert disk.contents("/d/f") == b"n" * SECTOR_BYTES * 8
        disk.power_cut(keep)
        lost += disk.contents("/d/f") != b"n" * SECTOR_BYTES * 8
    assert lost > 30


def test_a_full_disk() -> None:
    disk = new_disk(capacity_bytes=10_000)
    file = disk.open("/d/f", create=True)
    file.allocate(9_000)
    assert disk.space("/d") == (1_000, 10_000)
    with pytest.raises(OSError, match="No space"):
        disk.open("/d/g", create=True).allocate(1_001)
    file.pwritev([b"x" * 9_000], 0)  # what was allocated can be written
    with pytest.raises(OSError, match="No space"):
        file.pwritev([b"y" * 2_000], 9_000)
    assert file.size() == 10_000  # a short write, then the error
    disk.unlink("/d/g")
    disk.unlink("/d/f")
    assert disk.space("/d") == (10_000, 10_000)


def test_flip_changes_what_is_read_now_and_after_a_power_cut() -> None:
    disk = new_disk()
    file = durable_file(disk, data=b"abc")
    disk.flip("/d/f", 1, 0x20)
    assert file.pread(3, 0) == b"aBc"
    disk.power_cut(drop)
    assert disk.contents("/d/f") == b"aBc"
    with pytest.raises(ValueError, match="3 bytes"):
        disk.flip("/d/f", 3)


def test_errors_of_a_file_system() -> None:
    disk = new_disk()
    file = durable_file(disk, data=b"abc")
    with pytest.raises(FileNotFoundError):
        disk.open("/d/none")
    with pytest.raises(FileNotFoundError):
        disk.open("/none/f", create=True)
    with pytest.raises(FileExistsError):
        disk.open("/d/f", create=True)
    with pytest.raises(IsADirectoryError):
        disk.open("/d")
    with pytest.raises(FileExistsError):
        disk.make_dirs("/d/f")
    with pytest.raises(FileNotFoundError):
        disk.listdir("/none")
    with pytest.raises(FileNotFoundError):
        disk.sync_dir("/none")
    with pytest.raises(FileNotFoundError):
        disk.unlink("/d/none")
    with pytest.raises(FileNotFoundError):
        disk.rename("/d/none", "/d/f")
    reader = disk.open("/d/f", read_only=True)
    with pytest.raises(OSError, match="Bad file"):
        reader.pwritev([b"x"], 0)
    file.close()
    with pytest.raises(OSError, match="Bad file"):
        file.fdatasync()
    assert disk.listdir("/") == ["d"]
    assert disk.exists("/d")
    assert not disk.exists("/d/none")


async def _calls_run_in_order(latency: tuple[float, float] | None) -> None:
    disk = new_disk(latency_s=latency)
    worker = disk.worker("w")
    order: list[int] = []

    def call(i: int) -> int:
        order.append(i)
        if i == 3:
            raise OSError(errno.EIO, "three")
        return i

    futures = [worker.run(call, i) for i in range(6)]
    assert order == []
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert order == [0, 1, 2, 3, 4, 5]
    assert [r for r in results if not isinstance(r, OSError)] == [0, 1, 2, 4, 5]
    last = worker.run(call, 6)
    worker.close()
    assert order[-1] == 6
    assert await last == 6
    after = worker.run(call, 7)
    await asyncio.sleep(0)
    assert after.cancelled()  # as of the real one
    assert order[-1] == 6


async def test_a_worker_runs_calls_in_order_and_hands_over_errors() -> None:
    await _calls_run_in_order(None)


def test_a_worker_whose_disk_takes_time_runs_calls_in_order_and_hands_over_errors() -> None:
    World(0).run(_calls_run_in_order((0.0001, 0.0005)))


async def test_a_stall_holds_the_workers() -> None:
    disk = new_disk()
    worker = disk.worker("w")
    disk.stall()
    future = worker.run(disk.listdir, "/d")
    for _ in range(10):
        await asyncio.sleep(0)
    assert not future.done()
    disk.unstall()
    assert await future == []


async def test_a_crash_on_a_worker_reaches_the_waiter() -> None:
    disk = new_disk()
    disk.crash_at(1)
    with pytest.raises(SimulatedCrash):
        await disk.worker("w").run(disk.make_dirs, "/e")


def test_the_same_seed_tears_the_same_way() -> None:
    def run(seed: int) -> bytes:
        disk = new_disk(seed)
        file = durable_file(disk, data=random.Random(1).randbytes(20_000))
        file.pwritev([random.Random(2).randbytes(25_000)], 100)
        disk.power_cut()
        return disk.contents("/d/f")

    assert run(1) == run(1)
    assert run(1) != run(2)
