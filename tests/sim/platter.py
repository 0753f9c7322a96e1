"""What lies on a simulated disk: sectors, sizes and directory entries, each as seen and as durable.

Every file has *view* sectors (what reads return), *durable* sectors, and the versions that each dirty sector went
through since the last fdatasync. A directory has the same: entries as seen, as durable, and the changes between.
"""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

SECTOR_BYTES = 512  # what a disk writes atomically, or, when it tears, does not
ZEROS = bytes(SECTOR_BYTES)
_BLANK = memoryview(bytes(1 << 20))


def _zeros(length: int) -> list[memoryview]:
    """So many zeros, none if it is negative."""
    if length <= 0:
        return []
    whole, rest = divmod(length, len(_BLANK))
    return [_BLANK] * whole + [_BLANK[:rest]]


@functools.lru_cache(maxsize=8)  # at each start of a bookie the rest of its journals is read
def _blank(length: int) -> bytes:
    return bytes(length)


class EntryStatus(enum.Enum):
    """What a power cut does to one dirty thing."""

    KEPT = "kept"
    DROPPED = "dropped"
    TORN = "torn"  # sectors only: some bytes of one version, the rest of another


@dataclass(frozen=True)
class Dirty:
    """Something that a power cut decides about: a sector, the size of a file, or an operation on a directory."""

    kind: str  # "sector", "size", "entry" or "exchange"
    path: str
    index: int  # number of the sector, or of the operation


@dataclass
class Inode:
    """The bytes of a file; sectors that are absent are zeros."""

    view: dict[int, bytes] = field(default_factory=dict)
    durable: dict[int, bytes] = field(default_factory=dict)
    dirty: dict[int, list[bytes]] = field(
        default_factory=dict
    )  # versions since the last sync, the last one is the view
    size: int = 0
    durable_size: int = 0
    rows: Any = None  # what an ordered store keeps in its data file
    shared: Any = None  # what the processes that have a store's lock file open keep in it

    def read(self, length: int, offset: int) -> bytes:
        end = min(offset + length, self.size)
        if end <= offset:
            return b""
        first, last = offset // SECTOR_BYTES, (end - 1) // SECTOR_BYTES
        view = self.view
        if last - first > len(view):  # most of what was allocated was never written
            written = sorted(i for i in view if first <= i <= last)
            return self._sparse(written, offset, end) if written else _blank(end - offset)
        data = b"".join([view.get(i, ZEROS) for i in range(first, last + 1)])
        start = offset - first * SECTOR_BYTES
        return data[start : start + end - offset]

    def _sparse(self, written: list[int], offset: int, end: int) -> bytes:
        """The bytes from `offset` to `end`, of which only the sectors `written` are anything but zeros."""
        pieces: list[bytes | memoryview] = []
        at = offset
        for i in written:
            start = i * SECTOR_BYTES
            pieces += _zeros(start - at)
            at = max(at, start)
            pieces.append(self.view[i][at - start : end - start])
            at = start + SECTOR_BYTES
        pieces += _zeros(end - at)
        return b"".join(pieces)

    def write(self, data: bytes, offset: int) -> None:
        if not data:
            return
        end = offset + len(data)
        first, last = offset // SECTOR_BYTES, (end - 1) // SECTOR_BYTES
        # Complete the first and last sector with what they hold, so that all that follows is whole sectors.
        head = self.view.get(first, ZEROS)[: offset - first * SECTOR_BYTES]
        tail = self.view.get(last, ZEROS)[end - last * SECTOR_BYTES :]
        whole = head + data + tail
        view, dirty, at = self.view, self.dirty, 0
        for i in range(first, last + 1):
            view[i] = content = whole[at : at + SECTOR_BYTES]
            at += SECTOR_BYTES
            if i in dirty:
                dirty[i].append(content)
            else:
                dirty[i] = [content]
        self.size = max(self.size, end)

    def _put(self, sector: int, content: bytes) -> None:
        self.view[sector] = content
        self.dirty.setdefault(sector, []).append(content)

    def truncate(self, length: int) -> None:
        for i in [i for i in self.view if i * SECTOR_BYTES >= length]:
            self._put(i, ZEROS)
        last, inside = divmod(length, SECTOR_BYTES)
        if inside and last in self.view:
            self._put(last, self.view[last][:inside] + bytes(SECTOR_BYTES - inside))
        self.size = length

    def sync(self, sectors: range | None = None) -> None:
        """Make these sectors durable, or all, and the size."""
        for i in list(self.dirty) if sectors is None else [i for i in sectors if i in self.dirty]:
            self.durable[i] = self.dirty.pop(i)[-1]
        self.durable_size = self.size

    def copy(self) -> Inode:
        """The same file on another disk, where no process has it open. A store's rows are shared: they never change."""
        dirty = {sector: list(versions) for sector, versions in self.dirty.items()}
        return Inode(dict(self.view), dict(self.durable), dirty, self.size, self.durable_size, self.rows)

    def decide(self, sector: int, entry_status: EntryStatus, rng: random.Random) -> None:
        """A power cut's verdict on one dirty sector."""
        versions = self.dirty[sector]
        if entry_status is EntryStatus.KEPT:
            self.durable[sector] = versions[-1]
        elif entry_status is EntryStatus.TORN:
            cut = rng.randrange(SECTOR_BYTES + 1)
            old = self.durable.get(sector, ZEROS)
            self.durable[sector] = rng.choice(versions)[:cut] + rng.choice([old, *versions])[cut:]

    def settle(self) -> None:
        """The durable bytes become the view."""
        self._cut_durable(self.durable_size)
        self.view = dict(self.durable)
        self.size = self.durable_size
        self.dirty.clear()

    def _cut_durable(self, length: int) -> None:
        for i in [i for i in self.durable if i * SECTOR_BYTES >= length]:
            del self.durable[i]
        last, inside = divmod(length, SECTOR_BYTES)
        if inside and last in self.durable:
            self.durable[last] = self.durable[last][:inside] + bytes(SECTOR_BYTES - inside)


