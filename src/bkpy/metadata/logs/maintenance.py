"""Removes entries and ledgers from named logs: truncation, retention, deletion, and ledgers that no list names.

    truncate, retain   one write of the list marks ledgers and pages as pending delete; its transaction checks the
                       consumers
    finish             deletes the pending ledgers, then the pages that have no others, then removes them from the list:
                       a ledger that can't be deleted keeps no other one there
    delete             one write marks all ledgers; the last ones are fenced; then as `finish`; then the nodes
    sweep              deletes a ledger that no list names: the transaction checks the list that might name it, or a
                       note says that its log was deleted

The next call completes what an interrupted one leaves: a log's writer makes it, the auditor, or a command.

Invariants: no ledger is deleted that a list or a page names, or a list may come to name; a page that can't be read
names every ledger; a page is deleted after all its ledgers, and before the list forgets it; a pending ledger never
gets into a list again, so anybody may delete it, by knowledge of any age; a list is removed only when no ledger is
pending and the deletion is noted, see `bkpy.metadata.logs.deletions`; a missing list is no reason to delete anything; a
ledger that may be open is fenced before it is deleted with its log, unless nobody can fence it.
"""

from __future__ import annotations

import asyncio
import contextlib
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
    UnsupportedVersionError,
)
from bkpy.metadata import paths
from bkpy.metadata.logs.consumers import LogConsumers
from bkpy.metadata.logs.deletions import LogDeletions
from bkpy.metadata.logs.idleness import IdleConsumers, idle_path
from bkpy.metadata.logs.pages import PageMissingError, pages_path
from bkpy.metadata.store.outcome import Changed, Done, Gone, Missing, NotDone, Superseded, Unknown, to_error
from bkpy.metadata.store.resolve import children_if_there, delete_certainly, delete_together, read_certainly
from bkpy.metadata.store.store import Check, Create, Delete
from bkpy.protocol.log.log_list import OPEN_MAX, PageRef, Segment, checked_name
from bkpy.protocol.log.log_producers import Producers
from bkpy.protocol.log.log_retention import Orphan, made_by_log, orphaned, retained_from, retained_in, truncated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.metadata.logs.catalog import LogStore
    from bkpy.metadata.store.outcome import DeleteOutcome
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.log.log_list import LogList

log = logging.getLogger(__name__)

# The custom metadata by which a ledger names its log.
LOG_NAME: Final = "bkpy.log"
LOG_UID: Final = "bkpy.log_uid"
LOG_PRODUCER: Final = "bkpy.log_producer"  # of its entries, which have numbers

_STUCK_MAX: Final = 1000  # ledgers in a list that can't be deleted


# Fences a ledger: its writer gets no acknowledgement any more, see `bkpy.replication.context`.
Fence = Callable[[int], Awaitable[None]]


class LogOfLedger(NamedTuple):
    """The log that a ledger belongs to."""

    name: str
    uid: str


class Swept(enum.Enum):
    """What a sweep did with a ledger."""

    KEPT = "kept"
    KEPT_FOR_LOST_LIST = "kept for a lost list"  # it may be needed: nothing says so, or that it isn't
    DELETED = "deleted"


