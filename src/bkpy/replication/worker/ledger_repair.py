"""Repairs one under-replicated ledger, under its re-replication lock: look, copy, swap, look again, until it is done.

    lock --> look --> copy the most urgent share --> swap (one's own lock, and the metadata's version) --> look again
              |-----> copy in place, to a bookie that misses it and is the only one that can have it ----> look again
              '-----> wait for the writer, and then recover the ledger ----------------------------------> look again

`next_step` of `protocol/repair/rereplication.py` decides what follows from a look. All code that takes bookies out of a
ledger uses this module: the worker for queued ledgers (`record_repair.py`), and operators for manual moves.

Invariants: nothing is changed without the lock, and no ensemble but by a write that checks that it is still held; a
bookie is swapped in, or counts as repaired, only behind `Copied`; no copy that has failed is tried again within one
run.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from bkpy.errors import BookieUnavailableError, BookKeeperError, NoSuchLedgerError
from bkpy.metadata.store.outcome import Changed, Done, Exists, Missing, NotDone, Superseded, Unknown
from bkpy.protocol.ledger.accepted_loss import HOLES_MAX
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.repair.checks import missing
from bkpy.protocol.repair.rereplication import (
    AFTER_SWAP,
    Copy,
    CopyBlocker,
    NextStep,
    Plan,
    RepairScope,
    RepairStep,
    Swap,
    next_step,
    plan,
    swapped,
)
from bkpy.replication.auditor.held_entries import certainly_lost, held_entries, unreadable
from bkpy.replication.worker.fragment_copy import Copied, CopyCount, Failed, FragmentCopy, Unreadable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.replication.locks import LedgerLock, LedgerLocks
    from bkpy.metadata.replication.underreplication import UnderreplicationRecord
    from bkpy.metadata.store.outcome import PutOutcome
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.rereplication import Bookies, RepairedInPlace
    from bkpy.replication.context import ReplicationContext
    from bkpy.replication.worker.pacing import CopyRate

    Found = tuple[LedgerMetadata, int] | None  # with their version; None for a deleted ledger

log = logging.getLogger("bkpy.recovery")

LOCKED = "somebody else has the ledger's lock"
LOCK_LOST = "the ledger's lock was lost"
BACK = "a bookie that was lost is back, and may be as it was"
GRACE = "its writer may still leave the lost bookie by itself"


_SHOWN_MAX: Final = 5  # fragments


class RepairOutcome(enum.StrEnum):
    """How a repair ended."""

    DONE = "done"  # none of the ledger's ensembles names any of the bookies, but those repaired in place
    LATER = "later"  # another time it may go on
    WAITING = "waiting"  # for the writer of an open ledger
    STUCK = "stuck"  # as long as the same bookies are away


class Repaired(NamedTuple):
    """How a repair ended, and why it is not DONE.

    `left`: of the bookies in its scope, the ones that no ensemble names (any more), or that miss no entry any more.
    `waiting_for`: the ones that only the writer of an open ledger can replace, for now. `judged`: the metadata by which
    the ledger is STUCK or DONE, and their version; None if it is DONE because it was deleted. `bookies`: the ones that
    were registered then. `record`: the under-replication record by which it was repaired.
    """

    how: RepairOutcome
    why: str = ""
    left: frozenset[str] = frozenset()
    waiting_for: frozenset[str] = frozenset()
    judged: tuple[LedgerMetadata, int] | None = None
    bookies: Bookies | None = None
    record: UnderreplicationRecord | None = None


class LedgerRepair:
    """Made once for all ledgers that a worker, or an operator, repairs. They share `count` and `rate`.

    `target`: the only bookie to copy to, if it is given.
    """

    def __init__(
        self,
        context: ReplicationContext,
        locks: LedgerLocks,
        settings: RecoverySettings,
        rate: CopyRate,
        count: CopyCount,
        *,
        target: str | None = None,
    ) -> None:
        self._context = context
        self._catalog = context.cluster.catalog
        self._locks = locks
        self._settings = settings
        self._rate = rate
        self._count = count
        self._target = target

    async def run(self, ledger_id: int, scope: RepairScope) -> Repaired:
        """Repair the ledger under its lock. Never raises `BookKeeperError`; when cancelled, see `locked`."""
        try:
            async with self.locked(ledger_id) as ledger:
                return ledger if isinstance(ledger, Repaired) else await ledger.repair(scope)
        except BookKeeperError as error:
            return Repaired(RepairOutcome.LATER, str(error))

    @contextlib.asynccontextmanager
    async def locked(self, ledger_id: int) -> AsyncIterator[LockedLedger | Repaired]:
        """The ledger with its lock held until the block ends; `Repaired`, LATER, if the lock can't be had.

        A caller that is cancelled in here ends the session, or calls `release_abandoned`.
        """
        lock = await self._locks.take(ledger_id)
        if isinstance(lock, Exists):
            yield Repaired(RepairOutcome.LATER, LOCKED)
            return
        if isinstance(lock, NotDone):
            yield Repaired(RepairOutcome.LATER, str(lock.error))
            return
        ledger = LockedLedger(self, lock)
        try:
            try:
                yield ledger
            except Exception:
                await self._locks.release(lock)
                raise
            if not ledger.released:
                await self._locks.release(lock)
        except asyncio.CancelledError:
            self._locks.abandon(lock)
            raise

    async def seen_locked(self, ledger_id: int) -> bool:
        """Whether somebody has the ledger's lock, as far as this session knows. It may be released by now."""
        return await self._locks.seen(ledger_id)

    async def release_abandoned(self) -> None:
        """Release the locks of repairs that were cancelled in this session."""
        await self._locks.release_abandoned()

    def bookies(self) -> Bookies:
        """The bookies that are registered now."""
        return self._context.bookies()

    def here(self, bookies: Collection[str]) -> frozenset[str]:
        """Of these bookies, the ones that are registered, and have what they had."""
        return frozenset(filter(self._context.directory.is_here, bookies))

    async def read(self, ledger_id: int) -> Found:
        """The ledger's metadata as they are now."""
        try:
            return await self._catalog.read(ledger_id, fresh=True)
        except NoSuchLedgerError:
            return None

    def plan(
        self,
        metadata: LedgerMetadata,
        scope: RepairScope,
        incomplete: Collection[str],
        repaired_in_place: Collection[RepairedInPlace],
    ) -> Plan:
        bookies = self._context.bookies()
        if self._target is not None:
            bookies = bookies._replace(writable=bookies.writable & {self._target})
        return plan(
            metadata,
            scope.leaving,
            bookies,
            incomplete=incomplete,
            repaired_in_place=repaired_in_place,
            whole_from=scope.whole_from,
        )

    async def recover(self, ledger_id: int) -> None:
        """Close the ledger, which ends its writer. Raises what a recovery raises."""
        await self._context.recover(ledger_id)

    async def copy(self, metadata: LedgerMetadata, copy: Copy, target: str) -> Copied | Unreadable | Failed:
        """Copy to the bookie, and no more."""
        return await self._copy(metadata, copy, target, self._count)

    async def _copy(
        self, metadata: LedgerMetadata, copy: Copy, target: str, count: CopyCount
    ) -> Copied | Unreadable | Failed:
        return await FragmentCopy(
            metadata,
            copy,
            target,
            context=self._context,
            settings=self._settings,
            rate=self._rate,
            count=count,
        ).run()

    async def holds(self, metadata: LedgerMetadata, copy: Copy) -> bool:
        """Whether the bookie that has the place has synced all of its share. One that doesn't answer has not."""
        channel = self._context.parts.pool.channel(copy.old)
        try:
            await channel.connect(again=True)
        except BookKeeperError:
            return False
        generation = channel.generation
        if not await self._returns(metadata, copy) or not await self._syncs(metadata, copy):
            return False
        return channel.up and channel.generation == generation  # else it may have lost what it returned

    async def _returns(self, metadata: LedgerMetadata, copy: Copy) -> bool:
        """Whether the bookie returns all of its share intact."""
        following = copy.first
        while following <= copy.last:
            try:
                held = await held_entries(
                    self._context, metadata, copy.old, following, copy.last, self._settings.check_read_bytes
                )
            except BookKeeperError:
                return False
            if missing(copy.share, following, held.examined_to, held.intact):
                return False
            await self._rate.spend(held.size)
            following = held.examined_to + 1
        return True

    async def _syncs(self, metadata: LedgerMetadata, copy: Copy) -> bool:
        """Whether the bookie syncs what it was sent of its share, and may have returned from memory alone.

        It answers an append of the last entry behind the syncs of all before.
        """
        last = copy.share.last(copy.last)
        if last is None:
            return True
        share = copy.share._replace(starts=(last,), entries=1)
        again = copy._replace(first=last, last=last, share=share, in_place=True)
        return isinstance(await self._copy(metadata, again, copy.old, CopyCount()), Copied)

    async def choose(self, metadata: LedgerMetadata, copy: Copy, leaving: Collection[str]) -> str | None:
        """A bookie to copy to, which can be reached; None if there is none."""
        target = copy.old if copy.in_place else self._target
        if target is None:
            ensemble = metadata.fragments[copy.fragment].bookies
            chosen = await self._context.parts.ensembles.replace(ensemble, [copy.place], without=leaving)
            return None if chosen is None else chosen[copy.place]
        try:
            await self._context.parts.pool.channel(target).connect(again=True)
        except BookieUnavailableError:
            return None
        return target

    def count_repaired_in_place(self) -> None:
        """A share was copied in place."""
        self._count.fragments += 1

    async def find_hole(self, metadata: LedgerMetadata, planned: Plan) -> tuple[int, int] | None:
        """First and last of some entries that keep what is planned from being done, and that nobody has any more.

        Only where somebody has accepted that entries of the ledger are lost. Those of a striped fragment that lie apart
        are found one after the other.
        """
        loss = metadata.accepted_loss
        if loss is None or metadata.state is not LedgerState.CLOSED or len(loss.holes) >= HOLES_MAX:
            return None
        read_bytes = self._context.parts.settings.read_bytes
        self._context.parts.pool.add_key(metadata.ledger_id, metadata.ledger_key)
        try:
            for stuck in planned.stuck:
                if stuck.blocker is CopyBlocker.NO_SOURCE and stuck.step == 1:
                    first, last = stuck.first, stuck.last
                    if await certainly_lost(self._context, metadata, first, last, read_bytes):
                        return first, last
            for copy in planned.copies:
                found = await unreadable(self._context, metadata, copy, read_bytes=read_bytes, ranges_max=1)
                for first, last in found.ranges:
                    end = last if copy.share.step == 1 else first
                    if await certainly_lost(self._context, metadata, first, end, read_bytes):
                        return first, end
        finally:
            self._context.parts.pool.forget_key(metadata.ledger_id)
        return None

    async def store_hole(self, metadata: LedgerMetadata, version: int, lock: LedgerLock) -> Swap:
        """Store `metadata`, in which a hole is recorded."""
        return _swap_of(await self._catalog.write_locked(metadata, version, lock), lock)

    async def swap(self, metadata: LedgerMetadata, version: int, lock: LedgerLock) -> tuple[Swap, Found]:
        """Store `metadata`, in which the new bookie has its place; what is stored then, if that is known."""
        outcome = await self._catalog.write_locked(metadata, version, lock)
        self._count.fragments += isinstance(outcome, Done)
        return _swap_of(outcome, lock), (metadata, outcome.version) if isinstance(outcome, Done) else None


