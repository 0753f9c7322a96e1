"""What one connection may use: the keys of ledgers that it has presented, and the ledgers that they were found to open.

A key counts for what comes after it on the wire. ADD and PRESENT are decided one after the other, so a key is taken
when its turn comes (`take`). Requests that keep no order overtake those that wait: the key of such a request is looked
up when the request arrives, and may itself have arrived (`arrive`) and not been taken yet.

Invariant: what an ADD or another request relies on is never forgotten while it is being decided.
"""

from __future__ import annotations

from typing import NamedTuple

from bkpy.protocol.messages import Present, Status


class Claim(NamedTuple):
    """What a client has to show for a ledger."""

    key: bytes | None
    authorised: bool  # by a key that was presented before, and needs no more proof

    def check(self, known: bytes | None) -> Status:
        """Whether this opens the ledger, whose own key is `known` (None: never seen)."""
        if self.authorised:
            return Status.OK
        if self.key is None:
            return Status.KEY_REQUIRED
        if known == b"":
            return Status.UNKNOWN  # the key was lost with the index: nobody knows who may write
        return Status.OK if known is None or known == self.key else Status.UNAUTHORIZED


class Keys:
    """`authorised`: ledgers whose key this connection has shown. It stays the same set, so that others can keep it."""

    def __init__(self, ledgers_max: int) -> None:
        self.authorised: set[int] = set()
        self._ledgers_max = ledgers_max
        self._taken: dict[int, bytes] = {}  # not authorised so far: of ledgers never seen, or wrong
        self._arrived: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self.authorised) + len(self._taken) + len(self._arrived)

    def arrive(self, present: Present) -> None:
        """The keys have arrived, and will be `taken` in turn."""
        self._arrived.update(zip(present.ledger_ids, present.keys, strict=True))

    def take(self, present: Present) -> None:
        """It is the turn of these keys. All earlier ones are forgotten if these are too many beside them."""
        if len(self.authorised) + len(self._taken) + len(present.keys) > self._ledgers_max:
            # Forgetting is always safe: the next ADD is answered KEY_REQUIRED, and the client presents again.
            self.authorised.clear()
            self._taken.clear()
        for ledger_id, key in zip(present.ledger_ids, present.keys, strict=True):
            self.authorised.discard(ledger_id)
            self._taken[ledger_id] = key
            if self._arrived.get(ledger_id) is key:
                del self._arrived[ledger_id]

    def authorise(self, ledger_id: int) -> None:
        """The claim to this ledger was found good."""
        self.authorised.add(ledger_id)
        self._taken.pop(ledger_id, None)

    def withdraw(self, ledger_id: int) -> None:
        """The ledger was deleted: its key is to be shown again."""
        self.authorised.discard(ledger_id)

    def claim_in_turn(self, ledger_id: int) -> Claim:
        """For what is decided in turn."""
        return Claim(self._taken.get(ledger_id), ledger_id in self.authorised)

    def claim_on_arrival(self, ledger_id: int) -> Claim:
        """For what is decided now, before others that came earlier."""
        if (key := self._arrived.get(ledger_id)) is not None:
            return Claim(key, False)
        return self.claim_in_turn(ledger_id)
