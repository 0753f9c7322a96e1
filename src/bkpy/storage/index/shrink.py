"""Shrinks an index at a start: LMDB never returns space to the file system, it only reuses it.

At a start, when more than a share of the file is free, its rows are copied to an index in a directory of its own, which
then exchanges its name with the old one.

Invariants: at each moment the index's name is that of a whole index with all rows, and of the lock file that belongs to
it; the copy serves only after all of its rows were read back, and nothing is written to it before its name is durable;
while it gets its name it is open, so that no reader can begin its lock file; any failure before the exchange leaves the
old index in use.
"""

from __future__ import annotations

import errno
import logging
import zlib
from typing import TYPE_CHECKING, Final

from bkpy.storage.file_names import INDEX_NAME, SHRUNK_INDEX_NAME

if TYPE_CHECKING:
    from bkpy.config.bookie import BookieSettings
    from bkpy.runtime.interfaces import DiskRuntime, OrderedStore

_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
_NO_EXCHANGE: Final = (errno.ENOTSUP, errno.EPERM, errno.EACCES)  # of the file system, or of what confines the process

_log = logging.getLogger("bkpy.bookie")


def worth_shrinking(store: OrderedStore, settings: BookieSettings) -> bool:
    """Whether so much of the file is free that a copy is worth its time."""
    file_bytes, used_bytes = store.sizes()
    free = file_bytes - used_bytes
    return file_bytes >= settings.index_shrink_bytes_min and free > settings.index_free_share_max * file_bytes


def shrink(store: OrderedStore, directory: str, runtime: DiskRuntime, settings: BookieSettings) -> OrderedStore:
    """Put a copy without free space in the place of a ledger directory's index; the index to use, `store` or the copy.

    Blocks. `store` stays open if it raises.
    """
    path = f"{directory}/{SHRUNK_INDEX_NAME}"
    try:
        store.copy(path)
        copy = runtime.store.open(path, bytes_max=settings.index_bytes_max, readers_max=settings.index_readers_max)
    except OSError as e:
        if e.errno not in _NO_SPACE:
            raise
        remove_copy(directory, runtime)
        return store
    try:
        refusal = _exchange(store, copy, runtime)
        if refusal is None:
            runtime.files.sync_dir(directory)
            store.close()
            remove_copy(directory, runtime)
            return copy
    except BaseException:
        copy.close()
        raise
    copy.close()
    remove_copy(directory, runtime)
    _log.warning("failed to shrink %s/%s, which stays in use as it is: %s", directory, INDEX_NAME, refusal)
    return store


def _exchange(store: OrderedStore, copy: OrderedStore, runtime: DiskRuntime) -> str | None:
    """Let the copy take the place of the index; why it didn't, None if it did."""
    if _sums(copy) != _sums(store):
        return "a copy of it doesn't have the same rows"
    try:
        runtime.store.exchange(store, copy)
    except OSError as e:
        if e.errno not in _NO_EXCHANGE:
            raise
        return f"the system can't exchange the names of two directories ({e})"
    return None


def _sums(store: OrderedStore) -> tuple[int, int]:
    """How many rows there are, and the XOR of their checksums."""
    count, checksum = 0, 0
    with store.read() as txn:
        for key, value in txn.scan(b"\0", b"\xff"):
            count += 1
            checksum ^= zlib.crc32(value, zlib.crc32(key))  # a crc32c of what ends with its own is the same for all
    return count, checksum


def remove_copy(directory: str, runtime: DiskRuntime) -> None:
    """Remove what is left of a copy: of one that a start didn't finish, or the index whose place it took."""
    path = f"{directory}/{SHRUNK_INDEX_NAME}"
    if runtime.files.exists(path):
        runtime.files.sync_dir(directory)  # a start may have died behind the exchange, and before its sync
        runtime.store.remove(path)
    beside = f"{directory}/{INDEX_NAME}/data.mdb.new"  # where versions up to 0.2.0 made it
    if runtime.files.exists(beside):
        runtime.files.unlink(beside)
