"""One journal directory: group commit, rolling, recycling; and what takes its place for adds that are not journaled.

Invariants: a callback runs only after the sync of the frame that holds its record (S1), in the order of the
appends; where adds go without syncs, a frame of theirs is only written, but callbacks of other records wait for a sync
(S16); at most one frame that is not acknowledged is in flight; after a write or sync failed nothing is written
and nothing is acknowledged any more, and no sync is tried again (S2); a file's directory is synced before its first
frame (S4).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from bkpy.storage.journal.format import (
    FRAME_HEADER_BYTES,
    NONCE_BYTES,
    PAGE_BYTES,
    FileHeader,
    FrameKind,
    Mark,
    RecordKind,
    RunState,
    encode_file_header,
    encode_frame,
    encode_ledger,
    encode_record,
    file_id_of,
    file_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bkpy.buffers import Bytes
    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import DiskRuntime, File, Files
    from bkpy.storage.observer import StorageObserver


class FramePlace:
    """Where a commit frame of a journal lies: nowhere, file 0, until it is synced."""

    __slots__ = ("file_id", "journal", "offset")

    def __init__(self, journal: int) -> None:
        self.journal = journal
        self.file_id = 0
        self.offset = 0


class Position(NamedTuple):
    """Where an add's body lies: `offset` bytes behind the beginning of a commit frame."""

    frame: FramePlace
    offset: int


