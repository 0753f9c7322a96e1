"""The machine and the versions that figures were measured with."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from typing import Any

from bkpy._version import VERSION

_PACKAGES = ("uvloop", "msgpack", "crc32c", "lmdb")


def machine(directory: str) -> dict[str, Any]:
    """Processor, cores, memory, kernel, and the file system of the directory that the data are written to."""
    processor = re.search(r"^model name\s*:\s*(.+)$", _text("/proc/cpuinfo"), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+) kB", _text("/proc/meminfo"), re.MULTILINE)
    return {
        "cpu": processor.group(1) if processor else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory.group(1)) / 2**20, 1) if memory else None,
        "kernel": f"{platform.system()} {platform.release()}",
        "file_system": _file_system(os.path.realpath(directory)),
    }


def versions() -> dict[str, str]:
    """Of Python, and of the packages on the hot path."""
    others = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), "bkpy": VERSION, **others}


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:  # not a Linux
        return ""


def _file_system(directory: str) -> str | None:
    best: tuple[int, str] | None = None
    for line in _text("/proc/mounts").splitlines():
        _, mount, kind = line.split()[:3]
        inside = directory == mount or directory.startswith(mount.rstrip("/") + "/")
        if inside and (best is None or len(mount) >= best[0]):
            best = len(mount), kind
    return best[1] if best else None
