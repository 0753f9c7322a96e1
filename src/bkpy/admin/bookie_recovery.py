"""Re-replicates the ledgers of a bookie that is gone for good, where the cluster doesn't do so by itself.

A scan finds the ledgers that name the bookie. A worker of this process repairs them, under the ledgers' locks, as the
cluster's own workers do.

Invariants: a bookie that is registered is not recovered, and its return ends the recovery; an interrupted recovery
leaves each ledger as it was or repaired, so that the next one continues.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.client.iteration import raised_where_awaited
from bkpy.errors import BookieUnavailableError, ClientClosedError, ConfigError
from bkpy.metadata.ledgers.all_ledgers import all_ledgers, read_ledgers
from bkpy.metadata.paths import checked_bookie_id
from bkpy.metadata.replication.locks import LedgerLocks
from bkpy.metadata.replication.manual import manual_moves
from bkpy.protocol.repair.rereplication import plan
from bkpy.replication.worker.manual_queue import ManualQueue
from bkpy.replication.worker.worker import ReplicationWorker

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.config.recovery import RecoverySettings
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.rereplication import Plan
    from bkpy.replication.context import ReplicationContext

FORGOTTEN: Final = "too many ledgers wait or are stuck for their reasons to be remembered: recover the bookie again"

_POLL_S = 0.1


class RecoveryProgress(NamedTuple):
    """`ledgers_done` of `ledgers` don't name the bookie any more; `postponed` ledgers wait for their writers."""

    ledgers: int
    ledgers_done: int
    postponed: int
    entries: int
    bytes: int


@dataclass
class BookieRecoveryReport:
    """What was copied, or with `dry_run` what would be copied; then `bytes` is an estimate, and `seconds` is None.

    `named_by` ledgers named the bookie, and `ledgers` of them are complete without it. `stuck` gives, by ledger id, the
    reason why others are not. Nobody knows about the ledgers in `unreadable`, whose metadata can't be read.
    """

    bookie_id: str
    dry_run: bool
    named_by: int
    ledgers: int = 0
    open_ledgers: int = 0
    fragments: int = 0
    entries: int = 0
    bytes: int = 0
    stuck: dict[int, str] = field(default_factory=dict)
    seconds: float | None = None
    unreadable: list[int] = field(default_factory=list)


