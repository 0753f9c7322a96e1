"""Works off one under-replicated ledger, under its re-replication lock: look, copy, swap, look again, until it is done.

    lock --> look --> copy the most urgent share --> swap (one's own lock, and the metadata's version) --> look again
              |-----> copy in place, to a bookie that lacks it and is the only one that can have it ----> look again
              '-----> wait for the writer, and then recover the ledger ----------------------------------> look again

`protocol/repair/rereplication.py` decides what to do. All who take bookies out of a ledger use this module: the worker,
for queued ledgers, and operators, for manual moves.

Invariants: nothing is changed without the lock, and no ensemble but by a write that checks that it is still held; a
bookie is swapped in, or counts as mended, only behind `Copied`; no copy that has failed is tried again within one run.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from typing import TYPE_CHECKING, NamedTuple, assert_never

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
    RepairStep,
    Swap,
    next_step,
    plan,
    swapped,
)
from bkpy.replication.auditor.held_entries import certainly_lost, held_entries, unreadable
from bkpy.replication.worker.fragment_copy import Copied, CopyCount, Failed, FragmentCopy, Unreadable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.replication.locks import LedgerLock, LedgerLocks
    from bkpy.metadata.store.outcome import PutOutcome
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.rereplication import RepairedInPlace
    from bkpy.replication.context import ReplicationContext
    from bkpy.replication.worker.copy_rate import CopyRate

    MetadataRead = Callable[[], Awaitable[LedgerMetadata | None]]
    Found = tuple[LedgerMetadata, int] | None

log = logging.getLogger("bkpy.recovery")

LOCKED = "somebody else has the ledger's lock"
LOCK_LOST = "the ledger's lock was lost"
_SHOWN_MAX = 5  # fragments
BACK = "a bookie that was lost is back, and may be as it was"
GRACE = "its writer may still leave the lost bookie by itself"


class RepairOutcome(enum.StrEnum):
    """How a run has ended."""

    DONE = "done"  # none of the ledger's ensembles names any of the bookies, but those that were mended
    LATER = "later"  # another time it may go on
    WAITING = "waiting"  # for the writer of an open ledger
    STUCK = "stuck"  # as long as the same bookies are away


class Repaired(NamedTuple):
    """How it has ended, and why it is not DONE.

    `left`: of the bookies that were to go, those that no ensemble names (any more), or that lack nothing any more.
    `waiting_for`: those that only the writer of an open ledger can leave, for now. `judged`: the metadata by which it
    is STUCK or DONE, and their version; None if it is DONE because the ledger is gone.
    """

    how: RepairOutcome
    why: str = ""
    left: frozenset[str] = frozenset()
    waiting_for: frozenset[str] = frozenset()
    judged: tuple[LedgerMetadata, int] | None = None


class LedgerRepair:
    """Made once for all ledgers that a worker, or a person, works off. `count` and `rate` are shared by all of them.

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

    async def run(
        self,
        ledger_id: int,
        leaving: Callable[[MetadataRead], Awaitable[Collection[str]]],
        *,
        waited_for: Collection[str],
        when_done: Callable[[frozenset[str], LedgerLock], Awaitable[bool]],
        incomplete: Callable[[], Collection[str]] = frozenset,
        returned: Callable[[], Collection[str]] = frozenset,
        unverified: Callable[[], Collection[str]] = frozenset,
    ) -> Repaired:
        """Work off the ledger. `leaving` tells which bookies are to go, and is asked once the lock is held.

        It may look at the metadata for that. `when_done` is told of those that have gone, while the lock is still held,
        and returns whether it has given that back itself. `waited_for`: an open ledger may be recovered because of
        these. `lacking`: of those that are to go, the ones that may stay if they get what they lack. `returned`: those
        that were absent and are back, because of which no open ledger is recovered. `unverified`: those of the lacking
        ones that keep their place where they return all of their share intact. All are asked for at every look.
        A caller that is cancelled here ends the session, or calls `release_abandoned`.
        """
        lock = await self._locks.take(ledger_id)
        if isinstance(lock, Exists):
            return Repaired(RepairOutcome.LATER, LOCKED)
        if isinstance(lock, NotDone):
            return Repaired(RepairOutcome.LATER, str(lock.error))
        released = False
        try:
            try:
                ended = await _LockedRepair(self, lock, frozenset(waited_for), incomplete, returned, unverified).run(
                    leaving
                )
                if ended.left or ended.how is RepairOutcome.DONE:
                    released = await when_done(ended.left, lock)
            except BookKeeperError as error:
                ended = Repaired(RepairOutcome.LATER, str(error))
            except Exception:
                await self._locks.release(lock)
                raise
            if not released:
                await self._locks.release(lock)
        except asyncio.CancelledError:
            self._locks.abandon(lock)
            raise
        return ended

    async def release_abandoned(self) -> None:
        """Release the locks of runs that were cancelled in this session."""
        await self._locks.release_abandoned()

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int] | None:
        """The ledger's metadata as they are now, and their version; None for a ledger that is gone."""
        try:
            return await self._catalog.read(ledger_id, fresh=True)
        except NoSuchLedgerError:
            return None

    def plan(
        self,
        metadata: LedgerMetadata,
        leaving: Collection[str],
        incomplete: Collection[str],
        repaired_in_place: Collection[RepairedInPlace],
    ) -> Plan:
        bookies = self._context.bookies()
        if self._target is not None:
            bookies = bookies._replace(writable=bookies.writable & {self._target})
        return plan(metadata, leaving, bookies, incomplete=incomplete, repaired_in_place=repaired_in_place)

    async def recover(self, ledger_id: int) -> None:
        """Close the ledger, which ends its writer. Raises what a recovery raises."""
        await self._context.recover(ledger_id)

    async def copy(self, metadata: LedgerMetadata, copy: Copy, target: str) -> Copied | Unreadable | Failed:
        """Copy to the bookie, and no more."""
        return await FragmentCopy(
            metadata,
            copy,
            target,
            context=self._context,
            settings=self._settings,
            rate=self._rate,
            count=self._count,
        ).run()

    async def holds(self, metadata: LedgerMetadata, copy: Copy) -> bool:
        """Whether the bookie that has the place returns all of its share intact. No answer is none."""
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
                ranges = await unreadable(self._context, metadata, copy, read_bytes=read_bytes, ranges_max=1)
                for first, last in ranges:
                    end = last if copy.share.step == 1 else first
                    if await certainly_lost(self._context, metadata, first, end, read_bytes):
                        return first, end
        finally:
            self._context.parts.pool.forget_key(metadata.ledger_id)
        return None

    async def store_hole(self, metadata: LedgerMetadata, version: int, lock: LedgerLock) -> Swap:
        """Store `metadata`, in which a hole is recorded."""
        return self._fate(await self._catalog.write_locked(metadata, version, lock), lock)

    async def swap(self, metadata: LedgerMetadata, version: int, lock: LedgerLock) -> tuple[Swap, Found]:
        """Store `metadata`, in which the new bookie has its place; what is stored then, if that is known."""
        outcome = await self._catalog.write_locked(metadata, version, lock)
        self._count.fragments += isinstance(outcome, Done)
        return self._fate(outcome, lock), (metadata, outcome.version) if isinstance(outcome, Done) else None

    @staticmethod
    def _fate(outcome: PutOutcome, lock: LedgerLock) -> Swap:
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


