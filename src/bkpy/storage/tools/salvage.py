"""Writes the entries that bookies' directories hold to a file, offline, and what is certain of each.

    every log and journal file --> a row for each sound block, in a store beside the file --> ledgers in order, entries
    in order, each once, with the bookies that have it

It needs no index and no metadata; a backup of the metadata makes more certain. It makes no cluster of what it finds.

Invariants: directories are only read; each entry that is written has a right checksum; memory holds the rows of one
block of each copy, and a number for each ledger; a file of the given name is whole or isn't there. Everything here
blocks.
"""

from __future__ import annotations

import base64
import contextlib
import heapq
import struct
from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bkpy.errors import BookKeeperError, ConfigError, CorruptDataError, DigestMismatchError
from bkpy.metadata.backup.sealed_lines import SealedLines
from bkpy.protocol.restore.salvaging import Certainty, certainty
from bkpy.protocol.wire.records import HEADER_BYTES, RecordCodec, is_explicit_lac, last_add_confirmed_at, walk
from bkpy.storage.cookies import look_for_cookie
from bkpy.storage.entry_log.entry_log import KEPT, decode_block, log_id_of
from bkpy.storage.entry_log.scan import LogScan
from bkpy.storage.file_names import LOCK_NAME
from bkpy.storage.journal.format import RecordKind, decode_ledger, file_id_of
from bkpy.storage.tools.rebuild.kept_file import KeptFileScan, batches_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bkpy.protocol.restore.salvaging import LedgerEnd
    from bkpy.protocol.wire.records import EntryHeader
    from bkpy.runtime.interfaces import File, Files, OrderedStore, Stores

FORMAT: Final = "bkpy salvage"
VERSION: Final = 1
_READ_BYTES: Final = 1 << 20
_COMMIT_ROWS: Final = 10_000
_OPENED_MAX: Final = 64  # files
_GAPS_MAX: Final = 1000  # of a ledger that are listed
_END: Final = b"\xff" * 24
_PLACE: Final = struct.Struct("<IQIBBq")  # number of the file, offset, length, if it is a block, if certain, last id
_KEY: Final = struct.Struct(">QQQ")  # ledger, first id, a number unlike others


class Found(NamedTuple):
    """What `salvage` wrote. `certain`: entries by what is certain of them; `differ`: ids with copies that differ."""

    path: str
    ledgers: int
    entries: int
    certain: dict[str, int]
    differ: int
    damages: int
    checksum: str


class _Copy(NamedTuple):
    entry_id: int
    source: int
    record: bytes  # behind its header
    certain: bool  # else it may be an image, in the payload of another entry


@dataclass
class _Source:
    """A file that was gone through."""

    path: str
    bookie: str


@dataclass
class _Scan:
    """What the first pass has found. `acknowledged`: the highest last add confirmed of each ledger."""

    sources: list[_Source] = field(default_factory=list)
    acknowledged: dict[int, int] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)  # a journal says so
    damages: list[tuple[str, int, str]] = field(default_factory=list)
    rows: int = 0


def salvage(
    files: Files,
    stores: Stores,
    directories: Sequence[str],
    path: str,
    *,
    time_ms: int,
    ends: Mapping[int, LedgerEnd] | None = None,
    backup: str = "",
    progress: Callable[[str], None] = lambda path: None,
) -> Found:
    """Write what the directories hold to the new file `path`.

    `ends`: of the ledgers in the backup with the checksum `backup`, if there is one. Raises `ConfigError`
    for directories that hold nothing of a bookie, or that a running one uses, and for a file that exists.
    """
    _check_free(files, path)
    scratch, temporary = f"{path}.rows", f"{path}.new"
    with contextlib.ExitStack() as held:
        names = {directory: _bookie_of(files, directory, held) for directory in directories}
        held.enter_context(_alone(files, path, temporary))
        if files.exists(scratch):
            stores.remove(scratch)  # of one that was killed
        store = stores.open(scratch, create=True)
        held.callback(stores.remove, scratch)
        held.callback(store.close)
        scan = _Scan()
        for directory, bookie in names.items():
            for name in files.listdir(directory):
                kind = _kind_of(name)
                if kind is not None:
                    progress(f"{directory}/{name}")
                    scan.sources.append(_Source(f"{directory}/{name}", bookie))
                    _scan_file(files, store, scan, kind)
        if not scan.sources:
            raise ConfigError(f"there are no entry logs and no journal files in {', '.join(directories)}")
        with contextlib.closing(files.open(temporary)) as file:
            file.truncate(0)
            header: dict[str, Any] = {
                "format": FORMAT,
                "version": VERSION,
                "time_ms": time_ms,
                "directories": names,
                "backup": backup or None,
            }
            found = _Writer(files, store, scan, SealedLines(), file, ends or {}).run(header, path)
            file.fdatasync()
        files.rename(temporary, path)
        files.sync_dir(path.rpartition("/")[0] or "/")
    return found


