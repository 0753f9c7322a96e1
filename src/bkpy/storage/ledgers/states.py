"""What the bookie knows of ledgers: their states, loaded from the shards' indexes when somebody asks for them.

Invariants: at most one object stands for a ledger; what was never seen is told from what isn't in memory, and only the
first can be made known.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bkpy.storage.ledgers.info import LedgerState, StateCache

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bkpy.storage.index.index import LedgerRow
    from bkpy.storage.shard import Shard


class LedgerStates:
    """Ledgers by id. `fenced`: those whose normal adds must be refused, of all that were ever asked for here."""

    def __init__(self, shards: Sequence[Shard], states_max: int) -> None:
        self.fenced: set[int] = set()
        self._shards = shards  # more may be added to it: see `spread`
        self._cache = StateCache(states_max)
        self._homes: dict[int, int] = {}  # shards of ledgers that are older than the present number of shards
        self._loading = asyncio.Lock()
        self._unseen: set[int] = set()  # what the last load found nowhere

    def get(self, ledger_id: int) -> LedgerState | None:
        """The state if it is in memory."""
        return self._cache.get(ledger_id)

    def __len__(self) -> int:
        return len(self._cache)

    async def load(self, ledger_ids: Collection[int]) -> dict[int, LedgerState | None]:
        """See `LedgerStorage.states`."""
        cached = self._cache.get
        if any(cached(ledger_id) is None for ledger_id in ledger_ids):
            # One load at a time: so no state can be loaded, changed, written and evicted behind another load's back.
            async with self._loading:
                wanted = set(ledger_ids)
                self._cache.trim(keep=wanted)  # and what others evicted while this one waited is missing, too
                await self._load({ledger_id for ledger_id in wanted if cached(ledger_id) is None})
        return {ledger_id: cached(ledger_id) for ledger_id in ledger_ids}

    async def _load(self, missing: set[int]) -> None:
        # A ledger is in the shard of its id, unless it is older than the number of shards: then in any.
        for turn in range(len(self._shards)):
            by_shard: dict[int, list[int]] = {}
            for ledger_id in sorted(missing):
                by_shard.setdefault((ledger_id + turn) % len(self._shards), []).append(ledger_id)
            for number, wanted in by_shard.items():
                shard = self._shards[number]
                commits = -1
                while commits != shard.commits:  # a row from before a checkpoint would deny what that one wrote
                    commits = shard.commits
                    rows = await shard.load(wanted)
                missing.difference_update(rows)
                for ledger_id, row in rows.items():
                    if self._cache.get(ledger_id) is None:  # it may have been created meanwhile
                        self._adopt(ledger_id, row, number)
            if not missing:
                break
        self._unseen = missing

    def load_now(self, ledger_id: int) -> LedgerState | None:
        """The ledger's state. Blocks: for the replay at start."""
        for turn in range(len(self._shards)):
            if (state := self._cache.get(ledger_id)) is not None:
                return state
            number = (ledger_id + turn) % len(self._shards)
            for row in self._shards[number].load_now((ledger_id,)).values():
                return self._adopt(ledger_id, row, number)
        self._unseen = {ledger_id}
        return None

    def _adopt(self, ledger_id: int, row: LedgerRow, number: int) -> LedgerState:
        """Put a ledger that an index knows into the cache."""
        if number != ledger_id % len(self._shards):
            self._homes[ledger_id] = number
        if row.fenced:
            self.fenced.add(ledger_id)
        state = LedgerState(
            ledger_id, row.key, row.fenced, row.limbo, row.explicit_lac, row.last_entry, row.lac, number
        )
        self._cache.put(state)
        return state

    def introduce(self, ledger_id: int, key: bytes, *, limbo: bool) -> LedgerState:
        """Put a ledger that was never seen, as was just found out, into the cache; one in limbo is fenced."""
        # A state made for a ledger that has a row would replace it: its entries would be denied, its fence forgotten.
        assert ledger_id in self._unseen, f"ledger {ledger_id} may have been seen"
        self._unseen.discard(ledger_id)
        state = LedgerState(ledger_id, key, fenced=limbo, limbo=limbo, shard=ledger_id % len(self._shards))
        if limbo:
            self.fenced.add(ledger_id)
        self._cache.put(state)
        return state

    def distrust_everything(self) -> list[LedgerState]:
        """Put every ledger in memory in limbo, and fence it; the states, which the caller has to see written."""
        for state in self._cache.all():
            state.limbo = state.fenced = True
            self.fenced.add(state.ledger_id)
        return self._cache.all()

    def trim(self) -> None:
        """Evict what nothing needs. To be called where no state was just handed out."""
        self._cache.trim()

    def spread(self) -> None:
        """There is a shard more. Ledgers seen before stay where they are."""
        for state in self._cache.all():
            if state.shard != state.ledger_id % len(self._shards):
                self._homes[state.ledger_id] = state.shard

    def shard_of(self, ledger_id: int) -> int:
        """The number of the shard that holds the ledger, whose state was loaded once."""
        return self._homes.get(ledger_id, ledger_id % len(self._shards))
