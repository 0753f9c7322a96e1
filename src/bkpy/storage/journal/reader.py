"""Reads a journal at start: follows the chain from a mark, and distinguishes its end, a torn tail and damage (S3).

Invariants: a frame is handed out only with both checksums right and at its place in the chain; nothing is cut unless
`protocol.journal_recovery` calls it torn; a file that can't be read (an error of the disk) is neither: it raises.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import msgpack
from crc32c import crc32c

from bkpy.errors import CorruptDataError, IdentityError
from bkpy.storage.journal.format import (
    BROKEN_SUFFIX,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    FRAME_NONCE_OFFSET,
    PAGE_BYTES,
    START,
    FileHeader,
    FrameHeader,
    FrameKind,
    Mark,
    RecordKind,
    decode_file_header,
    decode_frame_header,
    decode_ledger,
    decode_records,
    file_id_of,
    file_name,
    frame_nonce,
    is_broken_copy,
    looks_like_frame,
)
from bkpy.storage.journal.journal_recovery import AtBreak, Break, BreakAction, NextFile, decide

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bkpy.runtime.interfaces import File, Files


class Damage(NamedTuple):
    """A place where acknowledged data may be lost."""

    path: str
    offset: int
    what: str
    ledgers: frozenset[int]  # the ledgers that the rest of the frame still names; others may be affected


class JournalFrame(NamedTuple):
    """A frame in the chain: `head` and `body` lie at `offset` of their file. `end` is the mark after it."""

    sequence: int
    records: int
    body: memoryview
    end: Mark
    head: memoryview
    offset: int


class _Window:
    """Reads a file through a window, so that small frames don't cost a system call each."""

    def __init__(self, file: File, read_bytes: int) -> None:
        self._file = file
        self._read_bytes = read_bytes
        self._start = 0
        self._bytes = memoryview(b"")

    def forget(self) -> None:
        """Read again what is asked for next."""
        self._bytes = memoryview(b"")

    def get(self, offset: int, length: int) -> memoryview:
        """`length` bytes, fewer at the end of the file."""
        if not self._start <= offset or offset + length > self._start + len(self._bytes):
            self._bytes = memoryview(self._file.pread(max(length, self._read_bytes), offset))
            self._start = offset
        return self._bytes[offset - self._start : offset - self._start + length]


class _Source(NamedTuple):
    """An open file of the journal; `header` is None if it isn't valid for the file's name."""

    file_id: int
    path: str
    file: File
    window: _Window
    header: FileHeader | None


class _NextSource(NamedTuple):
    relation: NextFile
    source: _Source | None
    at: int | None  # offset of the first later frame, in a file whose header can't be read


