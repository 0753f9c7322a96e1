"""The one seam to the outside: clock, files, ordered store, randomness, task spawning and fault points.

Everything above takes these from a `Runtime` and never imports `time`, `random`, `os`, `socket` or `threading` itself,
so that a simulator can run the same code in virtual time on disks that tear. The network comes from the running event
loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import queue
import random
import resource
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import lmdb

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from types import TracebackType

T = TypeVar("T")
Bytes = bytes | bytearray | memoryview

_IOV_MAX = 1024  # the kernel's limit on the buffers of one writev


class Clock(Protocol):
    """Time. `monotonic` is on the same scale as the running loop's `time()`."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""

    def time(self) -> float:
        """Seconds since the Unix epoch; may jump."""


class File(Protocol):
    """An open file. All calls block and belong on a `Worker`, and all raise `OSError`."""

    path: str

    def pwritev(self, buffers: Sequence[Bytes], offset: int) -> int:
        """Write all of `buffers` at `offset`; the number of bytes written, which is all of them."""

    def write_durably(self, buffers: Sequence[Bytes], offset: int) -> None:
        """Write all of `buffers` at `offset` and return once they, and nothing else, are known to be on disk.

        After an error nothing is known: never retry.
        """

    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end of the file."""

    def fdatasync(self) -> None:
        """Return once everything written to this file is on disk. After an error nothing is known: never retry."""

    def allocate(self, length: int) -> None:
        """Reserve disk space for the first `length` bytes and make the file at least that long (zeros)."""

    def truncate(self, length: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Worker(Protocol):
    """A named thread that runs blocking calls one at a time, in the order in which they were submitted."""

    def run(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Run `function(*args)` on the worker; the future is resolved on the loop that called."""

    def close(self) -> None:
        """Finish what was submitted, then end the thread. Blocks until it has ended."""


class Files(Protocol):
    """The file system. All calls except `worker` block and belong on a `Worker` (at start-up, on the loop)."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        """Open for reading and writing. `create`: the file must not exist yet; the caller syncs the directory."""

    def listdir(self, path: str) -> list[str]:
        """Names in the directory, sorted."""

    def exists(self, path: str) -> bool: ...

    def make_dirs(self, path: str) -> None:
        """Create the directory and what is missing above it; those it created are durable on return."""

    def rename(self, source: str, target: str) -> None:
        """Atomically give `source` the name `target`, replacing what is there; the caller syncs the directory."""

    def unlink(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make the directory's entries durable."""

    def space(self, path: str) -> tuple[int, int]:
        """(free, total) bytes of the file system that holds `path`."""

    def lock(self, path: str) -> contextlib.AbstractContextManager[None]:
        """Hold the exclusive lock file `path` until exit; `BlockingIOError` if another process holds it."""

    def worker(self, name: str) -> Worker:
        """A new worker thread of that name."""