@contextlib.contextmanager
def _alone(files: Files, path: str, temporary: str) -> Iterator[None]:
    """While nobody else writes that file: the lock is that of the unfinished one, of which nothing is left on an error.

    A process that was killed leaves it, without its lock.
    """
    with contextlib.ExitStack() as own:
        try:
            own.enter_context(files.lock(temporary))
        except BlockingIOError:
            raise ConfigError(
                f"another process is writing a salvage to {path}: choose another name, or wait until it ends"
            ) from None
        try:
            _check_free(files, path)  # the other process may have ended since
            yield
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                files.unlink(temporary)
            raise


def _check_free(files: Files, path: str) -> None:
    if files.exists(path):
        raise ConfigError(f"{path} exists: it is not replaced")


def _bookie_of(files: Files, directory: str, held: contextlib.ExitStack) -> str:
    """The id of the bookie whose directory it is, its own path if no cookie says; no bookie may use it now."""
    if not files.exists(directory):
        raise ConfigError(f"{directory}: there is no such directory")
    try:
        if files.exists(f"{directory}/{LOCK_NAME}"):
            held.enter_context(files.lock(f"{directory}/{LOCK_NAME}"))
    except BlockingIOError:
        raise ConfigError(f"a bookie runs on {directory}: stop it first") from None
    except OSError:
        pass  # of a file system that is mounted to be read: nobody writes there
    cookie = look_for_cookie(files, directory).cookie
    return directory if cookie is None else cookie.bookie_id


def _kind_of(name: str) -> bool | None:
    """Whether it is an entry log, or else one of a journal's files; None for others."""
    log_id = log_id_of(name)
    if log_id is not None:
        return not log_id & KEPT
    return False if file_id_of(name) is not None else None


# --- the first pass ---------------------------------------------------------------------------------------------------


def _scan_file(files: Files, store: OrderedStore, scan: _Scan, is_log: bool) -> None:
    number = len(scan.sources) - 1
    path = scan.sources[number].path
    rows: list[tuple[bytes, bytes]] = []
    try:
        file = files.open(path, read_only=True)
    except OSError as error:
        scan.damages.append((path, 0, f"can't be read: {error.strerror or error}"))
        return
    try:
        for ledger_id, offset, length, data, certain in (_blocks if is_log else _batches)(file, scan, path):
            row = _row(scan, number, ledger_id, offset, length, data, is_log=is_log, certain=certain)
            if row is None:
                scan.damages.append((path, offset, f"entries of ledger {ledger_id} don't match their checksums"))
                continue
            rows.append(row)
            if len(rows) == _COMMIT_ROWS:
                _put(store, rows)
    except (OSError, BookKeeperError) as error:
        scan.damages.append((path, 0, f"can't be read to its end: {error}"))
    finally:
        file.close()
    _put(store, rows)


def _blocks(file: File, scan: _Scan, path: str) -> Iterator[tuple[int, int, int, memoryview, bool]]:
    """(ledger, offset, length, records, whether it is certain) of each sound block of a log."""
    log = LogScan(file, read_bytes=_READ_BYTES)
    for found in log:
        yield found.ledger_id, found.offset, found.length, memoryview(found.block.data), found.certain
    scan.damages += [(path, damage.offset, damage.what) for damage in log.damages]


