"""Master keys: which ledgers a connection has opened with theirs, and whether a key opens a ledger.

Each add of BookKeeper's carries its ledger's key, so a connection presents none. It remembers the keys that were found
right, for the next add to be decided by one look into a dictionary; forgetting them costs a look at the ledger's state.

Invariant: as in `bkpy.bookie.connection.keys`, a key is refused only after the metadata have shown that it is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bkpy.bookie.connection.keys import Claim
from bkpy.protocol.bookkeeper.entries import MASTER_KEY_BYTES, record_seed
from bkpy.protocol.wire.messages import Status

if TYPE_CHECKING:
    from collections.abc import KeysView

    from bkpy.bookie.connection.keys import KeyMemory
    from bkpy.bookie.service import BookieService
    from bkpy.storage.ledgers.info import LedgerInfo


class OpenedLedgers:
    """`by_id`: the key of each ledger that the connection has opened, and the seed of its records' checksums."""

    def __init__(self, ledgers_max: int, memory: KeyMemory) -> None:
        self.by_id: dict[int, tuple[bytes, int]] = {}
        self._ledgers_max = ledgers_max
        self._memory = memory
        self._closed = False

    def __len__(self) -> int:
        return len(self.by_id)

    @property
    def kept(self) -> int:
        """How many may be forgotten at any time: all."""
        return len(self.by_id)

    @property
    def authorised(self) -> KeysView[int]:
        """The ledgers that may be appended to without a look at their state."""
        return self.by_id.keys()

    def open(self, ledger_id: int, key: bytes) -> int:
        """The key was found right. Returns the seed."""
        if (opened := self.by_id.get(ledger_id)) is not None and opened[0] == key:
            return opened[1]
        seed = record_seed(ledger_id)
        if self._closed:
            return seed  # of an add that was under way when its connection ended
        if len(self.by_id) >= self._ledgers_max:
            self.forget()
        self.by_id[ledger_id] = (key, seed)
        self._memory.taken(self)
        return seed

    def withdraw(self, ledger_id: int) -> None:
        """The ledger was deleted, or has another key: look at its state again."""
        self.by_id.pop(ledger_id, None)

    def forget(self) -> None:
        """Look at the state of each ledger again."""
        self.by_id.clear()

    def close(self) -> None:
        """The connection is gone, and remembers nothing any more."""
        self._closed = True
        self.forget()
        self._memory.closed(self)


def check_key(key: bytes, state: LedgerInfo | None) -> Status:
    """Whether the key opens a ledger with that state here; None: one that is unknown.

    UNAUTHORIZED for a key of the right size only means that the keys differ: the metadata have to decide.
    """
    if len(key) != MASTER_KEY_BYTES:
        return Status.UNAUTHORIZED
    return Claim(key, False).check(None if state is None else state.key)


def may_be_decided(key: bytes) -> bool:
    """Whether the metadata can tell that such a key is right."""
    return len(key) == MASTER_KEY_BYTES


async def open_ledger(service: BookieService, ledger_id: int, key: bytes) -> tuple[Status, LedgerInfo | None]:
    """(whether the key opens the ledger, its state); the caller runs before anything else happens."""
    states = service.storage.states
    while True:
        state = (await states((ledger_id,)))[ledger_id]
        status = check_key(key, state)
        if status != Status.UNAUTHORIZED or not may_be_decided(key):
            return status, state
        status = await service.key_authority.decide(ledger_id, key)
        if status != Status.OK:
            return Status.UNKNOWN if status == Status.UNAVAILABLE else status, None


async def fence(service: BookieService, ledger_id: int, key: bytes) -> Status:
    """Fence a ledger; returns when that is durable. One never seen here is made known with that key.

    UNAUTHORIZED, UNKNOWN: it is not fenced.
    """
    status, state = await open_ledger(service, ledger_id, key)
    if status != Status.OK:
        return status
    if state is None:
        # Before any await: else another client could create it meanwhile, with another key, and would be fenced.
        state = service.storage.create(ledger_id, key)
    if not await service.storage.fence(ledger_id, state.key):
        return Status.UNKNOWN
    service.waiters.wake((ledger_id,))
    return Status.OK