class ReadTransaction(Protocol):
    """A consistent snapshot of an ordered store."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, end: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """Rows with start <= key < end, ascending, or descending with `reverse`."""


class WriteTransaction(ReadTransaction, Protocol):
    """All or nothing: sees its own changes, durable when its context exits without an error, gone otherwise."""

    def put(self, key: bytes, value: bytes) -> None: ...

    def delete(self, key: bytes) -> bool:
        """Remove the row; False if there was none."""


class OrderedStore(Protocol):
    """Rows ordered by key. One write transaction at a time; readers never wait. Failures are `OSError`."""

    def read(self) -> contextlib.AbstractContextManager[ReadTransaction]: ...

    def write(self) -> contextlib.AbstractContextManager[WriteTransaction]: ...

    def close(self) -> None: ...


class Stores(Protocol):
    """Opens ordered stores."""

    def open(
        self, path: str, *, create: bool = False, bytes_max: int = 1 << 40, readers_max: int = 512
    ) -> OrderedStore:
        """The store in directory `path`, whose parent exists; one that is created is durable on return.

        Without `create` a missing one raises `FileNotFoundError`.
        """


class Faults(Protocol):
    """Named points where a simulator may make something go wrong."""

    def sometimes(self, point: str) -> bool:
        """Whether the fault named `point` happens now. Never, in production."""


class Rng(Protocol):
    """Randomness that nothing secret depends on."""

    def random(self) -> float: ...

    def randrange(self, stop: int, /) -> int: ...

    def randbytes(self, n: int, /) -> bytes: ...

    def sample(self, population: Sequence[T], k: int) -> list[T]: ...


class Spawn(Protocol):
    def __call__(
        self, coro: Coroutine[Any, Any, Any], *, name: str, on_death: Callable[[BaseException], None] | None = None
    ) -> asyncio.Task[Any]:
        """Start a task that is held until it ends. If it dies by an exception, `on_death` takes its owner down."""


@dataclass(frozen=True)
class Runtime:
    """All that production code takes from outside."""

    clock: Clock
    files: Files
    store: Stores
    rng: Rng
    spawn: Spawn
    faults: Faults


# --- the real ones --------------------------------------------------------------------------------------------------


class RealClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()


class RealFile:
    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd
        self._dsync = getattr(os, "RWF_DSYNC", 0)  # Linux only

    def pwritev(self, buffers: Sequence[Bytes], offset: int) -> int:
        total = 0
        for start in range(0, len(buffers), _IOV_MAX):
            part = buffers[start : start + _IOV_MAX] if len(buffers) > _IOV_MAX else buffers
            want = sum(map(len, part))
            done = os.pwritev(self._fd, part, offset + total)
            if done < want:
                done += self._write_rest(part, done, offset + total)
            total += done
        return total

    def write_durably(self, buffers: Sequence[Bytes], offset: int) -> None:
        if self._dsync and len(buffers) <= _IOV_MAX:
            # One system call: a thread that lets go of the interpreter twice has to wait for it twice.
            try:
                done = os.pwritev(self._fd, buffers, offset, self._dsync)
            except OSError as e:
                if e.errno != errno.EOPNOTSUPP:
                    raise
                self._dsync = 0  # a file system that can't; it has written nothing
            else:
                if done < sum(map(len, buffers)):
                    self._write_rest(buffers, done, offset)
                    os.fdatasync(self._fd)
                return
        self.pwritev(buffers, offset)
        os.fdatasync(self._fd)

    def _write_rest(self, part: Sequence[Bytes], done: int, offset: int) -> int:
        # A short write (signal, nearly full disk): the second try either goes on or raises the reason.
        rest = memoryview(b"".join(part))[done:]
        written = 0
        while rest:
            n = os.pwrite(self._fd, rest, offset + done + written)
            written += n
            rest = rest[n:]
        return written

    def pread(self, length: int, offset: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length and (data := os.pread(self._fd, length - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def allocate(self, length: int) -> None:
        try:
            os.posix_fallocate(self._fd, 0, length)
        except OSError as e:
            raise OSError(e.errno, f"{e.strerror} ({length} bytes were to be reserved)", self.path) from e

    def truncate(self, length: int) -> None:
        os.ftruncate(self._fd, length)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class ThreadWorker:
    """A `Worker` on a thread of its own: results come back in one wake-up of the loop each."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], Any, Any] | None] = (
            queue.SimpleQueue()
        )
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def run(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._closed:
            future.cancel()  # whoever was not told of the end yet would wait for ever
        else:
            self._queue.put((loop, future, function, args))
        return future

    def _loop(self) -> None:
        while (item := self._queue.get()) is not None:
            loop, future, function, args = item
            try:
                result, error = function(*args), None
            except BaseException as e:  # handed to the waiter, whatever it is
                result, error = None, e
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(_resolve, future, result, error)
            del item, future, function, args, result, error  # hold no buffers while idle

    def close(self) -> None:
        self._closed = True
        self._queue.put(None)
        self._thread.join()


def _resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # cancelled meanwhile; the work was done all the same
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class RealFiles:
    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        flags = os.O_RDONLY if read_only else os.O_RDWR
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return RealFile(path, os.open(path, flags | os.O_CLOEXEC, 0o644))

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def make_dirs(self, path: str) -> None:
        missing = []
        at = os.path.abspath(path)
        while not os.path.isdir(at):
            missing.append(at)
            at = os.path.dirname(at)
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):  # another process was faster; its entry is synced all the same
                os.mkdir(directory)
            self.sync_dir(os.path.dirname(directory))

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def space(self, path: str) -> tuple[int, int]:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(fd)

    def worker(self, name: str) -> Worker:
        return ThreadWorker(name)


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
        self._txn = env.begin(write=write)

    def __enter__(self) -> _LmdbTransaction:
        return _LmdbTransaction(self._txn)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            try:
                self._txn.commit()
            except lmdb.Error as e:
                raise _as_os_error(e) from e
            return
        self._txn.abort()
        if isinstance(error, lmdb.Error):
            raise _as_os_error(error) from error


