"""Rebuilds a stopped bookie's indexes, with the help of its cluster's metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.bookie.cookie import storage_part, with_storage
from bkpy.errors import CorruptDataError, IdentityError, NoSuchLedgerError, UnsupportedVersionError
from bkpy.metadata.bookies.cookies import read_cookie, write_cookie
from bkpy.metadata.cluster import open_cluster
from bkpy.metadata.store.outcome import NotDone
from bkpy.storage.cookies import look_for_cookie
from bkpy.storage.entry_log.entry_log import log_id_of
from bkpy.storage.identity import Directories
from bkpy.storage.tools.rebuild.rebuild import Catalog, Rebuilt, rebuild_index

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from bkpy.config.bookie import BookieSettings
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.runtime.interfaces import DiskRuntime, Files
    from bkpy.storage.observer import StorageObserver


def log_bytes(settings: BookieSettings, files: Files, directories: Collection[str] = ()) -> int:
    """Bytes of the entry logs in these ledger directories, by default in all."""
    total = 0
    for directory in directories or settings.ledger_directories:
        for name in files.listdir(directory) if files.exists(directory) else ():
            if log_id_of(name) is not None:
                file = files.open(f"{directory}/{name}", read_only=True)
                total += file.size()
                file.close()
    return total


async def rebuild_with_metadata(
    settings: BookieSettings,
    store: MetadataStore,
    root: str,
    runtime: DiskRuntime,
    *,
    observer: StorageObserver,
    directories: Collection[str] = (),
    progress: Callable[[int], None] = lambda done: None,
) -> Rebuilt:
    """Rebuild the indexes of these ledger directories, by default of all; see `rebuild_index`."""
    cluster = await open_cluster(store, root)
    known = await read_cookie(store, root, settings.bookie_id)
    newest = await cluster.catalog.newest_id()
    if isinstance(newest, NotDone):
        raise newest.error

    async def look_up(ledger_id: int) -> LedgerMetadata | None:
        try:
            return (await cluster.catalog.read(ledger_id))[0]
        except (NoSuchLedgerError, CorruptDataError, UnsupportedVersionError):
            return None  # in limbo, and without a key: no client could use the key of a ledger with unreadable metadata

    async def register(cookie: bytes) -> None:
        assert known is not None  # an unknown bookie is refused before
        value = with_storage(known[0], cookie)
        await write_cookie(store, root, settings.bookie_id, value, known[1])

    return await rebuild_index(
        settings,
        runtime,
        instance_id=cluster.instance_id,
        expected_cookie=None if known is None else storage_part(known[0]),
        catalog=Catalog(look_up, cluster.catalog.ids, newest),
        register=register,
        observer=observer,
        directories=directories,
        progress=progress,
    )


async def rebuild_offline(
    settings: BookieSettings,
    runtime: DiskRuntime,
    *,
    observer: StorageObserver,
    directories: Collection[str] = (),
    progress: Callable[[int], None] = lambda done: None,
) -> Rebuilt:
    """The same without metadata: all ledgers are in limbo afterwards, and most have no key."""
    paths = Directories(settings, runtime.files, "")
    cookies = (look_for_cookie(runtime.files, path).cookie for path in paths.all)
    cookie = next((found for found in cookies if found is not None), None)
    if cookie is None:
        raise IdentityError("no directory has a sound cookie: there is no bookie here", path=paths.all[0])

    async def keep(_: bytes) -> None:
        """The indexes keep their uuids, so the cookies are as they were."""

    return await rebuild_index(
        settings,
        runtime,
        instance_id=cookie.instance_id,
        expected_cookie=cookie.encode(),
        catalog=None,
        register=keep,
        observer=observer,
        directories=directories,
        progress=progress,
    )
