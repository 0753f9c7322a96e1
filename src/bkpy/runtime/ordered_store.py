"""Ordered stores kept by LMDB."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import lmdb

from bkpy.errors import CorruptDataError, StorageFailedError
from bkpy.runtime import lmdb_pages
from bkpy.runtime.directories import exchange, sync_dir

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Iterator
    from types import TracebackType

    from bkpy.runtime.interfaces import OrderedStore, ReadTransaction, WriteTransaction


_META_PAGES = 2
# What damage makes a program do to itself. Other signals come from outside, as SIGKILL where memory is short.
_CRASHES = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE))
_NO_MEMORY = ("MemoryError", f"OSError: [Errno {errno.ENOMEM}]")  # the child's last line
_OPENINGS = 3  # of one store, until its files are found to belong together
_log = logging.getLogger("bkpy.bookie")


class _LmdbTransaction:
    def __init__(self, txn: lmdb.Transaction) -> None:
        self._txn = txn

    def get(self, key: bytes) -> bytes | None:
        value = self._txn.get(key)
        return None if value is None else bytes(value)

    def scan(self, start: bytes, end: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        with self._txn.cursor() as cursor:
            if not reverse:
                found = cursor.set_range(start)
                while found and (key := bytes(cursor.key())) < end:
                    yield key, bytes(cursor.value())
                    found = cursor.next()
                return
            found = cursor.prev() if cursor.set_range(end) else cursor.last()
            while found and (key := bytes(cursor.key())) >= start:
                yield key, bytes(cursor.value())
                found = cursor.prev()

    def put(self, key: bytes, value: bytes) -> None:
        self._txn.put(key, value)

    def delete(self, key: bytes) -> bool:
        return bool(self._txn.delete(key))


class _LmdbContext:
    """Commits on a clean exit, aborts on any other."""

    def __init__(self, env: lmdb.Environment, write: bool) -> None:
        self._env = env
        try:
            self._txn = env.begin(write=write)
        except lmdb.Error as e:
            raise _as_os_error(e) from e

    def __enter__(self) -> _LmdbTransaction:
        return _LmdbTransaction(self._txn)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            try:
                self._txn.commit()
            except lmdb.Error as e:
                raise self._as_os_error(e) from e
            return
        self._txn.abort()
        if isinstance(error, lmdb.Error):
            raise self._as_os_error(error) from error

    def _as_os_error(self, error: lmdb.Error) -> OSError:
        if not isinstance(error, lmdb.MapFullError):
            return _as_os_error(error)
        limit = self._env.info()["map_size"]
        what = f"the store has reached its limit of {limit} bytes, which is index_bytes_max for a bookie's index"
        return OSError(errno.ENOSPC, what, self._env.path())


def _as_os_error(error: lmdb.Error) -> OSError:
    """LMDB's failures as other disk errors: its own codes are negative, the system's are errnos."""
    return OSError(error.code if error.code and error.code > 0 else errno.EIO, str(error))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one that has none
        return f"signal {number}"


def _child(statement: str) -> list[str]:
    """The command that runs a statement with `lmdb_pages` as `pages`, importing little: each start waits for it."""
    folder, name = os.path.split(lmdb_pages.__file__)
    paths = [folder, os.path.dirname(os.path.dirname(lmdb.__file__))]
    code = f"import sys; sys.path += {paths!r}; import {name.removesuffix('.py')} as pages; {statement}"
    return [sys.executable, "-I", "-S", "-c", code]


def _shows_newest(env: lmdb.Environment) -> bool:
    """Whether transactions begin with the newest state that is in the data file.

    They take the number of it from the lock file, as long as any process has that open. A lock file that came from
    another data file, or from an older state of this one, makes LMDB read either of the two meta pages: an old state,
    or no rows at all.
    """
    for _ in range(3):  # the process that writes may commit between the two
        with env.begin() as txn:
            number = txn.id()
        if number == env.info()["last_txnid"]:
            return True
    return False


class LmdbStore:
    def __init__(self, path: str, env: lmdb.Environment) -> None:
        self.path = path
        self._env = env
        self._preparing: subprocess.Popen[bytes] | None = None
        self._prepared_to = -1  # this transaction, or beyond

    def read(self) -> contextlib.AbstractContextManager[ReadTransaction]:
        return _LmdbContext(self._env, write=False)

    def write(self) -> contextlib.AbstractContextManager[WriteTransaction]:
        self._env.reader_check()  # a process that was killed while it read would keep all pages from being used again
        return _LmdbContext(self._env, write=True)

    def sizes(self) -> tuple[int, int]:
        with self._env.begin() as txn:
            stat = txn.stat(self._env.open_db(None, txn))
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return (self._env.info()["last_pgno"] + 1) * stat["psize"], (pages + _META_PAGES) * stat["psize"]

    def copy(self, path: str) -> None:
        os.mkdir(path, 0o700)
        file = os.path.join(path, lmdb_pages.DATA_NAME)
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            self._env.copyfd(fd, compact=True)
            os.fsync(fd)
        except lmdb.Error as e:
            raise _as_os_error(e) from e
        finally:
            os.close(fd)
        sync_dir(path)

    def prepare_check(self, share: float) -> None:
        path, newest = self.path, self._env.info()["last_txnid"]
        if self._preparing is not None:
            code = self._preparing.poll()
            if code is None:
                return
            self._preparing = None
            if code:
                _log.warning("the pages of %s could not be looked through, the next start does it: %d", path, code)
        if newest == self._prepared_to:
            return
        self._prepared_to = newest
        nothing = subprocess.DEVNULL
        try:
            self._preparing = subprocess.Popen(
                _child(f"pages.learn({path!r}, {share!r})"), stdin=nothing, stdout=nothing, stderr=nothing
            )
        except OSError as e:
            _log.warning("the pages of %s can't be looked through, the next start does it: %s", path, e)

    def close(self) -> None:
        if self._preparing is not None:
            self._preparing.kill()
            self._preparing.wait()
            self._preparing = None
        self._env.close()


class LmdbStores:
    def open(
        self,
        path: str,
        *,
        create: bool = False,
        bytes_max: int = 1 << 40,
        readers_max: int = 512,
        read_only: bool = False,
    ) -> OrderedStore:
        if not create and not os.path.exists(os.path.join(path, lmdb_pages.DATA_NAME)):
            raise FileNotFoundError(f"no LMDB environment in {path}")
        for _ in range(_OPENINGS):  # a reader may open one file before an exchange, and the other one after it
            # sync and metasync are on by default: a commit is on disk when it returns.
            try:
                env = lmdb.open(
                    path,
                    map_size=bytes_max,
                    create=create,
                    mode=0o700,  # of the directory; files are 0600
                    max_readers=readers_max,
                    readahead=False,
                    readonly=read_only,
                    # A reader is entered in the table of a lock file, so that a writer leaves it its pages. If there is
                    # no such file, or it can't be written to, then nobody writes.
                    lock=not read_only or os.access(os.path.join(path, "lock.mdb"), os.W_OK),
                )
            except lmdb.Error as e:
                raise _as_os_error(e) from e
            if _shows_newest(env):
                break
            env.close()
        else:
            raise OSError(
                errno.EBUSY,
                "lock.mdb belongs to another data.mdb, or to an older state of it, and a process has it open: end the "
                "processes that read this index (`bkpy bookie check --running`, `bkpy inspect`) and try again",
                path,
            )
        if create:  # LMDB syncs its file, and not the directories that name it
            sync_dir(path)
            sync_dir(os.path.dirname(os.path.abspath(path)))
        return LmdbStore(path, env)

    def check(self, path: str) -> None:
        # In a process of its own: on a damaged file the library may crash it.
        file = os.path.join(path, lmdb_pages.DATA_NAME)
        if not os.path.exists(file):
            return  # there is nothing to check, and opening it raises the error
        done = subprocess.run(_child(f"sys.exit(pages.main({path!r}))"), capture_output=True, text=True)
        if done.returncode == lmdb_pages.DAMAGED:
            raise CorruptDataError(done.stdout.strip(), path=file)
        if -done.returncode in _CRASHES:
            raise CorruptDataError(f"looking through it ends with {_signal_name(-done.returncode)}", path=file)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason is given"])[-1]
            if done.returncode < 0:
                reason = _signal_name(-done.returncode)
            if done.returncode < 0 or reason.startswith(_NO_MEMORY):
                raise StorageFailedError(
                    f"failed to look through it: {reason}. That comes from outside, as where memory is short: nothing "
                    "is known of damage. Free memory and try again",
                    path=file,
                )
            raise CorruptDataError(f"it can't be looked through: {reason}", path=file)

    def exchange(self, store: OrderedStore, other: OrderedStore) -> None:
        assert isinstance(store, LmdbStore)
        assert isinstance(other, LmdbStore)
        exchange(store.path, other.path)
        store.path, other.path = other.path, store.path

    def move(self, source: str, target: str) -> None:
        os.rename(source, target)
        sync_dir(os.path.dirname(os.path.abspath(target)))

    def remove(self, path: str) -> None:
        for name in os.listdir(path):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)
