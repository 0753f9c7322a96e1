"""Fills the machine's idle memory with page cache before a round, so that no round is the first to use a page of it.

A virtual machine may give free pages back to its host (free page reporting, e.g. Firecracker's balloon). One that was
free for two seconds costs its next user 30 to 55 us then, and what is written to a file through such pages goes at 60
to 130 MB/s. Deleted files and processes that ended leave gigabytes of them to the next round. What is in the page cache
the kernel keeps, and takes from there as a round needs it: these pages are the machine's own.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PIECE_BYTES: Final = 32 << 20
ADVICE_BYTES: Final = 128 << 10  # what the kernel reads for one advice, whatever was asked for: a disk's readahead
FILL_MAX_S: Final = 120.0


@dataclass(frozen=True)
class Filled:
    """How the memory was filled: seconds for what was free, which are 8 to 15 for a gigabyte that the host had."""

    took_s: float
    filled_mb: int

    def __add__(self, other: Filled) -> Filled:
        return Filled(round(self.took_s + other.took_s, 1), self.filled_mb + other.filled_mb)

    def figures(self) -> dict[str, Any]:
        return {"memory_took_s": self.took_s, "memory_filled_mb": self.filled_mb}


def free_memory() -> int:
    """Bytes that nobody uses, not even the page cache."""
    return _number_of("/proc/meminfo", "MemFree:") << 10


def reclaimed_pages() -> int:
    """Pages that the kernel has taken from the page cache since the start, because too few were free."""
    return _number_of("/proc/vmstat", "pgsteal_kswapd") + _number_of("/proc/vmstat", "pgsteal_direct")


def _number_of(path: str, name: str) -> int:
    lines = Path(path).read_text(encoding="ascii").splitlines()
    return next(int(words[1]) for words in map(str.split, lines) if words[0] == name)


class IdleMemory:
    """Page cache of a sparse file at `path`, as long as the machine's memory, which needs no disk."""

    def __init__(
        self, path: str, free: Callable[[], int] = free_memory, reclaimed: Callable[[], int] = reclaimed_pages
    ) -> None:
        self._free = free
        self._reclaimed = reclaimed
        self._size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.truncate(self._fd, self._size)

    async def fill(self, max_s: float = FILL_MAX_S) -> Filled:
        """Read of the file what isn't in memory, until the kernel has to reclaim pages for it, or for `max_s`."""
        began, free, reclaimed = time.monotonic(), self._free(), self._reclaimed()
        for at in range(0, self._size, PIECE_BYTES):
            if self._reclaimed() > reclaimed or time.monotonic() - began >= max_s:
                break
            # Unlike a read it leaves the pages that are there where they are: the first ones to be reclaimed.
            await asyncio.to_thread(self._read, at, min(at + PIECE_BYTES, self._size))
        return Filled(round(time.monotonic() - began, 1), max(0, free - self._free()) >> 20)

    def _read(self, at: int, end: int) -> None:
        for begin in range(at, end, ADVICE_BYTES):
            os.posix_fadvise(self._fd, begin, ADVICE_BYTES, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        os.close(self._fd)
