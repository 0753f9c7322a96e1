"""Acknowledgement tracking: when is a batch on its ack quorum, and how far is a ledger acknowledged.

Events in and outcomes out, no I/O:

* `Batch`: consecutive appends of one ledger that share a write set; ids first_id, first_id + stride, ...
* `Flight`: what one tick of the event loop sends to one write set, batches of any number of ledgers in one frame.
  While all bookies answer alike it is counted as a whole; only a reply whose statuses differ makes it count batch by
  batch.
* `LedgerAcks`: the batches of one ledger in order of their first ids, and last add confirmed.
* `ReassignedBatch`: a batch whose bookies changed after it was sent, from then on counted by the bookies' names and no
  longer by its flight.

Invariants: a batch is done while Qa of its present write set have accepted it; last add confirmed only grows, stands
still while frozen, and every id up to it belongs to a batch that was done; each bookie is counted at most once.
"""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from bkpy.protocol.wire.messages import ENDS_WRITER, Status

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

# In the place of an empty deque, which takes more than all else of a ledger at rest, and most are. It has no `append`.
AT_REST: Final[Any] = ()

_NONE: tuple[Any, ...] = ()
_first_id = attrgetter("first_id")


class Batch(Protocol):
    """Appends of one ledger with one write set.

    `owner` and `sent` are opaque here: the replication that made the batch, and the request that it was sent with.
    `sent` is set when the batch leaves.
    """

    ledger_id: int
    first_id: int
    last_id: int
    owner: Any
    done: bool
    sent: Any


class BareBatch:
    """A batch that nobody waits for as such: a part of a larger one, or of what a recovery writes back."""

    __slots__ = ("done", "first_id", "last_id", "ledger_id", "owner", "sent")

    sent: Any

    def __init__(self, ledger_id: int, first_id: int, last_id: int, owner: Any) -> None:
        self.ledger_id = ledger_id
        self.first_id = first_id
        self.last_id = last_id
        self.owner = owner
        self.done = False


class AckOutcome(NamedTuple):
    """What a reply or failure decided: batches now on their ack quorum, batches that this bookie does not take (others
    may), and batches that it refused for good (the ledger is fenced, or the key is wrong)."""

    completed: Sequence[Batch] = _NONE
    failed: Sequence[Batch] = _NONE
    refused: Sequence[tuple[Batch, Status]] = _NONE


NOTHING = AckOutcome()


class Flight:
    """Counts the answers of `size` bookies for `batches`; each batch needs `ack_quorum` of them."""

    __slots__ = ("_accepted", "_answered", "_single", "ack_quorum", "batches", "size")

    def __init__(self, batches: list[Batch], size: int, ack_quorum: int) -> None:
        self.batches = batches
        self.size = size
        self.ack_quorum = ack_quorum
        self._answered = 0  # bit i: bookie i has answered or failed
        self._accepted = 0  # bit i: bookie i has accepted all batches
        self._single: list[int] | None = None  # such bits for each batch, once statuses differed

    @property
    def settled(self) -> bool:
        """Whether every bookie has answered or failed: nothing more can come."""
        return self._answered == (1 << self.size) - 1

    def settle(self) -> None:
        """Let go of the batches, which may hold on to this flight for longer."""
        if self._single is None:
            self.batches = []

    def accepted(self, batch: Batch) -> int:
        """Bits of the bookies that have accepted the batch, those after the ack quorum included."""
        return self._accepted if self._single is None else self._single[self.batches.index(batch)]

    def reply(self, index: int, statuses: int | Sequence[int]) -> AckOutcome:
        """Bookie `index` answered with one status for all batches, or one for each."""
        if self._answered >> index & 1:
            return NOTHING
        self._answered |= 1 << index
        if statuses == Status.OK and self._single is None:
            self._accepted |= 1 << index
            return AckOutcome(self.batches) if self._accepted.bit_count() == self.ack_quorum else NOTHING
        if isinstance(statuses, int):
            if statuses not in ENDS_WRITER and statuses != Status.OK:
                return AckOutcome(failed=self.batches)
            statuses = [statuses] * len(self.batches)
        return self._reply_each(index, statuses)

    def fail(self, index: int) -> AckOutcome:
        """Bookie `index` will not answer: unreachable, timed out, or failing as a whole."""
        if self._answered >> index & 1:
            return NOTHING
        self._answered |= 1 << index
        return AckOutcome(failed=self.batches)

    def _reply_each(self, index: int, statuses: Sequence[int]) -> AckOutcome:
        if self._single is None:
            self._single = [self._accepted] * len(self.batches)
        completed, failed, refused = [], [], []
        for i, (batch, status) in enumerate(zip(self.batches, statuses, strict=True)):
            if status == Status.OK:
                self._single[i] |= 1 << index
                if self._single[i].bit_count() == self.ack_quorum:
                    completed.append(batch)
            elif status in ENDS_WRITER:
                refused.append((batch, Status(status)))
            else:
                failed.append(batch)
        return AckOutcome(completed, failed, refused)