class LogMaintenance:
    """All logs of a cluster. Calls raise `NoSuchLogError`, `MetadataUnavailableError`, `MetadataConflictError`."""

    def __init__(self, logs: LogStore, catalog: LedgerCatalog) -> None:
        self._logs = logs
        self._catalog = catalog
        self._deletions = LogDeletions(logs)
        self._store = logs.store
        self._pages = logs.pages
        self._idle = IdleConsumers(logs)
        self._last_read: tuple[str, LogList] | None = None  # by `sweep`: a log's name and list
        self._settings = logs.settings
        self._attempts_max = logs.settings.metadata_write_attempts_max

    async def truncate(
        self, name: str, before: int, *, end: int | None = None, uid: str = "", ignore_consumers: bool = False
    ) -> LogList:
        """Delete the entries below the position `before`, and return the list.

        `end` is a position up to which entries of the log with this `uid` are known to be acknowledged; without it,
        only the list counts. Raises `ConfigError` for a position past the end, or unless `ignore_consumers` past one
        that a consumer has yet to read. Readers lose all these entries at once; a ledger is deleted with its last one.
        """

        async def change(log_list: LogList, consumers: Mapping[str, int]) -> LogList:
            if uid and log_list.uid != uid:
                raise NoSuchLogError(f"log {name} was deleted, and there is another one of that name")
            known = log_list.sealed_end if end is None else end
            last_gone = None
            if log_list.first_position < before <= max(known, log_list.sealed_end):
                try:
                    last_gone = await self._pages.segment_at(name, log_list, before - 1)
                except PageMissingError:
                    if any(position < before for position in consumers.values()):
                        raise  # it would tell whether they have been waited for
            return truncated(name, log_list, before, known, consumers, self._logs.now_ms(), last_gone)

        await self._change(name, change, ignore_consumers=ignore_consumers)
        return await self.finish(name)

    async def retain(self, name: str) -> LogList:
        """Delete what the log's retention doesn't keep, and ledgers that were pending already; return the list."""

        async def change(log_list: LogList, consumers: Mapping[str, int]) -> LogList:
            now_ms = self._logs.now_ms()
            retained = retained_from(log_list, now_ms, consumers.values())
            while retained.edge is not None:
                page = await self._pages.read(name, log_list.uid, retained.edge)
                retained = retained_in(log_list, page.rows, retained, now_ms, consumers.values())
            return log_list.truncated(retained.position)

        log_list, _ = await self._logs.read(name)
        left = log_list.truncated(log_list.first_position) != log_list  # by a truncation of what was open then
        if left or log_list.retention_s is not None or log_list.retention_bytes is not None:
            await self._change(name, change, expiring=True)
        return await self.finish(name)

    async def _change(
        self,
        name: str,
        change: Callable[[LogList, Mapping[str, int]], Awaitable[LogList]],
        *,
        ignore_consumers: bool = False,
        expiring: bool = False,
    ) -> None:
        """Write what `change` makes of the list and the consumers' positions; again if either changes meanwhile.

        If `expiring`, without the consumers that have been idle for too long, unless one of them moves meanwhile.
        """
        log_list, _ = await self._logs.read(name, fresh=True)
        missing: PageMissingError | None = None
        for _ in range(self._settings.log_conflicts_max):
            positions: dict[str, int] = {}
            checks = []
            if not ignore_consumers:
                registered = await LogConsumers(self._logs, name, log_list.uid).registered()
                gone = await self._idle.expired(name, log_list, registered) if expiring else frozenset()
                positions = {
                    consumer: state.position for consumer, state in registered.states.items() if consumer not in gone
                }
                checks = [registered.check]
                checks += [registered.checks[consumer] for consumer in sorted(gone)]
                said = f"{len(gone)} consumers have been idle for too long: delete some"
                self._logs.check_checks(name, checks, said)
            uid = log_list.uid
            # Behind that: reading all consumers may take longer than the log goes without rolling.
            log_list, version = await self._logs.read(name, fresh=True)
            if log_list.uid != uid:
                continue
            try:
                changed = await change(log_list, positions)
            except PageMissingError as error:  # the list is no longer the present one, or the page was lost
                missing = error
                continue
            if changed == log_list or await self._written(name, changed, version, *checks):
                return
        raise missing or self._given_up(name)

    async def _written(self, name: str, log_list: LogList, version: int, *checks: Check) -> bool:
        """Whether it is written; if not, the caller reads the list again."""
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

    async def forget_producer(self, name: str, producer: str) -> bool:
        """Remove a producer, or a Spark writer's id with its last batch; False if there is none.

        The Spark writer can then store a batch twice. A client that opens the log as that producer is refused, unless
        it says that the producer is new.
        """
        was_there = False

        async def change(log_list: LogList, _: Mapping[str, int]) -> LogList:
            nonlocal was_there
            if producer not in log_list.producers.known:
                return log_list
            was_there = True
            return dataclasses.replace(
                log_list, producers=log_list.producers.without(producer, self._settings.log_producers_max)
            )

        await self._change(name, change, ignore_consumers=True)
        return was_there

    async def finish(self, name: str) -> LogList:
        """Delete the pending ledgers, remove them from the list, and return it.

        If some can't be deleted, raises the reason, after the others are removed from the list.
        """
        return await self._finish(name)

    async def _finish(self, name: str, fence: Fence | None = None) -> LogList:
        """The same; with `fence`, also for a log that was deleted."""
        gone: set[int] = set()
        for _ in range(self._settings.log_conflicts_max):
            log_list, version = await self._logs.read(name, fresh=True, include_deleted=fence is not None)
            if not log_list.pending_delete and not log_list.pages_pending:
                return log_list
            # Delete each ledger once: a log that rolls meanwhile changes its list faster than all of them are deleted.
            left = [ledger_id for ledger_id in log_list.pending_delete if ledger_id not in gone]
            if log_list.deleted and fence is not None:
                await self._fence(name, tuple(left[-OPEN_MAX:]), fence)
            problem = await self._delete_ledgers(left, gone)
            removed = tuple(ledger_id for ledger_id in log_list.pending_delete if ledger_id in gone)
            finished = log_list.without_pending_delete(removed)
            if log_list.pages_pending and (problem is None or isinstance(problem, MetadataConflictError)):
                for ref in log_list.pages:
                    if ref.first_position < log_list.pending_end:
                        await self._delete_page(name, log_list, ref)
                finished = finished.without_pending_pages()
            if finished == log_list or await self._written(name, finished, version):
                pages = len(log_list.pages) - len(finished.pages)
                log.info("%d ledgers of log %s, and those of %d pages, were deleted", len(removed), name, pages)
                if problem is not None:
                    raise problem
                if not finished.pending_delete and not finished.pages_pending:
                    return finished
        raise self._given_up(name)

    async def _delete_page(self, name: str, log_list: LogList, ref: PageRef) -> None:
        """Delete what is pending of the page: its ledgers, and then itself, unless some of it stays.

        One that can't be deleted for a reason of its own is noted in the list first. Raises the error of a failure.
        """
        try:
            page = await self._pages.read(name, log_list.uid, ref)
        except PageMissingError:  # an earlier call has deleted it, after all its ledgers
            return
        end = log_list.pending_end
        pending = [row for row in page.rows if row.first_position < end and row.end_position > log_list.reclaimed]
        ledger_ids = [row.ledger_id for row in pending if isinstance(row, Segment) and row.end_position <= end]
        gone: set[int] = set()
        problem = await self._delete_ledgers(ledger_ids, gone)
        if problem is not None:
            if not isinstance(problem, MetadataConflictError):
                raise problem
            await self._note_stuck(name, log_list.uid, [i for i in ledger_ids if i not in gone], problem)
        for row in pending:
            if isinstance(row, PageRef):
                await self._delete_page(name, log_list, row)
        if ref.end_position <= end:
            node = f"{pages_path(self._logs.root, name, log_list.uid)}/{ref.number}"
            _check_done(await delete_certainly(self._store, node, attempts_max=self._attempts_max))

    async def _note_stuck(self, name: str, uid: str, ledger_ids: Sequence[int], problem: BookKeeperError) -> None:
        """Have the list itself name ledgers of a page that is about to be deleted. Too many raise the problem."""
        for _ in range(self._settings.log_conflicts_max):
            log_list, version = await self._logs.read(name, fresh=True, include_deleted=True)
            pending = dict.fromkeys((*log_list.pending_delete, *ledger_ids))
            if log_list.uid != uid or len(pending) > _STUCK_MAX:
                raise problem
            noted = dataclasses.replace(log_list, pending_delete=tuple(pending))
            if noted == log_list or await self._written(name, noted, version):
                return
        raise self._given_up(name)

    async def _delete_ledgers(self, ledger_ids: Sequence[int], gone: set[int]) -> BookKeeperError | None:
        """Delete the ledgers, and add them to `gone`. The error of a failure; without the store, stop trying."""
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
        """Fence the last ledgers of a log: only they can have a writer."""
        for ledger_id in ledger_ids:
            try:
                await fence(ledger_id)
            except NoSuchLedgerError:
                continue
            except (LedgerRecoveryError, CorruptDataError, UnsupportedVersionError, UnauthorizedError) as error:
                log.warning(
                    "ledger %d of log %s, which was deleted, can't be fenced: a writer that still reaches its bookies "
                    "goes on until it is notified of the deletion: %s",
                    ledger_id,
                    name,
                    error,
                )

    async def delete(self, name: str, fence: Fence) -> None:
        """Delete the log, its ledgers and its consumers. Raises `NoSuchLogError` if nothing is left of one.

        The first write deletes the log for everybody; after a later error the next call does the rest, or the auditor.
        When this returns, the log's writer gets no acknowledgement any more, if enough bookies could be fenced.
        """
        await self._delete_all_later(name)
        await self._forget(name, fence)

    async def _delete_all_later(self, name: str) -> None:
        for _ in range(self._settings.log_conflicts_max):
            log_list, version = await self._logs.read(name, fresh=True, include_deleted=True)
            if log_list.deleted:  # by a call that has not come to its end: perhaps its writer isn't fenced yet
                return
            pending_delete = log_list.pending_delete + tuple(segment.ledger_id for segment in log_list.segments)
            gone = dataclasses.replace(
                log_list,
                deleted=True,
                segments=(),
                pending_delete=pending_delete,
                writer="",
                writer_label="",
                writer_since_ms=0,
                producers=Producers(),
            )
            if await self._written(name, gone, version):
                return
        raise self._given_up(name)

    async def _forget(self, name: str, fence: Fence) -> None:
        """Remove the ledgers and nodes that are left of a deleted log."""
        for _ in range(self._settings.log_conflicts_max):
            try:
                log_list = await self._finish(name, fence)
            except NoSuchLogError:
                return
            if not log_list.deleted:  # another one of that name
                return
            path = paths.log(self._logs.root, name)
            own = f"{path}/{log_list.uid}"
            consumers = await self._nodes_below(f"{own}/consumers")
            leases = [lease for consumer in consumers for lease in await self._nodes_below(consumer)]
            written_ahead = await self._nodes_below(pages_path(self._logs.root, name, log_list.uid))
            idle = idle_path(self._logs.root, name, log_list.uid)
            for node in (f"{own}/lease", idle, *leases, *consumers, *written_ahead):
                _check_done(await delete_certainly(self._store, node, attempts_max=self._attempts_max))
            await self._deletions.note(name, log_list.uid)
            nodes = [Delete(f"{own}/consumers"), Delete(own), Delete(path)]
            folder = pages_path(self._logs.root, name, log_list.uid)
            if await read_certainly(self._store, folder) is not None:
                nodes.insert(1, Delete(folder))
            outcome = await delete_together(self._store, *nodes, attempts_max=self._attempts_max)
            _check_done(outcome)
            if isinstance(outcome, Gone):
                return
        raise self._given_up(name)

    async def _nodes_below(self, folder: str) -> list[str]:
        await self._store.sync(folder)
        return [f"{folder}/{name}" for name in await children_if_there(self._store, folder)]

    async def maintain(self, name: str, fence: Fence) -> None:
        """Complete the deletion of the log; or apply its retention, if no writer does. The auditor calls it."""
        try:
            log_list, _ = await self._logs.read(name, include_deleted=True)
            if log_list.deleted:
                await self._forget(name, fence)
            elif await self._logs.lease_holder(name, log_list.uid) is None:
                await self.retain(name)
        except NoSuchLogError:
            self._idle.forget(name)

    async def sweep(self, metadata: LedgerMetadata, grace_s: float) -> Swept:
        """Delete the ledger if it belongs to a log and certainly nobody needs it."""
        belongs = log_of(metadata)
        if belongs is None:
            return Swept.KEPT
        ledger_id = metadata.ledger_id
        # An older list will do for a ledger that it names: such a ledger is never an orphan.
        known = None if self._last_read is None or self._last_read[0] != belongs.name else self._last_read[1]
        if known is not None and known.uid == belongs.uid:
            with contextlib.suppress(PageMissingError):  # truncated since: the present list tells
                if await self._named(belongs.name, known, ledger_id):
                    return Swept.KEPT
        found = await self._list_of(belongs)
        self._last_read = None if found is None else (belongs.name, found[0])
        log_list = None if found is None else found[0]
        if not made_by_log(metadata, belongs.uid, log_list):
            return Swept.KEPT
        named = (
            log_list is not None
            and log_list.uid == belongs.uid
            and await self._named(belongs.name, log_list, ledger_id)
        )
        # After the list: the note is there before a list is removed, so this read can't miss it.
        deleted = (log_list is None or log_list.uid != belongs.uid) and await self._deletions.noted(belongs.uid)
        now_ms = self._logs.now_ms()
        match orphaned(belongs.uid, log_list, named, deleted, metadata.created_ms, now_ms, grace_s):
            case Orphan.KEEP:
                return Swept.KEPT
            case Orphan.KEEP_FOR_LOST_LIST:
                return Swept.KEPT_FOR_LOST_LIST
            case Orphan.DELETE:
                outcome = await self._catalog.delete(ledger_id)
            case Orphan.DELETE_IF_UNCHANGED:
                assert found is not None
                unchanged = self._logs.list_check(belongs.name, found[1])
                outcome = await self._catalog.delete(ledger_id, unchanged)
            case _ as never:
                assert_never(never)
        _check_done(outcome)
        if not isinstance(outcome, Gone):
            return Swept.KEPT
        log.info("ledger %d was deleted: the list of log %s doesn't name it", metadata.ledger_id, belongs.name)
        return Swept.DELETED

    async def _named(self, name: str, log_list: LogList, ledger_id: int) -> bool:
        """Whether the list or a page has the ledger, pending deletion or not."""
        return (
            ledger_id in log_list.pending_delete or await self._pages.segment_of(name, log_list, ledger_id) is not None
        )

    async def delete_ledger(self, metadata: LedgerMetadata, *audit: Create) -> DeleteOutcome:
        """Delete the ledger unless a log has it. Raises `ConfigError`, which names the log, if one does."""
        belongs = log_of(metadata)
        ledger_id = metadata.ledger_id
        if belongs is None:
            return await self._catalog.delete(ledger_id, *audit)
        for _ in range(self._settings.log_conflicts_max):
            found = await self._list_of(belongs)
            if found is None:
                return await self._catalog.delete(ledger_id, *audit)
            segment = await self._pages.segment_of(belongs.name, found[0], ledger_id)
            if segment is not None and not found[0].is_pending(segment):
                raise ConfigError(
                    f"the ledger is a part of log {belongs.name}: truncate that, or delete all of it",
                    ledger_id=ledger_id,
                )
            outcome = await self._catalog.delete(ledger_id, self._logs.list_check(belongs.name, found[1]), *audit)
            # The outcome of a failed check is that of nodes below the ledger's, which a log's ledger never has.
            if not isinstance(outcome, Changed | Missing) or (isinstance(outcome, Missing) and not outcome.index):
                return outcome
        raise self._given_up(belongs.name)

    async def _list_of(self, belongs: LogOfLedger) -> tuple[LogList, int] | None:
        try:
            return await self._logs.read(belongs.name, fresh=True, include_deleted=True)
        except NoSuchLogError:
            return None

    def _given_up(self, name: str) -> MetadataConflictError:
        return MetadataConflictError(f"the list of log {name} changes all the time")


def log_of(metadata: LedgerMetadata) -> LogOfLedger | None:
    """The log that the ledger says it belongs to."""
    name, uid = (metadata.custom_metadata.get(key) for key in (LOG_NAME, LOG_UID))
    if name is None or uid is None:
        return None
    try:
        return LogOfLedger(checked_name(name.decode()), uid.decode())
    except ValueError:  # a name that no log has; `ConfigError` is one as well
        return None


def _kept_by(outcome: DeleteOutcome, ledger_id: int) -> BookKeeperError | None:
    """The reason why the ledger is still there; None if it is gone."""
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
    """Raise the error of a failure. The next pass finds any other outcome."""
    if isinstance(outcome, NotDone | Unknown):
        raise to_error(outcome)
