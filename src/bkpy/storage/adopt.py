"""Lets a stopped bookie's directories join a cluster that was restored from a backup of their own one.

    every index: all ledgers in limbo, durably --> the cookie in the metadata store --> the cookies of the directories

Invariants: no cookie of the new cluster exists before all ledgers of all indexes are in limbo, and so are ledgers that
only a journal has; an adoption that was interrupted is done again, from the first step on.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from bkpy.errors import CorruptDataError, IdentityError
from bkpy.protocol.restore.restoring import Adoption, adoption_of
from bkpy.storage.file_names import INDEX_NAME
from bkpy.storage.identity import Directories, decode_cookie, locked, read_cookie
from bkpy.storage.index import index
from bkpy.storage.open import check_indexes, damaged_index

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from bkpy.config.bookie import BookieSettings
    from bkpy.protocol.restore.restoring import Restore
    from bkpy.runtime.interfaces import DiskRuntime
    from bkpy.storage.identity import Cookie


async def adopt_storage(
    settings: BookieSettings,
    runtime: DiskRuntime,
    restore: Restore,
    expected_cookie: bytes | None,
    register: Callable[[bytes], Awaitable[None]],
) -> bool:
    """Join the restored cluster if the directories are of the cluster in the backup; whether they were.

    `register` stores the storage's part of the cookie in the metadata store, once all ledgers are in limbo.
    `expected_cookie`: what the backup had. Where no directory has a cookie it belongs to the restored cluster as well:
    a start refuses that, or rebuilds the bookie, which has everything in limbo then.
    Raises `IdentityError` and `CorruptDataError`, which say what to do.
    """
    directories = Directories(settings, runtime.files, restore.instance_id)
    with contextlib.ExitStack() as held:
        there = [path for path in directories.all if runtime.files.exists(path)]
        for path in there:
            held.enter_context(locked(runtime.files, path))
        cookies = {path: cookie for path in there if (cookie := read_cookie(runtime.files, path)) is not None}
        instances = {cookie.instance_id for cookie in cookies.values() if cookie.bookie_id == settings.bookie_id}
        if not cookies and expected_cookie is not None:
            expected = decode_cookie(expected_cookie, "the metadata store")
            if adoption_of({expected.instance_id}, restore) is Adoption.JOIN:
                await register(expected._replace(instance_id=restore.instance_id).encode())
            return False
        adoption = adoption_of(instances, restore)
        if adoption is Adoption.STRANGER and instances:
            raise _of_another(instances, restore)
        if adoption is not Adoption.JOIN:
            return False
        newest = max(cookies.values(), key=lambda cookie: len(cookie.ledger_directories))
        cookie = newest._replace(instance_id=restore.instance_id)
        _check(directories, cookies, cookie)
        known = [directory.path for directory in cookie.ledger_directories]
        await check_indexes(runtime, known)
        for directory in cookie.ledger_directories:
            _put_in_limbo(settings, runtime, directory.path, directory.uuid)
        await register(cookie.encode())
        for path in cookies:
            directories.write_to(path, cookie)
    return True


def _of_another(instances: Collection[str], restore: Restore) -> IdentityError:
    others = sorted({*instances} - {restore.instance_id, restore.former, *restore.also_from})
    return IdentityError(
        f"the bookie belongs to cluster {', '.join(others)}, but the metadata store is that of cluster "
        f"{restore.instance_id}, which was restored from a backup of {restore.former}; correct metadata_uri. If the "
        "bookie's cluster was restored from a backup, too, and is given up: `bkpy cluster restore FILE "
        f"{' '.join(f'--also-from {one}' for one in others)}`, with the file of this restore, lets its bookies join"
    )


def _check(directories: Directories, cookies: dict[str, Cookie], joined: Cookie) -> None:
    """`IdentityError` unless all directories agree, and are where they were: nothing else changes with a restore."""
    directories.check_owner(joined, "the directories")
    missing = [path for path in joined.paths if path not in cookies]
    if missing:
        raise IdentityError(
            "this directory has no cookie, or isn't among the settings' directories. A bookie joins a restored cluster "
            "with exactly the directories of its last start: mount the disk, restore the settings; if the disk is "
            "lost, empty the others too (`bkpy bookie format --force`) and start with --rebuild",
            path=missing[0],
        )
    for path, cookie in cookies.items():
        if not joined.extends(cookie._replace(instance_id=joined.instance_id)):
            raise IdentityError(
                "the cookies of the bookie's directories disagree: `bkpy bookie cookie show` tells in what", path=path
            )


def _put_in_limbo(settings: BookieSettings, runtime: DiskRuntime, directory: str, uuid: str) -> None:
    path = f"{directory}/{INDEX_NAME}"
    try:
        store = runtime.store.open(path, bytes_max=settings.index_bytes_max, readers_max=settings.index_readers_max)
    except FileNotFoundError:
        raise IdentityError("this directory's index is gone; restore it", path=path) from None
    with contextlib.closing(store):
        try:
            row = index.load_shard(store)
        except CorruptDataError as error:
            error.path = path
            raise damaged_index(error) from error
        if row is None or row.uuid.hex() != uuid:
            raise IdentityError("the index is not the one that the cookie names; restore the right one", path=path)
        index.put_all_in_limbo(store, row)