class JournalReader:
    """Iterates over the frames from `mark` on.

    `end`, `clean_stop` (the last frame says that the journal was ended in order), `damages`, `torn`, `unfinished`
    (files that were never begun: nothing is in them) and `begun` (files behind the last frame, with a header alone) are
    final when the iteration has ended.
    """

    def __init__(self, files: Files, directory: str, number: int, mark: Mark, *, read_bytes: int = 1 << 20) -> None:
        self._files = files
        self._directory = directory
        self._number = number
        self._mark = mark
        self._ids = [i for i in map(file_id_of, files.listdir(directory)) if i is not None and i >= mark.file_id]
        self._read_bytes = -(-read_bytes // PAGE_BYTES) * PAGE_BYTES  # read ahead, and the step of searches
        self.clean_stop = False
        self._nonce: bytes | None = None  # of the file being read; None while it is not known
        self.end = mark
        self.damages: list[Damage] = []
        self.torn: tuple[str, int] | None = None  # (file, offset) of a frame to cut
        self.unfinished: list[str] = []
        self.begun: list[str] = []

    def __iter__(self) -> Iterator[JournalFrame]:
        source: _Source | None = None
        offset = self._mark.offset
        if self._ids and self._ids[0] == self._mark.file_id:
            source = self._open(self._ids.pop(0))
        while True:
            if source is not None:
                if source.header is not None:
                    self._nonce = source.header.nonce
                while (frame := self._frame(source, offset)) is not None:
                    self.end, offset = frame.end, frame.end.offset
                    self.begun.clear()
                    yield frame
            following = self._next_source()
            later = self._later(source, offset, self._nonce) if source is not None else None
            if source is not None and later is not None:
                # Of a journal that is being written, what was read before may be older than what was found now.
                source.window.forget()
                if self._frame(source, offset) is not None:
                    if following.source is not None:
                        following.source.file.close()
                    continue
            step = self._break(source, offset, later, following)
            if step is None:
                break
            if source is not None and step[0] is not source:
                source.file.close()
            source, offset = step
        for opened in (source, following.source):
            if opened is not None:
                opened.file.close()

    def _open(self, file_id: int) -> _Source:
        path = f"{self._directory}/{file_name(file_id)}"
        file = self._files.open(path, read_only=True)
        window = _Window(file, self._read_bytes)
        header = decode_file_header(window.get(0, PAGE_BYTES))
        if header is not None and header.journal != self._number:
            raise IdentityError(
                f"this file belongs to journal {header.journal}, but lies in the directory of journal {self._number}; "
                "list journal_directories in the order in which they were when the bookie was created",
                path=path,
            )
        return _Source(file_id, path, file, window, header if header and header.file_id == file_id else None)

    def _frame(self, source: _Source, offset: int) -> JournalFrame | None:
        """The frame of the chain at `offset`, None if what is there isn't it."""
        header = self._header(source, offset)
        if header is None or header.sequence != self.end.sequence or header.chain != self.end.chain:
            return None
        head = source.window.get(offset, FRAME_HEADER_BYTES)  # before the body, whose bytes may move the window on
        body = source.window.get(offset + FRAME_HEADER_BYTES, header.body_bytes)
        if len(body) != header.body_bytes or crc32c(body) != header.body_checksum:
            return None
        self.clean_stop = header.kind == FrameKind.CLEAN_STOP
        end = Mark(source.file_id, offset + header.frame_bytes, header.sequence + 1, header.checksum)
        return JournalFrame(header.sequence, header.records, body, end, head, offset)

    def _header(self, source: _Source, offset: int) -> FrameHeader | None:
        if self._nonce is None:
            return None
        return decode_frame_header(source.window.get(offset, PAGE_BYTES), 0, self._nonce)

    def _next_source(self) -> _NextSource:
        """The next file that was ever finished, and how it relates to the end of the chain."""
        while self._ids:
            source = self._open(self._ids[0])
            if source.header is not None:
                place = (source.header.sequence, source.header.chain)
                continues = place == (self.end.sequence, self.end.chain)
                return _NextSource(NextFile.CONTINUES if continues else NextFile.AHEAD, source, None)
            later = self._later(source, 0, None)
            if later is not None:
                return _NextSource(NextFile.AHEAD, source, later)
            source.file.close()
            self._ids.pop(0)
            self.unfinished.append(source.path)
        return _NextSource(NextFile.NONE, None, None)

    def _later(self, source: _Source, offset: int, nonce: bytes | None) -> int | None:
        """Offset of the first valid frame header after `offset` with a sequence that the chain has not reached.

        Without the nonce (the file's header can't be read) also the one at `offset`: the chain could not follow it.
        """
        needle, inside, start = FRAME_MAGIC, 0, offset
        if nonce is not None:
            needle, inside, start = nonce, FRAME_NONCE_OFFSET, offset + PAGE_BYTES
        while chunk := source.file.pread(self._read_bytes, start):
            at = chunk.find(needle)
            while at >= 0:
                page = at - inside
                if page >= 0 and page % PAGE_BYTES == 0:
                    header = decode_frame_header(chunk, page, nonce)
                    if header is not None and header.sequence >= self.end.sequence:
                        return start + page
                at = chunk.find(needle, at + 1)
            start += len(chunk)
            if len(chunk) < self._read_bytes:
                break
        return None

    def _break(
        self, source: _Source | None, offset: int, later: int | None, following: _NextSource
    ) -> tuple[_Source, int] | None:
        """Decide what the break at `offset` means; where to go on, None at the end."""
        found = self._found(source, offset)
        action = decide(Break(found, later is not None, following.relation, self.clean_stop))
        path = source.path if source is not None else f"{self._directory}/{file_name(self._mark.file_id)}"
        if action is BreakAction.END_OF_JOURNAL:
            return None
        if action is BreakAction.TORN:
            self.torn = (path, offset)
            return None
        if action is BreakAction.DAMAGED:
            ledgers = self._ledgers(source, offset) if source is not None else frozenset[int]()
            self.damages.append(Damage(path, offset, self._story(found, later, following), ledgers))
            if later is not None and source is not None:
                self._resume(source, later)
                if following.source is not None:
                    following.source.file.close()
                return source, later
            if following.source is None:
                return None
        assert following.source is not None
        self._ids.pop(0)
        self.clean_stop = False
        if following.source.header is not None:
            header = following.source.header
            self.begun.append(following.source.path)
            self.end = Mark(header.file_id, PAGE_BYTES, header.sequence, header.chain)
            return following.source, PAGE_BYTES
        assert following.at is not None
        self._nonce = None
        self._resume(following.source, following.at)
        return following.source, following.at

    def _resume(self, source: _Source, offset: int) -> None:
        """Take up the chain again at a valid frame after damage."""
        page = source.window.get(offset, PAGE_BYTES)
        header = decode_frame_header(page, 0, self._nonce)
        assert header is not None
        self._nonce = frame_nonce(page)
        self.end = Mark(source.file_id, offset, header.sequence, header.chain)

    def _found(self, source: _Source | None, offset: int) -> AtBreak:
        if source is None:
            return AtBreak.BLANK if self._mark == START else AtBreak.MISSING
        if source.file_id == self._mark.file_id:  # which was synced up to the mark, with its header
            if source.file.size() < self._mark.offset:
                return AtBreak.CUT_OFF
            if source.header is None:
                return AtBreak.MISSING
        if self._nonce is not None and looks_like_frame(source.window.get(offset, PAGE_BYTES), self._nonce):
            return AtBreak.BROKEN
        return AtBreak.BLANK

    def _story(self, found: AtBreak, later: int | None, following: _NextSource) -> str:
        lost = f"commit frame {self.end.sequence} of the journal can't be found here ({found.value})"
        if later is not None:
            return f"{lost}, although a later one is at offset {later} of the same file"
        if following.source is not None:
            return f"{lost}, although later ones are in {following.source.path}"
        if found is AtBreak.MISSING:
            return f"{lost}: the file that the last checkpoint relies on is gone, or its header can't be read"
        if found is AtBreak.CUT_OFF:
            return f"{lost}: it ends before the place that the last checkpoint relies on"
        return f"{lost}, and what is there came after a clean stop"

    def _ledgers(self, source: _Source, offset: int) -> frozenset[int]:
        """The ledgers of a frame whose header is right and whose body isn't, as far as they can be identified."""
        header = self._header(source, offset)
        if header is None:
            return frozenset()
        ledgers: set[int] = set()
        body = source.window.get(offset + FRAME_HEADER_BYTES, header.body_bytes)
        try:
            for record in decode_records(body, header.records):
                if record.kind == RecordKind.ADD:
                    ledgers.update(i for i in msgpack.unpackb(record.head)[1] if isinstance(i, int))
                else:
                    ledgers.add(decode_ledger(record.head))
        except Exception:  # damaged bytes may be anything; report the ledgers that were readable before
            return frozenset(ledgers)
        return frozenset(ledgers)


def oldest_mark(files: Files, directory: str) -> Mark | None:
    """The place of the oldest frame that a journal still has, None if it has no file. Blocks.

    A recycled file may have its old name back, by a power cut, and the header of the file that it was to be. It has no
    frame then: its new name is synced before the first one.
    """
    for file_id in sorted(i for i in map(file_id_of, files.listdir(directory)) if i is not None):
        with contextlib.closing(files.open(f"{directory}/{file_name(file_id)}", read_only=True)) as file:
            header = decode_file_header(file.pread(PAGE_BYTES, 0))
            if header is None:  # damaged, which the reader that begins here reports
                return START._replace(file_id=file_id, offset=PAGE_BYTES)
            if header.file_id == file_id or decode_frame_header(file.pread(PAGE_BYTES, PAGE_BYTES), 0, header.nonce):
                return Mark(file_id, PAGE_BYTES, header.sequence, header.chain)
    return None


def newest_header(files: Files, directory: str) -> FileHeader | None:
    """The header of the newest file that was ever begun, None if there is none. Blocks."""
    for file_id in sorted((i for i in map(file_id_of, files.listdir(directory)) if i is not None), reverse=True):
        file = files.open(f"{directory}/{file_name(file_id)}", read_only=True)
        try:
            header = decode_file_header(file.pread(PAGE_BYTES, 0))
        finally:
            file.close()
        if header is not None and header.file_id == file_id:
            return header
    return None


def write_again(files: Files, directory: str, frame: JournalFrame) -> None:
    """Write a frame once more where it lies, and sync it: it may have been read from the page cache alone.

    A sync alone would not do: after one that failed the pages count as written. Blocks.
    """
    with contextlib.closing(files.open(f"{directory}/{file_name(frame.end.file_id)}")) as file:
        file.write_durably([frame.head, frame.body], frame.offset)


def write_header_again(files: Files, path: str) -> None:
    """The same of the header of a file that has no frame: it is synced before the first one. Blocks."""
    with contextlib.closing(files.open(path)) as file:
        file.write_durably([file.pread(PAGE_BYTES, 0)], 0)


def cut_torn_frame(
    files: Files, path: str, offset: int, *, read_bytes: int = 1 << 20, copies_max: int | None = None
) -> None:
    """Cut a torn frame off, after copying it to `<path>.broken`. Both are synced, in this order.

    Of earlier such copies in the directory the newest stay, `copies_max` in all, at least this one.
    """
    directory = path.rpartition("/")[0]
    copy_path = f"{path}{BROKEN_SUFFIX}"
    if files.exists(copy_path):  # of a start that did not get further than this
        files.unlink(copy_path)
    file = files.open(path)
    copy = files.open(copy_path, create=True)
    try:
        done = 0
        while chunk := file.pread(read_bytes, offset + done):
            if any(chunk):
                copy.pwritev([chunk], done)
            done += len(chunk)
        copy.fdatasync()
        files.sync_dir(directory)
        file.truncate(offset)
        file.fdatasync()
    finally:
        copy.close()
        file.close()
    if copies_max is not None:
        copies = [name for name in files.listdir(directory) if is_broken_copy(name)]
        for name in copies[: -max(1, copies_max)]:
            files.unlink(f"{directory}/{name}")


def refuse(damages: list[Damage]) -> CorruptDataError:
    """The error of a bookie that doesn't start on a damaged journal."""
    first = damages[0]
    ledgers = ", ".join(map(str, sorted(first.ledgers)[:20])) or "not known"
    return CorruptDataError(
        f"the journal is damaged at offset {first.offset}: {first.what}; ledgers concerned: {ledgers}. Acknowledged "
        "entries may be lost here. Restore the file, or set journal_damage to 'limbo' to start without it and answer "
        "'unknown' for entries that can't be found",
        path=first.path,
    )
