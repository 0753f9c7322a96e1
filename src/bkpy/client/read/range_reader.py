"""Fetches ranges of a ledger's entries, verified and in order, from one replica where one is enough.

A scan is cut into ranges of about `read_bytes`, of which `prefetch_depth` are in flight. A range is asked of one
bookie; what that one doesn't have, can't tell, has damaged or doesn't tell in time is asked of the next one of the
write set.

Invariants: nothing whose digests don't match is returned; `NoSuchEntryError` needs an explicit negative from every
bookie of the entry's write set, and metadata that was read after some of them had failed to return it.
"""

from __future__ import annotations

import asyncio
from array import array
from itertools import pairwise
from typing import TYPE_CHECKING

from bkpy.client.iteration import ResumableIterator, alone, raised_where_awaited
from bkpy.client.read.block import Block
from bkpy.client.read.hedged_read import HedgedRead, Outcome
from bkpy.client.read.missing_entry import Miss, MissKind, missing_entry_error
from bkpy.client.read.range_pipeline import RangePipeline, RangeScan
from bkpy.errors import BookKeeperError, CorruptDataError, DigestMismatchError
from bkpy.protocol.ledger.ledger_metadata import ENTRY_ID_MAX, Fragment
from bkpy.protocol.ledger.quorum import covered, stripe_bookies, write_set
from bkpy.protocol.wire import frame as wire
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status
from bkpy.protocol.wire.records import RecordCodec, walk

if TYPE_CHECKING:
    from bkpy.client.bookies.pool import BookiePool
    from bkpy.client.read.snapshot import LedgerSnapshot
    from bkpy.config.client import ClientSettings
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.runtime.interfaces import Runtime


