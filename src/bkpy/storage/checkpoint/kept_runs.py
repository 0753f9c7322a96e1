"""Chooses large batches of a generation that stay in their journal files, instead of being written again to a log.

Invariants: a batch stays only if its commit frame ends below the marks that are committed with it, so it is synced, and
will be neither replayed nor cut; the file has a synced name in the ledger directory before a row refers to it, so the
journal may drop its own name at any time; a file has one owner: with several ledger directories, nothing stays.
Everything here blocks and runs on the flush worker.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from bkpy.storage.entry_log.entry_log import Place, kept_in, kept_log_id, log_name
from bkpy.storage.journal.format import file_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import Files
    from bkpy.storage.journal.format import Mark
    from bkpy.storage.memtable.generation import Frame
    from bkpy.storage.memtable.overlaps import Batch

# A journal on another file system; file systems that have no hard links.
_NO_LINKS: Final = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


class KeptFiles:
    """The journal files that a ledger directory has a name for, while more batches may come to stay in them.

    `open`: their log ids. A file is taken out, and gets its row in the index, when the marks have passed it.
    """

    def __init__(self, files: Files, directory: str, settings: BookieSettings) -> None:
        self.possible = (
            # What was never synced is no place for what a checkpoint has written.
            settings.journal_as_entry_log and settings.journal_sync_data and len(settings.ledger_directories) == 1
        )
        self.run_bytes_min = settings.journal_run_bytes_min
        self.share_min = settings.journal_run_share_min
        self.open: frozenset[int] = frozenset()
        self._files = files
        self._directory = directory
        self._journals = settings.journal_directories

    def link(self, log_id: int) -> bool:
        """Give a journal file its name here; False where files can't have names in both directories."""
        journal, file_id = kept_in(log_id)
        try:
            self._files.link(f"{self._journals[journal]}/{file_name(file_id)}", self._path(log_id))
        except OSError as e:
            if e.errno not in _NO_LINKS:
                raise
            self.possible = False
        return self.possible

    def unlink(self, log_id: int) -> None:
        self._files.unlink(self._path(log_id))

    def size(self, log_id: int) -> int:
        file = self._files.open(self._path(log_id), read_only=True)
        try:
            return file.size()
        finally:
            file.close()

    def sync(self) -> None:
        """Return when the names are on disk."""
        self._files.sync_dir(self._directory)

    def _path(self, log_id: int) -> str:
        return f"{self._directory}/{log_name(log_id)}"


class KeptRuns:
    """The choice for one generation: `take` all of its frames, then `choose`, then ask `place_of` its batches.

    `any`: whether some batches may stay.
    """

    def __init__(self, files: KeptFiles, marks: Sequence[Mark]) -> None:
        self.any = False
        self._files = files
        self._marks = marks
        self._open = set(files.open)
        self._linked: list[int] = []
        self._bytes: dict[int, int] = {}  # in each file, of this generation
        self._large: dict[int, int] = {}  # of these, in large batches
        self._bodies: dict[int, Place] = {}  # by the identity of the buffer that a frame's batches are slices of

    def take(self, frame: Frame) -> None:
        """Count a frame."""
        columns, body, position = frame
        if position is None or not self._files.possible:
            return
        at, mark = position.frame, self._marks[position.frame.journal]
        if not at.file_id or (at.file_id, at.offset) >= (mark.file_id, mark.offset):
            return  # it may still be cut, and is replayed in any case
        log_id = kept_log_id(at.journal, at.file_id)
        if log_id is None:
            return
        self._bytes[log_id] = self._bytes.get(log_id, 0) + len(body)
        least = self._files.run_bytes_min
        if max(columns.sizes) >= least:
            self._large[log_id] = self._large.get(log_id, 0) + sum(size for size in columns.sizes if size >= least)
            self._bodies[id(body)] = Place(log_id, at.offset + position.offset, len(body))

    def choose(self) -> None:
        """Choose the files that are worth it, and give them their names."""
        for log_id, large in self._large.items():
            if log_id not in self._open:
                if large < self._bytes[log_id] * self._files.share_min:
                    continue
                if not self._files.link(log_id):
                    return
                self._linked.append(log_id)
                self._open.add(log_id)
            self.any = True

    def place_of(self, batch: Batch) -> Place | None:
        """The place where the batch stays, None if it must be written."""
        _, _, _, body, start, end = batch
        if end - start < self._files.run_bytes_min:
            return None
        whole = self._bodies.get(id(body))
        if whole is None or whole.log_id not in self._open:
            return None
        return Place(whole.log_id, whole.offset + start, end - start)

    def finish(self, *, all_of_them: bool) -> dict[int, int]:
        """Sync the new names; returns the sizes of complete files: all that the marks have passed, or simply all."""
        if self._linked:
            self._files.sync()
        done = {}
        for log_id in sorted(self._open):
            journal, file_id = kept_in(log_id)
            if all_of_them or file_id < self._marks[journal].file_id:
                done[log_id] = self._files.size(log_id)
        self._open -= done.keys()
        return done

    def committed(self) -> None:
        """Note that the rows that refer to the files are in the index."""
        self._files.open = frozenset(self._open)

    def abandon(self) -> None:
        """Remove the new names, to which no row refers."""
        for log_id in self._linked:
            self._files.unlink(log_id)
