"""Acknowledgement tracking: when is a batch on its ack quorum, and how far is a ledger acknowledged.

Three objects, events in and verdicts out, no I/O:

* `Batch`: consecutive appends of one ledger that share a write set; ids first_id, first_id + stride, ...
* `Flight`: what one turn sends to one write set, batches of any number of ledgers in one frame. While all bookies
  answer alike it is counted as a whole; only a reply whose statuses differ makes it count batch by batch.
* `LedgerAcks`: the batches of one ledger in order of their first ids, and last add confirmed.

Invariants: a batch is done after Qa different bookies accepted it, and never becomes undone; last add confirmed only
grows, and every id up to it belongs to a done batch; each bookie is counted at most once for a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from bkpy.protocol.messages import Status

_FATAL = frozenset((Status.FENCED, Status.UNAUTHORIZED))
_NONE: tuple[Any, ...] = ()


class Batch:
    """Appends of one ledger with one write set. `owner` is opaque here; whoever made the batch finds itself by it."""

    __slots__ = ("done", "first_id", "last_id", "ledger_id", "owner")

    def __init__(self, ledger_id: int, first_id: int, last_id: int, owner: Any) -> None:
        self.ledger_id = ledger_id
        self.first_id = first_id
        self.last_id = last_id
        self.owner = owner
        self.done = False


class Verdict(NamedTuple):
    """What a reply or failure decided: batches now on their ack quorum, batches that can't reach it any more, and
    batches that a bookie refused for good (the ledger is fenced, or the key is wrong)."""

    completed: Sequence[Batch] = _NONE
    hopeless: Sequence[Batch] = _NONE
    refused: Sequence[tuple[Batch, Status]] = _NONE


NOTHING = Verdict()


class Flight:
    """Counts the answers of `size` bookies for `batches`; each batch needs `ack_quorum` of them."""

    __slots__ = ("_acks", "_answered", "_failures", "_single", "ack_quorum", "batches", "size")

    def __init__(self, batches: list[Batch], size: int, ack_quorum: int) -> None:
        self.batches = batches
        self.size = size
        self.ack_quorum = ack_quorum
        self._answered = 0  # bit i: bookie i has answered or failed
        self._acks = 0
        self._failures = 0
        self._single: list[list[int]] | None = None  # [acks, failures] a batch, once statuses differed

    @property
    def settled(self) -> bool:
        """Whether every bookie has answered or failed: nothing more can come."""
        return self._answered == (1 << self.size) - 1

    def answered(self, index: int) -> bool:
        return bool(self._answered >> index & 1)

    def reply(self, index: int, statuses: int | Sequence[int]) -> Verdict:
        """Bookie `index` answered with one status for all batches, or one for each."""
        if self._answered >> index & 1:
            return NOTHING
        if statuses == Status.OK and self._single is None:
            self._answered |= 1 << index
            self._acks += 1
            return Verdict(completed=self.batches) if self._acks == self.ack_quorum else NOTHING
        if isinstance(statuses, int):
            if statuses not in _FATAL and statuses != Status.OK:
                return self.fail(index)
            statuses = [statuses] * len(self.batches)
        self._answered |= 1 << index
        return self._reply_each(statuses)

    def fail(self, index: int) -> Verdict:
        """Bookie `index` will not answer: unreachable, timed out, or failing as a whole."""
        if self._answered >> index & 1:
            return NOTHING
        self._answered |= 1 << index
        if self._single is not None:
            return self._reply_each([Status.UNAVAILABLE] * len(self.batches))
        self._failures += 1
        lost = self.size - self._failures == self.ack_quorum - 1
        return Verdict(hopeless=self.batches) if lost and self._acks < self.ack_quorum else NOTHING

    def _reply_each(self, statuses: Sequence[int]) -> Verdict:
        if self._single is None:
            self._single = [[self._acks, self._failures] for _ in self.batches]
        completed, hopeless, refused = [], [], []
        for batch, count, status in zip(self.batches, self._single, statuses, strict=True):
            if status == Status.OK:
                count[0] += 1
                if count[0] == self.ack_quorum:
                    completed.append(batch)
                continue
            count[1] += 1
            if status in _FATAL:
                refused.append((batch, Status(status)))
            elif self.size - count[1] == self.ack_quorum - 1 and count[0] < self.ack_quorum:
                hopeless.append(batch)
        return Verdict(completed, hopeless, refused)


class LedgerAcks:
    """The order of one ledger's batches, and how far everything is acknowledged."""

    __slots__ = ("_queue", "last_add_confirmed", "last_sent")

    def __init__(self) -> None:
        self._queue: deque[Batch] = deque()
        self.last_add_confirmed = -1
        self.last_sent = -1

    def sent(self, batch: Batch) -> None:
        """A batch is on its way. First ids must ascend from call to call: what is acknowledged hangs on it."""
        assert not self._queue or batch.first_id > self._queue[-1].first_id, "batches out of order"
        self._queue.append(batch)
        if batch.last_id > self.last_sent:
            self.last_sent = batch.last_id

    def done(self, batch: Batch) -> int:
        """The batch is on its ack quorum; returns last add confirmed, which may be what it was.

        All ids below the first one of the first batch that isn't done are acknowledged, because batches of one turn
        share out a contiguous range of ids and turns follow each other.
        """
        batch.done = True
        queue = self._queue
        while queue and queue[0].done:
            queue.popleft()
        self.last_add_confirmed = queue[0].first_id - 1 if queue else self.last_sent
        return self.last_add_confirmed

    @property
    def pending(self) -> int:
        """Batches that aren't known to be acknowledged together with all before them."""
        return len(self._queue)

    def check_invariants(self) -> None:
        firsts = [b.first_id for b in self._queue]
        assert firsts == sorted(set(firsts)), "batches out of order"
        assert not self._queue or not self._queue[0].done, "a done batch at the head"
        assert self.last_add_confirmed <= self.last_sent