def _batches(file: File, scan: _Scan, path: str) -> Iterator[tuple[int, int, int, memoryview, bool]]:
    """The same of the batches of a journal file's sound frames. Other records are taken into `scan`."""
    kept = KeptFileScan(file, read_bytes=_READ_BYTES)
    for record, at in kept.records():
        if record.kind == RecordKind.ADD:
            for ledger_id, offset, length in batches_of(record, at):
                start = offset - at
                yield ledger_id, offset, length, record.body[start : start + length], True
        elif record.kind == RecordKind.DELETED:
            scan.deleted.add(decode_ledger(record.head))
        elif record.kind == RecordKind.EXPLICIT_LAC:
            ledger_id = decode_ledger(record.head)
            if is_explicit_lac(record.body, ledger_id):
                _acknowledged(scan, ledger_id, last_add_confirmed_at(record.body, 0))
    scan.damages += [(path, offset, what) for offset, what in kept.damages]


def _row(
    scan: _Scan, number: int, ledger_id: int, offset: int, length: int, data: memoryview, *, is_log: bool, certain: bool
) -> tuple[bytes, bytes] | None:
    """The row of a block, or a batch; None if no record in it is sound."""
    first, last = None, -1
    for header in _sound(ledger_id, data):
        first = header.entry_id if first is None else min(first, header.entry_id)
        last = max(last, header.entry_id)
        if certain:
            _acknowledged(scan, ledger_id, header.last_add_confirmed)
    if first is None:
        return None
    scan.rows += 1
    return _KEY.pack(ledger_id, first, scan.rows), _PLACE.pack(number, offset, length, is_log, certain, last)


def _sound(ledger_id: int, data: memoryview) -> Iterator[EntryHeader]:
    """The headers of the records that match their checksums."""
    codec = RecordCodec(ledger_id)
    try:
        for header in walk(data):
            with contextlib.suppress(DigestMismatchError):
                codec.check(data, header.offset, header.end)
                yield header
    except CorruptDataError:
        return  # where the next record begins is unknown


def _acknowledged(scan: _Scan, ledger_id: int, lac: int) -> None:
    scan.acknowledged[ledger_id] = max(scan.acknowledged.get(ledger_id, -1), lac)


def _put(store: OrderedStore, rows: list[tuple[bytes, bytes]]) -> None:
    with store.write() as txn:
        for key, value in rows:
            txn.put(key, value)
    rows.clear()


# --- the second pass --------------------------------------------------------------------------------------------------


