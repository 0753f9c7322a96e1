"""The simulated ordered store keeps LMDB's promises, and the real one keeps the same."""

from __future__ import annotations

import dataclasses
import errno
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bkpy.config.bookie import BookieSettings
from bkpy.runtime.ordered_store import LmdbStores
from bkpy.runtime.system import RealFiles, SystemRuntime, real_runtime
from bkpy.storage.index.shrink import shrink

from .disk import SimDisk, SimulatedCrash
from .platter import Dirty, EntryStatus
from .store import SimStores

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bkpy.runtime.interfaces import Files, OrderedStore, Stores


SETTINGS = BookieSettings(
    metadata_uri="zk://127.0.0.1:2181/ledgers", bookie_id="a", journal_directories=["/j"], ledger_directories=["/d"]
)


def runtime_of(files: Files, stores: Stores) -> SystemRuntime:
    return dataclasses.replace(real_runtime(), files=files, store=stores)


def drop(item: Dirty) -> EntryStatus:
    return EntryStatus.DROPPED


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk()
    disk.make_dirs("/d")
    return disk


@pytest.fixture(params=["simulated", "lmdb"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path, disk: SimDisk) -> Callable[..., OrderedStore]:
    if request.param == "simulated":
        return lambda **options: SimStores(disk).open("/d/index", **options)
    return lambda **options: LmdbStores().open(str(tmp_path / "index"), **{"bytes_max": 1 << 24, **options})


def rows(store: OrderedStore) -> list[tuple[bytes, bytes]]:
    with store.read() as transaction:
        return list(transaction.scan(b"\0", b"\xff"))


def test_scans_in_both_directions(open_store: Callable[..., OrderedStore]) -> None:
    store = open_store(create=True)
    with store.write() as transaction:
        for key in (b"c", b"a", b"d", b"b"):
            transaction.put(key, b"v" + key)
        assert transaction.get(b"c") == b"vc"
        assert [key for key, _ in transaction.scan(b"a", b"c")] == [b"a", b"b"]
    with store.read() as reader:
        assert list(reader.scan(b"aa", b"d")) == [(b"b", b"vb"), (b"c", b"vc")]
        assert [key for key, _ in reader.scan(b"b", b"d", reverse=True)] == [b"c", b"b"]
        assert [key for key, _ in reader.scan(b"b", b"z", reverse=True)] == [b"d", b"c", b"b"]
        assert list(reader.scan(b"x", b"z")) == []
    store.close()


def test_an_error_leaves_nothing_behind(open_store: Callable[..., OrderedStore]) -> None:
    store = open_store(create=True)
    with store.write() as transaction:
        transaction.put(b"a", b"1")
    with pytest.raises(KeyError), store.write() as transaction:  # noqa: PT012 - the error is the last statement
        transaction.put(b"a", b"2")
        assert transaction.delete(b"a")
        assert not transaction.delete(b"z")
        raise KeyError
    assert rows(store) == [(b"a", b"1")]
    store.close()


def test_a_reader_keeps_its_snapshot(open_store: Callable[..., OrderedStore]) -> None:
    store = open_store(create=True)
    with store.write() as transaction:
        transaction.put(b"a", b"1")
    with store.read() as reader:
        with store.write() as transaction:
            transaction.put(b"a", b"2")
            transaction.put(b"b", b"2")
        assert list(reader.scan(b"\0", b"\xff")) == [(b"a", b"1")]
    assert rows(store) == [(b"a", b"2"), (b"b", b"2")]
    store.close()


def test_a_missing_store_is_not_created_silently(open_store: Callable[..., OrderedStore]) -> None:
    with pytest.raises(FileNotFoundError):
        open_store()
    store = open_store(create=True)
    with store.write() as transaction:
        transaction.put(b"a", b"1")
    store.close()
    store = open_store()
    assert rows(store) == [(b"a", b"1")]
    store.close()


def test_a_commit_survives_a_power_cut_and_an_open_transaction_does_not(disk: SimDisk) -> None:
    store = SimStores(disk).open("/d/index", create=True)
    with store.write() as transaction:
        transaction.put(b"a", b"1")
    pending = store.write()
    pending.__enter__().put(b"b", b"2")
    disk.power_cut(drop)
    with pytest.raises(SimulatedCrash):
        pending.__exit__(None, None, None)
    with pytest.raises(SimulatedCrash):
        rows(store)
    assert rows(SimStores(disk).open("/d/index")) == [(b"a", b"1")]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failed_commit_leaves_the_rows_as_they_were(disk: SimDisk, error: int) -> None:
    store = SimStores(disk).open("/d/index", create=True)
    disk.fail_at(1, error, operation="commit")
    with pytest.raises(OSError, match="index"), store.write() as transaction:
        transaction.put(b"a", b"1")
    assert rows(store) == []
    with store.write() as transaction:
        transaction.put(b"a", b"2")
    assert rows(store) == [(b"a", b"2")]


def test_a_crash_at_the_commit_loses_the_transaction(disk: SimDisk) -> None:
    stores = SimStores(disk)
    store = stores.open("/d/index", create=True)
    disk.crash_at(1, operation="commit")
    with pytest.raises(SimulatedCrash), store.write() as transaction:
        transaction.put(b"a", b"1")
    disk.crash()
    assert rows(stores.open("/d/index")) == []


def test_misuse_fails_here_and_not_only_on_a_real_disk(disk: SimDisk) -> None:
    stores = SimStores(disk)
    store = stores.open("/d/index", create=True)
    with pytest.raises(AssertionError, match="already open"):
        stores.open("/d/index")
    with store.write() as transaction:
        with pytest.raises(AssertionError, match="511"):
            transaction.put(b"k" * 512, b"")
        with pytest.raises(AssertionError, match="wait for ever"), store.write():
            pass
    with pytest.raises(AssertionError, match="has ended"):
        transaction.get(b"a")
    store.close()
    with pytest.raises(AssertionError, match="closed"):
        rows(store)
    with pytest.raises(FileNotFoundError):
        stores.open("/none/index", create=True)


def test_an_unlinked_store_is_gone(disk: SimDisk) -> None:
    stores = SimStores(disk)
    store = stores.open("/d/index", create=True)
    with store.write() as transaction:
        transaction.put(b"a", b"1")
    store.close()
    assert disk.listdir("/d/index") == ["data.mdb", "lock.mdb"]
    disk.unlink("/d/index/data.mdb")
    with pytest.raises(FileNotFoundError):
        stores.open("/d/index")


def test_a_full_store_is_an_os_error_and_stays_as_it_was(open_store: Callable[..., OrderedStore]) -> None:
    store = open_store(create=True, bytes_max=1 << 17)
    with store.write() as transaction:
        transaction.put(b"a", b"1")
    with pytest.raises(OSError, match=r"full|limit") as raised, store.write() as transaction:
        transaction.put(b"b", bytes(1 << 18))
    assert raised.value.errno == errno.ENOSPC
    assert rows(store) == [(b"a", b"1")]
    store.close()


@pytest.mark.parametrize("kind", ["simulated", "lmdb"])
def test_a_copy_has_the_rows_and_no_free_space(kind: str, disk: SimDisk, tmp_path: Path) -> None:
    files: Files = disk if kind == "simulated" else RealFiles()
    root = "/d" if kind == "simulated" else str(tmp_path)
    stores: Stores = SimStores(disk) if kind == "simulated" else LmdbStores()
    store = stores.open(f"{root}/index", create=True, bytes_max=1 << 26)
    for turn in range(10):
        with store.write() as transaction:
            for i in range(1000):
                transaction.put(b"%d-%d" % (turn, i), bytes(200))
    with store.write() as transaction:
        for turn in range(9):
            for i in range(1000):
                transaction.delete(b"%d-%d" % (turn, i))
    kept = rows(store)
    file_bytes, used = store.sizes()
    assert used < 0.3 * file_bytes
    store = shrink(store, root, runtime_of(files, stores), SETTINGS)
    assert files.listdir(root) == ["index"]
    assert rows(store) == kept
    shrunk, used_now = store.sizes()
    assert used_now <= shrunk < 1.2 * used
    with store.write() as transaction:
        transaction.put(b"a", b"1")
    store.close()
    store = stores.open(f"{root}/index", bytes_max=1 << 26)
    assert rows(store) == sorted([*kept, (b"a", b"1")])
    store.close()
    if kind == "lmdb":
        assert (tmp_path / "index" / "data.mdb").stat().st_size < 0.5 * file_bytes


def test_a_reader_of_the_old_file_does_no_harm_to_the_new_one(tmp_path: Path) -> None:
    """A tool may look at the index while its bookie starts."""
    stores = LmdbStores()
    store = stores.open(str(tmp_path / "index"), create=True, bytes_max=1 << 26)
    for i in range(7):
        with store.write() as transaction:
            transaction.put(b"k", b"%d" % i)
    reading = "import lmdb,sys; t=lmdb.open(sys.argv[1]).begin(); print(t.get(b'k'),flush=True); sys.stdin.read()"
    tool = subprocess.Popen(
        [sys.executable, "-c", reading, str(tmp_path / "index")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert tool.stdout is not None
    tool.stdout.readline()
    shrink(store, str(tmp_path), runtime_of(RealFiles(), stores), SETTINGS).close()
    for i in range(3):
        store = stores.open(str(tmp_path / "index"), bytes_max=1 << 26)
        assert rows(store) == [(b"k", b"6"), *[(b"l%d" % j, b"") for j in range(i)]]
        with store.write() as transaction:
            transaction.put(b"l%d" % i, b"")
        store.close()
    tool.communicate()
