"""Makes durable what a directory names."""

from __future__ import annotations

import os


def sync_dir(path: str) -> None:
    """Return once the directory's entries are on disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
