"""Copies one bookie's share of a fragment to another bookie, and makes sure that it is all there.

    other bookies --ranged reads, verified--> batches --ADD past the fence, a window of them--> the new one

A bookie answers an ADD when it is synced. One that runs without a journal does so earlier, and may forget what it
answered when it stops: then its connection ends, and the copy has failed.

Invariants: every id of the share, and no other, was acknowledged by the new bookie, on one connection that is still
there, when `run` returns `Copied`; not more than `copy_window_bytes` of it are unanswered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bkpy.client.write.add_request import encode_add
from bkpy.errors import (
    BookieUnavailableError,
    BookKeeperError,
    CorruptDataError,
    DigestMismatchError,
    NoSuchEntryError,
)
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Flags, Status
from bkpy.replication.worker.share_reader import ShareReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.client.bookies.channel import BookieChannel
    from bkpy.client.write.add_request import SentBatch
    from bkpy.config.recovery import RecoverySettings
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.rereplication import Copy
    from bkpy.replication.context import ReplicationContext
    from bkpy.replication.worker.pacing import CopyRate


@dataclass(slots=True)
class CopyCount:
    """What was copied: each entry was verified on the way, and acknowledged by the bookie that it was copied to.

    `bytes` are those of records. Entries of copies that came to nothing are among them.
    """

    entries: int = 0
    bytes: int = 0
    fragments: int = 0  # shares that were swapped in, or copied in place


class Copied(NamedTuple):
    """All of it is on the new bookie."""

    entries: int


class Unreadable(NamedTuple):
    """An entry is on no bookie that was asked: they all deny it, can't tell, or have it damaged."""

    entry_id: int
    why: str


class Failed(NamedTuple):
    """A bookie or the metadata store failed. Another time it may be done, if `may_pass` without anybody's doing."""

    why: str
    may_pass: bool = True


class FragmentCopy:
    """One copy, from `metadata` as they were read under the ledger's lock, to the bookie `target`."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        copy: Copy,
        target: str,
        *,
        context: ReplicationContext,
        settings: RecoverySettings,
        rate: CopyRate,
        count: CopyCount,
        given: bool = False,
    ) -> None:
        """`given`: the metadata are not those of the store, and name other bookies to read from."""
        self._metadata = metadata
        self._given = given
        self._ledger_id = metadata.ledger_id
        self._copy = copy
        self._target = target
        self._context = context
        self._parts = context.parts
        self._settings = settings
        self._rate = rate
        self._count = count
        self._unanswered: deque[_CopyAdd] = deque()
        self._unanswered_bytes = 0

    async def run(self) -> Copied | Unreadable | Failed:
        """Copy all of it, unless it turns out to be impossible."""
        pool = self._parts.pool
        pool.add_key(self._ledger_id, self._metadata.ledger_key)
        try:
            return Copied(await self._run(pool.channel(self._target)))
        except (NoSuchEntryError, DigestMismatchError, CorruptDataError) as error:
            if error.bookie == self._target:  # that is the bookie's answer to an ADD
                return self._failed(error)
            return Unreadable(self._copy.first if error.entry_id is None else error.entry_id, str(error))
        except BookKeeperError as error:
            return self._failed(error)
        finally:
            pool.forget_key(self._ledger_id)

    def _failed(self, error: BookKeeperError) -> Failed:
        if error.bookie == self._target:
            self._parts.ensembles.failed(self._target)  # another one is taken next time
        return Failed(str(error), error.retriable)

    async def _run(self, channel: BookieChannel) -> int:
        await channel.connect(again=True)
        generation = channel.generation
        reader = ShareReader(
            self._metadata,
            self._copy,
            self._context.bookies().readable,
            catalog=self._context.cluster.catalog,
            parts=self._parts,
            given=self._given,
        )
        copied = 0
        async with aclosing(reader.batches()) as shares:
            async for batches in shares:
                for some in self._frames(channel, batches):
                    copied += sum(batch.entries for batch in some)
                    await self._send(channel, some)
        while self._unanswered:
            await self._take_oldest()
        if not channel.up or channel.generation != generation:
            raise BookieUnavailableError("the connection was lost while it was copied to", bookie=self._target)
        if copied != self._copy.share.entries:
            raise AssertionError(f"ledger {self._ledger_id}: {copied} entries were copied of {self._copy}")
        return copied

    def _frames(self, channel: BookieChannel, batches: list[SentBatch]) -> list[list[SentBatch]]:
        """Cut and put together in frames that the bookie takes."""
        bytes_max = min(self._parts.settings.batch_bytes_max, m.batches_bytes_max(channel.frame_bytes_max))
        frames: list[list[SentBatch]] = [[]]
        size = 0
        for batch in batches:
            for piece in batch.cut(bytes_max):
                if frames[-1] and size + len(piece.records) > bytes_max:
                    frames.append([])
                    size = 0
                frames[-1].append(piece)
                size += len(piece.records)
        return [some for some in frames if some]

    async def _send(self, channel: BookieChannel, batches: list[SentBatch]) -> None:
        add = _CopyAdd(
            self._ledger_id,
            channel,
            batches,
            correlation_id=self._parts.pool.next_id(),
            now=self._parts.runtime.clock.monotonic,
        )
        while self._unanswered and self._unanswered_bytes + add.body_bytes > self._settings.copy_window_bytes:
            await self._take_oldest()
        await self._rate.spend(add.body_bytes)
        self._unanswered.append(add)
        self._unanswered_bytes += add.body_bytes
        add.send()

    async def _take_oldest(self) -> None:
        add = self._unanswered.popleft()
        self._unanswered_bytes -= add.body_bytes
        error = await add.answered
        if error is not None:
            raise error
        self._rate.answered(self._target, add.body_bytes, add.seconds)
        self._count.entries += add.entries
        self._count.bytes += add.body_bytes


class _CopyAdd:
    """An ADD request of a copy, to one bookie. `answered` is resolved with the error, or None, after `seconds`."""

    def __init__(
        self,
        ledger_id: int,
        channel: BookieChannel,
        batches: list[SentBatch],
        *,
        correlation_id: int,
        now: Callable[[], float],
    ) -> None:
        self.buffers = encode_add(int(Flags.RECOVERY), ledger_id, batches, correlation_id=correlation_id)
        self.correlation_id = correlation_id
        self.body_bytes = sum(len(batch.records) for batch in batches)
        self.ledger_ids = {ledger_id}
        self.entries = sum(batch.entries for batch in batches)
        self.seconds = 0.0
        self._batches = len(batches)
        self._channel = channel
        self._now = now
        self._retried = False
        self._sent_at = 0.0

    def send(self) -> None:
        self.answered: asyncio.Future[BookKeeperError | None] = asyncio.get_running_loop().create_future()
        self._sent_at = self._now()
        self._channel.add(self, 0)

    def replied(self, index: int, head: memoryview) -> None:
        statuses = m.decode_add_reply(head, self._batches)
        refused = [status for status in (statuses if isinstance(statuses, list) else [statuses]) if status != Status.OK]
        if Status.KEY_REQUIRED in refused and not self._retried:
            self._retried = True
            self._channel.add_again(self, index)
            return
        (ledger_id,) = self.ledger_ids
        self._end(m.refusal(refused[0], ledger_id=ledger_id, bookie=self._channel.bookie_id) if refused else None)

    def failed(self, index: int, error: BookKeeperError) -> None:
        self._end(BookieUnavailableError(error.message, bookie=self._channel.bookie_id))

    def _end(self, error: BookKeeperError | None) -> None:
        self.seconds = self._now() - self._sent_at
        if not self.answered.done():
            self.answered.set_result(error)