class BookieRecovery:
    """The recovery of one bookie. With `target`, all copies go to that bookie."""

    def __init__(
        self, context: ReplicationContext, bookie_id: str, settings: RecoverySettings, *, target: str | None
    ) -> None:
        self._context = context
        self._bookie_id = bookie_id
        self._settings = settings
        self._target = target
        cluster = context.cluster
        self._store, self._root, self._runtime = cluster.store, cluster.root, cluster.store.runtime

    def check(self) -> None:
        """Raise `ConfigError` for a bookie that is registered, `BookieUnavailableError` for an unfit target."""
        checked_bookie_id(self._bookie_id)
        if self._registered():
            raise ConfigError(
                "the bookie is running: there is nothing to recover as long as it is", bookie=self._bookie_id
            )
        directory, target = self._context.directory, self._target
        if target is not None and target not in directory.bookies:
            why = "it is read-only" if target in directory.read_only else "see `bkpy bookies list`"
            raise BookieUnavailableError(f"no writable bookie is registered under this id: {why}", bookie=target)

    async def scan(self, on_scanned: Callable[[int], None]) -> tuple[list[int], list[int]]:
        """The ids of the ledgers that name the bookie, and of the ledgers whose metadata can't be read."""
        named: list[int] = []
        unreadable: list[int] = []
        scanned = 0
        async for some in all_ledgers(self._context.cluster.catalog, reads_at_once=self._settings.repair_looks_at_once):
            for ledger_id, metadata in some:
                if metadata is None:
                    unreadable.append(ledger_id)
                elif self._bookie_id in metadata.needed_bookies:
                    named.append(ledger_id)
            scanned += len(some)
            on_scanned(scanned)
        return named, unreadable

    async def plan(self, named: list[int]) -> BookieRecoveryReport:
        """What a recovery would copy, given the bookies that are registered now."""
        bookies = self._context.bookies()
        if self._target is not None:
            bookies = bookies._replace(writable=bookies.writable & {self._target})
        report = BookieRecoveryReport(self._bookie_id, True, len(named))
        at_once = self._settings.repair_looks_at_once
        for start in range(0, len(named), at_once):
            for ledger_id, metadata in await read_ledgers(
                self._context.cluster.catalog, named[start : start + at_once]
            ):
                if metadata is not None:
                    _add(report, ledger_id, metadata, plan(metadata, {self._bookie_id}, bookies))
        return report

    async def run(self, named: list[int], on_progress: Callable[[RecoveryProgress], None]) -> BookieRecoveryReport:
        """Repair these ledgers. Raises `ConfigError` if the bookie comes back, `ClientClosedError`."""
        name = f"bkpy bookie recover {self._bookie_id}"
        locks = LedgerLocks(self._store, self._root, name, self._runtime, self._settings)
        queue = ManualQueue(self._bookie_id, named)
        worker = ReplicationWorker(
            self._context, queue, locks, self._runtime, self._settings, name, target=self._target
        )
        directory = self._context.directory  # closed with the client; the worker would try again and again
        began = self._runtime.clock.monotonic()
        async with manual_moves(self._store, self._root, name, self._runtime, self._settings):
            working = self._runtime.spawn(worker.run(), name=name, on_death=raised_where_awaited)
            # The session goes on: a lock that the worker held as it ended would keep others from the ledger.
            working.add_done_callback(lambda ended: locks.release_abandoned_later())
            try:
                while len(queue) and not working.done() and not self._registered() and not directory.closed:
                    await asyncio.wait([working], timeout=_POLL_S)
                    postponed = worker.status()["postponed"]
                    done = len(named) - len(queue)
                    count = worker.count
                    on_progress(RecoveryProgress(len(named), done, postponed, count.entries, count.bytes))
                    if worker.looked and worker.idle:
                        break
            finally:
                working.cancel()
                await asyncio.wait([working])
        if not working.cancelled() and (error := working.exception()) is not None:
            raise error
        if len(queue) and directory.closed:
            raise ClientClosedError(
                f"the client was closed meanwhile: {len(queue)} of {len(named)} ledgers still name the bookie",
                bookie=self._bookie_id,
            )
        if len(queue) and self._registered():
            raise ConfigError(
                f"the bookie came back, so recovery stopped: {len(named) - len(queue)} of {len(named)} ledgers don't "
                f"name it any more, {len(queue)} were left as they are; drain the bookie to move its copies",
                bookie=self._bookie_id,
            )
        stuck = worker.stuck()
        return BookieRecoveryReport(
            self._bookie_id,
            False,
            len(named),
            ledgers=len(named) - len(queue),
            fragments=worker.count.fragments,
            entries=worker.count.entries,
            bytes=worker.count.bytes,
            stuck={ledger_id: stuck.get(ledger_id, FORGOTTEN) for ledger_id in queue.left},
            seconds=round(self._runtime.clock.monotonic() - began, 3),
        )

    def _registered(self) -> bool:
        return self._bookie_id in self._context.directory.readable


def _add(report: BookieRecoveryReport, ledger_id: int, metadata: LedgerMetadata, planned: Plan) -> None:
    entries = sum(copy.share.entries or 0 for copy in planned.copies)
    average = metadata.length / (metadata.last_entry + 1) if metadata.last_entry >= 0 else 0
    report.fragments += len(planned.copies)
    report.entries += entries
    report.bytes += round(entries * average)
    if planned.unclosed:
        report.open_ledgers += 1
    if planned.stuck:
        report.stuck[ledger_id] = "; ".join(one.description for one in planned.stuck)
    else:
        report.ledgers += 1
