"""The status of all bookies of a cluster, and their storage: the auditor decides by it.

Invariant: one session read all of it, from a server that had caught up; otherwise the call fails.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bkpy.errors import CorruptDataError, MetadataUnavailableError, UnauthorizedError
from bkpy.metadata import paths
from bkpy.metadata.bookies.cookies import instance_of, list_cookies
from bkpy.metadata.bookies.registration import decode_registration
from bkpy.metadata.store.resolve import children_if_there, read_if_there
from bkpy.protocol.repair.lost_bookies import BookieStatus, Presence

if TYPE_CHECKING:
    from collections.abc import Collection

    from bkpy.metadata.store.store import MetadataStore


async def look_at_bookies(
    store: MetadataStore, root: str, *, reads_at_once: int, named: Collection[str] = ()
) -> dict[str, BookieStatus]:
    """All bookies that have a cookie or are registered, and the others of `named`. Raises `MetadataUnavailableError`.

    If this process may not read a cookie, the bookie's storage is unknown.
    """
    session = store.session_id
    await store.sync(root)
    reads = asyncio.Semaphore(reads_at_once)
    writable = await children_if_there(store, f"{root}/{paths.AVAILABLE}")
    read_only = await children_if_there(store, f"{root}/{paths.READ_ONLY}")
    cookies = await list_cookies(store, root)
    places = {**dict.fromkeys(writable, False), **dict.fromkeys(read_only, True)}
    # Somebody else's nodes may lie there, too.
    bookies = sorted(filter(paths.is_bookie_id, {*cookies, *places, *named}))

    async def look(bookie: str) -> BookieStatus | None:
        async with reads:
            try:
                cookie = await read_if_there(store, paths.cookie(root, bookie))
            except UnauthorizedError:
                instance, has_cookie = "", True
            else:
                has_cookie = cookie is not None
                instance = "" if cookie is None else instance_of(cookie[0])
            # One that is in neither list may have moved from the one to the other between the two reads.
            presence = await _presence(store, root, bookie, read_only=places.get(bookie, False))
            if not has_cookie and presence is Presence.ABSENT and bookie not in named:
                return None  # it was removed, or has left, meanwhile
            return BookieStatus(presence, instance, has_cookie)

    seen = await asyncio.gather(*(look(bookie) for bookie in bookies))
    if store.session_id != session:  # another session may have got another, older server
        raise MetadataUnavailableError("the session with the metadata store has ended during a look at the bookies")
    return {bookie: is_ for bookie, is_ in zip(bookies, seen, strict=True) if is_ is not None}


async def _presence(store: MetadataStore, root: str, bookie: str, *, read_only: bool) -> Presence:
    """The presence of a bookie, looked for in that place first. It may move to the other one, or leave, meanwhile.

    A bookie whose registration is unreadable counts as absent, as it does for clients: nothing proves that it is there
    with its data.
    """
    for place in (read_only, not read_only):
        try:
            found = await read_if_there(store, paths.available(root, bookie, read_only=place))
            if found is not None:
                info = decode_registration(bookie, found[0], read_only=place)
                return Presence.LIMBO if info.in_limbo else Presence.HERE
        except (CorruptDataError, UnauthorizedError):
            return Presence.ABSENT
    return Presence.ABSENT  # it is in neither place, or has left meanwhile
