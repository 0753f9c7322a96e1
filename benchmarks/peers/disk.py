"""Waits between rounds until the disk has nothing left to do, or to delete, for the system that was measured before."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

IDLE_BYTES_PER_S: Final = 2 << 20  # what other processes of an idle machine write
FREED_BYTES: Final = 64 << 20  # less than a file of a peer that is deleted
LOOK_S: Final = 0.5
WAIT_MAX_S: Final = 120.0
_SECTOR_BYTES: Final = 512  # of /proc/diskstats, whatever the disk has


@dataclass(frozen=True)
class Settled:
    """How the disk came to rest: seconds until then, and what was written meanwhile."""

    waited_s: float
    written_mb: float
    idle: bool  # False: it was still busy after WAIT_MAX_S

    def figures(self) -> dict[str, Any]:
        return {"disk_waited_s": self.waited_s, "disk_written_mb": self.written_mb, "disk_idle": self.idle}


def written_bytes(directory: str) -> int:
    """Bytes written since the machine started to the disk that `directory` is on, or to all disks if it has none."""
    device = os.stat(directory).st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    total = 0
    for line in Path("/proc/diskstats").read_text(encoding="ascii").splitlines():
        fields = line.split()
        size = int(fields[9]) * _SECTOR_BYTES
        if f"{fields[0]}:{fields[1]}" == name:
            return size
        if not fields[2].startswith(("loop", "ram", "zram")) and not fields[2][-1].isdigit():
            total += size
    return total


def free_bytes(directory: str) -> int:
    """What can still be written to the disk that `directory` is on."""
    return shutil.disk_usage(directory).free


async def until_freed(
    directory: str, still_s: float, free: Callable[[str], int] = free_bytes, look_s: float = LOOK_S
) -> None:
    """Return once no more space has become free for `still_s`."""
    began = time.monotonic()
    most, still = free(directory), 0.0
    while still < still_s and time.monotonic() - began < WAIT_MAX_S:
        await asyncio.sleep(look_s)
        now = free(directory)
        still = still + look_s if now < most + FREED_BYTES else 0.0
        most = max(most, now)


async def settle(
    directory: str, idle_s: float, written: Callable[[str], int] = written_bytes, look_s: float = LOOK_S
) -> Settled:
    """Write out what the kernel holds, then return once next to nothing was written for `idle_s`."""
    began = time.monotonic()
    first = before = written(directory)
    await asyncio.to_thread(os.sync)
    quiet = 0.0
    while quiet < idle_s and time.monotonic() - began < WAIT_MAX_S:
        await asyncio.sleep(look_s)
        now = written(directory)
        quiet = quiet + look_s if now - before < IDLE_BYTES_PER_S * look_s else 0.0
        before = now
    waited = round(time.monotonic() - began, 1)
    return Settled(waited, round((before - first) / 1e6, 1), quiet >= idle_s)