class _LockedRepair:
    """One run, whose lock is held."""

    def __init__(
        self,
        repair: LedgerRepair,
        lock: LedgerLock,
        waited_for: frozenset[str],
        incomplete: Callable[[], Collection[str]],
        returned: Callable[[], Collection[str]],
        unverified: Callable[[], Collection[str]],
    ) -> None:
        self._repair = repair
        self._lock = lock
        self._ledger_id = lock.ledger_id
        self._waited_for = waited_for
        self._incomplete = incomplete
        self._returned = returned
        self._unverified = unverified
        self._repaired_in_place: set[RepairedInPlace] = set()
        self._failed: dict[tuple[int, int], Unreadable | Failed] = {}  # by fragment and place in it
        self._recovered = False
        self._stored: Found = None  # by the last swap, if nothing was tried since

    async def run(self, leaving_of: Callable[[MetadataRead], Awaitable[Collection[str]]]) -> Repaired:
        leaving = frozenset(await leaving_of(self._look))
        while True:
            # Never older than the mark that says who leaves: what comes to name such a bookie later is marked later.
            found, self._stored = self._stored or await self._repair.read(self._ledger_id), None
            planned = None if found is None else self._plan(found[0], leaving)
            left = leaving if planned is None else leaving - _named(planned)
            possible = None if planned is None else self._possible(planned)
            unclosed = frozenset() if found is None or planned is None else self._to_wait_for(found[0], planned)
            step = next_step(possible, grace_over=unclosed <= self._waited_for)
            if step is RepairStep.COPY:
                assert found is not None
                assert possible is not None
                then, why = await self._copy(*found, possible.copies[0], leaving)
                if then is NextStep.LOOK:
                    continue
                return Repaired(RepairOutcome.LATER, why, left)
            if step in (RepairStep.RECOVER, RepairStep.WAIT) and not unclosed:
                return Repaired(RepairOutcome.LATER, BACK, left)
            if step is RepairStep.RECOVER and not self._recovered:
                self._recovered = True  # afterwards it is closed, or gone
                await self._repair.recover(self._ledger_id)
                continue
            if step is RepairStep.WAIT:
                return Repaired(RepairOutcome.WAITING, GRACE, left, unclosed)
            if found is not None and planned is not None and (recorded := await self._record_hole(*found, planned)):
                if recorded is NextStep.LOOK:
                    continue
                return Repaired(
                    RepairOutcome.LATER, LOCK_LOST if recorded is NextStep.STOP else Swap.UNCERTAIN.value, left
                )
            return self._ended(planned, left)._replace(judged=found)

    async def _record_hole(self, metadata: LedgerMetadata, version: int, planned: Plan) -> NextStep | None:
        """Record entries that nobody has any more, so that the ones beside them are copied; None if there are none."""
        hole = await self._repair.find_hole(metadata, planned)
        if hole is None:
            return None
        log.warning("ledger %d: entries %d to %d are lost, as was accepted", self._ledger_id, *hole)
        then = AFTER_SWAP[await self._repair.store_hole(metadata.with_hole(*hole), version, self._lock)]
        self._failed.clear()  # fragments have other numbers now
        self._repaired_in_place.clear()
        return then

    def _plan(self, metadata: LedgerMetadata, leaving: frozenset[str]) -> Plan:
        return self._repair.plan(metadata, leaving, leaving.intersection(self._incomplete()), self._repaired_in_place)

    def _to_wait_for(self, metadata: LedgerMetadata, planned: Plan) -> frozenset[str]:
        """The bookies because of which a ledger that isn't CLOSED is to be recovered.

        The writer of an open one goes on with a bookie that has come back.
        """
        back = self._returned() if metadata.state is LedgerState.OPEN else ()
        return frozenset(planned.unclosed).difference(back)

    async def _look(self) -> LedgerMetadata | None:
        found = await self._repair.read(self._ledger_id)
        return None if found is None else found[0]

    def _possible(self, planned: Plan) -> Plan:
        """Without the copies that have failed."""
        copies = tuple(copy for copy in planned.copies if (copy.fragment, copy.place) not in self._failed)
        return planned._replace(copies=copies)

    def _ended(self, planned: Plan | None, left: frozenset[str]) -> Repaired:
        """Nothing is left to be done now."""
        if planned is None or not (planned.copies or planned.stuck or planned.unclosed):
            return Repaired(RepairOutcome.DONE, "", left)
        reasons = [_describe(self._failed[copy.fragment, copy.place]) for copy in planned.copies]
        reasons += [stuck.description for stuck in planned.stuck]
        transient = any(isinstance(self._failed[copy.fragment, copy.place], Failed) for copy in planned.copies)
        if len(reasons) > _SHOWN_MAX:
            reasons[_SHOWN_MAX:] = [f"and {len(reasons) - _SHOWN_MAX} more"]
        return Repaired(
            RepairOutcome.LATER if transient or planned.unclosed else RepairOutcome.STUCK, "; ".join(reasons), left
        )

    async def _copy(
        self, metadata: LedgerMetadata, version: int, copy: Copy, leaving: frozenset[str]
    ) -> tuple[NextStep, str]:
        where = copy.fragment, copy.place
        if (
            copy.old in self._unverified()
            and copy.old in self._incomplete()
            and await self._repair.holds(metadata, copy)
        ):
            self._repaired_in_place.add(copy.repaired_in_place)
            return NextStep.LOOK, ""
        target = await self._repair.choose(metadata, copy, leaving)
        if target is None:
            self._failed[where] = Failed("no bookie that could be copied to can be reached")
            return NextStep.LOOK, ""
        copied = await self._repair.copy(metadata, copy, target)
        if not isinstance(copied, Copied):
            self._failed[where] = copied
            return NextStep.LOOK, ""
        if copy.in_place:
            self._repaired_in_place.add(copy.repaired_in_place)
            self._repair.count_repaired_in_place()
            return NextStep.LOOK, ""
        return await self._swap(metadata, version, copy, target)

    async def _swap(self, metadata: LedgerMetadata, version: int, copy: Copy, target: str) -> tuple[NextStep, str]:
        """Swap it in. Where somebody else has changed the metadata, what was copied may fit the new ones as well."""
        new = swapped(metadata, copy, target)
        while new is not None:
            entry_status, self._stored = await self._repair.swap(new, version, self._lock)
            if entry_status is not Swap.CONFLICT:
                return AFTER_SWAP[entry_status], LOCK_LOST if entry_status is Swap.LOCK_LOST else entry_status.value
            found = await self._repair.read(self._ledger_id)
            if found is None:
                break
            metadata, version = found
            new = swapped(metadata, copy, target)
        return NextStep.LOOK, ""


def _named(planned: Plan) -> frozenset[str]:
    """The bookies that ensembles still name."""
    waiting = [copy.old for copy in planned.copies] + [stuck.old for stuck in planned.stuck]
    return frozenset((*waiting, *planned.unclosed))


def _describe(failure: Unreadable | Failed) -> str:
    if isinstance(failure, Failed):
        return failure.why
    why = f"entry {failure.entry_id}, and perhaps others, can't be read anywhere: {failure.why}"
    return f"{why} (`bkpy ledger explain --read` says which)"
