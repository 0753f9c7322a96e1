"""The steps by which an export changes its directory: a crash comes before or after a step, never within."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from bkpy.runtime.directories import sync_dir


class Disk:
    """The file system, the real one. All calls block and raise `OSError`. Tests put a crash between any two."""

    def create(self, path: Path, data: bytes) -> int:
        """A new file with that content, on disk when this returns; a descriptor that appends to it."""
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            self.append(fd, data)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def append(self, fd: int, data: bytes) -> None:
        """Write all of it, and return when it is on disk. After an error the file's end is unknown."""
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)

    def sync(self, path: Path) -> None:
        """Return when a file that another process wrote is on disk."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_dir(self, path: Path) -> None:
        """Return when the directory's entries are on disk."""
        sync_dir(str(path))

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file atomically, replacing the file that has the name."""
        os.rename(source, target)

    def make_dir(self, path: Path) -> None:
        """Make the directory, unless it is there."""
        path.mkdir(exist_ok=True)

    def unlink(self, path: Path) -> None:
        """Remove a file, unless it isn't there."""
        path.unlink(missing_ok=True)

    def kind(self, path: Path) -> str:
        """The name of the file system there, such as "ext4"; "" if it is unknown."""
        try:
            lines = Path("/proc/self/mountinfo").read_text().splitlines()
        except OSError:
            return ""
        device = path.stat().st_dev
        for line in reversed(lines):
            mounted, _, what = line.partition(" - ")
            if mounted.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                kind, source, *_ = what.split()
                return source if kind == "fuse" else kind
        return ""

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with all its contents, also while an ending process still adds to it."""
        while True:
            try:
                shutil.rmtree(path)
            except FileNotFoundError:
                if not path.exists():
                    return
            except OSError as e:
                if e.errno != errno.ENOTEMPTY:
                    raise
            else:
                return
