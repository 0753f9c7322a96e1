"""The one seam to the outside: clock, files, ordered store, randomness, task spawning and fault points.

Everything above takes these from a `Runtime` and never imports `time`, `random`, `os`, `socket` or `threading` itself,
so that a simulator can run the same code in virtual time on disks that tear. The network comes from the running event
loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio
    import contextlib
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from bkpy.buffers import Bytes

T = TypeVar("T")


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

    def uncache(self, offset: int, length: int) -> None:
        """Let the system forget these bytes, which are on disk, in memory: nobody is expected to read them soon.

        It may not. What is read of them is the same, only later.
        """

    def allocate(self, length: int) -> None:
        """Reserve disk space for the first `length` bytes and make the file at least that long (zeros)."""

    def truncate(self, length: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Worker(Protocol):
    """A named thread that runs blocking calls one at a time, in the order in which they were submitted."""

    def run(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Run `function(*args)` on the worker; the future is resolved on the loop that called.

        After `close`, nothing runs, and the future is cancelled.
        """

    def submit(
        self, done: Callable[[T | None, BaseException | None], None], function: Callable[..., T], *args: Any
    ) -> None:
        """Run `function(*args)` on the worker, then `done(result, error)` on the loop that called.

        A future's callbacks run a turn of the loop later. After `close`, nothing runs and nobody is called.
        """

    def close(self) -> None:
        """Finish what was submitted, then end the thread. Blocks until it has ended."""


class Files(Protocol):
    """The file system. All calls except `worker` block and belong on a `Worker` (at start-up, on the loop)."""

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> File:
        """Open for reading and writing. `create`: the file must not exist yet; the caller syncs the directory."""

    def listdir(self, path: str) -> list[str]:
        """Names in the directory, sorted."""

    def exists(self, path: str) -> bool: ...

    def is_stream(self, path: str) -> bool:
        """Whether it is there, and neither a file nor a directory: a pipe, for one, whose bytes are read once."""

    def make_dirs(self, path: str) -> None:
        """Create the directory and what is missing above it, for this account alone.

        Those it created are durable on return.
        """

    def restrict(self, directory: str) -> bool:
        """Take all rights to the directory, and to the files in it, from other accounts; whether that could be done."""

    def rename(self, source: str, target: str) -> None:
        """Atomically give `source` the name `target`, replacing what is there; the caller syncs the directory."""

    def link(self, path: str, further: str) -> None:
        """Give the file a `further` name, which must not be taken; the caller syncs that name's directory.

        `OSError` where the two can't be names of one file, as on different file systems.
        """

    def links(self, path: str) -> int:
        """How many names the file has."""

    def unlink(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make the directory's entries durable."""

    def space(self, path: str) -> tuple[int, int]:
        """(free, total) bytes of the file system that holds `path`."""

    def boot_id(self) -> bytes:
        """16 bytes that stay the same as long as written bytes that were never synced are still readable.

        They differ after a power cut or a restart of the machine, and each time on a machine that can't tell.
        """

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

    def sizes(self) -> tuple[int, int]:
        """(bytes of the file, how many of them are in use)."""

    def copy(self, path: str) -> None:
        """Write the rows to a new store in directory `path`, without free space; all in it is on disk on return."""

    def prepare_check(self, share: float) -> None:
        """Look through what was written, beside its use, so that the next `Stores.check` has less to look at.

        It goes on after the return, at that share of a processor, until `close`; nothing begins while one is under way,
        and nothing relies on it. Blocks for milliseconds.
        """

    def close(self) -> None: ...


class Stores(Protocol):
    """Opens ordered stores."""

    def open(
        self,
        path: str,
        *,
        create: bool = False,
        bytes_max: int = 1 << 40,
        readers_max: int = 512,
        read_only: bool = False,
    ) -> OrderedStore:
        """The store in directory `path`, whose parent exists; one that is created is durable on return.

        Without `create` a missing one raises `FileNotFoundError`. One that is opened `read_only` may be open in another
        process, which writes to it, and is never changed through this opening. `OSError` if another process holds
        something that would show an older state of the store, or none of its rows.
        """

    def check(self, path: str) -> None:
        """Blocks. `CorruptDataError` if the store, which nobody may have open, can't be used without harm.

        Without it, a damaged store may end the process, or hide rows that are there. What is in the rows is not looked
        at. No store is no damage. `StorageFailedError` if it could not be looked through, as for want of memory.
        """

    def exchange(self, store: OrderedStore, other: OrderedStore) -> None:
        """Atomically give two stores, open here in the same directory, each other's path; the caller syncs that.

        At each moment both paths name a store. `OSError` of `ENOTSUP` where the file system can't exchange names; then,
        as after any other error, nothing has changed.
        """

    def move(self, source: str, target: str) -> None:
        """Give the store that nobody has open another path in the same directory, durably; `target` is not there."""

    def remove(self, path: str) -> None:
        """Remove the store that nobody has open, whole or not; durable some time later."""


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


class Runtime(Protocol):
    """What a client takes from outside, and everything else does."""

    @property
    def clock(self) -> Clock: ...

    @property
    def rng(self) -> Rng: ...

    @property
    def spawn(self) -> Spawn: ...

    @property
    def faults(self) -> Faults: ...

    @property
    def process(self) -> str:
        """The host and the number of this process, for people."""


class DiskRuntime(Runtime, Protocol):
    """What a bookie takes from outside: a disk as well."""

    @property
    def files(self) -> Files: ...

    @property
    def store(self) -> Stores: ...
