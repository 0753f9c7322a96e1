"""Takes things out of named logs: truncation, retention, deletion, and ledgers that no list names.

    truncate, retain   one write of the list that dooms ledgers, in a transaction with the check of its consumers
    finish             deletes what is doomed, then takes off the list what is gone: a ledger that can't be deleted
                       keeps no other one there
    delete             one write that dooms all; the last ledgers are fenced; then as `finish`; then the nodes
    sweep              a ledger that no list names, in a transaction with the check of the list that might; or of a
                       log of which it is noted that it was deleted

Whoever is cut short anywhere leaves what the next one finishes: a log's writer, the auditor, or another call.

Invariants: no ledger is deleted that a list names, or may come to name; one that is doomed never gets into a list
again, so it may be deleted by anybody, however old his knowledge is; a list is forgotten only when nothing is doomed
and the deletion is noted, see `bkpy.metadata.logs.deletions`; that there is no list is no reason to delete anything; no
ledger that may be open is deleted with its log before it is fenced, or can't be.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from bkpy.errors import (
    BookKeeperError,
    ConfigError,
    CorruptDataError,
    LedgerRecoveryError,
    MetadataConflictError,
    NoSuchLedgerError,
    NoSuchLogError,
    UnauthorizedError,
)
from bkpy.metadata import paths
from bkpy.metadata.logs.consumers import LogConsumers
from bkpy.metadata.logs.deletions import LogDeletions
from bkpy.metadata.store.outcome import Changed, Done, Gone, Missing, NotDone, Superseded, Unknown, to_error
from bkpy.metadata.store.resolve import children_if_there, delete_certainly, delete_together
from bkpy.metadata.store.store import Check, Delete
from bkpy.protocol.ledger.ledger_metadata import UnsupportedVersionError
from bkpy.protocol.log.log_list import OPEN_MAX, checked_name
from bkpy.protocol.log.log_retention import Orphan, made_by_log, orphaned, retained_from, truncated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.metadata.logs.catalog import LogStore
    from bkpy.metadata.store.outcome import DeleteOutcome
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.log.log_list import LogList

log = logging.getLogger(__name__)

# What the ledgers of a log say of it, in their custom metadata.
LOG_NAME: Final = "bkpy.log"
LOG_UID: Final = "bkpy.log_uid"


# Has nothing acknowledged to the writer of a ledger any more, see `bkpy.replication.context`.
Fence = Callable[[int], Awaitable[None]]


class Belongs(NamedTuple):
    """The log that a ledger belongs to."""

    name: str
    uid: str


class Swept(enum.Enum):
    """What a sweep did with a ledger."""

    KEPT = "kept"
    KEPT_FOR_LOST_LIST = "kept for a lost list"  # nobody knows whether it is needed
    DELETED = "deleted"


class LogMaintenance:
    """Of all logs of a cluster. Calls raise `NoSuchLogError`, `MetadataUnavailableError`, `MetadataConflictError`."""

    def __init__(self, logs: LogStore, catalog: LedgerCatalog) -> None:
        self._logs = logs
        self._catalog = catalog
        self._deletions = LogDeletions(logs)
        self._store = logs.store
        self._settings = logs.settings
        self._attempts_max = logs.settings.metadata_write_attempts_max

    async def truncate(
        self, name: str, before: int, *, end: int | None = None, uid: str = "", ignore_consumers: bool = False
    ) -> LogList:
        """Delete the entries below the position `before`; the list then. `end`: the position up to which it is known
        that entries of the log with this `uid` are acknowledged; without it, only what the list knows counts.

        Raises `ConfigError` for a position past the end, or that a consumer has yet to read unless they are to be
        ignored. Entries in a ledger that has others as well are out of reach at once, and deleted with those.
        """

        def change(log_list: LogList, consumers: Mapping[str, int]) -> LogList:
            if uid and log_list.uid != uid:
                raise NoSuchLogError(f"log {name} was deleted, and there is another one of that name")
            known = log_list.sealed_end if end is None else end
            return truncated(name, log_list, before, known, consumers, self._logs.now_ms())

        await self._change(name, change, ignore_consumers=ignore_consumers)
        return await self.finish(name)

    async def retain(self, name: str) -> LogList:
        """Delete what the log's retention doesn't keep any more, and what was doomed before; the list then."""

        def change(log_list: LogList, consumers: Mapping[str, int]) -> LogList:
            return log_list.truncated(retained_from(log_list, self._logs.now_ms(), consumers.values()))

        log_list, _ = await self._logs.read(name)
        if log_list.retention_s is not None or log_list.retention_bytes is not None:
            await self._change(name, change)
        return await self.finish(name)

    async def _change(
        self, name: str, change: Callable[[LogList, Mapping[str, int]], LogList], *, ignore_consumers: bool = False
    ) -> None:
        """Write what `change` makes of the list and of what consumers need; again if either changes meanwhile."""
        log_list, _ = await self._logs.read(name, fresh=True)
        for _ in range(self._settings.log_conflicts_max):
            positions: dict[str, int] = {}
            checks = []
            if not ignore_consumers:
                registered = await LogConsumers(self._logs, name, log_list.uid).registered()
                positions = {consumer: state.position for consumer, state in registered.states.items()}
                checks = [registered.check]
            uid = log_list.uid
            # Behind that: reading all consumers may take longer than the log goes without rolling.
            log_list, version = await self._logs.read(name, fresh=True)
            if log_list.uid != uid:
                continue
            changed = change(log_list, positions)
            if changed == log_list or await self._written(name, changed, version, *checks):
                return
        raise self._given_up(name)

    async def _written(self, name: str, log_list: LogList, version: int, *checks: Check) -> bool:
        """False is to be tried again, on what there is then."""
        outcome = await self._logs.write_anyway(name, log_list, version, *checks)
        match outcome:
            case Done():
                return True
            case Changed() | Missing() | Superseded():
                return False
            case NotDone() | Unknown():
                raise to_error(outcome)
            case _:
                assert_never(outcome)

    async def forget_sink(self, name: str, writer_id: str) -> bool:
        """Remove a writer id with its last batch; False if there is none. A repeated batch comes twice then."""
        was_there = False

        def change(log_list: LogList, _: Mapping[str, int]) -> LogList:
            nonlocal was_there
            was_there = was_there or writer_id in log_list.sinks
            return dataclasses.replace(
                log_list, sinks={key: value for key, value in log_list.sinks.items() if key != writer_id}
            )

        await self._change(name, change, ignore_consumers=True)
        return was_there

    async def finish(self, name: str) -> LogList:
        """Delete the ledgers that are doomed, and take them off the list; the list then.

        Raises, when those that are gone are off the list, what keeps the others.
        """
        return await self._finish(name)

    async def _finish(self, name: str, fence: Fence | None = None) -> LogList:
        """The same; with `fence`, of a log that was deleted, too."""
        gone: set[int] = set()
        for _ in range(self._settings.log_conflicts_max):
            log_list, version = await self._logs.read(name, fresh=True, include_deleted=fence is not None)
            if not log_list.pending_delete:
                return log_list
            # Once is enough: a log that rolls meanwhile changes its list faster than all of them are deleted.
            left = [ledger_id for ledger_id in log_list.pending_delete if ledger_id not in gone]
            if log_list.deleted and fence is not None:
                await self._fence(name, tuple(left[-OPEN_MAX:]), fence)
            problem = await self._delete_ledgers(left, gone)
            removed = tuple(ledger_id for ledger_id in log_list.pending_delete if ledger_id in gone)
            if not removed or await self._written(name, log_list.without_pending_delete(removed), version):
                log.info("%d ledgers of log %s were deleted", len(removed), name)
                if problem is not None:
                    raise problem
        raise self._given_up(name)

    async def _delete_ledgers(self, ledger_ids: Sequence[int], gone: set[int]) -> BookKeeperError | None:
        """Those that are gone are added to `gone`. What keeps the others; without the store, none is tried any more."""
        problem: BookKeeperError | None = None
        step = self._settings.log_deletes_at_once
        for begin in range(0, len(ledger_ids), step):
            some = ledger_ids[begin : begin + step]
            outcomes = await asyncio.gather(*map(self._catalog.delete, some))
            for ledger_id, outcome in zip(some, outcomes, strict=True):
                if (kept := _kept_by(outcome, ledger_id)) is None:
                    gone.add(ledger_id)
                else:
                    problem = problem or kept
            if any(isinstance(outcome, NotDone | Unknown) for outcome in outcomes):
                break
        return problem

    async def _fence(self, name: str, ledger_ids: tuple[int, ...], fence: Fence) -> None:
        """The ledgers that were the last ones of a log: only they can have a writer."""
        for ledger_id in ledger_ids:
            try:
                await fence(ledger_id)
            except NoSuchLedgerError:
                continue
            except (LedgerRecoveryError, CorruptDataError, UnsupportedVersionError, UnauthorizedError) as error:
                log.warning(
                    "ledger %d of log %s, which was deleted, can't be fenced: a writer that still reaches its bookies "
                    "goes on until it hears of the deletion: %s",
                    ledger_id,
                    name,
                    error,
                )

    async def delete(self, name: str, fence: Fence) -> None:
        """Delete the log, its ledgers and its consumers. Raises `NoSuchLogError` if there is none.

        When the first write is done the log is gone for everybody; an error later leaves the rest to the auditor. When
        it returns, nothing is acknowledged to the log's writer any more, as far as enough bookies could be fenced.
        """
        await self._delete_all_later(name)
        await self._forget(name, fence)

    async def _delete_all_later(self, name: str) -> None:
        for _ in range(self._settings.log_conflicts_max):
            log_list, version = await self._logs.read(name, fresh=True)
            pending_delete = log_list.pending_delete + tuple(segment.ledger_id for segment in log_list.segments)
            gone = dataclasses.replace(
                log_list, deleted=True, segments=(), pending_delete=pending_delete, writer="", writer_label="", sinks={}
            )
            if await self._written(name, gone, version):
                return
        raise self._given_up(name)

    async def _forget(self, name: str, fence: Fence) -> None:
        """Remove what is left of a log that was deleted."""
        for _ in range(self._settings.log_conflicts_max):
            try:
                log_list = await self._finish(name, fence)
            except NoSuchLogError:
                return
            if not log_list.deleted:  # another one of that name
                return
            path = paths.log(self._logs.root, name)
            own = f"{path}/{log_list.uid}"
            for node in (f"{own}/lease", *await self._nodes_below(f"{own}/consumers")):
                _check_done(await delete_certainly(self._store, node, attempts_max=self._attempts_max))
            await self._deletions.note(name, log_list.uid)
            nodes = Delete(f"{own}/consumers"), Delete(own), Delete(path)
            _check_done(await delete_together(self._store, *nodes, attempts_max=self._attempts_max))
        raise self._given_up(name)

    async def _nodes_below(self, folder: str) -> list[str]:
        await self._store.sync(folder)
        return [f"{folder}/{name}" for name in await children_if_there(self._store, folder)]

    async def look_after(self, name: str, fence: Fence) -> None:
        """What the auditor does for a log: all that nobody else is there to do."""
        try:
            log_list, _ = await self._logs.read(name, include_deleted=True)
            if log_list.deleted:
                await self._forget(name, fence)
            elif await self._logs.lease_holder(name, log_list.uid) is None:
                await self.retain(name)
        except NoSuchLogError:
            return

    async def sweep(self, metadata: LedgerMetadata, grace_s: float) -> Swept:
        """Delete the ledger if it belongs to a log and nobody can come to need it."""
        belongs = log_of(metadata)
        if belongs is None:
            return Swept.KEPT
        found = await self._list_of(belongs)
        log_list = None if found is None else found[0]
        if not made_by_log(metadata, belongs.uid, log_list):
            return Swept.KEPT
        # Behind the list: what is noted when it is removed can't be missed.
        deleted = (log_list is None or log_list.uid != belongs.uid) and await self._deletions.noted(belongs.uid)
        now_ms = self._logs.now_ms()
        match orphaned(metadata.ledger_id, belongs.uid, log_list, deleted, metadata.created_ms, now_ms, grace_s):
            case Orphan.KEEP:
                return Swept.KEPT
            case Orphan.KEEP_FOR_LOST_LIST:
                return Swept.KEPT_FOR_LOST_LIST
            case Orphan.DELETE:
                outcome = await self._catalog.delete(metadata.ledger_id)
            case Orphan.DELETE_IF_UNCHANGED:
                assert found is not None
                unchanged = self._logs.list_check(belongs.name, found[1])
                outcome = await self._catalog.delete(metadata.ledger_id, unchanged)
            case _ as never:
                assert_never(never)
        _check_done(outcome)
        if not isinstance(outcome, Gone):
            return Swept.KEPT
        log.info("ledger %d was deleted: log %s doesn't have it", metadata.ledger_id, belongs.name)
        return Swept.DELETED

    async def delete_ledger(self, metadata: LedgerMetadata) -> DeleteOutcome:
        """Delete the ledger unless a log has it. Raises `ConfigError`, which names the log, if one does."""
        belongs = log_of(metadata)
        ledger_id = metadata.ledger_id
        if belongs is None:
            return await self._catalog.delete(ledger_id)
        for _ in range(self._settings.log_conflicts_max):
            found = await self._list_of(belongs)
            if found is None:
                return await self._catalog.delete(ledger_id)
            if any(segment.ledger_id == ledger_id for segment in found[0].segments):
                raise ConfigError(
                    f"the ledger is a part of log {belongs.name}: truncate that, or delete all of it",
                    ledger_id=ledger_id,
                )
            outcome = await self._catalog.delete(ledger_id, self._logs.list_check(belongs.name, found[1]))
            # The check says the same as nodes below the ledger's would, which there never are of a log.
            if not isinstance(outcome, Changed | Missing) or (isinstance(outcome, Missing) and not outcome.index):
                return outcome
        raise self._given_up(belongs.name)

    async def _list_of(self, belongs: Belongs) -> tuple[LogList, int] | None:
        try:
            return await self._logs.read(belongs.name, fresh=True, include_deleted=True)
        except NoSuchLogError:
            return None

    def _given_up(self, name: str) -> MetadataConflictError:
        return MetadataConflictError(f"the list of log {name} changes all the time")


def log_of(metadata: LedgerMetadata) -> Belongs | None:
    """The log that the ledger says it belongs to."""
    name, uid = (metadata.custom_metadata.get(key) for key in (LOG_NAME, LOG_UID))
    if name is None or uid is None:
        return None
    try:
        return Belongs(checked_name(name.decode()), uid.decode())
    except ValueError:  # a name that no log has; `ConfigError` is one as well
        return None


def _kept_by(outcome: DeleteOutcome, ledger_id: int) -> BookKeeperError | None:
    """What has kept the ledger; None if it is gone."""
    match outcome:
        case Gone() | Missing():
            return None
        case Changed() | Superseded():
            return MetadataConflictError("there are nodes below the ledger's in ZooKeeper", ledger_id=ledger_id)
        case NotDone() | Unknown():
            return to_error(outcome, ledger_id=ledger_id)
        case _:
            assert_never(outcome)


def _check_done(outcome: DeleteOutcome) -> None:
    """Raise what kept it from being done; whatever else became of it is seen at the next look."""
    if isinstance(outcome, NotDone | Unknown):
        raise to_error(outcome)