def _as_os_error(error: lmdb.Error) -> OSError:
    """LMDB's failures in the terms of every other disk's: its own codes are negative, the system's are errnos."""
    if isinstance(error, lmdb.MapFullError):
        return OSError(errno.ENOSPC, str(error))
    return OSError(error.code if error.code and error.code > 0 else errno.EIO, str(error))


class LmdbStore:
    def __init__(self, env: lmdb.Environment) -> None:
        self._env = env

    def read(self) -> contextlib.AbstractContextManager[ReadTransaction]:
        return _LmdbContext(self._env, write=False)

    def write(self) -> contextlib.AbstractContextManager[WriteTransaction]:
        return _LmdbContext(self._env, write=True)

    def close(self) -> None:
        self._env.close()


class LmdbStores:
    def open(
        self, path: str, *, create: bool = False, bytes_max: int = 1 << 40, readers_max: int = 512
    ) -> OrderedStore:
        if not create and not os.path.exists(os.path.join(path, "data.mdb")):
            raise FileNotFoundError(f"no LMDB environment in {path}")
        # sync and metasync are on by default: a commit is on disk when it returns.
        try:
            store = LmdbStore(
                lmdb.open(path, map_size=bytes_max, create=create, max_readers=readers_max, readahead=False)
            )
        except lmdb.Error as e:
            raise _as_os_error(e) from e
        if create:  # LMDB syncs its file, and not the directories that name it
            files = RealFiles()
            files.sync_dir(path)
            files.sync_dir(os.path.dirname(os.path.abspath(path)))
        return store


class NoFaults:
    def sometimes(self, point: str) -> bool:
        return False


@dataclass
class TaskSpawner:
    """Holds tasks strongly, names them, and reports a death to the task's owner."""

    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def __call__(
        self, coro: Coroutine[Any, Any, Any], *, name: str, on_death: Callable[[BaseException], None] | None = None
    ) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self.tasks.add(task)

        def ended(done: asyncio.Task[Any]) -> None:
            self.tasks.discard(done)
            if done.cancelled():
                return
            error = done.exception()
            if error is None:
                return
            if on_death is not None:
                on_death(error)
            else:
                done.get_loop().call_exception_handler(
                    {"message": f"task {done.get_name()} died", "exception": error, "task": done}
                )

        task.add_done_callback(ended)
        return task


def descriptors_max() -> int:
    """How many files, sockets among them, this process may have open at once."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def real_runtime() -> Runtime:
    """The runtime of a production process."""
    return Runtime(
        clock=RealClock(),
        files=RealFiles(),
        store=LmdbStores(),
        rng=random.SystemRandom(),
        spawn=TaskSpawner(),
        faults=NoFaults(),
    )