class JournalWriter:
    """Writes frames and begins files. Everything here blocks and runs on the journal's worker."""

    def __init__(
        self,
        runtime: DiskRuntime,
        directory: str,
        number: int,
        *,
        file_bytes_max: int,
        backups: int,
        recycled_max: int,
        uncache_bytes_min: int,
        end: Mark,
        run: RunState | None = None,
    ) -> None:
        self._runtime = runtime
        self._files: Files = runtime.files
        self._directory = directory
        self.number = number
        self._file_bytes_max = file_bytes_max
        self._backups = backups
        self._recycled_max = recycled_max
        self._uncache_bytes_min = uncache_bytes_min
        self._run = run or RunState(0)
        self._file: File | None = None
        self._nonce = b""
        # A new file's pages stay out of the page cache: on a virtual machine each that it grows by costs more than
        # its write. What is in them is in the memtable, and of a bookie that falls behind, read from the disk later.
        self._uncaches = False
        self._dropped = False  # a name whose removal a power cut may still take back
        self._old: deque[tuple[int, bool]] = deque()  # files that nobody needs, and whether they may be recycled
        self.position = end

    def begin_file(self) -> Mark:
        """Begin a new file at the end of the chain; the mark of its first frame.

        If that fails, the file goes: what was reserved of it is space that others, and the next try, may need.
        """
        if self._file is not None:
            self._file.close()
            self._file = None
        existing = [i for i in map(file_id_of, self._files.listdir(self._directory)) if i is not None]
        now = int(self._runtime.clock.time() * 1000)
        file_id = max(now, self.position.file_id + 1, *(i + 1 for i in existing), 1)
        path = f"{self._directory}/{file_name(file_id)}"
        file = self._take_file(path)
        self._nonce = self._runtime.rng.randbytes(NONCE_BYTES)
        header = FileHeader(self.number, file_id, self._nonce, self.position.sequence, self.position.chain, self._run)
        try:
            file.allocate(self._file_bytes_max)
            file.pwritev([encode_file_header(header)], 0)
            file.fdatasync()
            self._files.sync_dir(self._directory)
            self._dropped = False
        except OSError:
            file.close()
            with contextlib.suppress(OSError):  # the first error says why
                self._files.unlink(path)
            raise
        self._file = file
        self.position = Mark(file_id, PAGE_BYTES, self.position.sequence, self.position.chain)
        return self.position

    def abandon_file(self) -> None:
        """Remove the file that was just begun: it has no frame, and no mark lies in it."""
        self.close()
        with contextlib.suppress(OSError):  # an earlier error says why
            self._files.unlink(self._path(self.position.file_id))

    def give_back(self) -> None:
        """Let go what is reserved of a file without frames, which marks may name: each try would reserve as much."""
        if self._file is not None and self.position.offset == PAGE_BYTES:
            with contextlib.suppress(OSError):  # an earlier error says why
                self._file.truncate(PAGE_BYTES)

    def _take_file(self, path: str) -> File:
        while self._old:
            file_id, own = self._old.popleft()
            self._settle_dropped()
            with contextlib.suppress(FileNotFoundError):  # somebody who wanted space has removed it
                if own:
                    # Its blocks are allocated and written: syncs of its frames change no metadata and are faster.
                    self._files.rename(self._path(file_id), path)
                    self._uncaches = False  # what the page cache has of it is written to once more
                    return self._files.open(path)
                self._drop(file_id)
        self._uncaches = True
        return self._files.open(path, create=True)

    def _drop(self, file_id: int) -> None:
        """Remove a file's name here; after a power cut it is there again only together with all that went later."""
        self._settle_dropped()
        self._files.unlink(self._path(file_id))
        self._dropped = True

    def _settle_dropped(self) -> None:
        if self._dropped:
            self._files.sync_dir(self._directory)
            self._dropped = False

    def write(
        self, kind: FrameKind, records: int, body: list[Bytes], sync: bool = True
    ) -> tuple[Mark, int, WriteTimes]:
        """Write and sync one frame: (where the next begins, bytes, begin and end)."""
        began = self._runtime.clock.monotonic()
        at = self.position
        buffers, size, checksum = encode_frame(kind, self._nonce, at.sequence, at.chain, records, body)
        if at.offset > PAGE_BYTES and at.offset + size > self._file_bytes_max:
            at = self.begin_file()
            buffers, size, checksum = encode_frame(kind, self._nonce, at.sequence, at.chain, records, body)
        assert self._file is not None
        if sync:
            self._file.write_durably(buffers, at.offset)
            if self._uncaches and size >= self._uncache_bytes_min:
                self._file.uncache(at.offset, size)
        else:
            self._file.pwritev(buffers, at.offset)
        self.position = Mark(at.file_id, at.offset + size, at.sequence + 1, checksum)
        return self.position, size, WriteTimes(began, self._runtime.clock.monotonic())

    def retain(self, lowest: int) -> None:
        """Recycle or remove files below the file id `lowest`, which no mark needs any more (S9), beyond the backups.

        The oldest names go first: a gap between the files that are left would be taken for one that was lost.
        """
        below = [i for i in map(file_id_of, self._files.listdir(self._directory)) if i is not None and i < lowest]
        # A file with another name holds runs that an index refers to: only its name here goes, never its bytes.
        old = [
            (file_id, self._files.links(self._path(file_id)) == 1)
            for file_id in below[: max(0, len(below) - self._backups)]
        ]
        reusable = [file_id for file_id, own in old if own]
        first = min(reusable[max(0, len(reusable) - self._recycled_max) :], default=lowest)
        for file_id, _ in old:
            if file_id < first:
                self._drop(file_id)
        self._old = deque(item for item in old if item[0] >= first)

    def _path(self, file_id: int) -> str:
        return f"{self._directory}/{file_name(file_id)}"

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class WriteTimes(NamedTuple):
    """When the write and sync of one frame began and ended, by the monotonic clock."""

    began: float
    ended: float


class _Group:
    """What one frame will hold."""

    __slots__ = ("body", "bytes", "callbacks", "place", "records", "sync")

    def __init__(self, journal: int, sync: bool) -> None:
        self.place = FramePlace(journal)
        self.sync = sync
        self.body: list[Bytes] = []
        self.bytes = 0
        self.records = 0
        self.callbacks: list[Callable[[], None]] = []


