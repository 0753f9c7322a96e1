"""What the system knows of processes: the processor time that they took, and their resident sets at their largest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_USER_AND_SYSTEM: Final = slice(11, 13)  # of /proc/PID/stat, counted after the name


def cpu_s(pids: Iterable[int | None]) -> float:
    """Processor seconds of all of them since they started."""
    return sum(_ticks(pid) for pid in pids if pid is not None) / _TICKS_PER_S


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return sum(map(int, fields[_USER_AND_SYSTEM]))


def peak_resident_mb(pids: Iterable[int | None]) -> float | None:
    """The largest resident set (VmHWM) that any of them ever had, in MB (10^6 bytes); None if none runs."""
    return max((_peak_mb(pid) for pid in pids if pid is not None), default=None)


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    return round(int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6, 1)
