"""A simulated disk: what a process sees, what would survive a power cut, and the faults between the two.

Every file has *view* sectors (what reads return), *durable* sectors, and the versions that each dirty sector went
through since the last fdatasync. A process crash keeps the view (the kernel's page cache); a power cut decides for each
dirty sector, size and directory entry on its own whether it was kept, dropped or torn. Nothing here depends on the
simulated loop but `latency_s`, so storage tests use it with plain calls or with plain asyncio.

Invariants: after a successful `fdatasync` no power cut loses what was written before it; after `sync_dir` none loses
the directory's entries; a handle of a crashed process can never change the disk again.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import errno
import functools
import os
import posixpath
import random
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .platter import SECTOR_BYTES, ZEROS, Directory, Dirty, EntryStatus, Inode, all_entries, apply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bkpy.buffers import Bytes

    from .loop import SimLoop

T = TypeVar("T")
Bytes = bytes | bytearray | memoryview

PLENTY_BYTES = 1 << 40  # more than any run writes: nobody has to count
_REPORTED = ("pread",)  # operations that change nothing: counted only where a fault asks for them by name


class SimulatedCrash(BaseException):
    """The process died here. Not an `Exception`, so that no handler of the code under test survives it."""


@dataclass
class _Fault:
    """Happens at the `nth` matching operation from now, and at all that follow if `repeat`."""

    error: int | None  # an errno, or None for a crash of the process
    nth: int
    operation: str | None
    path: str
    repeat: bool
    seen: int = 0

    def strikes(self, operation: str, path: str) -> bool:
        if self.operation is None:
            if operation in _REPORTED:
                return False
        elif operation != self.operation:
            return False
        if self.path not in path:
            return False
        self.seen += 1
        return self.seen == self.nth or (self.repeat and self.seen > self.nth)


class SimDisk:
    """The disk of one host, as `bkpy.runtime.interfaces.Files`.

    `operations` counts everything that changes the disk. `latency_s` is the range of the virtual delay before a worker
    runs a call and again before its result is seen; None, the default, runs calls on the loop's next turn.
    """

    def __init__(
        self,
        seed: int | str = 0,
        *,
        capacity_bytes: int = PLENTY_BYTES,
        latency_s: tuple[float, float] | None = None,
    ) -> None:
        self.rng = random.Random(f"disk-{seed}")
        self.capacity_bytes = capacity_bytes
        self.latency_s = latency_s
        self.operations = 0
        self.power_cuts = 1
        self.generation = 0  # of the process; handles of an earlier one are dead
        self.dead = False  # crashed and not yet started again
        self.never_syncs: str | None = None  # syncs of paths with this part do nothing: to see that a test notices
        self.unreadable: list[tuple[str, range]] = []  # (part of a path, bytes of such files that no read gets)
        self.no_links: int | None = None  # the error of each attempt to give a file a further name
        self.no_exchange: int | None = None  # the error of each attempt to let two directories exchange their names
        self.observer: Callable[[str, str], None] | None = None  # (operation, path) of all that changes the disk
        self.on_crash: Callable[[], None] | None = None
        self._faults: list[_Fault] = []
        self.directories: dict[str, Directory] = {"/": Directory()}
        self._exchanges: list[tuple[str, str]] = []  # of directories, that are not durable
        self._locks: set[str] = set()
        self._stalled: str | None = None  # the workers that run nothing, by a part of their names
        self._waiting: list[Callable[[], None]] = []  # workers that go on when the stall ends

    # --- faults -----------------------------------------------------------------------------------------------------

    def crash_at(self, nth: int, *, operation: str | None = None, path: str = "") -> None:
        """Crash the process at the `nth` matching operation from now (1 is the next), before it takes full effect.

        Operations: open, pwritev, fdatasync, allocate, truncate, rename, link, unlink, make_dirs, sync_dir, commit and
        exchange (of stores), pread; None matches all but pread. `path` is a part of the path. A write may leave a
        prefix behind.
        """
        self._faults.append(_Fault(None, nth, operation, path, repeat=True))

    def fail_at(
        self, nth: int, error: int, *, operation: str | None = None, path: str = "", repeat: bool = False
    ) -> None:
        """Let the `nth` matching operation from now fail with that errno, and with `repeat` all after it.

        A failed write leaves a prefix behind (a short write, then the error). A failed fdatasync leaves an arbitrary
        part of the dirty sectors on disk and forgets that the others are dirty, as Linux does.
        """
        self._faults.append(_Fault(error, nth, operation, path, repeat))

    def heal(self) -> None:
        """Forget all faults that were asked for, and end a stall."""
        self._faults.clear()
        self.unstall()

    def stall(self, workers: str = "") -> None:
        """Let workers with this part in their names run nothing until `unstall`."""
        self._stalled = workers

    def unstall(self) -> None:
        self._stalled = None
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()

    def swap_out(self) -> None:
        """Put an empty disk in the place of this one. No process may use it meanwhile."""
        self.directories = {"/": Directory()}

    def move_directory(self, path: str, place: str) -> None:
        """Move a directory with all that is in it, durably, as people do while nobody uses it."""
        self.make_dirs(posixpath.dirname(place))
        for at in [at for at in self.directories if at == path or at.startswith(f"{path}/")]:
            self.directories[place + at.removeprefix(path)] = self.directories.pop(at)
        self._exchanges = [pair for pair in self._exchanges if not pair[0].startswith(f"{path}/")]

    def flip(self, path: str, offset: int, mask: int = 1) -> None:
        """Flip the bits of `mask` in one stored byte: rot that no checksum of the disk has noticed."""
        inode = self.inode(path)
        sector, inside = divmod(offset, SECTOR_BYTES)
        if offset >= inode.size:
            raise ValueError(f"{path} has {inode.size} bytes, there is none at {offset}")
        for sectors in (inode.view, inode.durable):
            content = bytearray(sectors.get(sector, ZEROS))
            content[inside] ^= mask
            sectors[sector] = bytes(content)
        if sector in inode.dirty:
            inode.dirty[sector].append(inode.view[sector])

    def crash(self) -> None:
        """The process is gone, the page cache stays. Handles and locks are dead; the disk can be used again at once."""
        self.generation += 1
        self.dead = False
        self._locks.clear()
        self._waiting.clear()
        self._faults = [fault for fault in self._faults if fault.error is not None]

    def power_cut(self, entry_status: Callable[[Dirty], EntryStatus] | None = None) -> None:
        """The process and the page cache are gone; `fate` decides about each dirty thing, by default at random."""
        self.power_cuts += 1
        choose = entry_status or self._random_fate
        for number, (path, other) in reversed([*enumerate(self._exchanges)]):
            if choose(Dirty("exchange", path, number)) is EntryStatus.DROPPED:
                self._exchange(path, other)
        self._exchanges.clear()
        for item, inodes in self._undecided().items():
            self._settle(item, inodes, choose(item))
        for directory in self.directories.values():
            directory.view = dict(directory.durable)
            directory.dirty.clear()
            for inode in directory.view.values():
                inode.settle()
        self.crash()

    def _random_fate(self, item: Dirty) -> EntryStatus:
        if item.kind == "sector":
            return self.rng.choices((EntryStatus.KEPT, EntryStatus.DROPPED, EntryStatus.TORN), (45, 45, 10))[0]
        return self.rng.choice((EntryStatus.KEPT, EntryStatus.DROPPED))

    def dirty(self) -> list[Dirty]:
        """All that a power cut now would decide about, in a fixed order."""
        return list(self._undecided())

    def _undecided(self) -> dict[Dirty, list[Inode]]:
        """What is dirty, and in which files: those that shared a name since the last sync_dir share the decision."""
        found: dict[Dirty, list[Inode]] = {}
        seen: set[int] = set()  # a file with names in two directories is decided about once, in the first
        for at, directory in sorted(self.directories.items()):
            for i in range(len(directory.dirty)):
                found[Dirty("entry", at, i)] = []
            for name, inode in sorted(all_entries(directory), key=lambda entry: entry[0]):
                if id(inode) in seen:
                    continue
                seen.add(id(inode))
                path = posixpath.join(at, name)
                for sector in sorted(inode.dirty):
                    found.setdefault(Dirty("sector", path, sector), []).append(inode)
                if inode.size != inode.durable_size:
                    found.setdefault(Dirty("size", path, 0), []).append(inode)
        return found

    def _settle(self, item: Dirty, inodes: list[Inode], entry_status: EntryStatus) -> None:
        if item.kind == "entry" and entry_status is EntryStatus.KEPT:
            directory = self.directories[item.path]
            apply(directory.durable, directory.dirty[item.index])
        for inode in inodes:
            if item.kind == "sector":
                inode.decide(item.index, entry_status, self.rng)
            elif entry_status is EntryStatus.KEPT:
                inode.durable_size = inode.size

    def clone(self) -> SimDisk:
        """A copy that shares nothing, to try several power cuts from one state. Handles stay with the original."""
        copied = copy.copy(self)
        copied.observer, copied.on_crash, copied._waiting = None, None, []
        copied.rng = random.Random()
        copied.rng.setstate(self.rng.getstate())
        copied._faults = [copy.copy(fault) for fault in self._faults]
        copied._locks = set(self._locks)
        copied._exchanges = list(self._exchanges)
        twins: dict[int, Inode] = {}  # a file may have several names

        def twin(inode: Inode) -> Inode:
            return twins.get(id(inode)) or twins.setdefault(id(inode), inode.copy())

        copied.directories = {at: directory.copy(twin) for at, directory in self.directories.items()}
        return copied

    # --- a way around the file system, for tests ----------------------------------------------------------------------

    def contents(self, path: str) -> bytes:
        """All bytes of a file as a process sees them."""
        inode = self.inode(path)
        return inode.read(inode.size, 0)

    def replace(self, path: str, data: bytes) -> None:
        """Make `data` the durable contents of a file, existing or not. Not an operation: nothing can fail."""
        directory, name = self._parent(path)
        inode = Inode(size=len(data))
        inode.write(data, 0)
        inode.sync()
        directory.view[name] = directory.durable[name] = inode

    # --- operations -----------------------------------------------------------------------------------------------

    def operate(self, operation: str, path: str) -> None:
        """Count an operation and let its faults happen. Raises what they say."""
        if self.dead:
            raise SimulatedCrash(f"{operation} {path} after the crash")
        if operation not in _REPORTED:
            self.operations += 1
            if self.observer is not None:
                self.observer(operation, path)
        if not self._faults:
            return
        # Every fault counts every matching operation, also one at which another fault strikes.
        struck = [fault for fault in self._faults if fault.strikes(operation, path)]
        if not struck:
            return
        if any(fault.error is None for fault in struck):
            self.dead = True
            if self.on_crash is not None:
                self.on_crash()
            raise SimulatedCrash(f"at operation {self.operations}: {operation} {path}")
        error = struck[0].error
        assert error is not None
        raise OSError(error, os.strerror(error), path)

    def delay(self) -> float:
        """A virtual delay, as `Random.uniform` draws it."""
        assert self.latency_s is not None
        shortest, longest = self.latency_s
        return shortest + (longest - shortest) * self.rng.random()

    def used_bytes(self) -> int:
        sizes = {id(inode): inode.size for d in self.directories.values() for inode in d.view.values()}
        return sum(sizes.values())

    def _room_for(self, inode: Inode, size: int) -> int:
        """How large the file may become, at most `size`."""
        return min(size, inode.size + max(0, self.capacity_bytes - self.used_bytes()))

    def _parent(self, path: str) -> tuple[Directory, str]:
        at, name = _split(path)
        directory = self.directories.get(at)
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return directory, name

    def inode(self, path: str) -> Inode:
        """The file at `path`, as the process sees it."""
        directory, name = self._parent(path)
        if _normal(path) in self.directories:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if name not in directory.view:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return directory.view[name]

    # --- Files ------------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> SimFile:
        if create:
            self.operate("open", path)
            directory, name = self._parent(path)
            if name in directory.view or _normal(path) in self.directories:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            directory.change([(name, Inode())])
        elif self.dead:
            raise SimulatedCrash(f"open {path} after the crash")
        return SimFile(self, path, self.inode(path), read_only)

    def listdir(self, path: str) -> list[str]:
        at = _normal(path)
        if at not in self.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        below = {name for d in self.directories if d != "/" for above, name in (_split(d),) if above == at}
        return sorted(below | set(self.directories[at].view))

    def exists(self, path: str) -> bool:
        if _normal(path) in self.directories:
            return True
        try:
            self.inode(path)
        except OSError:
            return False
        return True

    def is_stream(self, path: str) -> bool:
        return False

    def restrict(self, directory: str) -> bool:
        return True

    def make_dirs(self, path: str) -> None:
        """Durable on return, like the real one."""
        at = _normal(path)
        if at in self.directories:
            return
        self.operate("make_dirs", path)
        while at not in self.directories:
            above = self.directories.get(posixpath.dirname(at))
            if above is not None and posixpath.basename(at) in above.view:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            self.directories[at] = Directory()
            at = posixpath.dirname(at)

    def rename(self, source: str, target: str) -> None:
        self.operate("rename", source)
        inode = self.inode(source)
        directory, name = self._parent(source)
        into, new_name = self._parent(target)
        if into is not directory:
            raise OSError(errno.EXDEV, "a rename across directories isn't modelled", source)
        if _normal(target) in self.directories:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
        if new_name != name:
            directory.change([(name, None), (new_name, inode)])

    def exchange(self, path: str, other: str) -> None:
        """Let two directories in the same one exchange their names."""
        self.operate("exchange", path)
        if self.no_exchange is not None:
            raise OSError(self.no_exchange, os.strerror(self.no_exchange), path)
        self._exchange(path, other)
        self._exchanges.append((path, other))

    def _exchange(self, path: str, other: str) -> None:
        at = self.directories
        at[path], at[other] = at[other], at[path]

    def link(self, path: str, further: str) -> None:
        self.operate("link", further)
        inode = self.inode(path)
        directory, name = self._parent(further)
        if self.exists(further):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), further)
        if self.no_links is not None:
            raise OSError(self.no_links, os.strerror(self.no_links), further)
        directory.change([(name, inode)])

    def links(self, path: str) -> int:
        inode = self.inode(path)
        return sum(named is inode for d in self.directories.values() for named in d.view.values())

    def unlink(self, path: str) -> None:
        self.operate("unlink", path)
        self.inode(path)
        directory, name = self._parent(path)
        directory.change([(name, None)])

    def sync_dir(self, path: str) -> None:
        self.operate("sync_dir", path)
        at = _normal(path)
        if at not in self.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.directories[at].sync()
        self._exchanges = [pair for pair in self._exchanges if posixpath.dirname(pair[0]) != at]

    def space(self, path: str) -> tuple[int, int]:
        return max(0, self.capacity_bytes - self.used_bytes()), self.capacity_bytes

    def boot_id(self) -> bytes:
        return self.power_cuts.to_bytes(16, "big")

    @contextlib.contextmanager
    def lock(self, path: str) -> Iterator[None]:
        at, generation = _normal(path), self.generation
        if at in self._locks:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
        if not self.exists(path):
            self.open(path, create=True)
        self._locks.add(at)
        try:
            yield
        finally:
            if generation == self.generation:
                self._locks.discard(at)

    def worker(self, name: str) -> SimWorker:
        return SimWorker(self, name)


@functools.lru_cache(1 << 12)
def _normal(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


@functools.lru_cache(1 << 12)
def _split(path: str) -> tuple[str, str]:
    return posixpath.split(_normal(path))


class SimFile:
    """An open file, as `bkpy.runtime.interfaces.File`."""

    def __init__(self, disk: SimDisk, path: str, inode: Inode, read_only: bool) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._read_only = read_only
        self._generation = disk.generation
        self._closed = False
        self.uncached: list[tuple[int, int]] = []

    def _check(self, operation: str) -> None:
        if self._disk.dead or self._generation != self._disk.generation:
            raise SimulatedCrash(f"{operation} {self.path} after the crash")
        if self._closed or (self._read_only and operation not in ("pread", "size")):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)

    def pwritev(self, buffers: Sequence[Bytes], offset: int) -> int:
        self._check("pwritev")
        data = b"".join(buffers)
        try:
            self._disk.operate("pwritev", self.path)
        except (OSError, SimulatedCrash):
            self._inode.write(data[: self._disk.rng.randrange(len(data) + 1)], offset)
            raise
        end = offset + len(data)
        disk = self._disk
        plenty = end <= self._inode.size or disk.capacity_bytes >= PLENTY_BYTES
        room = end if plenty else disk._room_for(self._inode, end)
        self._inode.write(data[: max(0, room - offset)], offset)
        if room < end:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        return len(data)

    def write_durably(self, buffers: Sequence[Bytes], offset: int) -> None:
        end = offset + self.pwritev(buffers, offset)  # a crash may come between the two
        self._sync(range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)))

    def pread(self, length: int, offset: int) -> bytes:
        self._check("pread")
        self._disk.operate("pread", self.path)
        for path, bad in self._disk.unreadable:
            if path in self.path and offset < bad.stop and bad.start < offset + length:
                raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)
        return self._inode.read(length, offset)

    def fdatasync(self) -> None:
        self._sync(None)

    def _sync(self, sectors: range | None) -> None:
        """Sync these sectors, or all."""
        self._check("fdatasync")
        try:
            self._disk.operate("fdatasync", self.path)
        except OSError:
            inode = self._inode
            for sector in sorted(inode.dirty):
                if self._disk.rng.random() < 0.5:
                    inode.durable[sector] = inode.dirty[sector][-1]
            inode.dirty.clear()
            raise
        if self._disk.never_syncs is None or self._disk.never_syncs not in self.path:
            self._inode.sync(sectors)

    def uncache(self, offset: int, length: int) -> None:
        """There is no page cache of its own; but what is forgotten must be on disk."""
        self._check("uncache")
        unsynced = self._inode.dirty.keys() & range(offset // SECTOR_BYTES, -(-(offset + length) // SECTOR_BYTES))
        assert not unsynced or self._disk.never_syncs is not None, f"{self.path} is forgotten before it is synced"
        self.uncached.append((offset, length))

    def allocate(self, length: int) -> None:
        self._check("allocate")
        self._disk.operate("allocate", self.path)
        if length <= self._inode.size:
            return
        if self._disk.capacity_bytes < PLENTY_BYTES and self._disk._room_for(self._inode, length) < length:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        self._inode.size = length

    def truncate(self, length: int) -> None:
        self._check("truncate")
        self._disk.operate("truncate", self.path)
        self._inode.truncate(length)

    def size(self) -> int:
        self._check("size")
        return self._inode.size

    def close(self) -> None:
        self._closed = True


class SimWorker:
    """Runs calls one at a time in order of submission, as callbacks of the running loop."""

    def __init__(self, disk: SimDisk, name: str) -> None:
        self.name = name
        self._disk = disk
        self._queue: deque[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = deque()
        self._scheduled = False
        self.closed = False
        self._resolved_at = 0.0  # true time; results are seen in order, as the real worker's are

    def run(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self.closed:
            future.cancel()
        else:
            self._queue.append((future, function, args))
            self._schedule(loop)
        return future

    def submit(
        self, done: Callable[[T | None, BaseException | None], None], function: Callable[..., T], *args: Any
    ) -> None:
        if self.closed:
            return

        def call(future: asyncio.Future[T]) -> None:
            error = future.exception()
            done(None if error is not None else future.result(), error)

        self.run(function, *args).add_done_callback(call)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._scheduled or not self._queue:
            return
        self._scheduled = True
        if self._disk.latency_s is None:
            loop.call_soon(self._turn, loop)
        else:
            loop.call_later(self._disk.delay(), self._turn, loop)

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = False
        if self._disk._stalled is not None and self._disk._stalled in self.name:
            # Whoever ends the stall isn't the process that waits: go on in this one's context.
            self._scheduled = True
            here = contextvars.copy_context()
            self._disk._waiting.append(lambda: loop.call_soon(self._turn, loop, context=here))
            return
        if self._queue:
            self._run_one(loop)
        self._schedule(loop)

    def _run_one(self, loop: asyncio.AbstractEventLoop) -> None:
        future, function, args = self._queue.popleft()
        try:
            result, error = function(*args), None
        except SimulatedCrash as crash:
            if self._disk.on_crash is not None:
                return  # the whole host is gone, nobody waits for this
            result, error = None, crash
        except BaseException as e:  # handed to the waiter, whatever it is
            result, error = None, e
        if self._disk.latency_s is None:
            loop.call_soon(_resolve, future, result, error)
        else:
            # By the true clock: others than the host, whose own may be another, use its disk as well.
            sim = cast("SimLoop", loop)
            self._resolved_at = max(self._resolved_at, sim.now + self._disk.delay())
            sim.call_at_true(self._resolved_at, _resolve, future, result, error)

    def close(self) -> None:
        """Run what was submitted now; the results are seen as usual."""
        self.closed = True
        while self._queue:
            self._run_one(self._queue[0][0].get_loop())


def _resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # cancelled meanwhile; the work was done all the same
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