class ReassignedBatch:
    """A batch whose write set has changed since it left. `members` are the names of the present one.

    What a bookie accepted stays true whether it is a member or not, so it counts again if the bookie is one again.
    """

    __slots__ = ("accepted", "ack_quorum", "batch", "members")

    def __init__(self, batch: Batch, members: Collection[str], accepted: Collection[str], ack_quorum: int) -> None:
        self.batch = batch
        self.members = frozenset(members)
        self.accepted = set(accepted)
        self.ack_quorum = ack_quorum

    @property
    def complete(self) -> bool:
        return len(self.members & self.accepted) >= self.ack_quorum


class LedgerAcks:
    """The order of one ledger's batches, and how far everything is acknowledged."""

    __slots__ = ("_queue", "_straddling", "frozen", "last_add_confirmed", "last_sent")

    def __init__(self, last_add_confirmed: int = -1) -> None:
        self._queue: deque[Batch] = AT_REST
        self._straddling: list[Batch] = []  # done and out of the queue, but with entries above last add confirmed
        self.frozen = False
        self.last_add_confirmed = last_add_confirmed
        self.last_sent = last_add_confirmed

    def sent(self, batch: Batch) -> None:
        """A batch is on its way. First ids must ascend from call to call: acknowledgement relies on it."""
        if self._queue and batch.first_id <= self._queue[-1].first_id:
            raise AssertionError(f"a batch from entry {batch.first_id} on is out of order")
        try:
            self._queue.append(batch)
        except AttributeError:
            self._queue = deque((batch,))
        if batch.last_id > self.last_sent:
            self.last_sent = batch.last_id

    def done(self, batch: Batch) -> int:
        """The batch is on its ack quorum; returns last add confirmed, which may be what it was."""
        batch.done = True
        if self.frozen:
            return self.last_add_confirmed
        queue = self._queue
        if len(queue) == 1 and queue[0] is batch:  # the usual case where there are many ledgers
            queue.popleft()
            if self._straddling:
                self._straddling.clear()
            self.last_add_confirmed = self.last_sent
            return self.last_sent
        return self._advance()

    def _advance(self) -> int:
        """All ids below the first one of the first batch that isn't done are acknowledged, because the batches of
        one tick of the event loop share out a contiguous range of ids, and these ranges follow each other."""
        queue = self._queue
        while queue and queue[0].done:
            batch = queue.popleft()
            if queue and batch.last_id > queue[0].first_id:
                self._straddling.append(batch)  # of a striped ledger: its ids lie between those of others
        confirmed = queue[0].first_id - 1 if queue else self.last_sent
        if confirmed > self.last_add_confirmed:  # not if the first was acknowledged in part before it was reopened
            self.last_add_confirmed = confirmed
        if self._straddling:
            self._straddling = [batch for batch in self._straddling if batch.last_id > self.last_add_confirmed]
        return self.last_add_confirmed

    def freeze(self) -> None:
        """From now on nothing is acknowledged; what is done is remembered."""
        self.frozen = True

    def thaw(self) -> int:
        """Acknowledge again; returns last add confirmed."""
        self.frozen = False
        return self._advance()

    def above(self) -> list[Batch]:
        """The batches with entries above last add confirmed, in order of their first ids."""
        return sorted([*self._straddling, *self._queue], key=_first_id)

    def reopen(self, batches: Collection[Batch]) -> None:
        """These, out of `above()`, are not done any more: their bookies have changed."""
        for batch in batches:
            batch.done = False
        back = [batch for batch in self._straddling if not batch.done]
        if back:
            self._straddling = [batch for batch in self._straddling if batch.done]
            self._queue = deque(sorted([*back, *self._queue], key=_first_id))

    def rest(self) -> None:
        """Nothing will be sent for a while."""
        if not self._queue:
            self._queue = AT_REST

    @property
    def pending(self) -> int:
        """Batches that aren't known to be acknowledged together with all before them."""
        return len(self._queue)

    def check_invariants(self) -> None:
        firsts = [b.first_id for b in self._queue]
        assert firsts == sorted(set(firsts)), "batches out of order"
        assert self.frozen or not self._queue or not self._queue[0].done, "a done batch at the head"
        assert all(b.done and b.last_id > self.last_add_confirmed for b in self._straddling)
        assert self.last_add_confirmed <= self.last_sent
