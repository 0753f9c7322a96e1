"""Has a bookie leave its cluster while it still serves: all that it has is copied elsewhere, and then nothing names it.

    begin --> every ledger that names it is worked off --> looked for once more --> none: it may be decommissioned

The draining is a node in the metadata (`metadata/bookies/draining.py`): it refuses entries, writers leave it, the
auditor marks its ledgers, workers copy. Whoever waits here only watches them; where nobody works, because there is no
auditor or re-replication is switched off, the work is done here, by the same worker under the same locks.

Invariant: nothing depends on whoever waits: if that is killed, the draining goes on, or is taken up by the next call.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bkpy.errors import BookieUnavailableError
from bkpy.metadata.bookies.cookies import read_cookie
from bkpy.metadata.bookies.draining import Drains
from bkpy.metadata.ledgers.all_ledgers import all_ledgers, read_ledgers
from bkpy.metadata.replication.election import leader
from bkpy.metadata.replication.locks import LedgerLocks
from bkpy.metadata.replication.manual import manual_moves
from bkpy.metadata.replication.underreplication import LossReason, UnderreplicationQueue
from bkpy.metadata.store.outcome import Gone, Missing, NotDone, Unknown, to_error
from bkpy.protocol.ledger.ledger_metadata import LedgerState
from bkpy.protocol.repair.rereplication import CopyBlocker, plan
from bkpy.replication.worker.manual_queue import ManualQueue
from bkpy.replication.worker.worker import ReplicationWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.bookies.draining import Drain
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.rereplication import Plan
    from bkpy.replication.context import ReplicationContext

OPEN = "it is open: its writer has to leave the bookie, or it is recovered after the grace period"
UNREADABLE = "its metadata can't be read"


@dataclass
class DrainProgress:
    """What is left of a bookie, as it was when the metadata were read last.

    Bytes are exact where the bookie has all of a closed ledger, and else estimated from averages: then `bytes_exact` is
    False. `missing` says what keeps the draining from its end, and what to do, by the kind of the obstacle.
    """

    draining: bool
    refuses: bool  # entries, as it has said itself
    registered: bool
    ledgers: int = 0  # that name it
    entries: int = 0
    bytes: int = 0
    bytes_exact: bool = True
    blocked: dict[int, str] = field(default_factory=dict)  # ledgers that nobody copies now, and why
    missing: dict[str, str] = field(default_factory=dict)
    worked_on_by: str = ""
    bytes_per_s: float = 0.0
    eta_s: float | None = None


class BookieDrain:
    """The draining of one bookie."""

    def __init__(self, context: ReplicationContext, bookie_id: str, settings: RecoverySettings) -> None:
        self._context = context
        self._bookie_id = bookie_id
        self._settings = settings
        cluster = self._context.cluster
        self._store, self._root, self._runtime = cluster.store, cluster.root, cluster.store.runtime
        self._drains = Drains(self._store, self._root, self._runtime, settings)
        self._named: set[int] = set()
        self._began = 0.0
        self._works_here = False
        self._whole: tuple[int, int] | None = None  # ledgers and bytes, when it began

    async def begin(self) -> None:
        """Have the bookie drain, if it doesn't already. Raises `BookieUnavailableError` for one that isn't known."""
        if await read_cookie(self._store, self._root, self._bookie_id) is None:
            raise BookieUnavailableError("the cluster knows no such bookie", bookie=self._bookie_id, retriable=False)
        outcome = await self._drains.begin(self._bookie_id)
        if isinstance(outcome, NotDone | Unknown):
            raise to_error(outcome, bookie=self._bookie_id)

    async def cancel(self) -> bool:
        """Have it stay, with what is left on it; whether it was draining. What has gone elsewhere stays there."""
        drain = await self._drains.read(self._bookie_id)
        if drain is None:
            return False
        outcome = await self._drains.cancel(drain)
        if isinstance(outcome, NotDone | Unknown):
            raise to_error(outcome, bookie=self._bookie_id)
        # Workers take the marks that are left for void; now rather than when they look by themselves.
        await UnderreplicationQueue(self._store, self._root, self._runtime, self._settings).announce()
        return isinstance(outcome, Gone | Missing)

    async def look(
        self,
        looked_at: Callable[[int], None] = lambda count: None,
        tell: Callable[[DrainProgress], None] = lambda progress: None,
    ) -> DrainProgress:
        """How far it is, by the metadata of all ledgers. `tell` is called as soon as something is missing."""
        count = 0
        self._named.clear()
        progress = await self._standing()
        known = frozenset[str]()
        async for some in all_ledgers(self._context.cluster.catalog, reads_at_once=self._settings.audit_reads_at_once):
            self._count(progress, some)
            count += len(some)
            looked_at(count)
            if progress.missing.keys() > known:
                known = frozenset(progress.missing)
                tell(progress)
        self._estimate(progress)
        return progress

    async def run(self, tell: Callable[[DrainProgress], None]) -> DrainProgress:
        """Return when nothing names the bookie, or it was cancelled. `tell` is told how it gets on."""
        progress = await self.look(tell=tell)
        async with contextlib.AsyncExitStack() as own:
            marks: ManualQueue | None = None
            while progress.draining and progress.ledgers:
                if marks is None and not await self._others_work():
                    marks = await self._work(own)
                if marks is not None:
                    marks.add(sorted(self._named))
                tell(progress)
                await asyncio.sleep(self._settings.drain_look_interval_s)
                progress = await self._look_again()
                if not progress.ledgers:
                    progress = await self.look()  # others may have come to name it meanwhile
        tell(progress)
        return progress

    async def _look_again(self) -> DrainProgress:
        """At the ledgers that named it."""
        progress = await self._standing()
        before, self._named = sorted(self._named), set()
        at_once = self._settings.audit_reads_at_once
        for start in range(0, len(before), at_once):
            some = await read_ledgers(self._context.cluster.catalog, before[start : start + at_once])
            self._count(progress, some)
        self._estimate(progress)
        return progress

    async def _standing(self) -> DrainProgress:
        drain: Drain | None = await self._drains.read(self._bookie_id)
        directory = self._context.directory
        registered = self._bookie_id in directory.bookies or self._bookie_id in directory.read_only
        worked_on_by = "this command"
        if not self._works_here:
            auditor = await leader(self._store, self._root) if await self._others_work() else None
            worked_on_by = "" if auditor is None else f"the cluster's workers; the auditor is {auditor.candidate}"
        progress = DrainProgress(
            draining=drain is not None,
            refuses=drain is not None and drain.refuses,
            registered=registered,
            worked_on_by=worked_on_by,
        )
        if drain is not None and not drain.refuses and not registered:
            progress.missing["bookie"] = (
                f"bookie {self._bookie_id} isn't running, and has yet to confirm that it refuses entries: start it; "
                f"or, if it never comes back, `bkpy bookie decommission {self._bookie_id} --lost` once nothing names it"
            )
        return progress

    def _count(self, progress: DrainProgress, some: Iterable[tuple[int, LedgerMetadata | None]]) -> None:
        bookies = self._context.bookies()
        for ledger_id, metadata in some:
            if metadata is None:
                progress.blocked[ledger_id] = UNREADABLE
                progress.missing["unreadable"] = (
                    "the metadata of some ledgers can't be read, so they count as naming the bookie: see "
                    "`bkpy ledger show`"
                )
                continue
            if self._bookie_id not in metadata.needed_bookies:
                continue
            self._named.add(ledger_id)
            progress.ledgers += 1
            planned = plan(metadata, {self._bookie_id}, bookies)
            # What nobody can copy now is left as well.
            entries = sum(copy.share.entries or 0 for copy in planned.copies)
            entries += sum(stuck.entries for stuck in planned.stuck)
            average = metadata.length / (metadata.last_entry + 1) if metadata.last_entry >= 0 else 0
            progress.entries += entries
            progress.bytes += round(entries * average)
            closed = metadata.state is LedgerState.CLOSED
            progress.bytes_exact &= closed and entries in (0, metadata.last_entry + 1)
            self._advise(progress, planned)
            if planned.unclosed:
                progress.blocked[ledger_id] = OPEN
            elif planned.stuck:
                progress.blocked[ledger_id] = "; ".join(stuck.description for stuck in planned.stuck)

    def _advise(self, progress: DrainProgress, planned: Plan) -> None:
        """What is missing, and ways out."""
        if any(stuck.blocker is CopyBlocker.NO_TARGET for stuck in planned.stuck):
            others = len(self._context.bookies().writable - {self._bookie_id})
            progress.missing["bookies"] = (
                f"no bookie can take over: {others} others take entries, and the ledgers that wait have them in their "
                "ensembles already. Add a bookie, or have one that is read-only take entries again (`bkpy bookies "
                f"list`), or let this one stay: `bkpy bookie drain {self._bookie_id} --cancel`"
            )
        away = {name for stuck in planned.stuck if stuck.blocker is CopyBlocker.NO_SOURCE for name in stuck.bookies}
        if away:
            progress.missing["sources"] = (
                f"some entries are only on bookies that can't be reached: start {' or '.join(sorted(away))}"
            )

    def _estimate(self, progress: DrainProgress) -> None:
        """By what was left when it began: bytes if there are any, else ledgers."""
        now = self._runtime.clock.monotonic()
        if self._whole is None:
            self._began, self._whole = now, (progress.ledgers, progress.bytes)
            return
        seconds = now - self._began
        ledgers, size = self._whole[0] - progress.ledgers, self._whole[1] - progress.bytes
        if seconds > 0:
            progress.bytes_per_s = max(0.0, size / seconds)
        if not progress.ledgers:
            progress.eta_s = 0.0
        elif size > 0 and progress.bytes:
            progress.eta_s = seconds * progress.bytes / size
        elif ledgers > 0:
            progress.eta_s = seconds * progress.ledgers / ledgers

    # --- where nobody else works --------------------------------------------------------------------------------------

    async def _others_work(self) -> bool:
        """Whether there is an auditor, and so workers, and they may work."""
        enabled = await UnderreplicationQueue(self._store, self._root, self._runtime, self._settings).enabled()
        return enabled and await leader(self._store, self._root) is not None

    async def _work(self, own: contextlib.AsyncExitStack) -> ManualQueue:
        """A worker here, until `own` ends."""
        name = f"bkpy bookie drain {self._bookie_id}"
        await own.enter_async_context(manual_moves(self._store, self._root, name, self._runtime, self._settings))
        locks = LedgerLocks(self._store, self._root, name, self._runtime, self._settings)
        marks = ManualQueue(self._bookie_id, reason=LossReason.DRAINING)
        self._works_here = True
        worker = ReplicationWorker(self._context, marks, locks, self._runtime, self._settings, name)
        working: asyncio.Task[Any] = self._runtime.spawn(worker.run(), name=name)

        async def end() -> None:
            working.cancel()
            await asyncio.wait([working])

        own.push_async_callback(end)
        return marks
