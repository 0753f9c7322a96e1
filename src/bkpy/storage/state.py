"""What a bookie knows of a ledger besides its entries, and the bounded cache of it.

Invariants: a state with changes that no checkpoint has written is never evicted; a ledger that is fenced stays in
`fenced` for the life of the process, also when its state is evicted, because connections may have been told long ago
that they may write to it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LedgerState:
    """One ledger. `key` is empty if it was lost: nobody can be authorised, and every answer is *unknown*."""

    ledger_id: int
    key: bytes
    fenced: bool = False
    limbo: bool = False  # negatives can't be given
    explicit_lac: bytes = b""  # a record, empty if there is none
    last_entry: int = -1  # highest id in the index; what the memtable has comes on top
    lac: int = -1  # highest last add confirmed seen in entries that were checkpointed
    shard: int = 0
    verified: bool = False  # its block rows were found complete since the start
    pins: int = 0  # generations and loads that need it in the cache


class StateCache:
    """States by ledger id, the least recently loaded going first."""

    def __init__(self, states_max: int) -> None:
        self._states: dict[int, LedgerState] = {}
        self._states_max = states_max

    def get(self, ledger_id: int) -> LedgerState | None:
        return self._states.get(ledger_id)

    def put(self, state: LedgerState) -> None:
        self._states[state.ledger_id] = state

    def all(self) -> list[LedgerState]:
        """Every state in the cache."""
        return list(self._states.values())

    def trim(self) -> None:
        """Evict down to the bound what nothing needs. To be called where no state was just handed out."""
        excess = len(self._states) - self._states_max
        if excess <= 0:
            return
        evicted = [ledger_id for ledger_id, state in self._states.items() if not state.pins][:excess]
        for ledger_id in evicted:
            del self._states[ledger_id]

    def __len__(self) -> int:
        return len(self._states)
