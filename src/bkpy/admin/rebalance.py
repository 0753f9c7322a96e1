"""Moves copies of closed ledgers to bookies that have less than their share, as `protocol/repair/rebalance.py` plans.

A run scans all ledgers twice: first to see how much each bookie holds, then to move copies, ledger by ledger, until
each bookie has its share. A move is a repair of the ledger, under its lock: copy, verify, swap in.

Invariants: a ledger whose copies can't be moved keeps its copies; the list of such ledgers is bounded.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bkpy.client.iteration import raised_where_awaited
from bkpy.metadata.ledgers.all_ledgers import readable_ledgers
from bkpy.protocol.repair.rebalance import Balance, shares
from bkpy.protocol.repair.rereplication import RepairScope
from bkpy.replication.worker.fragment_copy import CopyCount
from bkpy.replication.worker.ledger_repair import LedgerRepair, RepairOutcome
from bkpy.replication.worker.pacing import CopyRate

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.replication.locks import LedgerLocks
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.rebalance import Move
    from bkpy.replication.context import ReplicationContext
    from bkpy.runtime.interfaces import Runtime


@dataclass(frozen=True)
class BookieLoad:
    """Bytes of payload of closed ledgers on one bookie, before and after."""

    before: int
    after: int


@dataclass(frozen=True)
class RebalanceReport:
    """What was moved, or with `dry_run` what would be moved; then `seconds` is None, and nothing is counted as copied.

    `share` is the number of bytes that each bookie should hold, `bookies` gives the load of each. There were `moves`,
    each of all that a bookie holds of a ledger, of `size` bytes together, by averages. `fragments`, `entries` and
    `bytes` were copied and verified. `failed` gives, by ledger id, the reason why copies stay where they are.
    """

    dry_run: bool
    share: int
    bookies: dict[str, BookieLoad]
    moves: int
    size: int
    fragments: int
    entries: int
    bytes: int
    failed: dict[int, str]
    seconds: float | None


class Rebalancer:
    """One run. `read` counts the ledgers scanned; `given` and `taken` are the bytes moved, by source and by target.

    `planned` and `done` are bytes of payload, by averages. `failed`: by ledger, why its copies stay where they are.
    `on_scanned` gets `read`; `on_moved` gets `done` and `planned`.
    """

    def __init__(
        self,
        context: ReplicationContext,
        locks: LedgerLocks,
        settings: RecoverySettings,
        runtime: Runtime,
        *,
        on_scanned: Callable[[int], None] = lambda count: None,
        on_moved: Callable[[int, int], None] = lambda done, planned: None,
    ) -> None:
        self.count = CopyCount()
        self.loads: dict[str, int] = {}
        self.read = 0
        self.planned = 0
        self.done = 0
        self.moves = 0
        self.given: dict[str, int] = {}
        self.taken: dict[str, int] = {}
        self.failed: dict[int, str] = {}
        self._on_scanned = on_scanned
        self._on_moved = on_moved
        self._context = context
        self._locks = locks
        self._settings = settings
        self._runtime = runtime
        self._rate = CopyRate(settings, runtime)
        self._repairs: dict[str, LedgerRepair] = {}  # by target

    async def look(self) -> Balance:
        """What each registered bookie holds, and how much it should give or receive."""
        infos = {**self._context.directory.bookies, **self._context.directory.read_only}
        bookies = self._context.bookies()
        loads = dict.fromkeys(sorted(bookies.readable), 0)
        self.read = 0
        async for metadata in readable_ledgers(
            self._context.cluster.catalog, reads_at_once=self._settings.repair_looks_at_once
        ):
            self.read += 1
            self._on_scanned(self.read)
            for name, size in shares(metadata).items():
                if name in loads:
                    loads[name] += size
        self.loads = loads
        # Draining bookies have no share: their own draining moves their copies.
        staying = {name: load for name, load in loads.items() if name not in self._context.directory.draining}
        balance = Balance(staying, bookies.writable, {name: (info.region, info.rack) for name, info in infos.items()})
        self.planned = min(sum(balance.surplus.values()), sum(balance.room.values()))
        return balance

    async def plan(self, balance: Balance) -> AsyncGenerator[list[Move], None]:
        """The moves, ledger by ledger. `balance` counts them as done."""
        if balance.even:
            return
        async for metadata in readable_ledgers(
            self._context.cluster.catalog, reads_at_once=self._settings.repair_looks_at_once
        ):
            if moves := list(balance.moves(metadata)):
                yield moves
            if balance.even:
                return

    async def only_plan(self, balance: Balance) -> None:
        """Count what `run` would move."""
        async for moves in self.plan(balance):
            for move in moves:
                self._moved(move)

    async def run(self, balance: Balance) -> None:
        """Move copies as planned, several ledgers at a time."""
        self._on_moved(0, self.planned)
        queue: asyncio.Queue[list[Move] | None] = asyncio.Queue(maxsize=1)
        hands = [
            self._runtime.spawn(self._work(queue), name=f"rebalancing, {number}", on_death=raised_where_awaited)
            for number in range(self._settings.copies_at_once)
        ]
        for hand in hands:  # the session goes on: a lock that one held as it ended would keep others from the ledger
            hand.add_done_callback(lambda ended: self._locks.release_abandoned_later())
        planning = self._runtime.spawn(
            self._hand_out(balance, queue, len(hands)), name="planning", on_death=raised_where_awaited
        )
        tasks = {planning, *hands}
        try:
            while tasks:
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _hand_out(self, balance: Balance, queue: asyncio.Queue[list[Move] | None], hands: int) -> None:
        async with aclosing(self.plan(balance)) as planned:
            async for moves in planned:
                await queue.put(moves)
        for _ in range(hands):
            await queue.put(None)

    async def _work(self, queue: asyncio.Queue[list[Move] | None]) -> None:
        while (moves := await queue.get()) is not None:
            for move in moves:
                await self._move(move)

    async def _move(self, move: Move) -> None:
        repair = self._repairs.get(move.target)
        if repair is None:
            repair = self._repairs[move.target] = LedgerRepair(
                self._context, self._locks, self._settings, self._rate, self.count, target=move.target
            )
        ended = await repair.run(move.ledger_id, RepairScope(frozenset({move.source})))
        if ended.how is not RepairOutcome.DONE:
            if len(self.failed) < self._settings.stuck_ledgers_max:
                self.failed[move.ledger_id] = ended.why
        elif ended.judged is not None and _names(ended.judged[0], move.target):
            self._moved(move)
        # Else the ledger was deleted meanwhile, or another process has moved the copy elsewhere.

    def _moved(self, move: Move) -> None:
        self.moves += 1
        self.done += move.size
        self.given[move.source] = self.given.get(move.source, 0) + move.size
        self.taken[move.target] = self.taken.get(move.target, 0) + move.size
        self._on_moved(self.done, self.planned)

    def report(self, share: int, seconds: float | None) -> RebalanceReport:
        """What this run did in `seconds`, or, with None, what it would do."""
        bookies = {
            name: BookieLoad(load, load - self.given.get(name, 0) + self.taken.get(name, 0))
            for name, load in self.loads.items()
        }
        return RebalanceReport(
            dry_run=seconds is None,
            share=share,
            bookies=bookies,
            moves=self.moves,
            size=self.done,
            fragments=self.count.fragments,
            entries=self.count.entries,
            bytes=self.count.bytes,
            failed=dict(self.failed),
            seconds=None if seconds is None else round(seconds, 3),
        )


def _names(metadata: LedgerMetadata, bookie_id: str) -> bool:
    return any(bookie_id in fragment.bookies for fragment in metadata.fragments)