class Journal:
    """Gathers records while a sync runs, and commits them together. All methods are called on the event loop.

    `queued_bytes`: in memory until they are synced. `full`: they have reached their bound; `on_written` is called
    after each sync. `sync_adds`: whether adds wait for a sync, too, or only for the write. `on_failure` is called once
    with the error of a failed write or sync; nothing is acknowledged after that.
    """

    def __init__(
        self,
        writer: JournalWriter,
        runtime: DiskRuntime,
        *,
        name: str,
        sync_adds: bool,
        group_bytes_max: int,
        queue_bytes_max: int,
        on_written: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        observer: StorageObserver,
    ) -> None:
        self._writer = writer
        self._worker = runtime.files.worker(name)
        self._sync_adds = sync_adds
        self._group_bytes_max = group_bytes_max
        self._queue_bytes_max = queue_bytes_max
        self._on_written = on_written
        self._on_failure = on_failure
        self._observer = observer
        self._pending: deque[_Group] = deque()
        self._gathering = _Group(writer.number, sync_adds)
        self._writing: _Group | None = None
        self._running = False
        self._failed = False
        self._lowest = 0  # files with lower ids are let go; None needs them
        self._letting_go = False
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self.position = writer.position  # the end of what is acknowledged: synced, or written as adds may be
        self.queued_bytes = 0
        self.last_write = WriteTimes(0.0, 0.0)  # of the frame whose callbacks run, or ran last

    @property
    def full(self) -> bool:
        return self.queued_bytes >= self._queue_bytes_max

    def add(self, head: Bytes, body: Bytes, on_durable: Callable[[], None]) -> Position:
        """Journal an add record; where its body will be. The buffers are kept until they are on disk, not copied."""
        header = encode_record(RecordKind.ADD, head, body)
        group = self._gathering
        group.body += (header, head, body)
        size = len(header) + len(head) + len(body)
        position = Position(group.place, FRAME_HEADER_BYTES + group.bytes + size - len(body))
        group.bytes += size
        self.queued_bytes += size
        group.records += 1
        group.callbacks.append(on_durable)
        if not self._running:
            self._start_soon()
        elif group.bytes >= self._group_bytes_max:
            self._seal_group()
        return position

    def record(
        self, kind: RecordKind, ledger_id: int, body: bytes, on_durable: Callable[[], None] | None = None
    ) -> None:
        """Journal a record of one ledger, after everything that was appended before."""
        head = encode_ledger(ledger_id)
        group = self._gathering
        group.body.append(encode_record(kind, head, body) + head + body)
        group.bytes += len(group.body[-1])
        self.queued_bytes += len(group.body[-1])
        group.records += 1
        if on_durable is not None:
            group.callbacks.append(on_durable)
            group.sync = True
        if not self._running:
            self._start_soon()

    def barrier(self, on_durable: Callable[[], None]) -> None:
        """Call back once everything appended so far is synced: at once if it is, and never if the journal failed."""
        if self._failed:
            return
        group = self._gathering if self._gathering.records else self._pending[-1] if self._pending else self._writing
        if group is None:
            on_durable()
        else:
            group.callbacks.append(on_durable)

    def _seal_group(self) -> None:
        self._pending.append(self._gathering)
        self._gathering = _Group(self._writer.number, self._sync_adds)

    def _start_soon(self) -> None:
        # On the event loop's next tick: what other connections send in this one goes into the same frame.
        self._running = True
        self._idle.clear()
        asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        if self._failed:
            self._idle.set()  # nobody may wait for what will never be written
            return
        self._writing = None
        if not self._pending:
            if not self._gathering.records:
                self._running = False
                self._idle.set()
                return
            self._seal_group()
        group = self._writing = self._pending.popleft()
        # Without a future, which would cost a turn of the loop, and a lone append a twentieth of its time.
        self._worker.submit(self._written, self._writer.write, FrameKind.RECORDS, group.records, group.body, group.sync)
        group.body = []  # the worker has it; what is in the memtable alone decides how long buffers live

    def _written(self, written: tuple[Mark, int, WriteTimes] | None, error: BaseException | None) -> None:
        if error is not None:
            self.fail(error)
            return
        if self._failed:
            return
        group = self._writing
        assert group is not None
        assert written is not None
        self.position, size, self.last_write = written
        seconds = self.last_write.ended - self.last_write.began
        group.place.offset = self.position.offset - size
        group.place.file_id = self.position.file_id  # last: who flushes, on another thread, looks at it first
        self.queued_bytes -= group.bytes
        self._start()  # the disk goes on while the callbacks run
        try:
            for callback in group.callbacks:
                callback()
        except Exception as e:  # the rest was not acknowledged, so nothing after it may be
            self.fail(e)
            return
        self._on_written()
        self._observer.journal_group(group.records, size, seconds)

    def fail(self, error: BaseException) -> None:
        """Stop for good: nothing more is written or acknowledged."""
        if not self._failed:
            self._failed = True
            self._pending.clear()
            self._gathering = _Group(self._writer.number, self._sync_adds)
            self.queued_bytes = 0
            self._idle.set()
            self._on_failure(error)

    def retain(self, lowest: int) -> None:
        """Let files below the file id `lowest` go: in order with the writes, so none goes while it is being taken.

        That may take until a disk that stalls goes on, so nobody waits for it.
        """
        self._lowest = max(self._lowest, lowest)
        if not self._letting_go and not self._failed:
            self._letting_go = True
            lowest = self._lowest
            self._worker.run(self._writer.retain, lowest).add_done_callback(lambda done: self._let_go(done, lowest))

    def _let_go(self, done: asyncio.Future[None], lowest: int) -> None:
        self._letting_go = False
        error = done.exception()
        if error is not None:
            self.fail(error)
        elif self._lowest > lowest:
            self.retain(self._lowest)

    async def stop(self) -> None:
        """Wait for what is pending, then write the clean-stop frame, unless the journal failed (or fails at that)."""
        await self._idle.wait()
        if not self._failed:
            self._running = True  # nothing may be appended any more
            try:
                self.position, _, _ = await self._worker.run(self._writer.write, FrameKind.CLEAN_STOP, 0, [])
            except OSError as e:
                self.fail(e)

    def release(self) -> None:
        """End the thread and close the file, without waiting for what is pending to be acknowledged."""
        self._failed = True
        self._worker.close()
        self._writer.close()

    async def drain(self) -> None:
        """Wait until everything appended so far is synced, or the journal failed."""
        await self._idle.wait()


