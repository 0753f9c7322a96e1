"""Makes the file of an index smaller: it never gives space back by itself, it only uses it again.

At a start, when more than a share of the file is free, its rows are copied to a new file, which then takes its place.

Invariants: the copy is synced before it gets the name, and the directory before anything is written to it; whatever
fails leaves the old file as it was.
"""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import Files, OrderedStore

DATA_NAME: Final = "data.mdb"
LOCK_NAME: Final = "lock.mdb"
COPY_NAME: Final = "data.mdb.new"


def worth_shrinking(store: OrderedStore, settings: BookieSettings) -> bool:
    """Whether so much of the file is free that a copy is worth its time."""
    file_bytes, used_bytes = store.sizes()
    free = file_bytes - used_bytes
    return file_bytes >= settings.index_shrink_bytes_min and free > settings.index_free_share_max * file_bytes


def shrink(store: OrderedStore, path: str, files: Files) -> bool:
    """Put a copy without free space in the place of the file, and close `store`; False if there is no space for it."""
    copy = f"{path}/{COPY_NAME}"
    try:
        remove_copy(path, files)
        store.copy(copy)
    except OSError as e:
        with contextlib.suppress(OSError):
            remove_copy(path, files)
        if e.errno != errno.ENOSPC:
            raise
        return False
    store.close()
    # It counts transactions of the old file; who still reads that, keeps both.
    if files.exists(f"{path}/{LOCK_NAME}"):
        files.unlink(f"{path}/{LOCK_NAME}")
    files.rename(copy, f"{path}/{DATA_NAME}")
    files.sync_dir(path)
    return True


def remove_copy(path: str, files: Files) -> None:
    """Remove what an earlier start left of a copy."""
    if files.exists(f"{path}/{COPY_NAME}"):
        files.unlink(f"{path}/{COPY_NAME}")
