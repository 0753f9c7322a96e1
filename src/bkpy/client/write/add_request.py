"""ADD requests in flight: their bytes, their bookies, and what the answers mean for the batches inside.

Invariants: the bytes of a request are packed once, and every bookie of the write set gets the same bytes; the owner of
a batch gets the answer of each bookie once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from bkpy.errors import BookKeeperError
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status
from bkpy.protocol.wire.records import walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.buffers import Bytes
    from bkpy.client.bookies.channel import BookieChannel
    from bkpy.protocol.ledger.acks import AckOutcome, Batch, Flight


class BatchOwner(Protocol):
    """The replication that a batch of a request belongs to."""

    def completed(self, batch: Batch) -> None:
        """The batch is on its ack quorum."""

    def accepted(self, batch: Batch, bookie_id: str) -> None:
        """A bookie has a batch that is no longer counted by its request (see `AddRequest.release`)."""

    def bookie_failed(self, bookie_id: str, error: BookKeeperError, entry_id: int) -> None:
        """A bookie refused batches, or could not be reached. The first of them begins with that entry."""

    def refused(self, bookie_id: str, status: Status, entry_id: int) -> None:
        """A bookie has refused a batch for good, which begins with that entry."""


class AddRequest:
    """Batches of any number of ledgers on their way to one write set. Lives as long as a batch of it may be needed."""

    __slots__ = (
        "_places",
        "_released",
        "_retried",
        "body_bytes",
        "buffers",
        "channels",
        "correlation_id",
        "flight",
        "ledger_ids",
        "on_acknowledged",
    )

    def __init__(
        self,
        flight: Flight,
        channels: list[BookieChannel],
        correlation_id: int,
        buffers: list[Bytes],
        body_bytes: int,
        ledger_ids: set[int],
    ) -> None:
        self.flight = flight
        self.channels = channels
        self.correlation_id = correlation_id
        self.buffers = buffers
        self.body_bytes = body_bytes
        self.ledger_ids = ledger_ids
        self.on_acknowledged: Callable[[], None] | None = None  # called once, when batches are on their ack quorum
        self._retried = 0
        self._released: set[Batch] | None = None
        self._places: dict[tuple[int, int], SentBatch] | None = None

    def replied(self, index: int, head: memoryview) -> None:
        statuses = m.decode_add_reply(head, len(self.flight.batches))
        if statuses != Status.OK and _key_required(statuses) and not self._retried >> index & 1:
            self._retried |= 1 << index
            self.channels[index].add_again(self, index)
            return
        self._decide(self.flight.reply(index, statuses), index, statuses)

    def failed(self, index: int, error: BookKeeperError) -> None:
        self._decide(self.flight.fail(index), index, error)

    def _decide(self, verdict: AckOutcome, index: int, answer: int | list[int] | BookKeeperError) -> None:
        if self._released is None:
            if verdict.completed and self.on_acknowledged is not None:
                self.acknowledged()
            for batch in verdict.completed:
                batch.owner.completed(batch)
        else:
            self._decide_released(verdict, index, self._released)
        if verdict.refused or verdict.failed:
            self._decide_failed(verdict, index, answer)
        if self.flight.settled:
            self.flight.settle()

    def acknowledged(self) -> None:
        """A batch is on its ack quorum, by the answers that are counted here or by its owner."""
        on_acknowledged, self.on_acknowledged = self.on_acknowledged, None
        if on_acknowledged is not None:
            on_acknowledged()

    def _decide_released(self, verdict: AckOutcome, index: int, released: set[Batch]) -> None:
        name = self.channels[index].bookie_id
        for batch in verdict.completed:
            if batch not in released:
                self.acknowledged()
                batch.owner.completed(batch)
        for batch in self.flight.batches:
            if batch in released and self.flight.accepted(batch) >> index & 1:
                batch.owner.accepted(batch, name)

    def _decide_failed(self, verdict: AckOutcome, index: int, answer: int | list[int] | BookKeeperError) -> None:
        name = self.channels[index].bookie_id
        for batch, status in verdict.refused:
            batch.owner.refused(name, status, batch.first_id)
        if isinstance(answer, BookKeeperError):
            # The last one to be taken over is the first batch of its owner.
            for owner, entry_id in {batch.owner: batch.first_id for batch in reversed(verdict.failed)}.items():
                owner.bookie_failed(name, answer, entry_id)
            return
        statuses = answer if isinstance(answer, list) else [answer] * len(self.flight.batches)
        failed = set(verdict.failed)
        for batch, code in zip(self.flight.batches, statuses, strict=True):
            if batch in failed:
                error = m.refusal(code, ledger_id=batch.ledger_id, bookie=name)
                batch.owner.bookie_failed(name, error, batch.first_id)

    # --- batches whose bookies have changed -------------------------------------------------------------------------

    def release(self, batch: Batch) -> set[str]:
        """Stop counting the batch: from now on its owner counts. Returns the bookies that have accepted it."""
        if self._released is None:
            self._released = set()
        self._released.add(batch)
        bits = self.flight.accepted(batch)
        return {channel.bookie_id for i, channel in enumerate(self.channels) if bits >> i & 1}

    def sent_batch(self, batch: Batch) -> SentBatch:
        """The batch as it was sent."""
        if self._places is None:
            head = memoryview(self.buffers[0])[wire.PREFIX_BYTES :]
            columns = m.decode_add(head, self.body_bytes)
            body = memoryview(b"".join(self.buffers[1:]))
            strides = columns.strides if isinstance(columns.strides, list) else [columns.strides] * len(columns.sizes)
            self._places = {}
            offset = 0
            for ledger_id, first, count, stride, size in zip(
                columns.ledger_ids, columns.first_ids, columns.counts, strides, columns.sizes, strict=True
            ):
                self._places[ledger_id, first] = SentBatch(first, count, stride, body[offset : offset + size])
                offset += size
        return self._places[batch.ledger_id, batch.first_id]


class SentBatch(NamedTuple):
    """One batch as it was sent: entries first_id, first_id + stride, ... and their records."""

    first_id: int
    entries: int
    stride: int
    records: memoryview

    def cut(self, bytes_max: int) -> list[SentBatch]:
        """In pieces of at most so many bytes, or of one entry if that is larger."""
        if len(self.records) <= bytes_max:
            return [self]
        cut = []
        begin, entries, first = 0, 0, self.first_id
        for header in walk(self.records):
            if entries and header.end - begin > bytes_max:
                cut.append(SentBatch(first, entries, self.stride, self.records[begin : header.offset]))
                first += entries * self.stride
                begin, entries = header.offset, 0
            entries += 1
        return [*cut, SentBatch(first, entries, self.stride, self.records[begin:])]


def encode_add(flags: int, ledger_id: int, batches: list[SentBatch], *, correlation_id: int) -> list[Bytes]:
    """The frame of an ADD with batches of one ledger."""
    head = m.pack(
        [
            flags,
            [ledger_id] * len(batches),
            [batch.first_id for batch in batches],
            [batch.entries for batch in batches],
            [batch.stride for batch in batches],
            [len(batch.records) for batch in batches],
        ]
    )
    return wire.encode(Op.ADD, correlation_id, head, [batch.records for batch in batches])


class ResendRequest:
    """Batches of one ledger on their way to one bookie that others had in its place, or that failed before."""

    __slots__ = (
        "_batches",
        "_channel",
        "_owner",
        "_retried",
        "_to_come",
        "body_bytes",
        "buffers",
        "correlation_id",
        "ledger_ids",
    )

    def __init__(
        self,
        owner: BatchOwner,
        channel: BookieChannel,
        flags: int,
        parts: list[tuple[Batch, SentBatch]],
        to_come: dict[Batch, int],
        *,
        correlation_id: int,
    ) -> None:
        """`to_come`: of batches that are sent in several pieces, how many are still to be accepted."""
        batches = [batch for batch, _ in parts]
        pieces = [piece for _, piece in parts]
        ledger_id = batches[0].ledger_id
        self._owner = owner
        self._channel = channel
        self._batches = batches
        self._to_come = to_come
        self._retried = False
        self.correlation_id = correlation_id
        self.buffers = encode_add(flags, ledger_id, pieces, correlation_id=correlation_id)
        self.body_bytes = sum(len(piece.records) for piece in pieces)
        self.ledger_ids = {ledger_id}

    def replied(self, index: int, head: memoryview) -> None:
        statuses = m.decode_add_reply(head, len(self._batches))
        if statuses != Status.OK and _key_required(statuses) and not self._retried:
            self._retried = True
            self._channel.add_again(self, index)
            return
        self._take(statuses)

    def _take(self, statuses: int | list[int]) -> None:
        name = self._channel.bookie_id
        each = statuses if isinstance(statuses, list) else [statuses] * len(self._batches)
        for batch, code in zip(self._batches, each, strict=True):
            if code == Status.OK:
                left = self._to_come.get(batch, 1) - 1
                if left:
                    self._to_come[batch] = left
                else:
                    self._owner.accepted(batch, name)
                continue
            if code in m.ENDS_WRITER:
                self._owner.refused(name, Status(code), batch.first_id)
            else:
                error = m.refusal(code, ledger_id=batch.ledger_id, bookie=name)
                self._owner.bookie_failed(name, error, batch.first_id)

    def failed(self, index: int, error: BookKeeperError) -> None:
        self._owner.bookie_failed(self._channel.bookie_id, error, self._batches[0].first_id)


def _key_required(statuses: int | list[int]) -> bool:
    return Status.KEY_REQUIRED in statuses if isinstance(statuses, list) else statuses == Status.KEY_REQUIRED
