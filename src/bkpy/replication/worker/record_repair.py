"""Repairs one ledger by its under-replication record: reads the record under the ledger's lock, and updates it there.

    lock --> read the record --> repair the ledger --> update the record --> unlock
                |--- there is none: another worker has repaired the ledger (DONE)
                |--- a lost bookie is back: the auditor may drop it from the record (LATER)
                '--- all of its bookies are away and unverified: nobody knows yet what they miss (LATER)

Invariants: a record is changed only in the version that was read under the lock, so what is added meanwhile stays; a
bookie is dropped from it only when the ledger doesn't need it any more; the lock outlives the update.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, assert_never

from bkpy.errors import BookKeeperError
from bkpy.metadata.replication.underreplication import LossReason, missing_since_ms
from bkpy.metadata.store.outcome import Changed, Done, Gone, Missing, NotDone, Superseded, Unknown
from bkpy.protocol.repair.draining import is_void
from bkpy.protocol.repair.rereplication import RecordUpdate, RepairScope, record_update
from bkpy.replication.worker.ledger_repair import BACK, LOCKED, Repaired, RepairOutcome

if TYPE_CHECKING:
    from collections.abc import Collection

    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.bookies.draining import Drains
    from bkpy.metadata.replication.underreplication import UnderreplicationQueue, UnderreplicationRecord
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.replication.context import ReplicationContext
    from bkpy.replication.worker.ledger_repair import LedgerRepair, LockedLedger
    from bkpy.replication.worker.manual_queue import ManualQueue

AWAY: Final = "a bookie that may miss entries is away: it is verified when it is back, or copied when it counts as lost"
NEWER_RECORD: Final = "its under-replication record has changed meanwhile"


class RecordRepair:
    """For all ledgers of one worker, whose `records` are those of the cluster, or an operator's own."""

    def __init__(
        self,
        context: ReplicationContext,
        repair: LedgerRepair,
        records: UnderreplicationQueue | ManualQueue,
        drains: Drains,
        settings: RecoverySettings,
    ) -> None:
        self._context = context
        self._repair = repair
        self._records = records
        self._drains = drains
        self._settings = settings

    async def run(self, ledger_id: int, *, first_attempt: bool, waited_for: frozenset[str]) -> Repaired:
        """Repair the ledger once. `waited_for`: the writer of an open ledger had the time to replace these bookies.

        A caller that is cancelled here ends the session, or calls `LedgerRepair.release_abandoned`.
        """
        # Others may have repaired it since it was queued, or are about to: of many workers all but one reach for the
        # lock in vain, and a write that is refused costs the metadata store's servers as much as one that isn't.
        recorded, locked = await asyncio.gather(self._records.seen(ledger_id), self._repair.seen_locked(ledger_id))
        if not recorded:
            return Repaired(RepairOutcome.DONE)
        if locked:
            return Repaired(RepairOutcome.LATER, LOCKED)
        try:
            async with self._repair.locked(ledger_id) as ledger:
                if isinstance(ledger, Repaired):
                    return ledger
                return await self._run(ledger, first_attempt=first_attempt, waited_for=waited_for)
        except BookKeeperError as error:
            return Repaired(RepairOutcome.LATER, str(error))

    async def _run(self, ledger: LockedLedger, *, first_attempt: bool, waited_for: frozenset[str]) -> Repaired:
        record = await self._read(ledger.lock.ledger_id)
        if record is None:
            return Repaired(RepairOutcome.DONE)
        if first_attempt and self._may_be_back(record):
            return Repaired(RepairOutcome.LATER, BACK)
        leaving = await self._leaving(ledger, record)
        if leaving is None:
            return Repaired(RepairOutcome.LATER, AWAY)
        ended = await ledger.repair(
            RepairScope(leaving, waited_for, record.incomplete, record.unverified, record.absent, record.whole_from)
        )
        if not await self._update(ledger, record, leaving, ended.left):
            return Repaired(RepairOutcome.LATER, NEWER_RECORD)
        return ended._replace(record=record)

    async def _read(self, ledger_id: int) -> UnderreplicationRecord | None:
        """The record, without draining bookies that stay after all."""
        record = await self._records.read(ledger_id)
        if record is None:
            return None
        leaving = [bookie for bookie, loss in record.lost.items() if loss.reason == LossReason.DRAINING]
        draining = {bookie for bookie in leaving if await self._drains.read(bookie) is not None}
        void = {b for b in leaving if is_void(draining=b in draining, here=self._context.directory.is_here(b))}
        if not void:
            return record
        # Before it was drained it may have been away: the record has kept since when, and not why.
        since_ms = missing_since_ms(record, void, self._settings)
        if await self._context.cluster.catalog.closed_before(ledger_id, since_ms):
            await self._records.end_absence(record, void)
        else:
            await self._records.return_bookies(record, void)
        return await self._records.read(ledger_id)

    def _may_be_back(self, record: UnderreplicationRecord) -> bool:
        """Whether a bookie that counts as lost is here. The auditor may be about to drop it from the record."""
        here = self._context.bookies().readable
        return any(bookie in here and loss.reason == LossReason.LOST for bookie, loss in record.lost.items())

    async def _leaving(self, ledger: LockedLedger, record: UnderreplicationRecord) -> frozenset[str] | None:
        """The bookies to get out of the ledger's ensembles; None if all are away, and have yet to be verified.

        A worker verifies such a bookie when it is back, and the auditor decides whether it is lost. One that no
        ensemble names any more misses nothing: the auditor adds no record for it.
        """
        away = record.returned - self._repair.here(record.returned)
        if away:
            metadata = await ledger.metadata()
            away &= frozenset() if metadata is None else named_bookies(metadata)
            return None if away == record.lost.keys() else frozenset(record.lost) - away
        metadata = None if record.lost else await ledger.metadata()
        return leaving_bookies(record, metadata, self._context.bookies().readable)

    async def _update(
        self, ledger: LockedLedger, record: UnderreplicationRecord, leaving: frozenset[str], repaired: frozenset[str]
    ) -> bool:
        """Update the record; False if it is not the one any more that was read under the lock."""
        update = record_update(record.lost.keys(), leaving, repaired)
        match update:
            case RecordUpdate.KEEP:
                return True
            case RecordUpdate.REMOVE:
                ledger.released = await self._records.remove_with(record, ledger.lock)
                return ledger.released or await self._drop(record, repaired)
            case RecordUpdate.DROP_BOOKIES:
                return await self._drop(record, repaired)
            case _:
                assert_never(update)

    async def _drop(self, record: UnderreplicationRecord, bookies: Collection[str]) -> bool:
        """Drop these bookies from the record; whether it was still the one that was read under the lock."""
        outcome = await self._records.remove(record, record.lost.keys() & bookies)
        match outcome:
            case Done() | Gone() | Missing():
                return True
            case Changed() | Superseded() | NotDone() | Unknown():
                return False
            case _:
                assert_never(outcome)


def leaving_bookies(
    record: UnderreplicationRecord, metadata: LedgerMetadata | None, readable: frozenset[str]
) -> frozenset[str]:
    """The bookies that the record names. A damaged one names nobody: then all bookies of the ledger that are away."""
    if record.lost or metadata is None:
        return frozenset(record.lost)
    return named_bookies(metadata) - readable


def named_bookies(metadata: LedgerMetadata) -> frozenset[str]:
    """All bookies that the ledger's ensembles name."""
    return frozenset(name for fragment in metadata.fragments for name in fragment.bookies)
