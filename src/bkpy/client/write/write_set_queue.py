"""Collects what one tick of the event loop sends to one write set, of any number of ledgers, for one ADD frame.

Invariant: a frame holds no more than every bookie of the write set takes, unless a single batch is larger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from bkpy.client.write.add_request import AddRequest
from bkpy.protocol.ledger.acks import Batch, Flight
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.buffers import Bytes
    from bkpy.client.bookies.channel import BookieChannel
    from bkpy.config.client import ClientSettings


class QueueOwner(Protocol):
    """What a queue needs of the dispatcher that sends it.

    `observe`: makes of each request what it calls when it is acknowledged, if anything wants to know.
    """

    observe: Callable[[], Callable[[], None]] | None

    def loaded(self, queue: WriteSetQueue) -> None:
        """The queue has batches to send at the end of this tick."""

    def next_id(self) -> int:
        """A correlation id that no other request of the client has."""


class WriteSetQueue:
    """One write set with one ack quorum: collects the batches of a tick, of any number of ledgers, in columns."""

    __slots__ = (
        "__weakref__",
        "_bytes_max",
        "_counts",
        "_flags",
        "_owner",
        "_part_bytes_min",
        "_parts",
        "_settings",
        "_size",
        "_sizes",
        "_strides",
        "ack_quorum",
        "batches",
        "channels",
    )

    def __init__(
        self, owner: QueueOwner, channels: list[BookieChannel], ack_quorum: int, flags: int, settings: ClientSettings
    ) -> None:
        self.channels = channels
        self.ack_quorum = ack_quorum
        self._flags = flags
        self._owner = owner
        self._settings = settings
        self._part_bytes_min = settings.part_bytes_min
        self.limit()
        self._clear()

    def limit(self) -> None:
        """Look again at what its bookies take: any of them may have come back with another limit."""
        self._bytes_max = min(
            [
                self._settings.batch_bytes_max,
                *(m.batches_bytes_max(channel.frame_bytes_max) for channel in self.channels),
            ]
        )

    def _clear(self) -> None:
        self.batches: list[Batch] = []
        self._counts: list[int] = []
        self._strides: list[int] = []
        self._sizes: list[int] = []
        self._parts: list[Bytes] = []
        self._size = 0

    def blocked(self) -> bool:
        return any(channel.congested for channel in self.channels)

    def add(self, batch: Batch, count: int, stride: int, size: int) -> list[Bytes]:
        """Take one batch of `size` bytes; the caller appends its parts to the result, now."""
        if not self.batches:
            self._owner.loaded(self)
        elif self._size + size > self._bytes_max:
            self.send()
            self._owner.loaded(self)
        self.batches.append(batch)
        self._counts.append(count)
        self._strides.append(stride)
        self._sizes.append(size)
        self._size += size
        return self._parts

    def send(self) -> None:
        """Send what was collected as one frame."""
        batches, size, strides = self.batches, self._size, self._strides
        if not batches:
            return
        ledger_ids = [batch.ledger_id for batch in batches]
        first_ids = [batch.first_id for batch in batches]
        stride = strides[0] if strides.count(strides[0]) == len(strides) else strides
        head = m.pack([self._flags, ledger_ids, first_ids, self._counts, stride, self._sizes])
        parts = self._parts
        body: list[Bytes] = parts if size >= self._part_bytes_min * len(parts) else [b"".join(parts)]
        self._clear()
        correlation_id = self._owner.next_id()
        request = AddRequest(
            Flight(batches, len(self.channels), self.ack_quorum),
            self.channels,
            correlation_id,
            wire.encode(Op.ADD, correlation_id, head, body),
            size,
            set(ledger_ids),
        )
        if (observe := self._owner.observe) is not None:
            request.on_acknowledged = observe()
        for batch in batches:
            batch.sent = request
        for index, channel in enumerate(self.channels):
            channel.add(request, index)
