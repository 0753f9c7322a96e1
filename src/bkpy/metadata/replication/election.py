"""The election of the cluster's one auditor: candidates stand in line, each with an ephemeral node; the first leads.

A node's name has a token that is unlike any other and a number that is given once; so the node of a term is there only
as long as nobody else can lead. The leader checks it in the transaction of every write.

Invariants: of two terms, the node of the one is gone before that of the other is the first in line; a leader stops as
soon as its session is suspended, though the store would refuse a write that checks its node anyway; a place in line
that isn't used any more is removed, or goes with its session.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bkpy.config.recovery import RecoverySettings
from bkpy.errors import BookKeeperError, ClientClosedError
from bkpy.metadata import paths
from bkpy.metadata.store.outcome import Gone, Missing, NotDone, to_error
from bkpy.metadata.store.resolve import children_if_there, ensure_path, leave_line, read_if_there, take_turn
from bkpy.metadata.store.store import MetadataStore, SessionState
from bkpy.metadata.stored_record import StoredRecord, fields_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from bkpy.runtime.interfaces import Runtime

_RECORD: Final = StoredRecord("a candidate", version=1)
_TOKEN_BYTES = 8
_DEFAULTS = RecoverySettings()

log = logging.getLogger("bkpy.recovery")


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, since when it stands in line (milliseconds of the epoch), and the node of its term."""

    candidate: str
    since_ms: int
    node: str


class Election:
    """A candidate, named `candidate` for people to read, in one session."""

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        candidate: str,
        runtime: Runtime,
        settings: RecoverySettings = _DEFAULTS,
    ) -> None:
        self._store = store
        self._line = f"{root}/{paths.ELECTION}"
        self._candidate = candidate
        self._runtime = runtime
        self._settings = settings
        self._token = ""
        self._pause_s = settings.metadata_retry_pause_s
        self.leading = False

    async def stand(self, lead: Callable[[str], Awaitable[None]]) -> None:
        """Stand for election until the store is closed, and `lead(node)` whenever elected, until the term ends.

        A term ends when the session is suspended or the node is gone: `lead` is cancelled. What it raises ends the term
        as well, and lets another candidate try.
        """
        while True:
            try:
                node = await self._take_place()
                if node is not None and await self._first(node):
                    await self._term(node, lead)
            except ClientClosedError:  # the session is over, and its place in line
                return
            except BookKeeperError as error:  # whatever it is: the place would keep all others from leading
                log.debug("the election goes on later: %s", error)
            await self.withdraw()
            await asyncio.sleep(self._pause_s)
            self._pause_s = self._settings.metadata_retry_pause_s

    async def withdraw(self) -> None:
        """Leave the line. Returns when the place is certainly gone, or goes with the session, which is over."""
        while self._token:
            left = await leave_line(self._store, self._line, self._token)
            if isinstance(left, Gone) or isinstance(left.error, ClientClosedError):
                self._token = ""
            else:
                await asyncio.sleep(self._settings.metadata_retry_pause_s)

    async def _take_place(self) -> str | None:
        """The node of a new place in line; None if there is none, or it isn't known."""
        self._token = self._runtime.rng.randbytes(_TOKEN_BYTES).hex()
        attempts_max = self._settings.metadata_write_attempts_max
        fields = {
            "candidate": self._candidate,
            "since_ms": int(self._runtime.clock.time() * 1000),
        }
        data = _RECORD.encode(fields)
        taken = await take_turn(self._store, self._line, self._token, data, attempts_max=attempts_max)
        if isinstance(taken, Missing):  # the first election of the cluster
            above = await ensure_path(self._store, self._line, attempts_max=attempts_max)
            if isinstance(above, NotDone):
                raise to_error(above)
            taken = await take_turn(self._store, self._line, self._token, data, attempts_max=attempts_max)
        if isinstance(taken, NotDone):
            raise to_error(taken)
        return taken if isinstance(taken, str) else None

    async def _first(self, node: str) -> bool:
        """Wait until the node is the first in line; False if it is gone.

        A server may lag behind, and still show places that are gone. But one that shows this node shows, or has seen
        go, all that came before it.
        """
        name = node.rpartition("/")[2]
        while True:
            line = _in_order(await children_if_there(self._store, self._line))
            if name not in line:
                return False
            ahead = line[: line.index(name)]
            if not ahead:
                return True
            watch = self._store.watch(f"{self._line}/{ahead[-1]}")
            try:
                async for _ in watch:
                    if not await self._store.exists(watch.path):
                        break
                else:
                    raise ClientClosedError("the metadata store was closed", retriable=False)
            finally:
                watch.close()

    async def _term(self, node: str, lead: Callable[[str], Awaitable[None]]) -> None:
        log.info("%s is the auditor now", self._candidate)
        over = asyncio.Event()

        def session_changed(state: SessionState) -> None:
            if state is not SessionState.CONNECTED:
                over.set()

        unsubscribe = self._store.session_events.subscribe(session_changed)
        tasks = [
            self._runtime.spawn(self._led(node, lead), name="auditor"),
            self._runtime.spawn(self._until_gone(node), name="the auditor's place"),
            self._runtime.spawn(_waited(over), name="the auditor's session"),
        ]
        if self._store.state is not SessionState.CONNECTED:
            over.set()
        self.leading = True
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.leading = False
            unsubscribe()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            log.info("%s is not the auditor any more", self._candidate)

    async def _led(self, node: str, lead: Callable[[str], Awaitable[None]]) -> None:
        try:
            await lead(node)
        except BookKeeperError as error:
            log.warning("the auditor %s gives up its term: %s", self._candidate, error)
        except Exception:
            log.exception("the auditor %s failed, and gives up its term", self._candidate)
        self._pause_s = self._settings.audit_look_interval_s  # what ends a term at once may end the next one, too

    async def _until_gone(self, node: str) -> None:
        """Return when the node is gone, or nothing can be said of it."""
        watch = self._store.watch(node)
        try:
            async for _ in watch:
                if not await self._store.exists(node):
                    return
        except BookKeeperError as error:
            log.debug("the place of the auditor can't be seen: %s", error)
        finally:
            watch.close()


async def leader(store: MetadataStore, root: str) -> Leader | None:
    """Who leads, as the server knows it: it may lag behind."""
    line = f"{root}/{paths.ELECTION}"
    for name in _in_order(await children_if_there(store, line)):
        found = await read_if_there(store, f"{line}/{name}")
        if found is not None:
            fields = fields_of(found[0])
            since_ms = fields.get("since_ms")  # of a newer version it may be anything
            return Leader(str(fields.get("candidate", "")), since_ms if type(since_ms) is int else 0, f"{line}/{name}")
    return None


def _in_order(names: Sequence[str]) -> list[str]:
    """The candidates in line, the first one first; other nodes are left alone."""
    numbers = {name: name.rpartition("-")[2] for name in names}
    return sorted((name for name, number in numbers.items() if number.isdecimal()), key=lambda name: int(numbers[name]))


async def _waited(event: asyncio.Event) -> None:
    await event.wait()
