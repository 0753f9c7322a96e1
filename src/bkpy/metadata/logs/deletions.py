"""Notes of deleted logs, kept for as long as ledgers that name such a log may turn up.

    logs-deleted/<uid>      the log's name, and when it was deleted

A list can be lost in other ways: an operator removed it, or restored an old copy that doesn't have it yet. Only with
this note does a missing list prove that nobody needs the ledgers.

Invariants: the note is there before the list of a deleted log is removed, and never for a log that wasn't deleted; a
`uid` is unique, so all notes of it say the same.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple, assert_never

from bkpy.errors import CorruptDataError, MetadataConflictError, UnauthorizedError, UnsupportedVersionError
from bkpy.metadata import paths
from bkpy.metadata.store.outcome import Done, Exists, Missing, NotDone, Superseded, Unknown, to_error
from bkpy.metadata.store.resolve import (
    children_if_there,
    create_certainly,
    delete_certainly,
    ensure_path,
    read_certainly,
)
from bkpy.metadata.store.store import Create
from bkpy.metadata.stored_record import StoredRecord, take

if TYPE_CHECKING:
    from bkpy.metadata.logs.catalog import LogStore

log = logging.getLogger(__name__)

_RECORD: Final = StoredRecord("the note that a log was deleted", version=1)


class Deletion(NamedTuple):
    """The note of the log with this uid; `deleted_ms` are milliseconds since the epoch."""

    uid: str
    name: str
    deleted_ms: int


class LogDeletions:
    """The notes of a cluster. Calls raise `MetadataUnavailableError`."""

    def __init__(self, logs: LogStore) -> None:
        self._logs = logs
        self._store = logs.store
        self._folder = f"{logs.root}/{paths.LOGS_DELETED}"
        self._attempts_max = logs.settings.metadata_write_attempts_max

    async def note(self, name: str, uid: str) -> None:
        """Note that the log was deleted, as its list says already. When this returns, `noted` is true."""
        node = self._note(name, uid)
        outcome = await create_certainly(self._store, node, attempts_max=self._attempts_max)
        if isinstance(outcome, Missing):  # the first one of the cluster
            await self._make_folder()
            outcome = await create_certainly(self._store, node, attempts_max=self._attempts_max)
        match outcome:
            case Done() | Exists() | Superseded():  # somebody has noted it
                return
            case Missing():
                raise MetadataConflictError(f"somebody deletes what is above {outcome.node}")
            case NotDone() | Unknown():
                raise to_error(outcome)
            case _:
                assert_never(outcome)

    async def prepared(self, name: str, uid: str) -> Create:
        """The note, for the transaction that removes the list of a log which was never used."""
        await self._make_folder()
        return self._note(name, uid)

    def _note(self, name: str, uid: str) -> Create:
        return Create(self._node(uid), _RECORD.encode({"name": name, "deleted_ms": self._logs.now_ms()}))

    async def _make_folder(self) -> None:
        above = await ensure_path(self._store, self._folder, attempts_max=self._attempts_max)
        if isinstance(above, NotDone):
            raise to_error(above)

    async def noted(self, uid: str) -> bool:
        """Whether it is noted that the log with this uid was deleted."""
        return await read_certainly(self._store, self._node(uid)) is not None

    async def older_than(self, age_s: float) -> list[Deletion]:
        """The notes of at least this age. A note that can't be read is not among them."""
        await self._store.sync(self._folder)
        old = []
        for uid in await children_if_there(self._store, self._folder):
            try:
                found = await read_certainly(self._store, self._node(uid))
            except UnauthorizedError as error:
                log.warning("the note that the log with uid %s was deleted can't be read, and stays: %s", uid, error)
                continue
            deletion = None if found is None else _decode(uid, found[0])
            if deletion is not None and deletion.deleted_ms + age_s * 1000 <= self._logs.now_ms():
                old.append(deletion)
        return old

    async def forget(self, uid: str) -> None:
        """Remove the note. Ledgers of the log that turn up later are kept."""
        outcome = await delete_certainly(self._store, self._node(uid), attempts_max=self._attempts_max)
        if isinstance(outcome, NotDone | Unknown):
            raise to_error(outcome)

    def _node(self, uid: str) -> str:
        return f"{self._folder}/{uid}"


def _decode(uid: str, data: bytes) -> Deletion | None:
    def made(fields: dict[str, Any]) -> Deletion:
        return Deletion(uid, take(fields, "name", str), take(fields, "deleted_ms", int))

    try:
        return _RECORD.decode(data, made)
    except (CorruptDataError, UnsupportedVersionError) as error:
        log.warning("the note that the log with uid %s was deleted can't be read, and stays: %s", uid, error)
        return None
