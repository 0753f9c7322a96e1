"""A simulated ordered store: rows that live in the `data.mdb` of a simulated disk.

A commit is one operation ("commit") of the disk, at which a crash or an error can be asked for as at any other.
Invariants: a transaction takes effect whole or not at all; what was committed survives crash and power cut; a reader
sees the rows as they were when it began. LMDB's own rules (one writer, keys of 1 to 511 bytes, one opening for each
process) are asserted, so that code which breaks them fails here and not only on a real disk.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import posixpath
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bkpy.errors import CorruptDataError

from .disk import SimDisk, SimulatedCrash

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bkpy.runtime.interfaces import OrderedStore

    from .platter import Inode

_KEY_BYTES_MAX = 511  # LMDB's


@dataclass
class _Rows:
    """One committed state; never changed once it is a file's."""

    values: dict[bytes, bytes] = field(default_factory=dict)
    keys: list[bytes] = field(default_factory=list)  # sorted
    file_bytes: int = 0  # the most that there ever were: a store never gives space back by itself
    transaction: int = 0  # that left them so

    @property
    def used_bytes(self) -> int:
        return sum(map(len, self.keys)) + sum(map(len, self.values.values()))


@dataclass
class _Lock:
    """What LMDB keeps in `lock.mdb` as long as any process has it open: the newest transaction, for all of them."""

    transaction: int = 0
    openers: list[SimStore] = field(default_factory=list)


class SimStores:
    """Opens ordered stores on one disk, as `bkpy.runtime.interfaces.Stores`.

    With `survives` it is another process than the bookie's, and outlives that.
    """

    def __init__(self, disk: SimDisk, *, survives: bool = False) -> None:
        self.disk = disk
        self.survives = survives
        self._open: set[str] = set()
        self._generation = disk.generation

    def open(
        self,
        path: str,
        *,
        create: bool = False,
        bytes_max: int = 1 << 40,
        readers_max: int = 512,
        read_only: bool = False,
    ) -> SimStore:
        if self._generation != self.disk.generation:
            self._generation = self.disk.generation
            self._open.clear()
        data = posixpath.join(path, "data.mdb")
        if not self.disk.exists(data):
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no store", path)
            if not self.disk.exists(posixpath.dirname(path.rstrip("/"))):
                raise FileNotFoundError(errno.ENOENT, "no parent directory", path)
            self.disk.operate("open", data)
            self.disk.make_dirs(path)
            self.disk.replace(data, b"")
            self.disk.replace(posixpath.join(path, "lock.mdb"), b"")
        inode = self.disk.inode(data)
        if inode.rows is None:
            inode.rows = _Rows()
        assert path not in self._open, f"the store {path} is already open in this process"
        lock = self._lock(posixpath.join(path, "lock.mdb"), inode.rows, read_only)
        self._open.add(path)
        store = SimStore(self, path, inode, lock, bytes_max, readers_max, read_only)
        if lock is not None:
            lock.openers.append(store)
        return store

    def _lock(self, path: str, rows: _Rows, read_only: bool) -> _Lock | None:
        """The lock file's contents: kept if a process has it open, of the data file as it is otherwise."""
        if not self.disk.exists(path):
            if read_only:
                return None
            self.disk.replace(path, b"")
        inode = self.disk.inode(path)
        lock: _Lock = inode.shared or _Lock()
        inode.shared = lock
        lock.openers = [store for store in lock.openers if store.is_open(self.disk)]
        if not lock.openers:
            lock.transaction = rows.transaction
        elif lock.transaction != rows.transaction:
            raise OSError(errno.EBUSY, "a process holds the lock file of another data file", path)
        return lock

    def closed(self, path: str) -> None:
        self._open.discard(path)

    def check(self, path: str) -> None:
        """Bytes in the file, which has none otherwise, stand for damage: they say what it is."""
        data = posixpath.join(path, "data.mdb")
        if self.disk.exists(data) and (damage := self.disk.contents(data)):
            raise CorruptDataError(damage.decode(), path=data)

    def exchange(self, store: OrderedStore, other: OrderedStore) -> None:
        assert isinstance(store, SimStore)
        assert isinstance(other, SimStore)
        self.disk.exchange(store.path, other.path)
        store.path, other.path = other.path, store.path

    def move(self, source: str, target: str) -> None:
        assert source not in self._open
        assert target not in self.disk.directories, f"{target} is there"
        self.disk.operate("rename", source)
        self.disk.directories[target] = self.disk.directories.pop(source)

    def remove(self, path: str) -> None:
        assert path not in self._open
        self.disk.operate("unlink", path)
        del self.disk.directories[path]


