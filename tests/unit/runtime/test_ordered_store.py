"""Stores kept by LMDB, with others that read the same file."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.storage.support import settings

from bkpy.errors import CorruptDataError, StorageFailedError
from bkpy.runtime.directories import exchange
from bkpy.runtime.ordered_store import LmdbStores
from bkpy.runtime.system import real_runtime
from bkpy.storage.tools.rebuild.standing import standing_of

if TYPE_CHECKING:
    from pathlib import Path

    from bkpy.runtime.interfaces import OrderedStore

READER = """
import sys, time
from bkpy.runtime.ordered_store import LmdbStores

with LmdbStores().open(sys.argv[1], bytes_max=1 << 30, read_only=True).read() as txn:
    print(sum(1 for _ in txn.scan(b"a", b"z")), flush=True)
    time.sleep(600)
"""


def rewrite(store: OrderedStore, times: int) -> None:
    for number in range(times):
        with store.write() as txn:
            for row in range(100):
                txn.put(b"row %03d" % row, b"%03d" % number * 100)


def test_a_store_that_is_full_names_itself_and_its_limit(tmp_path: Path) -> None:
    store = LmdbStores().open(str(tmp_path / "index"), create=True, bytes_max=1 << 16)
    with pytest.raises(OSError, match="limit of 65536 bytes, which is index_bytes_max") as failure:
        rewrite(store, 10)
    assert (failure.value.errno, failure.value.filename) == (errno.ENOSPC, str(tmp_path / "index"))
    store.close()


@pytest.mark.thorough
def test_a_reader_that_was_killed_keeps_no_pages(tmp_path: Path) -> None:
    """An inspection of a running bookie that is ended by force: the index must not grow from then on."""
    store = LmdbStores().open(str(tmp_path / "index"), create=True, bytes_max=1 << 30)
    rewrite(store, 20)
    before = store.sizes()[0]
    reader = subprocess.Popen([sys.executable, "-c", READER, str(tmp_path / "index")], stdout=subprocess.PIPE)
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"100\n"
    rewrite(store, 20)
    during = store.sizes()[0]
    assert during > 2 * before, "the reader has to find what it had found"
    reader.kill()
    reader.wait()
    reader.stdout.close()
    rewrite(store, 200)
    assert store.sizes()[0] < 1.2 * during
    store.close()


def commit(store: OrderedStore, first: int, count: int) -> None:
    for number in range(first, first + count):
        with store.write() as txn:
            txn.put(b"row %03d" % number, b"")


def rows(store: OrderedStore) -> int:
    with store.read() as txn:
        return len(list(txn.scan(b"a", b"z")))


@pytest.mark.parametrize("commits", [6, 7])
def test_the_lock_file_of_another_data_file_is_refused(tmp_path: Path, commits: int) -> None:
    """LMDB would go by the transaction's number in it: one of two meta pages, of which one has no rows."""
    path, copy = str(tmp_path / "index"), str(tmp_path / "copy")
    store = LmdbStores().open(path, create=True, bytes_max=1 << 30)
    commit(store, 0, commits)
    store.copy(copy)
    store.close()
    reader = subprocess.Popen([sys.executable, "-c", READER, path], stdout=subprocess.PIPE)
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"%d\n" % commits
    os.rename(f"{copy}/data.mdb", f"{path}/data.mdb")
    for read_only in (False, True):
        with pytest.raises(OSError, match="belongs to another") as raised:
            LmdbStores().open(path, bytes_max=1 << 30, read_only=read_only)
        assert (raised.value.errno, raised.value.filename) == (errno.EBUSY, path)
    reader.kill()
    reader.wait()
    reader.stdout.close()
    store = LmdbStores().open(path, bytes_max=1 << 30)
    assert rows(store) == commits
    store.close()