class _Writer:
    """Writes ledgers in order, from the rows of the first pass."""

    def __init__(
        self,
        files: Files,
        store: OrderedStore,
        scan: _Scan,
        lines: SealedLines,
        file: File,
        ends: Mapping[int, LedgerEnd],
    ) -> None:
        self._files = files
        self._store = store
        self._scan = scan
        self._lines = lines
        self._file = file
        self._ends = ends
        self._offset = 0
        self._opened: dict[int, File] = {}  # by source
        self._certain: Counter[str] = Counter()
        self._ledgers = self._differ = 0

    def run(self, header: Mapping[str, Any], path: str) -> Found:
        self._line(header)
        try:
            with self._store.read() as txn:
                rows = txn.scan(b"", _END)
                for ledger_id, some in groupby(rows, key=lambda row: _KEY.unpack(row[0])[0]):
                    self._ledger(ledger_id, some)
        finally:
            for file in self._opened.values():
                file.close()
        for where, offset, what in self._scan.damages:
            self._line({"damage": what, "path": where, "offset": offset})
        entries = self._certain.total()
        end = {
            "ledgers": self._ledgers,
            "entries": entries,
            "certain": dict(self._certain),
            "differ": self._differ,
            "damages": len(self._scan.damages),
        }
        checksum = self._lines.checksum
        self._line({"end": {**end, "checksum": checksum}})
        self._write(self._lines.finish())
        return Found(path, self._ledgers, entries, dict(self._certain), self._differ, len(self._scan.damages), checksum)

    def _ledger(self, ledger_id: int, rows: Iterator[tuple[bytes, bytes]]) -> None:
        end = self._ends.get(ledger_id)
        acknowledged = self._scan.acknowledged.get(ledger_id, -1)
        self._ledgers += 1
        about: dict[str, Any] = {"ledger": ledger_id, "acknowledged": acknowledged}
        if end is not None:
            about |= end._asdict()
        if ledger_id in self._scan.deleted:
            about["deleted"] = True
        self._line(about)
        missing = _Gaps()
        for entry_id, copies in groupby(self._entries(ledger_id, rows), key=lambda copy: copy.entry_id):
            missing.add(entry_id)
            self._entry(ledger_id, entry_id, list(copies), certainty(entry_id, acknowledged, end))
        if missing.ranges:
            self._line({"ledger": ledger_id, "not_found": missing.ranges})

    def _entry(self, ledger_id: int, entry_id: int, copies: list[_Copy], certain: Certainty) -> None:
        by_bytes: dict[bytes, list[str]] = {}
        proved = {copy.record for copy in copies if copy.certain}
        for copy in copies:
            bookies = by_bytes.setdefault(copy.record, [])
            bookie = self._scan.sources[copy.source].bookie
            if bookie not in bookies:
                bookies.append(bookie)
        self._differ += len(by_bytes) > 1
        for record, bookies in by_bytes.items():
            its = certain if record in proved else Certainty.UNPROVED
            line: dict[str, Any] = {"ledger": ledger_id, "entry": entry_id, "certain": its.value}
            if len(by_bytes) > 1:
                line["differs"] = True
            self._line({**line, "bookies": sorted(bookies), "bytes": base64.b64encode(record).decode()})
        self._certain[(certain if proved else Certainty.UNPROVED).value] += 1

    def _entries(self, ledger_id: int, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[_Copy]:
        """All copies of all entries, by id. A block is read when its first id is reached."""
        waiting: list[tuple[int, int, list[_Copy]]] = []  # the next copy's id, a number, the block's copies, reversed
        for count, (key, value) in enumerate(rows):
            first = _KEY.unpack(key)[1]
            while waiting and waiting[0][0] < first:
                yield _next(waiting)
            copies = self._read(ledger_id, value)
            if copies:
                heapq.heappush(waiting, (copies[-1].entry_id, count, copies))
        while waiting:
            yield _next(waiting)

    def _read(self, ledger_id: int, value: bytes) -> list[_Copy]:
        """The copies in a block or a batch, the highest first."""
        number, offset, length, is_log, certain, _ = _PLACE.unpack(value)
        try:
            if number not in self._opened:
                if len(self._opened) == _OPENED_MAX:
                    self._opened.pop(next(iter(self._opened))).close()
                self._opened[number] = self._files.open(self._scan.sources[number].path, read_only=True)
            raw = self._opened[number].pread(length, offset)
            data = memoryview(decode_block(raw, ledger_id).data if is_log else raw)
        except (OSError, CorruptDataError) as error:
            self._scan.damages.append((self._scan.sources[number].path, offset, f"can't be read again: {error}"))
            return []
        copies = [
            _Copy(header.entry_id, number, bytes(data[header.offset + HEADER_BYTES : header.end]), bool(certain))
            for header in _sound(ledger_id, data)
        ]
        return sorted(copies, key=lambda copy: -copy.entry_id)

    def _line(self, value: Mapping[str, Any]) -> None:
        self._lines.add(value)
        if self._lines.waiting_bytes >= _READ_BYTES:
            self._write(self._lines.take())

    def _write(self, packed: bytes) -> None:
        if packed:
            self._offset += self._file.pwritev([packed], self._offset)


def _next(waiting: list[tuple[int, int, list[_Copy]]]) -> _Copy:
    _, count, copies = waiting[0]
    copy = copies.pop()
    if copies:
        heapq.heapreplace(waiting, (copies[-1].entry_id, count, copies))
    else:
        heapq.heappop(waiting)
    return copy


class _Gaps:
    """The first ranges of ids that weren't found."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self._following = 0

    def add(self, entry_id: int) -> None:
        if entry_id > self._following and len(self.ranges) < _GAPS_MAX:
            self.ranges.append((self._following, entry_id - 1))
        self._following = entry_id + 1
