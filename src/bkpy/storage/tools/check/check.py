"""`bkpy bookie check`: looks at everything in a bookie's directories, and says what is wrong.

Invariants: nothing is changed; memory doesn't grow with what is stored. Everything here blocks.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from bkpy.errors import BookKeeperError, CorruptDataError, IdentityError
from bkpy.storage.cookies import look_for_cookie
from bkpy.storage.entry_log.entry_log import KEPT, log_id_of, log_name
from bkpy.storage.file_names import INDEX_NAME
from bkpy.storage.identity import Directories, locked
from bkpy.storage.index.index import load_shard, log_rows
from bkpy.storage.journal.format import START, Mark, file_id_of, file_name
from bkpy.storage.journal.reader import JournalReader, oldest_mark
from bkpy.storage.tools.check.defects import COOKIE, JOURNAL, REBUILD, RESTORE, Defect
from bkpy.storage.tools.check.logs import check_log
from bkpy.storage.tools.check.rows import RowCheck, named_ends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import DiskRuntime, Files, OrderedStore
    from bkpy.storage.entry_log.scan import LogDamage
    from bkpy.storage.identity import Cookie
    from bkpy.storage.index.index import LogRow, ShardRow


class Checked(NamedTuple):
    """What was checked. `skipped`: what could not be, because the bookie runs."""

    ledgers: int
    block_rows: int
    logs: int
    blocks: int
    journal_frames: int
    skipped: list[str]


def bytes_to_check(settings: BookieSettings, files: Files, *, running: bool) -> int:
    """Bytes of the entry logs, and of the journals unless the bookie runs."""
    directories = [*settings.ledger_directories, *([] if running else settings.journal_directories)]
    total = 0
    for directory in directories:
        for name in files.listdir(directory) if files.exists(directory) else ():
            log_id = log_id_of(name)
            kept = log_id is not None and log_id & KEPT  # what stayed in it is read with its rows
            if not kept and (log_id is not None or file_id_of(name) is not None):
                with contextlib.suppress(FileNotFoundError):
                    total += _size(files, f"{directory}/{name}")
    return total


def check_bookie(
    settings: BookieSettings,
    runtime: DiskRuntime,
    *,
    running: bool,
    found: Callable[[Defect], None],
    progress: Callable[[int], None],
) -> Checked:
    """Check all directories; `found` gets what is wrong, `progress` the bytes of logs and journals done so far.

    `running`: without locks, for a bookie that may run. `IdentityError` if it does and isn't said to.
    """
    paths = Directories(settings, runtime.files, "")
    check = _Check(settings, runtime, running, found, progress)
    with contextlib.ExitStack() as held:
        for path in paths.all:
            if runtime.files.exists(path) and not running:
                held.enter_context(_locked(runtime.files, path))
        cookie = check.cookies(paths.all)
        rows = [check.ledger_directory(path, cookie) for path in paths.ledgers if runtime.files.exists(path)]
        if not running:
            for number, path in enumerate(paths.journals):
                if runtime.files.exists(path):
                    check.journal(number, path, [row for row in rows if row is not None])
    return check.checked()


@contextlib.contextmanager
def _locked(files: Files, directory: str) -> Iterator[None]:
    try:
        lock = contextlib.ExitStack()
        lock.enter_context(locked(files, directory))
    except IdentityError as e:
        e.add_note("or give --running, and what nobody changes meanwhile is checked beside it")
        raise
    with lock:
        yield


class _Check:
    def __init__(
        self,
        settings: BookieSettings,
        runtime: DiskRuntime,
        running: bool,
        found: Callable[[Defect], None],
        progress: Callable[[int], None],
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._files = runtime.files
        self._running = running
        self._found = found
        self._progress = progress
        self._done = 0  # bytes
        self._ledgers = self._block_rows = self._logs = self._blocks = self._frames = 0
        self._skipped = (
            [
                "the journals, to which the bookie writes",
                "the pages of the indexes, in which it writes",
                "entries in memory, and in the logs that are being filled",
                "whether a log that is gone is missing, or was removed meanwhile",
            ]
            if running
            else []
        )

    def checked(self) -> Checked:
        return Checked(self._ledgers, self._block_rows, self._logs, self._blocks, self._frames, self._skipped)

    # --- cookies ------------------------------------------------------------------------------------------------------

    def cookies(self, directories: Sequence[str]) -> Cookie | None:
        """That each directory has the same cookie; the first that is found."""
        first: Cookie | None = None
        for directory in directories:
            place = look_for_cookie(self._files, directory)
            if place.cookie is None:
                self._found(Defect(directory, None, None, f"the directory's cookie: {place.problem}", COOKIE))
            elif first is None:
                first = place.cookie
            elif place.cookie != first:
                what = f"the directory's cookie is another than that of {directories[0]}"
                self._found(Defect(directory, None, None, what, COOKIE))
        return first

    # --- ledger directories -------------------------------------------------------------------------------------------

    def ledger_directory(self, directory: str, cookie: Cookie | None) -> ShardRow | None:
        """Check an index and its logs; the shard's own row."""
        path = f"{directory}/{INDEX_NAME}"
        store = self._index(path)
        if store is None:
            self._logs_of(directory, {}, None)
            return None
        with contextlib.closing(store):
            with store.read() as txn:
                damages = self._logs_of(directory, log_rows(txn), named_ends(txn))
            return self._rows(store, directory, path, cookie, damages)

    def _logs_of(
        self, directory: str, rows: Mapping[int, LogRow | None], ends: Mapping[int, int] | None
    ) -> dict[int, list[LogDamage]]:
        """Check the logs; what is damaged in each. Batches that stayed in journal files are read with their rows.

        `ends`: see `named_ends`; None without an index.
        """
        damages: dict[int, list[LogDamage]] = {}
        for log_id in sorted(i for i in map(log_id_of, self._files.listdir(directory)) if i is not None):
            if log_id & KEPT:
                continue  # of a journal file, only what rows name is looked at
            if not self._running or log_id in rows:
                with contextlib.suppress(*((FileNotFoundError,) if self._running else ())):
                    end = None if ends is None else ends.get(log_id, 0)
                    damages[log_id] = self._log(directory, log_id, rows.get(log_id), end)
        return damages

    def _index(self, path: str) -> OrderedStore | None:
        """The index, None if it can't be looked at."""
        settings = self._settings
        try:
            if not self._running:
                self._runtime.store.check(path)
            return self._runtime.store.open(
                path, bytes_max=settings.index_bytes_max, readers_max=settings.index_readers_max, read_only=True
            )
        except CorruptDataError as e:
            self._found(Defect(e.path or path, None, None, f"the index is damaged: {e.message}", REBUILD))
        except OSError as e:
            self._found(Defect(path, None, None, f"the index can't be opened: {e}", REBUILD))
        return None

    def _rows(
        self,
        store: OrderedStore,
        directory: str,
        path: str,
        cookie: Cookie | None,
        damages: Mapping[int, Sequence[LogDamage]],
    ) -> ShardRow | None:
        """Check the index's rows."""
        try:
            shard = load_shard(store)
        except CorruptDataError as e:
            self._found(Defect(path, None, None, f"the index's own row: {e.message}", REBUILD))
            return None
        if shard is None:
            self._found(Defect(path, None, None, "the index was never begun", REBUILD))
            return None
        named = () if cookie is None else cookie.ledger_directories
        if any(known.path == directory and known.uuid != shard.uuid.hex() for known in named):
            self._found(Defect(path, None, None, "the index is not the one that the cookie names", RESTORE))
        with store.read() as txn:
            check = RowCheck(
                txn,
                shard,
                self._files,
                directory,
                path,
                damages,
                self._found,
                open_max=self._settings.open_entry_logs_max,
                running=self._running,
            )
            check.run()
        self._ledgers += check.ledgers
        self._block_rows += check.blocks
        for log_id in check.logs:
            log = f"{directory}/{log_name(log_id)}"
            if not self._files.exists(log) and not self._running:
                self._found(Defect(log, None, None, "the log is gone, and the index has a row of it", RESTORE))
        return shard

    def _log(self, directory: str, log_id: int, row: LogRow | None, named_end: int | None) -> list[LogDamage]:
        began = self._done
        blocks, damages = check_log(
            self._files,
            directory,
            log_id,
            row,
            named_end,
            read_bytes=self._settings.journal_read_bytes,
            found=self._found,
            progress=lambda done: self._progress(began + done),
        )
        self._logs += 1
        self._blocks += blocks
        self._done = began + _size(self._files, f"{directory}/{log_name(log_id)}")
        self._progress(self._done)
        return damages

    # --- journals -----------------------------------------------------------------------------------------------------

    def journal(self, number: int, directory: str, shards: Sequence[ShardRow]) -> None:
        """Follow the journal's chain from its oldest frame, and see that each index's mark is a place in it."""
        began = self._done
        try:
            first = oldest_mark(self._files, directory) or START
        except OSError as e:
            self._found(Defect(e.filename or directory, None, None, str(e), JOURNAL))
        else:
            self._follow(number, directory, first, shards)
        names = [name for name in self._files.listdir(directory) if file_id_of(name) is not None]
        self._done = began + sum(_size(self._files, f"{directory}/{name}") for name in names)
        self._progress(self._done)

    def _follow(self, number: int, directory: str, first: Mark, shards: Sequence[ShardRow]) -> None:
        began = self._done
        missing = {(mark.sequence, mark.chain): mark for mark in (shard.marks[number] for shard in shards)}
        missing.pop((first.sequence, first.chain), None)
        reader = JournalReader(self._files, directory, number, first, read_bytes=self._settings.journal_read_bytes)
        file_id, before = first.file_id, 0  # bytes of the files that are done
        try:
            for frame in reader:
                self._frames += 1
                missing.pop((frame.end.sequence, frame.end.chain), None)
                if frame.end.file_id != file_id:
                    before += _size(self._files, f"{directory}/{file_name(file_id)}")
                    file_id = frame.end.file_id
                self._progress(began + before + frame.end.offset)
        except (BookKeeperError, OSError) as e:
            path = e.filename if isinstance(e, OSError) else e.path
            self._found(Defect(path or directory, None, None, str(e), JOURNAL))
            missing.clear()  # nobody knows whether they are there
        for damage in reader.damages:
            ledgers = ", ".join(map(str, sorted(damage.ledgers)[:20]))
            what = damage.what + (f"; ledgers concerned: {ledgers}" if ledgers else "")
            self._found(Defect(damage.path, damage.offset, None, what, JOURNAL))
        for mark in missing.values() if not reader.damages else ():
            what = f"an index relies on commit frame {mark.sequence}, and the journal has no such place"
            self._found(Defect(f"{directory}/{file_name(mark.file_id)}", mark.offset, None, what, JOURNAL))


def _size(files: Files, path: str) -> int:
    file = files.open(path, read_only=True)
    try:
        return file.size()
    finally:
        file.close()
