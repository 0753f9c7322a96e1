"""The directory of an export: all files of a batch become part of it, or none, whenever their writer dies.

    DIR/part-<batch>-<task>-c000.snappy.parquet    the files for readers, perhaps below DIR/day=YYYY-MM-DD/
    DIR/_bkpy/manifest-<number>                    the list of the export's contents; the highest number counts
    DIR/_bkpy/staging-<token>/<batch>-<attempt>/   files that Spark is writing; readers skip names with "_" in front

Invariants: a file gets a visible name only when it is whole and on disk and the manifest lists it, and a name only
once. An exporter that opens a directory first takes the next number, which only one process can have, and then reads
the manifest before it. So a former exporter that still runs has either recorded its batch before that, and the new one
knows it, or sees the higher number after recording the batch, and stops.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from bkpy.errors import BookKeeperError, ConfigError, CorruptDataError
from bkpy.spark.disk import Disk
from bkpy.spark.id_runs import NOTHING
from bkpy.spark.manifest import (
    ExportLayout,
    ExportSource,
    Moves,
    State,
    Totals,
    committed_line,
    decode,
    finished_line,
    first_line,
    planned_line,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bkpy.spark.id_runs import Runs

HIDDEN: Final = "_bkpy"
_SPARKS_SUCCESS: Final = "_SUCCESS"
_REWRITE_BYTES_MIN: Final = 64 * 1024  # the least number of lines that are appended before a manifest is rewritten

# What Spark calls a file, with the task, the file of the task and what follows; and what it is called in the end.
_STAGED: Final = re.compile(r"part-(\d+)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}[-.](c\d+)(\..+)")
_MANIFEST: Final = re.compile(r"manifest-(\d{8,})")

# File systems over object stores copy and delete where they are asked to rename.
_WITHOUT_RENAME: Final = frozenset(
    (
        "blobfuse",
        "fuse.blobfuse",
        "fuse.blobfuse2",
        "fuse.gcsfuse",
        "fuse.goofys",
        "fuse.rclone",
        "fuse.s3fs",
        "goofys",
        "mountpoint-s3",
        "s3fs",
    )
)


def look(path: Path, source: ExportSource, layout: ExportLayout) -> State:
    """The state of the directory, which need not exist. Changes nothing.

    Raises `ConfigError` if it holds anything but an export of `source` with this layout, and what `decode` raises.
    """
    state = _stored(path / HIDDEN)
    if state is None:
        _check_empty(path)
        return State(source, layout)
    if state.source != source:
        raise ConfigError(
            f"the directory holds an export of {state.source}, not of {source}: take another one", path=str(path)
        )
    if state.layout != layout:
        raise ConfigError(
            f"the directory holds {state.layout}, not {layout}: take the same options, or another directory",
            path=str(path),
        )
    return state


def _stored(hidden: Path) -> State | None:
    """The contents of the highest manifest that is complete; the makers of higher ones got no further."""
    while True:
        try:
            for number in sorted(_numbers(hidden), reverse=True):
                manifest = hidden / _manifest(number)
                if (state := decode(manifest.read_bytes(), str(manifest))) is not None:
                    return state
        except FileNotFoundError:  # since they were listed: there is one with a higher number
            continue
        return None


def _manifest(number: int) -> str:
    return f"manifest-{number:08d}"


def _numbers(hidden: Path) -> list[int]:
    names = os.listdir(hidden) if hidden.exists() else []
    return [int(found[1]) for name in names if (found := _MANIFEST.fullmatch(name))]


def _check_empty(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise ConfigError("a file has the name of the export's directory", path=str(path))
    names = {name for name in os.listdir(path) if name != HIDDEN}
    if _SPARKS_SUCCESS in names:
        raise ConfigError(
            "the directory holds an export without a manifest, of a bkpy that didn't keep any, or Spark's own output: "
            "nothing can be added to it without a doubt; export everything into another directory",
            path=str(path),
        )
    if names:
        raise ConfigError("the directory to export to is not empty, and holds no export", path=str(path))


class ExportDirectory:
    """A directory that this process adds to. After any error but of its arguments, only `close` may be called."""

    def __init__(self, path: Path, state: State, disk: Disk) -> None:
        self.path = path
        self.state = state
        self._disk = disk
        self._hidden = path / HIDDEN
        self._token = secrets.token_hex(8)
        self._attempts = 0
        self._committing = False  # what is staged may be part of the export
        self._fd = -1
        self._number = 0
        self._first_bytes = self._appended = 0

    @classmethod
    def open(cls, path: Path, source: ExportSource, layout: ExportLayout, disk: Disk | None = None) -> ExportDirectory:
        """The directory, made if there is none. Finishes or removes what a former exporter left half done.

        Raises what `look` raises, `ConfigError` for a file system without an atomic rename, and `OSError`.
        """
        disk = disk or Disk()
        state = look(path, source, layout)  # before anything is made
        directory = cls(path, State(source, layout), disk)
        try:
            if state.next_batch == 0:
                directory._make()
            directory._take_over(source, layout)
        except BaseException:
            directory.close()
            raise
        return directory

    def _make(self) -> None:
        """Make the directory and those above that are missing, each of them on disk before anything is in it."""
        missing = list(takewhile(lambda path: not path.exists(), (self.path, *self.path.parents)))
        # The lowest that exists may have been made by an exporter that was killed before it had synced its entry.
        above = missing[-1].parent if missing else self.path
        with suppress(PermissionError):  # it was made by somebody else, or its owner has restricted it since
            self._disk.sync_dir(above.parent)
        for path in reversed(missing):
            self._disk.make_dir(path)
            self._disk.sync_dir(path.parent)

    def _take_over(self, source: ExportSource, layout: ExportLayout) -> None:
        self._disk.make_dir(self._hidden)
        self._disk.sync_dir(self.path)
        self._check_renames()
        self._take_number(max(_numbers(self._hidden), default=0) + 1, lambda: look(self.path, source, layout))
        if self.state.moves is not None:
            self._move(self.state.moves)
        left = list(self._hidden.iterdir())
        self._check_ours()  # what a successor will have there wasn't there yet
        for entry in left:
            if entry.is_dir():
                self._disk.remove_tree(entry)
            elif not _MANIFEST.fullmatch(entry.name):
                self._disk.unlink(entry)

    def _check_renames(self) -> None:
        kind = self._disk.kind(self._hidden)
        if kind in _WITHOUT_RENAME:
            raise ConfigError(f"a file system of the kind {kind} has no atomic rename", path=str(self.path))
        source, target = (self._hidden / f"rename-{name}-{self._token}" for name in ("from", "to"))
        try:
            for path in (source, target):
                os.close(self._disk.create(path, path.name.encode()))
            try:
                self._disk.rename(source, target)
            except OSError as e:
                raise ConfigError(
                    f"the file system refuses a rename that replaces a file: {e.strerror}", path=str(self.path)
                ) from e
            if source.exists() or target.read_bytes() != source.name.encode():
                raise ConfigError("the file system has no rename that replaces a file", path=str(self.path))
        finally:
            with suppress(OSError):
                self._disk.unlink(source)
                self._disk.unlink(target)

    def _take_number(self, number: int, read: Callable[[], State]) -> None:
        """Take this number, the next one, and begin its manifest with what has been `read` after that."""
        try:
            fd = self._disk.create(self._hidden / _manifest(number), b"")
        except FileExistsError:
            raise self._taken() from None
        if self._fd >= 0:
            os.close(self._fd)
        self._number, self._fd = number, fd
        self._disk.sync_dir(self._hidden)
        self.state = read()
        line = first_line(self.state)
        self._disk.append(fd, line)
        self._first_bytes, self._appended = len(line), 0
        for lower in _numbers(self._hidden):
            if lower < number:
                self._disk.unlink(self._hidden / _manifest(lower))

    def begin(self, ids: Runs) -> Path:
        """Record the next batch's contents. Returns the directory to write it into, which doesn't exist yet."""
        self._check_ours()
        if self._appended > max(self._first_bytes, _REWRITE_BYTES_MIN):
            # Not the one behind the highest: another exporter may have taken that, and have added batches.
            self._take_number(self._number + 1, lambda: self.state)
        self._attempts += 1
        staging = f"staging-{self._token}/{self.state.next_batch:08d}-{self._attempts}"
        self._append(planned_line(self.state.next_batch, staging, ids))
        self._disk.make_dir(self._hidden / f"staging-{self._token}")
        return self._hidden / staging

    def staged(self, staging: Path) -> list[Path]:
        """The files that were written there."""
        names = (path.relative_to(staging) for path in sorted(staging.rglob("*")) if path.is_file())
        return [staging / name for name in names if not any(part.startswith(("_", ".")) for part in name.parts)]

    def commit(self, staging: Path, ids: Runs, *, rows: int, bytes: int, ledgers: int, gaps: Runs = NOTHING) -> Totals:
        """Make the files in `staging` part of the export, as these `ids`. Returns what that has added.

        `gaps` are those of the ids that have no entries.
        """
        files = self.staged(staging)
        for file in files:
            self._disk.sync(file)
        for above in {above for file in files for above in file.parents if above.is_relative_to(self._hidden)}:
            self._disk.sync_dir(above)
        batch = self.state.next_batch
        moves = Moves(
            batch,
            str(staging.relative_to(self._hidden)),
            tuple((str(name), self._name(batch, name)) for name in (file.relative_to(staging) for file in files)),
        )
        added = Totals(rows, bytes, ledgers, len(files))
        self._check_ours()
        self._committing = True
        self._append(committed_line(ids, added, moves, gaps))
        self._check_ours()  # else who has taken it may not have read that line
        self.state = self.state.committed(ids, added, moves, gaps)
        self._move(moves)
        return added

    def _name(self, batch: int, staged: Path) -> str:
        found = _STAGED.fullmatch(staged.name)
        if found is None:
            raise CorruptDataError(f"Spark has written a file of an unknown kind, {staged}", path=str(self.path))
        task, file, suffix = found.groups()
        return str(staged.with_name(f"part-{batch:08d}-{task}-{file}{suffix}"))

    def _move(self, moves: Moves) -> None:
        """Give the export's files their names, unless they have them."""
        staging = self._hidden / moves.staging
        targets = {self.path}
        for old, new in moves.files:
            source, target = staging / old, self.path / new
            if target.parent not in targets:
                self._disk.make_dir(target.parent)
                targets.add(target.parent)
            try:
                self._disk.rename(source, target)
            except FileNotFoundError:
                if not target.exists():
                    self._check_ours()
                    raise CorruptDataError(
                        "a file of the export was removed before it had its name", path=str(source)
                    ) from None
        for directory in targets:
            self._disk.sync_dir(directory)
        self._append(finished_line(moves.batch))
        self.state = self.state.finished()
        self._committing = False
        self._disk.remove_tree(staging)

    def _append(self, line: bytes) -> None:
        self._disk.append(self._fd, line)
        self._appended += len(line)

    def _check_ours(self) -> None:
        """Guards against two exporters that both believe to hold the lock, which keeps others out."""
        if max(_numbers(self._hidden), default=0) != self._number:
            raise self._taken()

    def _taken(self) -> BookKeeperError:
        return BookKeeperError("another export has taken the directory over meanwhile", path=str(self.path))

    def close(self) -> None:
        """Leave the directory, and remove files that are no part of the export."""
        if self._fd < 0:
            return
        try:
            if not self._committing:
                with suppress(OSError):  # the next exporter does it
                    self._disk.remove_tree(self._hidden / f"staging-{self._token}")
        finally:
            os.close(self._fd)
            self._fd = -1
