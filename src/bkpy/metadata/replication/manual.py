"""Manual moves of copies, without under-replication records: announced to the auditor, which remembers closed ledgers.

Invariant: before the first move there are an ephemeral node and an announcement. So an auditor that has read all
ledgers since knows, by the one or the other, that copies may have moved. When the session ends, and the node with it,
both are made again: an auditor that has read all ledgers between knows by the new announcement.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from bkpy.config.recovery import RecoverySettings
from bkpy.errors import BookKeeperError, MetadataConflictError
from bkpy.metadata import paths
from bkpy.metadata.replication.underreplication import UnderreplicationQueue
from bkpy.metadata.store.outcome import Missing, NotDone, Unknown, to_error
from bkpy.metadata.store.resolve import ensure_path, leave_line, take_turn
from bkpy.metadata.store.store import SessionState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bkpy.metadata.store.store import MetadataStore
    from bkpy.runtime.interfaces import Runtime

_TOKEN_BYTES = 8
_DEFAULTS = RecoverySettings()


@contextlib.asynccontextmanager
async def manual_moves(
    store: MetadataStore, root: str, who: str, runtime: Runtime, settings: RecoverySettings = _DEFAULTS
) -> AsyncIterator[None]:
    """While copies of closed ledgers are moved without records. Raises `MetadataUnavailableError`."""
    said = _Announcement(store, root, who, runtime, settings)
    unsubscribe = store.session_events.subscribe(said.session_changed)
    try:
        await said.say()
        saying = runtime.spawn(said.say_again(), name=f"announcement of manual moves by {who}")
        try:
            yield
        finally:
            saying.cancel()
            await asyncio.wait([saying])
            await said.end()
    finally:
        unsubscribe()
        await said.take_back()  # at the latest it goes with the session


class _Announcement:
    """The node, and the announcement that comes with it."""

    def __init__(self, store: MetadataStore, root: str, who: str, runtime: Runtime, settings: RecoverySettings) -> None:
        self._store = store
        self._folder = f"{root}/{paths.MANUAL_MOVES}"
        self._who = who
        self._token = runtime.rng.randbytes(_TOKEN_BYTES).hex()
        self._queue = UnderreplicationQueue(store, root, runtime, settings)
        self._settings = settings
        self._ended = asyncio.Event()  # the session in which it was said last

    def session_changed(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._ended.set()

    async def say(self) -> None:
        attempts_max = self._settings.metadata_write_attempts_max
        self._ended.clear()
        above = await ensure_path(self._store, self._folder, attempts_max=attempts_max)
        if isinstance(above, NotDone):
            raise to_error(above)
        node = await take_turn(self._store, self._folder, self._token, self._who.encode(), attempts_max=attempts_max)
        if isinstance(node, Missing):
            raise MetadataConflictError(f"another client deletes {self._folder}")
        if isinstance(node, NotDone):
            raise to_error(node)
        await self._announce()

    async def say_again(self) -> None:
        """Announce them in each later session, until cancelled or the store is closed."""
        while True:
            await self._ended.wait()
            try:
                await self.say()
            except BookKeeperError as error:
                if not error.retriable:
                    return
                self._ended.set()
                await asyncio.sleep(self._settings.metadata_retry_pause_s)

    async def end(self) -> None:
        """If the session has ended, announce the moves since then."""
        if self._ended.is_set():
            with contextlib.suppress(BookKeeperError):
                await self._announce()

    async def take_back(self) -> None:
        await leave_line(self._store, self._folder, self._token)

    async def _announce(self) -> None:
        announced = await self._queue.announce()
        if isinstance(announced, NotDone | Unknown):
            raise to_error(announced)
