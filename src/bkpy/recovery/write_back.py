"""Writes the entries that a recovery found to the ack quorums of their write sets again.

Invariants: entries are added in id order without a gap; `last_entry` counts only entries on their ack quorums; a
changed ensemble exists only in memory until the recovery closes the ledger.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from bkpy.client.write.replication import Replication
from bkpy.errors import BookKeeperError, ClientClosedError, LedgerRecoveryError
from bkpy.protocol.ledger.acks import BareBatch
from bkpy.protocol.wire.messages import Flags

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from bkpy.client.write.interfaces import OpenFragment, ReplicationParts
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata


class RecoveredEntry(NamedTuple):
    """One verified entry: its record as it is stored, and the ledger's length up to and including it."""

    entry_id: int
    record: memoryview
    length: int


class WriteBack:
    """Writes entries behind `confirmed`, the highest entry that is known to be acknowledged.

    It is the source of a replication, and the store of its fragments.
    """

    __slots__ = (
        "_dispatcher",
        "_moved",
        "_next_id",
        "_pending_bytes",
        "_replication",
        "_run",
        "_run_bytes",
        "_unsent",
        "_window_bytes",
        "length",
    )

    def __init__(self, metadata: LedgerMetadata, *, confirmed: int, parts: ReplicationParts) -> None:
        self._replication = Replication(
            metadata,
            source=self,
            store=self,
            parts=parts,
            confirmed=confirmed,
            flags=int(Flags.RECOVERY),
            # Two recoveries of one ledger may send batches that begin alike and are not the same.
            share_queues=False,
        )
        self._dispatcher = parts.dispatcher
        self._window_bytes = parts.settings.write_window_bytes
        self.length: int | None = None  # up to the last entry added; None if none was
        self._next_id = confirmed + 1
        self._run: list[RecoveredEntry] = []
        self._run_bytes = 0
        self._unsent: list[list[RecoveredEntry]] = []
        self._pending_bytes: deque[tuple[int, int]] = deque()  # (last id, bytes) of each run handed over
        self._moved = asyncio.Event()

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata, with the ensembles that have changed since."""
        return self._replication.metadata

    @property
    def under_replicated(self) -> dict[str, int]:
        """The bookies that failed to take entries that were written back, each with the first of these."""
        return self._replication.under_replicated

    @property
    def last_entry(self) -> int:
        return self._replication.confirmed

    async def add(self, run: RecoveredEntry) -> None:
        """Add the next entry. Waits while too many bytes are unacknowledged. Raises `LedgerRecoveryError`."""
        if run.entry_id != self._next_id:
            raise AssertionError(f"entry {run.entry_id} was recovered where {self._next_id} is next")
        if self._run_bytes + len(run.record) > self._replication.batch_bytes_max:
            self._hand_over()
            while sum(size for _, size in self._pending_bytes) > self._window_bytes:
                await self._progress()
        self._next_id += 1
        self.length = run.length
        self._run.append(run)
        self._run_bytes += len(run.record)

    async def finish(self) -> None:
        """Return when every added entry is on its ack quorum. Raises `LedgerRecoveryError`."""
        self._hand_over()
        while self._replication.confirmed < self._next_id - 1:
            await self._progress()
        await self._replication.settled()
        self._check()

    async def _progress(self) -> None:
        self._check()
        self._moved.clear()
        await self._moved.wait()
        self._check()

    def _check(self) -> None:
        error = self._replication.error
        if error is not None:
            raise LedgerRecoveryError(
                f"entries could not be written back: {error.message}",
                ledger_id=self._replication.ledger_id,
                entry_id=error.entry_id,
                bookie=error.bookie,
            ) from error

    def _hand_over(self) -> None:
        if not self._run:
            return
        run, self._run = self._run, []
        self._pending_bytes.append((run[-1].entry_id, self._run_bytes))
        self._run_bytes = 0
        self._unsent.append(run)
        self._dispatcher.schedule(self._replication)

    # --- the source of the replication ------------------------------------------------------------------------------

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending_bytes)

    @property
    def idle(self) -> bool:
        return not self._pending_bytes and not self._run

    def drain(self) -> None:
        replication = self._replication
        if replication.acks.frozen:
            return
        unsent, self._unsent = self._unsent, []
        queues = replication.queues
        for run in unsent:
            first = run[0].entry_id
            stride = len(queues)
            for k in range(min(stride, len(run))):
                part = run[k::stride]
                batch = BareBatch(replication.ledger_id, part[0].entry_id, part[-1].entry_id, replication)
                replication.acks.sent(batch)
                size = sum(len(one.record) for one in part)
                parts = queues[(first + k) % stride].add(batch, len(part), stride, size)
                parts += [one.record for one in part]

    def on_confirmed(self, confirmed: int, count: int) -> None:
        while self._pending_bytes and self._pending_bytes[0][0] <= confirmed:
            self._pending_bytes.popleft()
        self._moved.set()

    def on_failed(self, error: BookKeeperError) -> None:
        self._moved.set()

    def on_rest(self) -> None:
        """Nothing to release. The write that closes the ledger publishes how far it may be read."""

    async def store(
        self,
        fragment: OpenFragment,
        ensemble: Sequence[str],
        replaced: Collection[str],
    ) -> LedgerMetadata:
        return fragment.metadata.new_fragment(fragment.confirmed + 1, tuple(ensemble))

    async def taken_in(self, fragment: OpenFragment, bookie_ids: Collection[str], first_entry: int) -> None:
        """Never called: only the writer that has created a ledger knows of absent bookies."""
        raise AssertionError(f"a recovery of ledger {fragment.ledger_id} has taken in {bookie_ids}")

    def abandon(self) -> None:
        self._replication.abandon(ClientClosedError("the recovery has ended"))
