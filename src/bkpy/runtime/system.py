"""The operating system's files and threads, and the runtime of a process that stores on them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import functools
import os
import queue
import random
import stat
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bkpy.runtime.directories import sync_dir
from bkpy.runtime.ordered_store import LmdbStores
from bkpy.runtime.process import NoFaults, RealClock, TaskSpawner, this_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bkpy.buffers import Bytes
    from bkpy.runtime.interfaces import Clock, Faults, File, Files, Rng, Spawn, Stores, Worker

T = TypeVar("T")

BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"  # Linux only
_IOV_MAX = 1024  # the kernel's limit on the buffers of one writev


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

    def uncache(self, offset: int, length: int) -> None:
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):  # of a file system that keeps nothing in memory
                os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_DONTNEED)

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
        self._queue: queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, Callable[..., None], Any, Any] | None] = (
            queue.SimpleQueue()
        )
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def run(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._closed:
            future.cancel()  # a caller that doesn't know of the end yet would wait for ever
        else:
            self._queue.put((loop, functools.partial(_resolve, future), function, args))
        return future

    def submit(
        self, done: Callable[[T | None, BaseException | None], None], function: Callable[..., T], *args: Any
    ) -> None:
        if not self._closed:
            self._queue.put((asyncio.get_running_loop(), done, function, args))

    def _loop(self) -> None:
        with contextlib.suppress(OSError):  # Linux only: `top -H` shows it, of which the kernel keeps 15 characters
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(self._thread.name)
        while (item := self._queue.get()) is not None:
            loop, done, function, args = item
            try:
                result, error = function(*args), None
            except BaseException as e:  # handed to the waiter, whatever it is
                result, error = None, e
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(done, result, error)
            del item, done, function, args, result, error  # hold no buffers while idle

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


def _restrict(path: str) -> bool:
    """Take all rights from other accounts; whether they have none now. Not of what a symbolic link leads to."""
    try:
        mode = os.lstat(path).st_mode
        if not stat.S_ISLNK(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
            os.chmod(path, stat.S_IMODE(mode) & stat.S_IRWXU)
    except FileNotFoundError:
        pass
    except OSError:  # it is somebody else's, as the root of a volume in a container may be
        return False
    return True


class RealFiles:
    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        flags = os.O_RDONLY if read_only else os.O_RDWR
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return RealFile(path, os.open(path, flags | os.O_CLOEXEC, 0o600))

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_stream(self, path: str) -> bool:
        return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)

    def make_dirs(self, path: str) -> None:
        missing = []
        at = os.path.abspath(path)
        while not os.path.isdir(at):
            missing.append(at)
            at = os.path.dirname(at)
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):  # another process was faster; its entry is synced all the same
                os.mkdir(directory, 0o700)
            self.sync_dir(os.path.dirname(directory))

    def restrict(self, directory: str) -> bool:
        with os.scandir(directory) as entries:
            files = [entry.path for entry in entries if entry.is_file(follow_symlinks=False)]
        left = [path for path in (directory, *files) if not _restrict(path)]
        return not left

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def link(self, path: str, further: str) -> None:
        os.link(path, further)

    def links(self, path: str) -> int:
        return os.stat(path).st_nlink

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_dir(self, path: str) -> None:
        sync_dir(path)

    def space(self, path: str) -> tuple[int, int]:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def boot_id(self) -> bytes:
        try:
            with open(BOOT_ID_PATH, encoding="ascii") as file:
                return uuid.UUID(file.read().strip()).bytes
        except (OSError, ValueError):
            return os.urandom(16)

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(fd)

    def worker(self, name: str) -> Worker:
        return ThreadWorker(name)


@dataclass(frozen=True)
class SystemRuntime:
    """All that a process takes from outside; the simulator has other parts in it."""

    clock: Clock
    files: Files
    store: Stores
    rng: Rng
    spawn: Spawn
    faults: Faults
    process: str = field(default_factory=this_process)


def real_runtime() -> SystemRuntime:
    """The runtime of a production process that stores on disk."""
    return SystemRuntime(
        clock=RealClock(),
        files=RealFiles(),
        store=LmdbStores(),
        rng=random.SystemRandom(),
        spawn=TaskSpawner(),
        faults=NoFaults(),
    )
