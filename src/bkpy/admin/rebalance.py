"""Moves copies of closed ledgers to bookies that have less than their share, as `protocol/repair/rebalance.py` plans.

All ledgers are read twice: first to see what each bookie has, then to move, ledger by ledger, until what is lacking is
there. Each move is a repair of the ledger, under its lock: copied, verified, swapped in.

Invariant: a ledger whose copies could not be moved keeps those that it has; what is remembered of it is bounded.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from bkpy.client.iteration import raised_where_awaited
from bkpy.metadata.ledgers.all_ledgers import readable_ledgers
from bkpy.protocol.repair.rebalance import Balance, shares
from bkpy.protocol.repair.rereplication import RepairScope
from bkpy.replication.worker.copy_rate import CopyRate
from bkpy.replication.worker.fragment_copy import CopyCount
from bkpy.replication.worker.ledger_repair import LedgerRepair, RepairOutcome

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from bkpy.config.recovery import RecoverySettings
    from bkpy.metadata.replication.locks import LedgerLocks
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.rebalance import Move
    from bkpy.replication.context import ReplicationContext
    from bkpy.runtime.interfaces import Runtime


class Rebalancer:
    """One run. `read` counts the ledgers looked at, `moved` what was moved, by bookie that it was moved to.

    `planned` and `done` are bytes of payload, by averages. `failed`: by ledger, why its copies stay where they are.
    """

    def __init__(
        self, context: ReplicationContext, locks: LedgerLocks, settings: RecoverySettings, runtime: Runtime
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
        self._context = context
        self._locks = locks
        self._settings = settings
        self._runtime = runtime
        self._rate = CopyRate(settings, runtime)
        self._repairs: dict[str, LedgerRepair] = {}  # by target

    async def look(self) -> Balance:
        """What each registered bookie has, and what it is to give or to be given."""
        infos = {**self._context.directory.bookies, **self._context.directory.read_only}
        bookies = self._context.bookies()
        loads = dict.fromkeys(sorted(bookies.readable), 0)
        self.read = 0
        async for metadata in readable_ledgers(
            self._context.cluster.catalog, reads_at_once=self._settings.repair_looks_at_once
        ):
            self.read += 1
            for name, size in shares(metadata).items():
                if name in loads:
                    loads[name] += size
        self.loads = loads
        # What those have that are to leave is moved by whoever looks after that, and they are no part of the cluster.
        staying = {name: load for name, load in loads.items() if name not in self._context.directory.draining}
        balance = Balance(staying, bookies.writable, {name: (info.region, info.rack) for name, info in infos.items()})
        self.planned = min(sum(balance.surplus.values()), sum(balance.room.values()))
        return balance

    async def plan(self, balance: Balance) -> AsyncGenerator[list[Move], None]:
        """What is to be moved, ledger by ledger. It counts as moved."""
        if balance.even:
            return
        async for metadata in readable_ledgers(
            self._context.cluster.catalog, reads_at_once=self._settings.repair_looks_at_once
        ):
            if moves := list(balance.moves(metadata)):
                yield moves
            if balance.even:
                return

    async def run(self, balance: Balance) -> None:
        """Move all that, several ledgers at a time. Who cancels this is to end the session."""
        queue: asyncio.Queue[list[Move] | None] = asyncio.Queue(maxsize=1)
        hands = [
            self._runtime.spawn(self._work(queue), name=f"rebalancing, {number}", on_death=raised_where_awaited)
            for number in range(self._settings.copies_at_once)
        ]
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
        # Else it was deleted meanwhile, or somebody else has moved it elsewhere.

    def _moved(self, move: Move) -> None:
        self.moves += 1
        self.done += move.size
        self.given[move.source] = self.given.get(move.source, 0) + move.size
        self.taken[move.target] = self.taken.get(move.target, 0) + move.size


def _names(metadata: LedgerMetadata, bookie_id: str) -> bool:
    return any(bookie_id in fragment.bookies for fragment in metadata.fragments)