class RangeReader:
    """Fetches entries of one ledger. It knows no last add confirmed: callers bound their requests."""

    def __init__(
        self,
        snapshot: LedgerSnapshot,
        *,
        codec: RecordCodec,
        catalog: LedgerCatalog,
        pool: BookiePool,
        settings: ClientSettings,
        runtime: Runtime,
    ) -> None:
        self._snapshot = snapshot
        self._codec = codec
        self._catalog = catalog
        self._pool = pool
        self._settings = settings
        self._runtime = runtime
        self._scanned = 0  # entries
        self._rotation = runtime.rng.randrange(1 << 16)  # spreads the reads of many readers over the bookies
        self._ranges = RangePipeline(
            self._range,
            name=f"read of ledger {snapshot.ledger_id}",
            at_once=settings.prefetch_depth,
            rest_ahead=True,
            first_entries=settings.read_entries_first,
            range_entries_max=settings.read_entries_max,
            range_bytes=settings.read_bytes,
            runtime=runtime,
        )

    # --- ranges -----------------------------------------------------------------------------------------------------

    def blocks(self, first: int, last: int) -> ResumableIterator[Block]:
        """Entries first..last in order. Raises the `missing_entry_error` of the first entry that can't be read."""
        return ResumableIterator(self.source(first, last), alone)

    def source(self, first: int, last: int) -> RangeScan[Block]:
        """The same for an iterator over the entries of the blocks."""
        snapshot, ranges = self._snapshot, self._ranges
        if not ranges.record_bytes and snapshot.closed and snapshot.confirmed >= 0:
            average = snapshot.length / (snapshot.confirmed + 1)
            ranges.record_bytes = average + self._codec.overhead_bytes
        return ranges.source(first, last)

    async def _range(self, first: int, last: int) -> tuple[Block, int]:
        """The entries of first..last in one reply, at least `first`, and the id of the last of them."""
        metadata = self._snapshot.metadata
        if metadata.ensemble_size == metadata.write_quorum:
            block = await self._fail_over(first, last)
        else:
            block = await self._striped(first, last)
        self._ranges.record_bytes = len(block.buffer) / len(block)
        return block, block.last_entry

    def _fragment(self, entry_id: int) -> tuple[Fragment, int]:
        """The fragment that holds the entry, and its last entry."""
        fragments = self._snapshot.metadata.fragments
        for fragment, following in pairwise(fragments):
            if entry_id < following.first_entry:
                return fragment, following.first_entry - 1
        return fragments[-1], ENTRY_ID_MAX

    def _head(self, first: int, last: int) -> bytes:
        return m.pack([0, self._snapshot.ledger_id, first, last, self._settings.read_bytes])

    def _reply(self, frame: wire.Frame, bookie_id: str) -> m.ReadReply:
        status = m.reply_status(frame.head)
        if status != Status.OK:
            message = m.decode_error(frame.head).message
            raise m.error_of(status, message, ledger_id=self._snapshot.ledger_id, bookie=bookie_id)
        return m.decode_read_reply(frame.head)

    # --- from one replica -------------------------------------------------------------------------------------------

    async def _fail_over(self, first: int, last: int) -> Block:
        """The longest verified run from `first` that a willing replica of its write set returns; at least one entry.

        Replicas that can't be reached are asked again and again for `read_timeout_s`, and nothing is given up before
        the metadata was read again: re-replication may have put the entry elsewhere.
        """
        now = self._runtime.clock.monotonic
        deadline = now() + self._settings.read_timeout_s
        refresh: asyncio.Task[BookKeeperError | None] | None = None
        order = members = self._order(first)
        answers: dict[str, Miss] = {}
        try:
            while True:
                outcome = await self._read_hedged(order, first, last)
                if outcome.good is not None:
                    return outcome.good
                answers |= outcome.answers
                unreached = [i for i in members if answers[i].kind is MissKind.UNAVAILABLE]
                final = not unreached or now() >= deadline
                failure = None
                if not unreached:
                    failure = await self._refresh()
                else:
                    if refresh is None:  # beside the next rounds, which must not wait for an absent store
                        refresh = self._runtime.spawn(
                            self._refresh(),
                            name=f"metadata of ledger {self._snapshot.ledger_id}",
                            on_death=raised_where_awaited,
                        )
                    if final:
                        failure = await refresh
                if set(self._order(first)) != set(members):
                    order = members = self._order(first)
                    answers = {}
                    continue
                if final:
                    loss_accepted = self._snapshot.metadata.is_accepted_loss(first)
                    raise missing_entry_error(
                        self._snapshot.ledger_id, first, answers, failure, loss_accepted=loss_accepted
                    )
                await asyncio.sleep(self._settings.read_retry_pause_s)
                order = unreached
        finally:
            if refresh is not None:
                refresh.cancel()

    async def _refresh(self) -> BookKeeperError | None:
        """Read the metadata again; the error if that failed."""
        try:
            await self._snapshot.refresh(self._catalog, fresh=True)
        except BookKeeperError as e:
            return e
        return None

    def _order(self, entry_id: int) -> list[str]:
        """The bookies of the entry's write set, slow ones last."""
        metadata = self._snapshot.metadata
        bookies = self._fragment(entry_id)[0].bookies
        members = sorted(write_set(entry_id, metadata.ensemble_size, metadata.write_quorum))
        # Only the count of reads rotates the order, so that all bookies get their share.
        self._rotation += 1
        start = self._rotation % len(members)
        order = [bookies[i] for i in members[start:] + members[:start]]
        order.sort(key=self._slow)
        return order

    def _slow(self, bookie_id: str) -> bool:
        return self._pool.channel(bookie_id).slow_until > self._runtime.clock.monotonic()

    async def _read_hedged(self, order: list[str], first: int, last: int) -> Outcome[Block]:
        last = min(last, self._fragment(first)[1])

        def judge(frame: wire.Frame, bookie_id: str) -> Block | MissKind:
            return self._scan(self._reply(frame, bookie_id), frame.body, first, last)

        timeout_s = self._settings.replica_timeout_s(self._snapshot.metadata.write_quorum)
        head = self._head(first, last)
        read = HedgedRead(self._pool, self._runtime, order=order, head=head, judge=judge, timeout_s=timeout_s)
        return await read.run()

    def _scan(self, reply: m.ReadReply, view: memoryview, first: int, last: int) -> Block | MissKind:
        starts, ends = array("q"), array("q")
        by_blocks = self._scanned >= self._settings.scan_by_blocks_after
        following = self._codec.scan(view, first, last, starts, ends, by_blocks=by_blocks)
        self._scanned += following - first
        if following > first:
            return Block(self._snapshot.ledger_id, first, view[: self._codec.record_end(ends[-1])], starts, ends)
        if any(low <= first <= high for low, high in reply.unknown) or reply.examined_to < first:
            return MissKind.UNKNOWN
        # A damaged record may be that of any entry: only an intact reply denies entries that are not in it.
        return MissKind.NEGATIVE if self._intact(view) else MissKind.DAMAGED

    def _intact(self, view: memoryview) -> bool:
        try:
            for header in walk(view):
                self._codec.check(view, header.offset, header.end)
        except (CorruptDataError, DigestMismatchError):
            return False
        return True

    # --- from several, of a striped ledger --------------------------------------------------------------------------

    async def _striped(self, first: int, last: int) -> Block:
        """Entries first..last of a striped ledger, from as many bookies as it takes, in order."""
        fragment, fragment_last = self._fragment(first)
        records = await self._stripes(fragment.bookies, first, min(last, fragment_last))
        parts = []
        entry_id = first
        while entry_id in records:
            parts.append(records[entry_id])
            entry_id += 1
        if not parts:  # none of them had it: ask the entry's own write set, one by one
            return await self._fail_over(first, first)
        starts, ends = array("q"), array("q")
        self._codec.locate(parts, starts, ends)
        return Block(self._snapshot.ledger_id, first, memoryview(b"".join(parts)), starts, ends)

    async def _stripes(self, bookies: tuple[str, ...], first: int, last: int) -> dict[int, memoryview]:
        """Verified records of first..last from a bookie of every write set; fewer if bookies fail or are late."""
        records: dict[int, memoryview] = {}
        metadata, latency = self._snapshot.metadata, self._pool.latency
        size, quorum = metadata.ensemble_size, metadata.write_quorum
        chosen = self._every_quorum(bookies)
        others = [i for i in range(size) if i not in chosen]
        waiting = {self._stripe(bookies[i], first, last): i for i in chosen}
        answered: set[int] = set()
        try:
            late = False
            while not covered(answered, size, quorum, quorum):
                if others and (late or not waiting):
                    latency.speculative += len(others) if waiting else 0
                    waiting |= {self._stripe(bookies[i], first, last): i for i in others}
                    others = []
                if not waiting:
                    break
                patience_s = latency.late_s if others else None
                done, _ = await asyncio.wait(waiting, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                late = not done
                for stripe in [stripe for stripe in waiting if stripe in done]:
                    index = waiting.pop(stripe)
                    if (found := stripe.result()) is not None:
                        answered.add(index)
                        records |= found
            for index in waiting.values():
                if latency.superseded(bookies[index]):
                    self._pool.channel(bookies[index]).mark_slow()
            return records
        finally:
            for stripe in waiting:
                stripe.cancel()

    def _every_quorum(self, bookies: tuple[str, ...]) -> list[int]:
        """Indexes of bookies that together hold every entry, without slow ones if possible."""
        size, quorum = self._snapshot.metadata.ensemble_size, self._snapshot.metadata.write_quorum
        self._rotation += 1
        choices = [stripe_bookies(self._rotation + k, size, quorum) for k in range(size)]
        return min(choices, key=lambda chosen: sum(self._slow(bookies[i]) for i in chosen))

    def _stripe(self, bookie_id: str, first: int, last: int) -> asyncio.Task[dict[int, memoryview] | None]:
        return self._runtime.spawn(
            self._read_stripe(bookie_id, first, last),
            name=f"read of ledger {self._snapshot.ledger_id} at {bookie_id}, entries {first} to {last}",
            on_death=raised_where_awaited,
        )

    async def _read_stripe(self, bookie_id: str, first: int, last: int) -> dict[int, memoryview] | None:
        """The intact records of first..last that one bookie returns; None if it fails."""
        channel = self._pool.channel(bookie_id)
        timeout_s = self._settings.replica_timeout_s(self._snapshot.metadata.write_quorum)
        found: dict[int, memoryview] = {}
        began = self._runtime.clock.monotonic()
        try:
            frame = await channel.call(Op.READ, self._head(first, last), timeout_s=timeout_s)
            self._reply(frame, bookie_id)
            self._pool.latency.answered(bookie_id, self._runtime.clock.monotonic() - began)
            for header in walk(frame.body):
                self._codec.check(frame.body, header.offset, header.end)
                if first <= header.entry_id <= last:
                    found[header.entry_id] = frame.body[header.offset : header.end]
        except (CorruptDataError, DigestMismatchError):
            return found or None  # other replicas are asked for the rest
        except BookKeeperError:
            return None
        return found