class LockedLedger:
    """A ledger whose lock is held. `released`: the lock was deleted already, together with something else."""

    def __init__(self, repair: LedgerRepair, lock: LedgerLock) -> None:
        self.lock = lock
        self.released = False
        self._repair = repair

    async def metadata(self) -> LedgerMetadata | None:
        """As they are now; None for a deleted ledger."""
        found = await self._repair.read(self.lock.ledger_id)
        return None if found is None else found[0]

    async def repair(self, scope: RepairScope) -> Repaired:
        """Get the scope's bookies out of the ledger's ensembles, as far as that can be done now."""
        return await _Repairing(self._repair, self.lock, scope).run()


class _Look(NamedTuple):
    """The ledger and the bookies as they are, and what follows from that."""

    found: Found
    bookies: Bookies
    planned: Plan | None
    possible: Plan | None  # without the copies that have failed
    left: frozenset[str]
    waiting_for: frozenset[str]  # because of them a ledger that isn't CLOSED is recovered
    step: RepairStep


class _Repairing:
    """One repair: the state that its looks share. Each step ends it, or is followed by another look."""

    def __init__(self, repair: LedgerRepair, lock: LedgerLock, scope: RepairScope) -> None:
        self._repair = repair
        self._lock = lock
        self._ledger_id = lock.ledger_id
        self._scope = scope
        self._repaired_in_place: set[RepairedInPlace] = set()
        self._failed: dict[tuple[int, int], Unreadable | Failed] = {}  # by fragment and place in it
        self._recovered = False
        self._stored: Found = None  # by the last swap, if nothing was tried since

    async def run(self) -> Repaired:
        ended: Repaired | None = None
        while ended is None:
            ended = await self._do(await self._look())
        return ended

    async def _look(self) -> _Look:
        # Never older than the record with the bookies that leave: a ledger that names one later gets a newer record.
        found, self._stored = self._stored or await self._repair.read(self._ledger_id), None
        scope, bookies = self._scope, self._repair.bookies()
        if found is None:
            return _Look(None, bookies, None, None, scope.leaving, frozenset(), next_step(None, grace_over=True))
        metadata, _ = found
        incomplete = self._repair.here(scope.leaving & scope.incomplete)
        planned = self._repair.plan(metadata, scope, incomplete, self._repaired_in_place)
        copies = tuple(copy for copy in planned.copies if (copy.fragment, copy.place) not in self._failed)
        possible = planned._replace(copies=copies)
        # The writer of an open ledger goes on with a bookie that has come back.
        returned = self._repair.here(scope.absent) if metadata.state is LedgerState.OPEN else frozenset[str]()
        waiting_for = frozenset(planned.unclosed) - returned
        step = next_step(
            possible,
            grace_over=waiting_for <= scope.waited_for,
            all_returned=not waiting_for,
            recovered=self._recovered,
        )
        return _Look(found, bookies, planned, possible, scope.leaving - _named(planned), waiting_for, step)

    async def _do(self, look: _Look) -> Repaired | None:
        """Take the step; None to look again."""
        match look.step:
            case RepairStep.COPY:
                assert look.found is not None
                assert look.possible is not None
                return _after(await self._copy(*look.found, look.possible.copies[0]), look.left)
            case RepairStep.KEEP_WRITER:
                return Repaired(RepairOutcome.LATER, BACK, look.left)
            case RepairStep.WAIT:
                return Repaired(RepairOutcome.WAITING, GRACE, look.left, look.waiting_for)
            case RepairStep.RECOVER:
                self._recovered = True  # afterwards the ledger is closed, or deleted
                await self._repair.recover(self._ledger_id)
                return None
            case RepairStep.DONE | RepairStep.STUCK:
                return await self._end(look)
            case _:
                assert_never(look.step)

    async def _copy(self, metadata: LedgerMetadata, version: int, copy: Copy) -> Swap | None:
        """Copy, and swap the bookie in; None if there is nothing to swap."""
        where, scope = (copy.fragment, copy.place), self._scope
        unverified = scope.unverified & scope.incomplete
        if copy.old in self._repair.here(unverified) and await self._repair.holds(metadata, copy):
            self._repaired_in_place.add(copy.repaired_in_place)
            return None
        target = await self._repair.choose(metadata, copy, scope.leaving)
        if target is None:
            self._failed[where] = Failed("no bookie that could be copied to can be reached")
            return None
        copied = await self._repair.copy(metadata, copy, target)
        if not isinstance(copied, Copied):
            self._failed[where] = copied
            return None
        if copy.in_place:
            self._repaired_in_place.add(copy.repaired_in_place)
            self._repair.count_repaired_in_place()
            return None
        return await self._swap(metadata, version, copy, target)

    async def _swap(self, metadata: LedgerMetadata, version: int, copy: Copy, target: str) -> Swap | None:
        """Swap the bookie in. The copy may fit the metadata as well that another client has stored meanwhile."""
        new = swapped(metadata, copy, target)
        while new is not None:
            swap, self._stored = await self._repair.swap(new, version, self._lock)
            if swap is not Swap.CONFLICT:
                return swap
            found = await self._repair.read(self._ledger_id)
            if found is None:
                break
            metadata, version = found
            new = swapped(metadata, copy, target)
        return None

    async def _end(self, look: _Look) -> Repaired | None:
        """Nothing is left to do now, unless entries turn out to be lost: then the ones beside them can be copied."""
        if look.found is not None and look.planned is not None:
            metadata, version = look.found
            hole = await self._repair.find_hole(metadata, look.planned)
            if hole is not None:
                log.warning("ledger %d: entries %d to %d are lost, as was accepted", self._ledger_id, *hole)
                stored = await self._repair.store_hole(metadata.with_hole(*hole), version, self._lock)
                self._failed.clear()  # fragments have other numbers now
                self._repaired_in_place.clear()
                return _after(stored, look.left)
        return self._ended(look.planned, look.left)._replace(judged=look.found, bookies=look.bookies)

    def _ended(self, planned: Plan | None, left: frozenset[str]) -> Repaired:
        if planned is None or not (planned.copies or planned.stuck or planned.unclosed):
            return Repaired(RepairOutcome.DONE, "", left)
        failures = [self._failed[copy.fragment, copy.place] for copy in planned.copies]
        reasons = [*map(_describe, failures), *(stuck.description for stuck in planned.stuck)]
        if len(reasons) > _SHOWN_MAX:
            reasons[_SHOWN_MAX:] = [f"and {len(reasons) - _SHOWN_MAX} more"]
        transient = any(isinstance(failure, Failed) for failure in failures)
        how = RepairOutcome.LATER if transient or planned.unclosed else RepairOutcome.STUCK
        return Repaired(how, "; ".join(reasons), left)


