"""The appends of one ledger's writer that are not acknowledged yet: their batches, their futures, what was sent.

Entry ids are assigned when an append is added. What one turn of the event loop adds leaves as one batch per write set
when the dispatcher drains it. Futures are resolved in id order only, when the entry and all before it are on their ack
quorum.

The appends to a segment of a log are *held* until the segment before it has ended: what is confirmed is not told, and
last add confirmed stands still, so that no reader sees an entry whose predecessors may still be lost.

Invariants: once the replication has failed, everything that is pending fails with it; while held, no future is resolved
and nothing that is sent says that anything was confirmed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from bkpy.client.write.batch import NEVER, SENT, Chunk, PendingBatch, PendingEntry, chunks
from bkpy.client.write.replication import Replication, log
from bkpy.errors import BookKeeperError
from bkpy.protocol.ledger.acks import AT_REST, BareBatch
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Flags, Op

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bkpy.client.write.interfaces import AppendsOwner, FragmentStore, ReplicationParts
    from bkpy.client.write.lac_publisher import Publisher
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.wire.records import RecordCodec


class PendingAppends:
    """The source of a writer's replication.

    `window_bytes` and `window_entries` are what is pending, and what was promised room: the owner adds to them, what is
    confirmed is taken off here. While `slow_path` is set, the owner's appends look before they are added, and `on_room`
    is told whenever something is confirmed. `on_failed` is told of the error that ends everything. `may_add`: whether
    the owner may add anything more; then failures are still its concern, though nothing is pending.

    Of a segment of a log, `base` is the position of its first entry: futures are resolved to positions. `on_room` is
    also told when something is confirmed from the entry `due_entry` on, or from the length `due_length` on.
    """

    # Not for the memory: an object with more than thirty attributes has a dict that is slow to look into.
    __slots__ = (
        "_acks",
        "_append_bytes",
        "_as_error",
        "_batches",
        "_codec",
        "_deferred",
        "_dispatcher",
        "_flushing",
        "_forced_length",
        "_held",
        "_ledger_id",
        "_may_add",
        "_new_future",
        "_on_failed",
        "_on_room",
        "_overhead",
        "_pool",
        "_publisher",
        "_send_bytes",
        "_sent_length",
        "_settings",
        "_unsent",
        "base",
        "due_entry",
        "due_length",
        "lac",
        "lac_sent",
        "length",
        "loop",
        "next_id",
        "open_batch",
        "replication",
        "slow_path",
        "window_bytes",
        "window_entries",
    )

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        codec: RecordCodec,
        store: FragmentStore,
        publisher: Publisher,
        parts: ReplicationParts,
        on_room: Callable[[], None],
        on_failed: Callable[[BookKeeperError], None],
        may_add: Callable[[], bool],
        owner: AppendsOwner | None = None,
    ) -> None:
        """An `owner` is told in the place of the others, and what is added is held until it is released."""
        settings = parts.settings
        self.replication = Replication(
            metadata,
            source=self,
            store=store,
            parts=parts,
            flags=int(Flags.DEFERRED_SYNC) if metadata.deferred_sync else 0,
            # What a bookie that has gone had not synced yet can't be sent to its successor: it is not kept here.
            may_change=not metadata.deferred_sync,
        )
        self._acks = self.replication.acks
        self._ledger_id = metadata.ledger_id
        self._codec = codec
        self._publisher = publisher
        self._pool = parts.pool
        self._dispatcher = parts.dispatcher
        self.loop = parts.dispatcher.loop
        self._settings = settings
        self._on_room = on_room if owner is None else owner.on_room
        self._on_failed = on_failed if owner is None else owner.on_failed
        self._may_add = may_add
        self._as_error = None if owner is None else owner.as_error
        self._held = owner is not None
        self._new_future = asyncio.get_running_loop().create_future
        self._send_bytes = settings.flush_threshold_bytes
        self._append_bytes = settings.append_overhead_bytes
        self._overhead = codec.overhead_bytes
        self.open_batch: PendingEntry | PendingBatch | None = None  # what `add` adds to
        self._unsent = 0  # how many of the last batches
        self._batches: deque[PendingEntry | PendingBatch] = AT_REST  # all that isn't confirmed
        self._flushing: list[tuple[int, asyncio.Future[None]]] = []
        self._sent_length = 0
        self._deferred = metadata.deferred_sync
        self._forced_length = 0  # up to `lac`, where syncs are deferred
        self.base = 0
        self.due_entry = self.due_length = NEVER
        self.next_id = 0
        self.length = 0  # payload bytes of the entries that were acknowledged
        self.lac = -1  # what readers may read: what is confirmed, unless syncs are deferred
        self.lac_sent = -1
        self.window_bytes = 0
        self.window_entries = 0
        self.slow_path = False

    # --- adding -----------------------------------------------------------------------------------------------------

    def check_loop(self) -> None:
        """Raise `RuntimeError` outside the client's event loop, as in another thread, before anything is written.

        Appends call it where no batch is open: once for each tick of the event loop.
        """
        if asyncio._get_running_loop() is not self.loop:
            raise RuntimeError(
                f"an append to ledger {self._ledger_id} was called outside the event loop of its client: nothing "
                "was written; from another thread use asyncio.run_coroutine_threadsafe with that loop"
            )

    def add(self, data: bytes, size: int, future: asyncio.Future[int] | None = None) -> asyncio.Future[int]:
        """The next entry; returns the future of its id."""
        if future is None:
            future = self._new_future()
        batch = self.open_batch
        if batch is None:
            self.open_batch = batch = PendingEntry(self._ledger_id, self.replication, self.next_id, data, future)
            # As `_begin` does, without its call: in many ledgers each append comes by here.
            try:
                self._batches.append(batch)
            except AttributeError:
                self._batches = deque((batch,))
            if not self._unsent:
                self._dispatcher.schedule(self.replication)
            self._unsent += 1
        elif isinstance(batch, PendingBatch):
            batch.payloads.append(data)
            batch.futures.append(future)
        else:
            self.open_batch = self._batches[-1] = PendingBatch(
                self._ledger_id, self.replication, batch.first_id, [batch.payload, data], [batch.future, future]
            )
        self.next_id += 1
        dispatcher = self._dispatcher
        dispatcher.unsent_bytes += size + self._append_bytes
        if dispatcher.unsent_bytes >= self._send_bytes:
            dispatcher.send()
        return future

    def add_batch(self, payloads: list[bytes], size: int) -> asyncio.Future[range]:
        """The next entries, as a batch of their own; returns the future of the range of their ids."""
        self.open_batch = None
        batch = PendingBatch(self._ledger_id, self.replication, self.next_id, payloads, [])
        whole = batch.whole = self._new_future()
        self._begin(batch)
        self.next_id += len(payloads)
        dispatcher = self._dispatcher
        dispatcher.unsent_bytes += size + self._append_bytes
        if dispatcher.unsent_bytes >= self._send_bytes:
            dispatcher.send()
        return whole

    def _begin(self, batch: PendingEntry | PendingBatch) -> None:
        try:
            self._batches.append(batch)
        except AttributeError:
            self._batches = deque((batch,))  # the first one, or the first after a rest
        if not self._unsent:
            self._dispatcher.schedule(self.replication)
        self._unsent += 1

    async def flush(self) -> None:
        """Return when everything that was added so far is confirmed; raises the error that ends the replication."""
        target = self.next_id - 1
        if target > self.replication.confirmed or (self._held and target >= 0):
            flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flushing.append((target, flushed))
            await flushed

    # --- the source of the replication ------------------------------------------------------------------------------

    @property
    def has_unsent(self) -> bool:
        return self._unsent > 0

    @property
    def has_pending(self) -> bool:
        if self._held:
            return self.next_id > self.replication.confirmed + 1
        return bool(self._batches)

    @property
    def idle(self) -> bool:
        return not self._batches and not self._may_add()

    def drain(self) -> None:
        replication = self.replication
        if self._acks.frozen:
            return  # until it is known who the bookies are
        batches, unsent = self._batches, self._unsent
        if not unsent:
            return
        self.open_batch, self._unsent = None, 0
        self.lac_sent = self.lac
        for batch in (batches[-1],) if unsent == 1 else tuple(islice(batches, len(batches) - unsent, None)):
            if isinstance(batch, PendingEntry):
                self._send_entry(batch)
            elif replication.striped:
                self._send_striped(batch)
            else:
                self._send_batch(batch)

    def _send_entry(self, entry: PendingEntry) -> None:
        replication = self.replication
        payload, entry.payload = entry.payload, b""
        self._acks.sent(entry)
        queue = replication.queues[entry.first_id % len(replication.queues)]
        parts = queue.add(entry, 1, 1, len(payload) + self._overhead)
        self._sent_length = entry.end_length = self._codec.encode_run(
            parts, (payload,), entry.first_id, self.lac_sent, self._sent_length
        )

    def _send_batch(self, batch: PendingBatch) -> None:
        replication = self.replication
        payloads, batch.payloads = batch.payloads, SENT
        count = len(payloads)
        batch.last_id = batch.first_id + count - 1
        size = sum(map(len, payloads)) + self._overhead * count
        if count == 1 or size <= replication.batch_bytes_max:
            self._acks.sent(batch)
            parts = replication.queues[0].add(batch, count, 1, size)
            self._sent_length = batch.end_length = self._codec.encode_run(
                parts, payloads, batch.first_id, self.lac_sent, self._sent_length
            )
            return
        self._measure(batch, payloads)
        self._send_chunks(self._cut(0, payloads, batch.first_id, 1, batch.lengths))

    def _send_striped(self, batch: PendingBatch) -> None:
        payloads, batch.payloads = batch.payloads, SENT
        batch.last_id = batch.first_id + len(payloads) - 1
        self._measure(batch, payloads)
        size = len(self.replication.queues)
        cut: list[Chunk] = []
        for k in range(min(size, len(payloads))):
            first = batch.first_id + k
            cut += self._cut(first % size, payloads[k::size], first, size, batch.lengths[k::size])
        # Last add confirmed is what lies below the first batch that isn't done: so they leave in order of first ids.
        self._send_chunks(sorted(cut, key=lambda chunk: chunk.first_id))

    def _measure(self, batch: PendingBatch, payloads: Sequence[bytes]) -> None:
        batch.lengths = self._codec.lengths(payloads, self._sent_length)
        self._sent_length = batch.end_length = batch.lengths[-1]

    def _cut(
        self, queue: int, payloads: Sequence[bytes], first: int, stride: int, lengths: Sequence[int]
    ) -> list[Chunk]:
        return chunks(queue, payloads, first, stride, lengths, self._overhead, self.replication.batch_bytes_max)

    def _send_chunks(self, cut: list[Chunk]) -> None:
        replication, stamp = self.replication, self._codec.stamp()
        for chunk in cut:
            count = len(chunk.payloads)
            last_id = chunk.first_id + (count - 1) * chunk.stride
            batch = BareBatch(self._ledger_id, chunk.first_id, last_id, replication)
            self._acks.sent(batch)
            parts = replication.queues[chunk.queue].add(batch, count, chunk.stride, chunk.size)
            self._codec.encode(parts, chunk.payloads, chunk.first_id, chunk.stride, self.lac_sent, chunk.lengths, stamp)

    def on_confirmed(self, confirmed: int, count: int) -> None:
        """Resolve futures in id order and make room."""
        if self._held:
            return
        length, base = self.length, self.base
        if not self._deferred:
            self.lac = confirmed
        batches = self._batches
        while batches and (batch := batches[0]).first_id <= confirmed:
            if isinstance(batch, PendingEntry):
                batches.popleft()
                self.length = batch.end_length
                if not batch.future.done():
                    batch.future.set_result(base + batch.first_id)
            else:
                whole = batch.confirm(confirmed, base)
                self.length = batch.length_at(confirmed)
                if not whole:
                    break
                batches.popleft()
        self.window_bytes -= self.length - length
        self.window_entries -= count
        if self.slow_path or confirmed >= self.due_entry or self.length >= self.due_length:
            self._on_room()
        if self._flushing:
            self._wake_flushing(confirmed)

    def release(self) -> None:
        """What is confirmed is told from now on, and what was confirmed so far is told now."""
        self._held = False
        if self.replication.error is None and (confirmed := self.replication.confirmed) >= 0:
            self.on_confirmed(confirmed, confirmed + 1)
            self._dispatcher.watch(self.replication)  # the bookies are to hear of it, though nothing may follow

    def _wake_flushing(self, confirmed: int) -> None:
        for target, flushed in self._flushing:
            if target <= confirmed and not flushed.done():
                flushed.set_result(None)
        self._flushing = [(target, flushed) for target, flushed in self._flushing if target > confirmed]

    def on_failed(self, error: BookKeeperError) -> None:
        if self._as_error is not None:
            self.replication.error = error = self._as_error(error)
        batches, self._batches = self._batches, AT_REST
        sent = len(batches) - self._unsent
        self._unsent, self.open_batch = 0, None
        for index, batch in enumerate(batches):
            # Whatever the error says, and whoever it came from: another bookie may have what was sent.
            self._fail_batch(batch, outcome_unknown=index < sent)
        self._on_failed(error)
        flushing, self._flushing = self._flushing, []
        for target, flushed in flushing:
            if not flushed.done():
                flushed.set_exception(self.replication.failure(target, outcome_unknown=sent > 0))

    def _fail_batch(self, batch: PendingEntry | PendingBatch, *, outcome_unknown: bool) -> None:
        failure = self.replication.failure
        entry_id = batch.first_id
        for pending in (batch.future,) if isinstance(batch, PendingEntry) else batch.futures:
            if not pending.done():
                pending.set_exception(failure(entry_id, outcome_unknown=outcome_unknown))
                pending.exception()  # retrieved: whoever used append_nowait may look later, or never
            entry_id += 1
        if isinstance(batch, PendingBatch) and batch.whole is not None and not batch.whole.done():
            batch.whole.set_exception(failure(batch.first_id, outcome_unknown=outcome_unknown))

    def let_go(self) -> None:
        """The owner has ended, and is told of nothing more. Else the two would be garbage for the cycle collector."""
        self._on_room, self._on_failed, self._may_add, self._as_error = _nothing, _nothing, bool, None

    def on_rest(self) -> None:
        if self._settings.explicit_lac_interval_s > 0:
            self.publish_lac()
        if not self._batches:
            self._batches = AT_REST

    # --- last add confirmed -----------------------------------------------------------------------------------------

    @property
    def lac_length(self) -> int:
        """The ledger's length up to `lac`."""
        return self._forced_length if self._deferred else self.length

    def forced(self, lac: int, length: int) -> None:
        """Where syncs are deferred: everything up to `lac` is durable."""
        if lac > self.lac:
            self.lac, self._forced_length = lac, length
            self._dispatcher.watch(self.replication)

    def publish_lac(self) -> None:
        """Tell the bookies how far the ledger may be read, if there is something to tell."""
        if self.replication.state.takes_entries and self.lac > self.lac_sent:
            self.lac_sent = self.lac
            self._publisher.publish(self, self.replication.ensemble)

    async def publish_to(self, bookie_id: str) -> None:
        """Tell one bookie what is confirmed; one that can't be told will hear of it from the next entry."""
        if not self.replication.state.takes_entries:
            return
        record = self._codec.explicit_lac(self.lac, self.lac_length)
        try:
            reply = await self._pool.channel(bookie_id).call_as_owner(
                Op.WRITE_LAC,
                m.pack([self._ledger_id]),
                (record,),
                ledger_id=self._ledger_id,
                timeout_s=self._settings.add_timeout_s,
                again=False,
            )
            status = m.reply_status(reply.head)
        except BookKeeperError as e:
            # It is a hint: readers ask several bookies, and the next entry carries it too.
            log.debug("ledger %d: last add confirmed not published to %s: %s", self._ledger_id, bookie_id, e)
            return
        if status in m.ENDS_WRITER:
            self.replication.failed(m.end_of_writer(status, ledger_id=self._ledger_id, bookie=bookie_id))


def _nothing(*_: object) -> None:
    """What is told to an owner that has ended."""
