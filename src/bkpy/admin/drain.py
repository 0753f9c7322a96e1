"""Drains a bookie: while it still serves, its copies are made elsewhere, until no ledger names it.

    begin --> each ledger that names the bookie is repaired --> scan again: none names it --> it can be decommissioned

A draining bookie has a node in the metadata (`metadata/bookies/draining.py`). The bookie refuses entries, writers
replace it, the auditor records its ledgers as under-replicated, workers copy them. A caller that waits here only
watches. Where there is no auditor, or re-replication is disabled, it runs a worker of its own, under the same locks.

Invariant: a draining doesn't depend on its caller: if that is killed, others continue, or the next call does.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bkpy.errors import BookieUnavailableError
from bkpy.metadata.audit_trail import ActKind, entry_of
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
    from bkpy.metadata.audit_trail import AuditTrail
    from bkpy.metadata.bookies.draining import Drain
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.rereplication import Plan
    from bkpy.replication.context import ReplicationContext

OPEN = "it is open: its writer has to replace the bookie, or a worker recovers it after the grace period"
UNREADABLE = "its metadata can't be read"


@dataclass
class DrainProgress:
    """What is left to copy from a bookie, when the metadata were read last.

    `bytes_exact` is False if `bytes` is an estimate: where the bookie doesn't hold all of a closed ledger. `missing`
    says, by kind, what prevents the draining from ending and what to do about it. `blocked` gives, by ledger id, the
    reason why no worker copies the ledger now.
    """

    draining: bool
    refuses: bool  # entries, as the bookie has confirmed
    registered: bool
    ledgers: int = 0  # that name the bookie, or whose metadata can't be read
    entries: int = 0
    bytes: int = 0
    bytes_exact: bool = True
    blocked: dict[int, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    worked_on_by: str = ""
    bytes_per_s: float = 0.0
    eta_s: float | None = None


class BookieDrain:
    """The draining of one bookie."""

    def __init__(
        self, context: ReplicationContext, bookie_id: str, settings: RecoverySettings, trail: AuditTrail | None = None
    ) -> None:
        self._context = context
        self._bookie_id = bookie_id
        self._trail = trail
        self._settings = settings
        cluster = self._context.cluster
        self._store, self._root, self._runtime = cluster.store, cluster.root, cluster.store.runtime
        self._drains = Drains(self._store, self._root, self._runtime, settings)
        self._named: set[int] = set()
        self._began = 0.0
        self._works_here = False
        self._whole: tuple[int, int] | None = None  # ledgers and bytes left at the first scan

    async def begin(self) -> None:
        """Begin to drain, unless the bookie is draining. Raises `BookieUnavailableError` for an unknown bookie."""
        if await read_cookie(self._store, self._root, self._bookie_id) is None:
            raise BookieUnavailableError("the cluster knows no such bookie", bookie=self._bookie_id, retriable=False)
        audit = await entry_of(self._trail, ActKind.DRAIN, self._bookie_id)
        outcome = await self._drains.begin(self._bookie_id, *audit)
        if isinstance(outcome, NotDone | Unknown):
            raise to_error(outcome, bookie=self._bookie_id)

    async def cancel(self) -> bool:
        """Keep the bookie with the copies that are left on it. Returns whether it was draining."""
        drain = await self._drains.read(self._bookie_id)
        if drain is None:
            return False
        audit = await entry_of(self._trail, ActKind.CANCEL_DRAIN, self._bookie_id)
        outcome = await self._drains.cancel(drain, *audit)
        if isinstance(outcome, NotDone | Unknown):
            raise to_error(outcome, bookie=self._bookie_id)
        # Workers find the remaining records void; the announcement has them look now.
        await UnderreplicationQueue(self._store, self._root, self._runtime, self._settings).announce()
        return isinstance(outcome, Gone | Missing)

    async def look(
        self,
        looked_at: Callable[[int], None] = lambda count: None,
        show: Callable[[DrainProgress], None] = lambda progress: None,
    ) -> DrainProgress:
        """The progress, by a scan of all ledgers. Calls `show` as soon as something new prevents the end."""
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
                show(progress)
        self._estimate(progress)
        return progress

    async def run(self, show: Callable[[DrainProgress], None]) -> DrainProgress:
        """Return when no ledger names the bookie, or its draining was cancelled. Calls `show` with the progress."""
        progress = await self.look(show=show)
        async with contextlib.AsyncExitStack() as own:
            queue: ManualQueue | None = None
            while progress.draining and progress.ledgers:
                if queue is None and not await self._others_work():
                    queue = await self._work(own)
                if queue is not None:
                    queue.add(sorted(self._named))
                show(progress)
                await asyncio.sleep(self._settings.drain_look_interval_s)
                progress = await self._look_again()
                if not progress.ledgers:
                    progress = await self.look()  # other ledgers may name the bookie by now
        show(progress)
        return progress

    async def _look_again(self) -> DrainProgress:
        """The progress, by the ledgers that named the bookie before."""
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
                self._named.add(ledger_id)
                progress.ledgers += 1
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
            # Entries that no worker can copy now are left, too.
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
        """Add to `missing` what prevents this ledger's repair, and ways out."""
        if any(stuck.blocker is CopyBlocker.NO_TARGET for stuck in planned.stuck):
            others = len(self._context.bookies().writable - {self._bookie_id})
            progress.missing["bookies"] = (
                f"no bookie can take over: {others} others are writable, and the ledgers that wait have them in their "
                "ensembles already. Add a bookie, or make a read-only one writable (`bkpy bookies list`), or keep this "
                f"one: `bkpy bookie drain {self._bookie_id} --cancel`"
            )
        away = {name for stuck in planned.stuck if stuck.blocker is CopyBlocker.NO_SOURCE for name in stuck.bookies}
        if away:
            progress.missing["sources"] = (
                f"some entries are only on bookies that can't be reached: start {' or '.join(sorted(away))}"
            )

    def _estimate(self, progress: DrainProgress) -> None:
        """Estimate from the first scan: by bytes if there are any, else by ledgers."""
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
        """Whether the cluster has an auditor, and so workers, and re-replication is enabled."""
        enabled = await UnderreplicationQueue(self._store, self._root, self._runtime, self._settings).enabled()
        return enabled and await leader(self._store, self._root) is not None

    async def _work(self, own: contextlib.AsyncExitStack) -> ManualQueue:
        """Run a worker here until `own` ends. Returns its queue."""
        name = f"bkpy bookie drain {self._bookie_id}"
        await own.enter_async_context(manual_moves(self._store, self._root, name, self._runtime, self._settings))
        locks = LedgerLocks(self._store, self._root, name, self._runtime, self._settings)
        queue = ManualQueue(self._bookie_id, reason=LossReason.DRAINING)
        self._works_here = True
        worker = ReplicationWorker(self._context, queue, locks, self._runtime, self._settings, name)
        working: asyncio.Task[Any] = self._runtime.spawn(worker.run(), name=name)
        # The session goes on: a lock that the worker held as it ended would keep others from the ledger.
        working.add_done_callback(lambda ended: locks.release_abandoned_later())

        async def end() -> None:
            working.cancel()
            await asyncio.wait([working])

        own.push_async_callback(end)
        return queue
