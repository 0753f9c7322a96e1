"""The re-replication lock of a ledger: a client holds it while it moves or removes copies of the closed ledger.

It is two ephemeral nodes, made and removed in one transaction: one that is named after the ledger, so that there is one
holder at a time, and a *proof* whose name nobody else ever has. That the proof is there says that this very lock is
held; a check of the other node could be passed by a successor's.

Invariants: a lock that was given out or that may have been made is taken back by `release`, or by `release_abandoned`
or `release_abandoned_later` where its holder was cancelled, or goes with the session; the lock of a successor is never
removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, assert_never

from bkpy.config.shared import MetadataSettings
from bkpy.errors import MetadataConflictError
from bkpy.metadata import paths
from bkpy.metadata.store.outcome import Changed, Done, Exists, Gone, Missing, NotDone, Superseded, Unknown
from bkpy.metadata.store.resolve import children_if_there, create_certainly, delete_together, ensure_path, read_if_there
from bkpy.metadata.store.store import Create, Delete, MetadataStore
from bkpy.metadata.stored_record import StoredRecord, fields_of

if TYPE_CHECKING:
    from bkpy.runtime.interfaces import Runtime

_RECORD: Final = StoredRecord("a lock", version=1)
_LOCK_NAME = re.compile(r"L([0-9]{19})")
_DEFAULTS = MetadataSettings()


@dataclass(frozen=True, slots=True)
class LedgerLock:
    """The lock of one ledger, as it was taken. `proof` is there as long as it is held."""

    ledger_id: int
    path: str
    proof: str

    @property
    def nodes(self) -> tuple[Delete, Delete]:
        """What gives it back. A node is never changed: its version is the one that it was made with."""
        return Delete(self.proof, 0), Delete(self.path, 0)


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock that somebody has: `holder` since `since_ms` (of the epoch)."""

    ledger_id: int
    holder: str
    since_ms: int


class LedgerLocks:
    """Takes and releases locks for `holder`, a bookie's or a client's name for people to read.

    A holder that is cancelled abandons its lock. The session's owner either ends the session, or goes on and calls
    `release_abandoned` or `release_abandoned_later`. `folder`: where the locks are, of which those on other things than
    copies have another one.
    """

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        holder: str,
        runtime: Runtime,
        settings: MetadataSettings = _DEFAULTS,
        *,
        folder: str = paths.LOCKS,
    ) -> None:
        self._store = store
        self._root = root
        self._folder = folder
        self.holder = holder
        self._runtime = runtime
        self._settings = settings
        self._abandoned: list[LedgerLock] = []

    async def take(self, ledger_id: int) -> LedgerLock | Exists | NotDone:
        """The lock; `Exists` if somebody has it, or had it and died, and its session has not ended yet."""
        path = paths.ledger_lock(self._root, ledger_id, self._folder)
        token = self._runtime.rng.randbytes(16).hex()
        lock = LedgerLock(ledger_id, path, f"{path}-{token}")
        try:
            return await self._take(lock, token)
        except asyncio.CancelledError:
            self.abandon(lock)  # it may have been made
            raise

    async def seen(self, ledger_id: int) -> bool:
        """Whether somebody has the lock, as far as this session knows. A lock that the session knew of may be gone."""
        return await self._store.exists(paths.ledger_lock(self._root, ledger_id, self._folder))

    async def _take(self, lock: LedgerLock, token: str) -> LedgerLock | Exists | NotDone:
        path = lock.path
        fields = {
            "holder": self.holder,
            "since_ms": int(self._runtime.clock.time() * 1000),
            "token": token,
        }
        node = Create(path, _RECORD.encode(fields), ephemeral=True)
        proof = Create(lock.proof, b"", ephemeral=True)
        attempts_max = self._settings.metadata_write_attempts_max
        outcome = await create_certainly(self._store, node, proof, attempts_max=attempts_max)
        if isinstance(outcome, Missing):  # the first lock of the cluster
            above = await ensure_path(self._store, f"{self._root}/{self._folder}", attempts_max=attempts_max)
            if isinstance(above, NotDone):
                return above
            outcome = await create_certainly(self._store, node, proof, attempts_max=attempts_max)
        match outcome:
            case Done():
                return lock
            case Exists() | NotDone():
                return outcome
            case Missing():
                return NotDone(MetadataConflictError(f"somebody deletes what is above {outcome.node}"))
            case Superseded():
                await self.release(lock)
                return NotDone(MetadataConflictError(f"somebody has removed the lock {path}"))
            case Unknown():
                await self.release(lock)
                return NotDone(outcome.error)
            case _:
                assert_never(outcome)

    def abandon(self, lock: LedgerLock) -> None:
        """Its holder was cancelled, and may hold it still."""
        self._abandoned.append(lock)

    async def release_abandoned(self) -> None:
        """Release what cancelled holders have left in this session."""
        while self._abandoned:
            lock = self._abandoned.pop()
            try:
                await self.release(lock)
            except asyncio.CancelledError:
                self.abandon(lock)
                raise

    def release_abandoned_later(self) -> None:
        """The same, in a task of its own: for an end that must not wait for the store, as that of a cancelled call."""
        if self._abandoned:
            self._runtime.spawn(self.release_abandoned(), name=f"release of locks that {self.holder} has left")

    async def release(self, lock: LedgerLock) -> None:
        """Return when the lock is certainly not held any more: while the store is away, waits for it."""
        while True:
            outcome = await delete_together(
                self._store, *lock.nodes, attempts_max=self._settings.metadata_write_attempts_max
            )
            match outcome:
                case Gone() | Missing() | Changed() | Superseded():
                    return
                case NotDone() | Unknown():
                    if not outcome.error.retriable:  # the store was closed: the session is over, and its nodes with it
                        return
                    await asyncio.sleep(self._settings.metadata_retry_pause_s)
                case _:
                    assert_never(outcome)


async def held_locks(store: MetadataStore, root: str) -> list[HeldLock]:
    """The locks that are held, by ledger id, for people: they may be released at any time.

    Of a lock whose value can't be read, the holder is "" and the time 0.
    """
    found = []
    for name in await children_if_there(store, f"{root}/{paths.LOCKS}"):
        if not (match := _LOCK_NAME.fullmatch(name)):
            continue
        value = await read_if_there(store, f"{root}/{paths.LOCKS}/{name}")
        if value is not None:
            holder, since_ms = "", 0
            fields = fields_of(value[0])
            with contextlib.suppress(ValueError, TypeError):
                holder, since_ms = str(fields.get("holder", "")), int(fields.get("since_ms", 0))
            found.append(HeldLock(int(match[1]), holder, since_ms))
    return found


async def lock_holder(store: MetadataStore, root: str, ledger_id: int) -> str | None:
    """The holder of one ledger's lock, for people; None if nobody holds it, or if its value names nobody."""
    found = await read_if_there(store, paths.ledger_lock(root, ledger_id))
    return None if found is None else fields_of(found[0]).get("holder")