def _swap_of(outcome: PutOutcome, lock: LedgerLock) -> Swap:
    match outcome:
        case Done():
            return Swap.DONE
        case Missing():
            return Swap.LOCK_LOST if outcome.node == lock.proof else Swap.DELETED
        case Changed() | Superseded():
            return Swap.CONFLICT
        case NotDone() | Unknown():
            return Swap.UNCERTAIN
        case _:
            assert_never(outcome)


def _after(swap: Swap | None, left: frozenset[str]) -> Repaired | None:
    """How the write of metadata ends the repair; None to look again."""
    if swap is None or AFTER_SWAP[swap] is NextStep.LOOK:
        return None
    return Repaired(RepairOutcome.LATER, LOCK_LOST if swap is Swap.LOCK_LOST else swap.value, left)


def _named(planned: Plan) -> frozenset[str]:
    """The bookies that ensembles still name."""
    waiting = [copy.old for copy in planned.copies] + [stuck.old for stuck in planned.stuck]
    return frozenset((*waiting, *planned.unclosed))


def _describe(failure: Unreadable | Failed) -> str:
    if isinstance(failure, Failed):
        return failure.why
    why = f"entry {failure.entry_id}, and perhaps others, can't be read anywhere: {failure.why}"
    return f"{why} (`bkpy ledger explain --read` says which)"
