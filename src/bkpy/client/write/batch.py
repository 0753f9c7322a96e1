"""What one turn of the event loop appends to a ledger, from the call of `append` until it is confirmed.

Both classes are a `Batch`, as `protocol/ledger/acks.py` counts it.

Invariant: the futures of a batch are resolved in id order, each with its own id.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

NEVER: Final = 1 << 62  # an entry, or a length, that no ledger gets to
SENT: Final[list[bytes]] = []  # what is left of the payloads of a batch that was sent


class PendingEntry:
    """The only append of one turn of the event loop, as long as it is that: usual where there are many ledgers."""

    __slots__ = ("done", "end_length", "first_id", "future", "last_id", "ledger_id", "owner", "payload", "sent")

    sent: Any

    def __init__(self, ledger_id: int, owner: Any, first_id: int, payload: bytes, future: asyncio.Future[int]) -> None:
        self.ledger_id = ledger_id
        self.first_id = self.last_id = first_id
        self.owner = owner
        self.done = False
        self.payload = payload
        self.future = future
        self.end_length = 0  # the ledger's length after it


class PendingBatch:
    """What one turn of the event loop appended, or one `append_batch`: payloads until sent, futures until resolved.

    If it leaves as a single batch, as it usually does, it is that batch.
    """

    __slots__ = (
        "done",
        "end_length",
        "first_id",
        "futures",
        "last_id",
        "ledger_id",
        "lengths",
        "owner",
        "payloads",
        "resolved",
        "sent",
        "whole",
    )

    sent: Any

    def __init__(
        self,
        ledger_id: int,
        owner: Any,
        first_id: int,
        payloads: list[bytes],
        futures: list[asyncio.Future[int]],
    ) -> None:
        self.ledger_id = ledger_id
        self.first_id = first_id
        self.last_id = NEVER  # until it is sent
        self.owner = owner
        self.done = False
        self.payloads = payloads
        self.futures = futures
        self.whole: asyncio.Future[range] | None = None
        self.lengths: Sequence[int] = ()  # the ledger's length after each entry, unless it left as a single batch
        self.end_length = 0
        self.resolved = 0  # entries of it that are confirmed

    def confirm(self, confirmed: int, base: int, position: Callable[[int], int] | None) -> bool:
        """Resolve what is confirmed of it, entry i to base + i, or to what `position` makes of that.

        Returns whether that is all. `resolved` follows.
        """
        futures, entry_id = self.futures, self.first_id
        if self.resolved:
            futures, entry_id = futures[self.resolved :], entry_id + self.resolved
        whole = self.last_id <= confirmed
        if whole:
            if self.whole is not None and not self.whole.done():
                self.whole.set_result(range(base + self.first_id, base + self.last_id + 1))
        else:  # of several batches, some are done
            self.resolved = confirmed - self.first_id + 1
            futures = futures[: confirmed - entry_id + 1]
        acknowledged: Iterable[int] = range(base + entry_id, base + entry_id + len(futures))
        if position is not None:
            acknowledged = map(position, acknowledged)
        for future, result in zip(futures, acknowledged, strict=True):
            if not future.done():
                future.set_result(result)
        return whole

    def length_at(self, confirmed: int) -> int:
        """The ledger's length after the entry `confirmed`, which is this batch's or behind it."""
        return self.end_length if self.last_id <= confirmed else self.lengths[confirmed - self.first_id]


class Chunk(NamedTuple):
    """Entries first_id, first_id + stride, ... that leave as one batch of `size` bytes; `queue` is an index."""

    queue: int
    payloads: Sequence[bytes]
    first_id: int
    stride: int
    lengths: Sequence[int]
    size: int


def chunks(
    queue: int,
    payloads: Sequence[bytes],
    first: int,
    stride: int,
    lengths: Sequence[int],
    overhead: int,
    bytes_max: int,
) -> list[Chunk]:
    """Cut into batches of at most `bytes_max`, or one entry if that is larger; a record has `overhead` bytes more."""
    sizes = list(accumulate(len(payload) + overhead for payload in payloads))
    cut = []
    start, done = 0, 0
    while start < len(payloads):
        end = max(bisect_right(sizes, done + bytes_max, start), start + 1)
        size = sizes[end - 1] - done
        cut.append(Chunk(queue, payloads[start:end], first + start * stride, stride, lengths[start:end], size))
        start, done = end, sizes[end - 1]
    return cut