def test_an_exchange_that_can_not_be_done_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    with pytest.raises(FileNotFoundError):
        exchange(str(one), str(other))
    other.mkdir()
    (one / "file").touch()
    with monkeypatch.context() as patched:
        patched.setattr(ctypes, "CDLL", lambda *_, **__: object())  # a library that has no such call
        with pytest.raises(OSError, match="not supported") as refused:
            exchange(str(one), str(other))
        assert refused.value.errno == errno.ENOTSUP
    assert os.listdir(one) == ["file"]
    exchange(str(one), str(other))
    assert os.listdir(other) == ["file"]


OPENER = """
import errno, sys
from bkpy.runtime.ordered_store import LmdbStores

turn = 0
while True:
    try:
        store = LmdbStores().open(sys.argv[1], bytes_max=1 << 30, read_only=turn % 2 == 0)
    except OSError as e:
        if e.errno != errno.EBUSY:
            raise
        continue  # refused, as an index is whose two files don't belong together, until both are of the new one
    with store.read() as txn:
        print(sum(1 for _ in txn.scan(b"a", b"z")), flush=True)
    store.close()
    turn += 1
"""


def opened_once_it_may_be(stores: LmdbStores, path: str) -> OrderedStore:
    """The store; an opening beside another process's may be refused, and is tried again."""
    while True:
        try:
            return stores.open(path, bytes_max=1 << 30)
        except OSError as e:
            if e.errno != errno.EBUSY:
                raise


@pytest.mark.thorough
def test_a_reader_that_opens_a_store_during_exchanges_finds_all_rows_and_hides_none(tmp_path: Path) -> None:
    """Between the openings of the two files the directory that has their name may be another one."""
    path, other = str(tmp_path / "index"), str(tmp_path / "other")
    stores = LmdbStores()
    store = stores.open(path, create=True, bytes_max=1 << 30)
    commit(store, 0, 8)
    reader = subprocess.Popen([sys.executable, "-c", OPENER, path], stdout=subprocess.PIPE)
    assert reader.stdout is not None
    for turn in range(100):
        store.copy(other)
        copy = stores.open(other, bytes_max=1 << 30)
        assert rows(copy) == 8 + turn
        stores.exchange(store, copy)
        store.close()
        stores.remove(other)
        store = copy
        commit(store, 8 + turn, 1)
        store.close()
        store = opened_once_it_may_be(stores, path)
        assert rows(store) == 9 + turn
        found = int(reader.stdout.readline())
        assert 8 <= found <= 9 + turn
    reader.kill()
    reader.wait()
    reader.stdout.close()
    store.close()


ENDS = {
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",  # as by the kernel, where memory is short
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "MemoryError": "raise MemoryError",
    "Cannot allocate memory": "raise OSError(12, os.strerror(12))",
}


@pytest.mark.parametrize("why", ENDS)
def test_a_look_through_a_store_that_is_ended_from_outside_finds_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Or else an operator rebuilds a sound index, and a rebuild concludes that the old one can't be read."""
    path = str(tmp_path / "index")
    LmdbStores().open(path, create=True).close()
    run = subprocess.run

    def ended(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return run([*command[:-1], f"import os, signal; {ENDS[why]}"], **options)

    monkeypatch.setattr(subprocess, "run", ended)
    with pytest.raises(StorageFailedError, match=f"{why}.*nothing is known of damage") as failure:
        LmdbStores().check(path)
    assert failure.value.path == f"{path}/data.mdb"
    with pytest.raises(StorageFailedError, match="nothing is known of damage"):
        standing_of(real_runtime(), str(tmp_path), settings())
    monkeypatch.undo()
    LmdbStores().check(path)


def test_a_look_through_a_store_that_crashes_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "index")
    LmdbStores().open(path, create=True).close()
    run = subprocess.run

    def crashing(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return run([*command[:-1], "import os, signal; os.kill(os.getpid(), signal.SIGBUS)"], **options)

    monkeypatch.setattr(subprocess, "run", crashing)
    with pytest.raises(CorruptDataError, match="ends with SIGBUS"):
        LmdbStores().check(path)
