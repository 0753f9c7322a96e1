"""Puts the entries that a recovery found on the ack quorums of their write sets again.

Invariants: entries are added in id order without a gap; `last_entry` counts only what is on its ack quorum; a changed
ensemble exists in memory alone until the recovery closes the ledger.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from bkpy.client.write.replication import Replicator
from bkpy.errors import BookKeeperError, ClientClosedError, LedgerRecoveryError
from bkpy.protocol.acks import Batch
from bkpy.protocol.messages import Flags

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bkpy.client.write.write_set_queue import WriteSetQueue
    from bkpy.protocol.ledger_metadata import LedgerMetadata


class Run(NamedTuple):
    """One verified entry: its record as it is stored, and the ledger's length up to and including it."""

    entry_id: int
    record: memoryview
    length: int


class WriteBack(Replicator):
    """Made behind `confirmed`, the highest entry that is known to be acknowledged."""

    __slots__ = ("_moved", "_next_id", "_pending_bytes", "_run", "_run_bytes", "_unsent", "length")

    def __init__(self, metadata: LedgerMetadata, *, confirmed: int, **parts: Any) -> None:
        super().__init__(metadata, confirmed=confirmed, flags=int(Flags.RECOVERY), **parts)
        self.length: int | None = None  # up to the last entry that was added; None if none was
        self._next_id = confirmed + 1
        self._run: list[Run] = []
        self._run_bytes = 0
        self._unsent: list[list[Run]] = []
        self._pending_bytes: deque[tuple[int, int]] = deque()  # (last id, bytes) of what was handed over
        self._moved = asyncio.Event()

    @property
    def metadata(self) -> LedgerMetadata:
        """With the ensembles that were changed since."""
        return self._metadata

    @property
    def last_entry(self) -> int:
        return self._confirmed

    async def add(self, run: Run) -> None:
        """The next entry. Waits while too many bytes are unacknowledged. Raises `LedgerRecoveryError`."""
        assert run.entry_id == self._next_id, f"entry {run.entry_id} where {self._next_id} is next"
        if self._run_bytes + len(run.record) > self._batch_bytes_max:
            self._hand_over()
            while sum(size for _, size in self._pending_bytes) > self._settings.write_window_bytes:
                await self._progress()
        self._next_id += 1
        self.length = run.length
        self._run.append(run)
        self._run_bytes += len(run.record)

    async def finish(self) -> None:
        """Return when all that was added is on its ack quorum. Raises `LedgerRecoveryError`."""
        self._hand_over()
        while self._confirmed < self._next_id - 1:
            await self._progress()
        await self._mended()
        self._check()

    async def _progress(self) -> None:
        self._check()
        self._moved.clear()
        await self._moved.wait()
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise LedgerRecoveryError(
                f"entries could not be written back: {self._error.message}",
                ledger_id=self._ledger_id,
                entry_id=self._error.entry_id,
                bookie=self._error.bookie,
            ) from self._error

    def _hand_over(self) -> None:
        if not self._run:
            return
        run, self._run = self._run, []
        self._pending_bytes.append((run[-1].entry_id, self._run_bytes))
        self._run_bytes = 0
        self._unsent.append(run)
        self._dispatcher.schedule(self)

    # --- what the replicator asks for -------------------------------------------------------------------------------

    def drain(self) -> None:
        if self._acks.frozen:
            return
        unsent, self._unsent = self._unsent, []
        queues = self._queues
        for run in unsent:
            first = run[0].entry_id
            stride = len(queues)
            for k in range(min(stride, len(run))):
                part = run[k::stride]
                batch = Batch(self._ledger_id, part[0].entry_id, part[-1].entry_id, self)
                self._acks.sent(batch)
                size = sum(len(one.record) for one in part)
                parts = queues[(first + k) % stride].add(batch, len(part), stride, size)
                parts += [one.record for one in part]

    def _confirm(self, confirmed: int) -> None:
        self._confirmed = confirmed
        while self._pending_bytes and self._pending_bytes[0][0] <= confirmed:
            self._pending_bytes.popleft()
        if self._reopened:
            self._forget_reopened(confirmed)
        self._moved.set()

    def failed(self, error: BookKeeperError) -> None:
        if self._error is None:
            self._error = error
            self._reopened.clear()
            self._moved.set()

    async def _store(self, ensemble: Sequence[str], replaced: Collection[str]) -> bool:
        self._metadata = self._metadata.new_fragment(self._confirmed + 1, tuple(ensemble))
        return True

    def _resume(self) -> None:
        if self._unsent and self._error is None:
            self._dispatcher.schedule(self)

    def _idle(self) -> bool:
        return not self._pending() and not self._run

    def _pending(self) -> bool:
        return bool(self._pending_bytes)

    def _new_queue(self, bookie_ids: Sequence[str]) -> WriteSetQueue:
        # Of its own: two recoveries of one ledger may send batches that begin alike and are not the same.
        return self._dispatcher.queue(bookie_ids, self._metadata.ack_quorum, self._flags, shared=False)

    def publish_lac(self) -> None:
        """Recovered entries are behind last add confirmed only once the ledger is closed: there is nothing to say."""

    def abandon(self) -> None:
        self.failed(ClientClosedError("the recovery has ended"))
        self._dispatcher.forget(self)
        if self._mending is not None:
            self._mending.cancel()
