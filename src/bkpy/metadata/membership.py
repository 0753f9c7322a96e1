"""Which bookies of a cluster are there, and with which storage: what the auditor judges by.

Invariant: a look saw all of it in one session, from a server that had caught up; without that there is no look.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bkpy.errors import CorruptDataError, MetadataUnavailableError
from bkpy.metadata import paths
from bkpy.metadata.cookies import instance_of, list_cookies
from bkpy.metadata.registration import decode_registration
from bkpy.metadata.resolve import children_if_there, read_if_there
from bkpy.protocol.audit import Presence, Seen

if TYPE_CHECKING:
    from bkpy.metadata.store import MetadataStore


async def look_at_bookies(store: MetadataStore, root: str, *, reads_at_once: int) -> dict[str, Seen]:
    """All bookies that have a cookie. Raises `MetadataUnavailableError`."""
    session = store.session_id
    await store.sync(root)
    reads = asyncio.Semaphore(reads_at_once)
    writable = await children_if_there(store, f"{root}/{paths.AVAILABLE}")
    read_only = await children_if_there(store, f"{root}/{paths.READ_ONLY}")
    cookies = await list_cookies(store, root)
    places = {**dict.fromkeys(writable, False), **dict.fromkeys(read_only, True)}

    async def look(bookie: str) -> Seen | None:
        async with reads:
            cookie = await read_if_there(store, paths.cookie(root, bookie))
            if cookie is None:
                return None  # it was removed meanwhile
            if bookie not in places:
                return Seen(Presence.ABSENT, instance_of(cookie[0]))
            in_limbo = await _in_limbo(store, root, bookie, read_only=places[bookie])
            return Seen(Presence.LIMBO if in_limbo else Presence.HERE, instance_of(cookie[0]))

    seen = await asyncio.gather(*(look(bookie) for bookie in cookies))
    if store.session_id != session:  # another session may have got another, older server
        raise MetadataUnavailableError("the session with the metadata store has ended during a look at the bookies")
    return {bookie: is_ for bookie, is_ in zip(cookies, seen, strict=True) if is_ is not None}


async def _in_limbo(store: MetadataStore, root: str, bookie: str, *, read_only: bool) -> bool:
    """Whether a registered bookie says that it has lost data. One that is just moving says so at the next look."""
    found = await read_if_there(store, paths.available(root, bookie, read_only=read_only))
    if found is None:
        return False
    try:
        return decode_registration(bookie, found[0], read_only=read_only).in_limbo
    except CorruptDataError:
        return False
