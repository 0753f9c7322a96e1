"""Holds the machine's idle memory between two rounds, so that no round is the first to use a page of it.

A virtual machine may give free pages back to its host (free page reporting, e.g. Firecracker's balloon). One that was
free for two seconds costs its next user 30 to 55 us then, and what is written to a file through such pages goes at 60
to 130 MB/s. Deleted files and processes that ended leave gigabytes of them to the next round.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

PIECE_BYTES: Final = 64 << 20
FREE_BYTES: Final = 1 << 30  # stays free: less and the kernel drops what is in the page cache
LOW_BYTES: Final = FREE_BYTES // 2  # as soon as less is free, pieces are released
LOOK_S: Final = 0.02  # writes of a gigabyte a second use 20 MB in that time
TAKE_MAX_S: Final = 120.0


@dataclass(frozen=True)
class Held:
    """How the memory was taken: seconds for what was free, which is 8 to 15 for a gigabyte that the host had."""

    took_s: float
    taken_mb: int

    def __add__(self, other: Held) -> Held:
        return Held(round(self.took_s + other.took_s, 1), self.taken_mb + other.taken_mb)

    def figures(self) -> dict[str, Any]:
        return {"memory_took_s": self.took_s, "memory_taken_mb": self.taken_mb}


def free_memory() -> int:
    """Bytes that nobody uses, not even the page cache."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemFree:"))


class IdleMemory:
    """What nobody uses. It is released in pieces as soon as somebody does."""

    def __init__(self, free: Callable[[], int] = free_memory) -> None:
        self._free = free
        self._pieces: deque[mmap.mmap] = deque()

    @property
    def held_bytes(self) -> int:
        return len(self._pieces) * PIECE_BYTES

    async def take(self, max_s: float = TAKE_MAX_S) -> Held:
        """Use all that is free, but for `FREE_BYTES`, or as much of it as can be had in `max_s`."""
        began, taken = time.monotonic(), 0
        while self._free() > FREE_BYTES + PIECE_BYTES and time.monotonic() - began < max_s:
            self._pieces.append(await asyncio.to_thread(_touched))
            taken += PIECE_BYTES
        return Held(round(time.monotonic() - began, 1), taken >> 20)

    def release(self) -> None:
        """Give others enough, if less than `LOW_BYTES` are free."""
        if self._free() < LOW_BYTES:
            for _ in range(min(len(self._pieces), (FREE_BYTES - LOW_BYTES) // PIECE_BYTES)):
                self._pieces.popleft().close()

    @contextlib.asynccontextmanager
    async def released_in_time(self) -> AsyncIterator[None]:
        """Release what others need, as long as this is open, and all that is left at its end."""
        releasing = asyncio.create_task(self._release())
        try:
            yield
        finally:
            releasing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await releasing
            while self._pieces:
                self._pieces.popleft().close()

    async def _release(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.release()


def _touched() -> mmap.mmap:
    return mmap.mmap(-1, PIECE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