Change = list[tuple[str, Inode | None]]  # names and what they become, all at once


@dataclass
class Directory:
    view: dict[str, Inode] = field(default_factory=dict)
    durable: dict[str, Inode] = field(default_factory=dict)
    dirty: list[Change] = field(default_factory=list)

    def change(self, change: Change) -> None:
        apply(self.view, change)
        self.dirty.append(change)

    def sync(self) -> None:
        self.durable = dict(self.view)
        self.dirty.clear()

    def copy(self, twin: Callable[[Inode], Inode]) -> Directory:
        """The same entries, of the twins of its files."""

        def twins(entries: dict[str, Inode]) -> dict[str, Inode]:
            return {name: twin(inode) for name, inode in entries.items()}

        dirty = [[(name, inode and twin(inode)) for name, inode in change] for change in self.dirty]
        return Directory(twins(self.view), twins(self.durable), dirty)


def apply(entries: dict[str, Inode], change: Change) -> None:
    for name, inode in change:
        if inode is None:
            entries.pop(name, None)
        else:
            entries[name] = inode


def all_entries(directory: Directory) -> list[tuple[str, Inode]]:
    """Every (name, file) that the directory has or that a power cut may bring back, each once."""
    found: dict[tuple[str, int], Inode] = {}
    for change in [list(directory.durable.items()), *directory.dirty, list(directory.view.items())]:
        for name, inode in change:
            if inode is not None:
                found.setdefault((name, id(inode)), inode)
    # A renamed file has two names; it is decided about once, under the first.
    seen: set[int] = set()
    entries = []
    for (name, identity), inode in found.items():
        if identity not in seen:
            seen.add(identity)
            entries.append((name, inode))
    return entries
