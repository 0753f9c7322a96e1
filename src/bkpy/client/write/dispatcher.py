"""Drains what all writers append in one turn of the event loop and sends it, one ADD request per write set.

    append() ...   ->  replications scheduled  ->  one turn: batches -> queues of write sets -> requests -> bookies
    replies        ->  counted per request     ->  batches complete -> writers resolve their futures

Invariant: no writer is drained while one of its bookies has too much to answer (`congested`), so that a slow bookie
costs time and not memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from bkpy.client.write.add_request import BatchOwner, ResendRequest
from bkpy.client.write.progress import Watched
from bkpy.client.write.write_set_queue import WriteSetQueue
from bkpy.protocol.wire import messages as m

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from bkpy.client.bookies.pool import BookiePool
    from bkpy.client.write.add_request import SentBatch
    from bkpy.config.client import ClientSettings
    from bkpy.protocol.ledger.acks import Batch


class Drained(Protocol):
    """Where the dispatcher gets batches from."""

    def drain(self) -> None:
        """Put all that is unsent into the queues of its write sets, in batches."""


class Sender(Watched, BatchOwner, Protocol):
    """What the dispatcher needs of a replication."""

    @property
    def source(self) -> Drained: ...

    def blocked(self) -> bool:
        """Whether one of its bookies has too much to answer."""

    def rest(self) -> None:
        """Nothing was sent for a while, and nothing is pending: let go of what only a busy writer needs."""


class AddDispatcher:
    """The write sets of one client, and the turn that feeds them."""

    def __init__(self, pool: BookiePool, settings: ClientSettings) -> None:
        self.guard = pool.guard
        self._loop = self.guard.loop
        self._pool = pool
        self._settings = settings
        self._tick_s = settings.explicit_lac_interval_s or settings.progress_check_interval_s
        # Weak: a queue lives as long as a writer uses it, and ensembles change.
        self._queues: WeakValueDictionary[tuple[tuple[str, ...], int, int], WriteSetQueue] = WeakValueDictionary()
        self._scheduled: list[Sender] = []
        self._held: list[Sender] = []
        self._loaded: list[WriteSetQueue] = []
        self._turn_scheduled = False
        self.unsent_bytes = 0  # of appends since the last `send`: writers count here, see `flush_threshold_bytes`
        # The senders that have sent something lately or are busy, by whether that is since the last tick. The
        # dispatcher knows nothing of all others. Sets that keep their order, so that simulated runs repeat.
        self._active: dict[Sender, None] = {}
        self._resting: dict[Sender, None] = {}
        self._ticker: asyncio.TimerHandle | None = None
        self.next_id = pool.next_id
        self.observe: Callable[[], Callable[[], None]] | None = None
        pool.on_relief(self._resume_held)

    def queue(
        self, bookie_ids: Iterable[str], ack_quorum: int, flags: int = 0, *, shared: bool = True
    ) -> WriteSetQueue:
        """The queue of these bookies, in any order: each of them gets every batch."""
        key = (tuple(sorted(bookie_ids)), ack_quorum, flags)
        queue = self._queues.get(key) if shared else None
        if queue is None:
            channels = [self._pool.channel(bookie_id) for bookie_id in key[0]]
            queue = WriteSetQueue(self, channels, ack_quorum, flags, self._settings)
            if shared:
                self._queues[key] = queue
        return queue

    def resend(self, owner: BatchOwner, bookie_id: str, batches: Iterable[Batch], flags: int) -> None:
        """Send batches of one ledger to one more bookie, in frames of about `batch_bytes_max` that it takes."""
        channel = self._pool.channel(bookie_id)
        bytes_max = min(self._settings.batch_bytes_max, m.batches_bytes_max(channel.frame_bytes_max))
        to_come: dict[Batch, int] = {}
        some: list[tuple[Batch, SentBatch]] = []
        size = 0

        def send() -> None:
            request = ResendRequest(owner, channel, flags, some, to_come, correlation_id=self.next_id())
            channel.add(request, 0)

        for batch in batches:
            channel.resent_batches += 1
            pieces = batch.sent.sent_batch(batch).cut(bytes_max)
            if len(pieces) > 1:  # they were sent to bookies that take larger frames
                to_come[batch] = len(pieces)
            for piece in pieces:
                more = len(piece.records)
                if some and size + more > bytes_max:
                    send()
                    some, size = [], 0
                some.append((batch, piece))
                size += more
        if some:
            send()

    def schedule(self, sender: Sender) -> None:
        """The sender has something to send, this turn."""
        self._scheduled.append(sender)
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)

    def loaded(self, queue: WriteSetQueue) -> None:
        self._loaded.append(queue)

    def _turn(self) -> None:
        self._turn_scheduled = False
        self.send()

    def send(self) -> None:
        """Send what all writers have, now."""
        self.unsent_bytes = 0
        scheduled, self._scheduled = self._scheduled, []
        if self._ticker is None and scheduled:
            self._ticker = self._loop.call_later(self._tick_s, self._tick)
        active = self._active
        if self._pool.congested:
            held = [sender for sender in scheduled if sender.blocked()]
            scheduled = [sender for sender in scheduled if not sender.blocked()]
            self._held += held
            active.update(dict.fromkeys(held))
        for sender in scheduled:
            active[sender] = None
            sender.source.drain()
        loaded, self._loaded = self._loaded, []
        for queue in loaded:
            queue.send()

    def _resume_held(self) -> None:
        """A bookie has answered enough: the next turn looks again at the senders that wait for it."""
        if self._held:
            self._scheduled += self._held
            self._held.clear()
            if not self._turn_scheduled:
                self._turn_scheduled = True
                self._loop.call_soon(self._turn)

    # --- writers that pause -----------------------------------------------------------------------------------------

    def watch(self, sender: Sender) -> None:
        """The sender is busy, or has something to publish, though it has sent nothing."""
        self._active[sender] = None
        if self._ticker is None:
            self._ticker = self._loop.call_later(self._tick_s, self._tick)

    def watched(self) -> list[Sender]:
        """All senders that may be busy."""
        return list(self._resting | self._active)

    def _tick(self) -> None:
        self._ticker = None
        paused = [sender for sender in self._resting if sender not in self._active]
        self._resting, self._active = self._active, {}
        for sender in paused:
            if sender.busy():
                self._active[sender] = None
                continue
            sender.rest()
        if self._ticker is None and (self._resting or self._active):  # else one that rests watches again
            self._ticker = self._loop.call_later(self._tick_s, self._tick)

    def forget(self, sender: Sender) -> None:
        """The sender has ended."""
        self._active.pop(sender, None)
        self._resting.pop(sender, None)

    def close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