class UnjournaledAdds:
    """Acknowledges adds that no journal holds: in order, on the event loop's next tick, and none after a failure.

    It takes the place of the journals' syncs where entries are not written to them. All methods are called on the event
    loop.
    """

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._waiting: list[Callable[[], None]] = []
        self._failed = False

    def add(self, callback: Callable[[], None]) -> None:
        """Call back soon, after all that were added before."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._call_back)
        self._waiting.append(callback)

    def fail(self) -> None:
        """Call nobody any more."""
        self._failed = True

    def _call_back(self) -> None:
        waiting, self._waiting = self._waiting, []  # callbacks that are added meanwhile run on the next tick
        if self._failed:
            return
        try:
            for callback in waiting:
                callback()
        except Exception as e:  # as in a journal: nothing after it may be acknowledged
            self._on_failure(e)


def begin_journals(
    writers: Sequence[JournalWriter],
    settings: BookieSettings,
    runtime: DiskRuntime,
    on_written: Callable[[], None],
    on_failure: Callable[[BaseException], None],
    observer: StorageObserver,
) -> list[Journal]:
    """The journals of a bookie, all or none."""
    journals: list[Journal] = []
    with contextlib.ExitStack() as begun:  # each has a thread
        for number, writer in enumerate(writers):
            journal = Journal(
                writer,
                runtime,
                name=f"journal-{number}",
                sync_adds=settings.journal_sync_data,
                group_bytes_max=settings.journal_group_bytes_max,
                queue_bytes_max=settings.journal_queue_bytes_max,
                on_written=on_written,
                on_failure=on_failure,
                observer=observer,
            )
            begun.callback(journal.release)
            journals.append(journal)
        begun.pop_all()
    return journals