class SimStore:
    """An open store, as `bkpy.runtime.interfaces.OrderedStore`."""

    def __init__(
        self,
        stores: SimStores,
        path: str,
        inode: Inode,
        lock: _Lock | None,
        bytes_max: int,
        readers_max: int,
        read_only: bool,
    ) -> None:
        self._read_only = read_only
        self._stores = stores
        self._disk = stores.disk
        self.path = path
        self._inode = inode
        self._lock = lock
        self._bytes_max = bytes_max
        self._readers_max = readers_max
        self._readers = 0
        self._generation = self._disk.generation
        self._writing = False
        self.closed = False

    def is_open(self, disk: SimDisk) -> bool:
        """Whether a process that lives on that disk has it open."""
        alive = self._stores.survives or self._generation == disk.generation
        return alive and not self.closed and self._disk is disk

    def _check(self) -> None:
        if not self._stores.survives and (self._disk.dead or self._generation != self._disk.generation):
            raise SimulatedCrash(f"store {self.path} after the crash")
        assert not self.closed, f"the store {self.path} is closed"

    def read(self) -> _Reading:
        return _Reading(self)

    def begin(self) -> SimReadTransaction:
        """A transaction that reads, until `end`."""
        self._check()
        self._readers += 1
        assert self._readers <= self._readers_max, f"{self.path} has {self._readers} readers at the same time"
        return SimReadTransaction(self._inode.rows)

    def end(self, transaction: SimReadTransaction) -> None:
        transaction.ended = True
        self._readers -= 1

    @contextlib.contextmanager
    def write(self) -> Iterator[SimWriteTransaction]:
        self._check()
        assert not self._read_only, f"{self.path} was opened to be read"
        assert not self._writing, f"a second write transaction on {self.path} would wait for ever"
        self._writing = True
        transaction = SimWriteTransaction(self._inode.rows)
        try:
            yield transaction
            self._check()
            self._commit(transaction)
        finally:
            self._writing = False
            transaction.ended = True

    def _commit(self, transaction: SimWriteTransaction) -> None:
        if not transaction.changed:
            return
        self._disk.operate("commit", self.path)
        rows = transaction.result()
        used = rows.used_bytes
        if used > self._bytes_max:
            raise OSError(errno.ENOSPC, "the store is full", self.path)
        rows.file_bytes = max(self._inode.rows.file_bytes, used)
        rows.transaction = self._inode.rows.transaction + 1
        self._inode.rows = rows
        if self._lock is not None:
            self._lock.transaction = rows.transaction

    def sizes(self) -> tuple[int, int]:
        self._check()
        return self._inode.rows.file_bytes, self._inode.rows.used_bytes

    def copy(self, path: str) -> None:
        self._check()
        self._disk.make_dirs(path)
        data = posixpath.join(path, "data.mdb")
        self._disk.open(data, create=True).fdatasync()
        rows = self._inode.rows
        self._disk.inode(data).rows = _Rows(rows.values, rows.keys, rows.used_bytes, 1)
        self._disk.sync_dir(path)

    def prepare_check(self, share: float) -> None:
        """There are no pages to look through."""
        self._check()
        assert 0 < share <= 1

    def close(self) -> None:
        if not self.closed and self._generation == self._disk.generation:
            self._stores.closed(self.path)
        self.closed = True


class _Reading:
    """What `SimStore.read` returns; a generator costs more, and there are thousands in a run."""

    __slots__ = ("_store", "_transaction")

    def __init__(self, store: SimStore) -> None:
        self._store = store

    def __enter__(self) -> SimReadTransaction:
        self._transaction = self._store.begin()
        return self._transaction

    def __exit__(self, *error: object) -> None:
        self._store.end(self._transaction)


class SimReadTransaction:
    def __init__(self, rows: _Rows) -> None:
        self._values = rows.values
        self._sorted: list[bytes] | None = rows.keys
        self.ended = False

    def _check(self) -> None:
        assert not self.ended, "the transaction has ended"

    def get(self, key: bytes) -> bytes | None:
        self._check()
        _check_key(key)
        return self._values.get(key)

    def scan(self, start: bytes, end: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        self._check()
        keys = self._keys()
        found = keys[bisect.bisect_left(keys, start) : bisect.bisect_left(keys, end)]
        for key in reversed(found) if reverse else found:
            self._check()
            value = self._values.get(key)
            if value is not None:  # the scanning transaction itself may have deleted it
                yield key, value

    def _keys(self) -> list[bytes]:
        if self._sorted is None:
            self._sorted = sorted(self._values)
        return self._sorted


class SimWriteTransaction(SimReadTransaction):
    def __init__(self, rows: _Rows) -> None:
        super().__init__(rows)
        self.changed = False

    def put(self, key: bytes, value: bytes) -> None:
        self._change()
        _check_key(key)
        assert isinstance(value, bytes), f"a value is bytes, not {type(value).__name__}"
        if key not in self._values:
            self._sorted = None
        self._values[key] = value

    def delete(self, key: bytes) -> bool:
        self._check()
        _check_key(key)
        if key not in self._values:
            return False
        self._change()
        del self._values[key]
        self._sorted = None
        return True

    def _change(self) -> None:
        self._check()
        if not self.changed:
            self.changed = True
            self._values = dict(self._values)

    def result(self) -> _Rows:
        return _Rows(self._values, self._keys())


def _check_key(key: bytes) -> None:
    assert isinstance(key, bytes), f"a key is bytes, not {type(key).__name__}"
    assert 1 <= len(key) <= _KEY_BYTES_MAX, f"a key has 1 to {_KEY_BYTES_MAX} bytes, not {len(key)}"
