"""Makes a directory's entries durable, and exchanges two of them."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


def sync_dir(path: str) -> None:
    """Return once the directory's entries are on disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def exchange(path: str, other: str) -> None:
    """Atomically give two files or directories each other's name; the caller syncs the directory.

    `OSError` of `ENOTSUP` where the system or the file system can't; it has changed nothing.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), path) from None
    if rename(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):  # the first is what most file systems say
            number = errno.ENOTSUP
        raise OSError(number, os.strerror(number), path)
