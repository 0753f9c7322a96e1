"""Which logs and bookies have unreadable metadata: found by reading the lists of all logs and all cookies.

Invariants: a step reads at most as many nodes as its caller says; what was found unreadable stays until it is found
readable or gone; `unexamined` counts what no step has read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from bkpy.batching import batched
from bkpy.errors import ConfigError, CorruptDataError, UnauthorizedError, UnsupportedVersionError
from bkpy.metadata import paths
from bkpy.metadata.bookies.cookies import cookie_fields, list_cookies, read_cookie
from bkpy.metadata.store.resolve import children_if_there, read_certainly
from bkpy.protocol.log.log_list import LogList

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.cluster import Cluster

READS_MAX: Final = 10_000  # of a look that has to be whole


class MetadataSweep:
    """Reads them round by round."""

    def __init__(self, cluster: Cluster, settings: RecoverySettings) -> None:
        self._store = cluster.store
        self._root = cluster.root
        self._at_once = settings.audit_reads_at_once
        self._pending: deque[tuple[str, str]] = deque()  # of this round: where, and the name
        self._unreadable: dict[tuple[str, str], str] = {}
        self._whole = False

    @property
    def unreadable_logs(self) -> Mapping[str, str]:
        """By log, why its list is unreadable."""
        return {name: why for (where, name), why in sorted(self._unreadable.items()) if where == paths.LOGS}

    @property
    def unreadable_cookies(self) -> Mapping[str, str]:
        """By bookie, why its cookie is unreadable."""
        return {name: why for (where, name), why in sorted(self._unreadable.items()) if where == paths.COOKIES}

    @property
    def unexamined(self) -> int:
        """How many logs and cookies no step has read, before the first round has ended."""
        return 0 if self._whole else len(self._pending)

    async def step(self, reads_max: int) -> None:
        """Read so many more, or the rest of the round. Raises `MetadataUnavailableError`."""
        if not self._pending:
            await self._begin()
        some = [self._pending.popleft() for _ in range(min(reads_max, len(self._pending)))]
        done = 0
        try:
            for batch in batched(some, self._at_once):
                for place, why in zip(batch, await asyncio.gather(*map(self._why, batch)), strict=True):
                    self._unreadable.pop(place, None)
                    if why is not None:
                        self._unreadable[place] = why
                done += len(batch)
        finally:
            self._pending.extendleft(reversed(some[done:]))
        self._whole = self._whole or not self._pending

    async def _begin(self) -> None:
        logs = await children_if_there(self._store, f"{self._root}/{paths.LOGS}")
        cookies = await list_cookies(self._store, self._root)
        places = [*((paths.COOKIES, name) for name in cookies), *((paths.LOGS, name) for name in sorted(logs))]
        for gone in self._unreadable.keys() - set(places):
            del self._unreadable[gone]
        self._pending.extend(places)

    async def _why(self, place: tuple[str, str]) -> str | None:
        """Why this one is unreadable; None if it is readable, or gone."""
        where, name = place
        try:
            if where == paths.LOGS:
                found = await read_certainly(self._store, paths.log(self._root, name))
                if found is not None:
                    LogList.decode(name, found[0])
            elif (cookie := await read_cookie(self._store, self._root, name)) is not None:
                fields = cookie_fields(cookie[0])
                if fields["bookie_id"] != name:
                    return f"it is of bookie {fields['bookie_id']}"
        except (CorruptDataError, UnsupportedVersionError, UnauthorizedError, ConfigError) as error:
            return str(error)
        return None
