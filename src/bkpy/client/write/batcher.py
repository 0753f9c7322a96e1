"""The batcher of one ledger: appends that are not confirmed yet, in batches, with their futures.

Entry ids are assigned when an append is added. What one tick of the event loop adds leaves as one batch per write set
when the dispatcher drains it. Futures are resolved in id order only, when the entry and all before it are on their ack
quorum. Then, and when the replication fails, the batcher delivers an event to its receiver.

The appends to the next ledger of a log are *held* until all of the former ledger are confirmed: no future is resolved,
and last add confirmed stands still, so that no reader sees an entry whose predecessors may still be lost.

Invariants: once the replication has failed, all that is pending fails with it, and nothing is confirmed any more; while
held, no future is resolved and no record says that anything was confirmed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from bkpy.client.write.batch import SENT, Chunk, PendingBatch, PendingEntry, chunks
from bkpy.client.write.explicit_lac import ExplicitLac
from bkpy.client.write.replication import Replication
from bkpy.protocol.ledger.acks import AT_REST, BareBatch
from bkpy.protocol.ledger.writer_state import Event, WriterState
from bkpy.protocol.wire.messages import Flags

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from bkpy.client.write.explicit_lac import Publisher
    from bkpy.client.write.interfaces import AppendReceiver, FragmentStore, ReplicationParts
    from bkpy.errors import BookKeeperError
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.wire.records import RecordCodec

# `WriterState.held` costs a call, and is asked for each batch.
_HELD: Final = WriterState.HELD
_HELD_CHANGING: Final = WriterState.HELD_CHANGING


class AppendBatcher:
    """The source of a writer's replication.

    `next_id` and `added_bytes` count what was added, `confirmed_entries` and `length` what of it is confirmed. `base`:
    the position of the first entry in a log, so that futures are resolved to positions; 0 for other ledgers. `position`
    makes of each what proves itself; None leaves it an integer.
    """

    # Not for the memory: an object with more than thirty attributes has a dict that is slow to look into.
    __slots__ = (
        "_acks",
        "_append_bytes",
        "_batches",
        "_codec",
        "_deferred",
        "_dispatcher",
        "_flushing",
        "_ledger_id",
        "_new_future",
        "_overhead",
        "_receiver",
        "_send_bytes",
        "_sent_length",
        "_unsent",
        "added_bytes",
        "base",
        "confirmed_entries",
        "guard",
        "lac",
        "length",
        "next_id",
        "on_first_unforced",
        "open_batch",
        "position",
        "replication",
    )

    def __init__(
        self,
        metadata: LedgerMetadata,
        *,
        codec: RecordCodec,
        store: FragmentStore,
        publisher: Publisher,
        parts: ReplicationParts,
        receiver: AppendReceiver,
        held: bool = False,
        absent: Collection[str] = (),
    ) -> None:
        settings = parts.settings
        self.replication = Replication(
            metadata,
            source=self,
            store=store,
            parts=parts,
            flags=int(Flags.DEFERRED_SYNC) if metadata.deferred_sync else 0,
            # What a bookie that has gone had not synced yet can't be sent to its successor: it is not kept here.
            may_change=not metadata.deferred_sync,
            state=WriterState.HELD if held else WriterState.OPEN,
            absent=absent,
        )
        self.lac = ExplicitLac(self.replication, codec, publisher, parts)
        self._acks = self.replication.acks
        self._ledger_id = metadata.ledger_id
        self._codec = codec
        self._dispatcher = parts.dispatcher
        self.guard = parts.dispatcher.guard
        self._receiver = receiver
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
        self.on_first_unforced: Callable[[], None] | None = None  # before it is sent, of a ledger with deferred sync
        self.base = 0
        self.position: Callable[[int], int] | None = None
        self.next_id = 0
        self.added_bytes = 0
        self.confirmed_entries = 0
        self.length = 0  # payload bytes of the confirmed entries

    # --- adding -----------------------------------------------------------------------------------------------------

    def number_from(self, sequence: int) -> None:
        """The ledger's entry 0 has this number, of a log's producer. Called before an entry is added."""
        self._codec.first_sequence = sequence

    @property
    def first_sequence(self) -> int:
        return self._codec.first_sequence

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
        self.added_bytes += size
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
        self.added_bytes += size
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
        if target >= self.confirmed_entries:
            flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flushing.append((target, flushed))
            await flushed

    # --- the source of the replication ------------------------------------------------------------------------------

    @property
    def has_unsent(self) -> bool:
        return self._unsent > 0

    @property
    def has_pending(self) -> bool:
        if self.replication.state.held:
            return self.next_id > self.replication.confirmed + 1
        return bool(self._batches)

    @property
    def idle(self) -> bool:
        return not self._batches and self.replication.state.close_was_called and not self._receiver.may_add

    def drain(self) -> None:
        replication = self.replication
        if self._acks.frozen:
            return  # until it is known who the bookies are
        batches, unsent = self._batches, self._unsent
        if not unsent:
            return
        self.open_batch, self._unsent = None, 0
        self.lac.sent = self.lac.entry
        if self.on_first_unforced is not None and self._acks.last_sent == self.lac.entry:
            self.on_first_unforced()
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
            parts, (payload,), entry.first_id, self.lac.sent, self._sent_length
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
                parts, payloads, batch.first_id, self.lac.sent, self._sent_length
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
            self._codec.encode(parts, chunk.payloads, chunk.first_id, chunk.stride, self.lac.sent, chunk.lengths, stamp)

    def on_confirmed(self, confirmed: int, count: int) -> None:
        """Resolve futures in id order, and deliver the event."""
        state = self.replication.state
        if state is _HELD or state is _HELD_CHANGING:
            return
        base, position = self.base, self.position
        batches = self._batches
        while batches and (batch := batches[0]).first_id <= confirmed:
            if isinstance(batch, PendingEntry):
                batches.popleft()
                self.length = batch.end_length
                if not batch.future.done():
                    acknowledged = base + batch.first_id
                    batch.future.set_result(acknowledged if position is None else position(acknowledged))
            else:
                whole = batch.confirm(confirmed, base, position)
                self.length = batch.length_at(confirmed)
                if not whole:
                    break
                batches.popleft()
        self.confirmed_entries = confirmed + 1
        if not self._deferred:
            self.lac.entry, self.lac.length = confirmed, self.length
        self._receiver.on_confirmed()
        if self._flushing:
            self._wake_flushing(confirmed)

    def release(self) -> None:
        """Confirm what is held, and what follows from now on. Nothing is held once the replication has failed."""
        if not self.replication.state.held:
            return
        self.replication.move(Event.RELEASE)
        if (confirmed := self.replication.confirmed) >= 0:
            self.on_confirmed(confirmed, confirmed + 1)
            self._dispatcher.watch(self.replication)  # bookies learn of it, though no append may follow

    def _wake_flushing(self, confirmed: int) -> None:
        for target, flushed in self._flushing:
            if target <= confirmed and not flushed.done():
                flushed.set_result(None)
        self._flushing = [(target, flushed) for target, flushed in self._flushing if target > confirmed]

    def on_failed(self, error: BookKeeperError) -> None:
        """Fail all that is pending, and deliver the event."""
        self.replication.error = error = self._receiver.as_error(error)
        batches, self._batches = self._batches, AT_REST
        sent = len(batches) - self._unsent
        self._unsent, self.open_batch = 0, None
        for index, batch in enumerate(batches):
            # Whatever the error says, and whichever bookie it came from: another one may have what was sent.
            self._fail_batch(batch, outcome_unknown=index < sent)
        self._receiver.on_failed(error)
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
                pending.exception()  # retrieved: callers of append_nowait may look later, or never
            entry_id += 1
        if isinstance(batch, PendingBatch) and batch.whole is not None and not batch.whole.done():
            batch.whole.set_exception(failure(batch.first_id, outcome_unknown=outcome_unknown))
            batch.whole.exception()  # retrieved: its call may have been cancelled

    def on_rest(self) -> None:
        self.lac.on_rest()
        if not self._batches:
            self._batches = AT_REST
