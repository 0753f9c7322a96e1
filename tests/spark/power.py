"""A disk that loses power: it keeps what was synced, and of the rest what a seed decides.

    content of a file          as of its last fsync; else nothing, a half, or all that was written
    entries of a directory     as of its last fsync; else some of the changes since

A rename is one change: the old name and the new one are never both lost. Nothing else is ordered.
"""

from __future__ import annotations

import os
import shutil
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

Inode = int


class PowerModel:
    """What a loss of power leaves of the tree below `root`. It sees each `os.fsync` of this process."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._contents: dict[Inode, bytes] = {}  # of files, as of their last sync
        self._entries: dict[Inode, dict[str, Inode]] = {}  # of directories, as of their last sync
        self._held: dict[Inode, int] = {}  # descriptors: the number of an inode that is held is not given again
        monkeypatch.setattr(os, "fsync", self._sync)

    def close(self) -> None:
        """Give up what keeps inodes from being reused."""
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()

    def settle(self) -> None:
        """All that is there now is on disk."""
        self.close()
        self._contents.clear()
        self._entries.clear()
        for path in (self._root, *self._root.rglob("*")):
            fd = os.open(path, os.O_RDONLY)
            self._sync(fd)
            os.close(fd)

    def _sync(self, fd: int) -> None:
        inode = self._hold(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY))
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            names = os.listdir(self._held[inode])
            self._entries[inode] = {
                name: self._hold(os.open(name, os.O_RDONLY, dir_fd=self._held[inode])) for name in names
            }
        else:
            self._contents[inode] = _content(self._held[inode])

    def _hold(self, fd: int) -> Inode:
        inode = os.fstat(fd).st_ino
        if inode in self._held:
            os.close(fd)
        else:
            self._held[inode] = fd
        return inode

    def lose_power(self, rng: random.Random | None = None) -> None:
        """The tree becomes what a start finds: without `rng` nothing but what was synced."""
        present = self._present()
        entries = {directory: dict(self._left(directory, names, rng)) for directory, names in present.items()}
        for directory in self._reachable(entries):  # removed since, and that may be lost
            entries.setdefault(directory, self._entries.get(directory, {}))
        self._keep_renames(entries)
        contents = {
            inode: self._content_left(inode, rng)
            for names in entries.values()
            for inode in names.values()
            if inode not in entries
        }
        root = os.stat(self._root).st_ino
        for path in self._root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._write(self._root, root, entries, contents)
        self.settle()

    def _present(self) -> dict[Inode, dict[str, Inode]]:
        """The entries of each directory that is there, which are held from now on."""
        found = {}
        for directory in (self._root, *(path for path in self._root.rglob("*") if path.is_dir())):
            names = {path.name: self._hold(os.open(path, os.O_RDONLY)) for path in directory.iterdir()}
            found[self._hold(os.open(directory, os.O_RDONLY))] = names
        return found

    def _left(
        self, directory: Inode, present: dict[str, Inode], rng: random.Random | None
    ) -> Iterator[tuple[str, Inode]]:
        synced = self._entries.get(directory, {})
        for name in sorted(synced.keys() | present.keys()):
            source = present if rng is not None and rng.random() < 0.5 else synced
            if name in source:
                yield name, source[name]

    def _reachable(self, entries: dict[Inode, dict[str, Inode]]) -> list[Inode]:
        """Directories below the root that no entries are known of, as far as synced ones lead."""
        found, todo = [], [inode for names in entries.values() for inode in names.values() if inode not in entries]
        while todo:
            inode = todo.pop()
            if stat.S_ISDIR(os.fstat(self._held[inode]).st_mode):
                found.append(inode)
                todo += self._entries.get(inode, {}).values()
        return found

    def _keep_renames(self, entries: dict[Inode, dict[str, Inode]]) -> None:
        """A file that has a name now, and had another one on disk, keeps one of them."""
        named = self._named(entries)
        for directory, names in self._entries.items():
            for name, inode in names.items():
                renamed = inode not in named and inode not in entries and os.fstat(self._held[inode]).st_nlink > 0
                if renamed and (directory in named or directory == os.stat(self._root).st_ino):
                    entries[directory][name] = inode
                    named.add(inode)

    def _named(self, entries: dict[Inode, dict[str, Inode]]) -> set[Inode]:
        """What a path from the root leads to."""
        found: set[Inode] = set()
        todo = [os.stat(self._root).st_ino]
        while todo:
            inodes = entries.get(todo.pop(), {}).values()
            found.update(inodes)
            todo += inodes
        return found

    def _content_left(self, inode: Inode, rng: random.Random | None) -> bytes:
        synced = self._contents.get(inode, b"")
        if rng is None:
            return synced
        whole = _content(self._held[inode])
        return whole[: rng.choice([len(synced), (len(synced) + len(whole)) // 2, len(whole)])]

    def _write(
        self, path: Path, directory: Inode, entries: dict[Inode, dict[str, Inode]], contents: dict[Inode, bytes]
    ) -> None:
        for name, inode in entries[directory].items():
            if inode in entries:
                (path / name).mkdir()
                self._write(path / name, inode, entries, contents)
            else:
                (path / name).write_bytes(contents[inode])


def _content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)
