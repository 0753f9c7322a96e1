"""`force`: makes durable what a ledger with deferred sync has acknowledged before it was on disk.

Invariant: last add confirmed moves only after every bookie of the ensemble has synced what it was sent, over the same
connections.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bkpy.errors import BookieUnavailableError
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.messages import Op, Status

if TYPE_CHECKING:
    from bkpy.client.write.batcher import AppendBatcher
    from bkpy.client.write.interfaces import ReplicationParts


class DeferredSync:
    """Of one ledger; knows the connections over which it was written since it was last forced."""

    __slots__ = ("_batcher", "_generations", "_pool", "_timeout_s")

    def __init__(self, batcher: AppendBatcher, parts: ReplicationParts) -> None:
        self._batcher = batcher
        self._pool = parts.pool
        self._timeout_s = parts.settings.add_timeout_s
        self._generations = self._connections()
        batcher.on_first_unforced = self._begin

    def _begin(self) -> None:
        """All is forced: what is sent from now on could be lost with the connections that there are now."""
        for bookie_id in self._batcher.replication.ensemble:
            channel = self._pool.channel(bookie_id)
            if channel.up:
                self._generations[bookie_id] = channel.generation

    async def force(self) -> int:
        """As `LedgerWriter.force`, for a writer that has not failed."""
        replication, last = self._batcher.replication, self._batcher.lac
        target, length = replication.confirmed, self._batcher.length
        await asyncio.gather(*(self._force(bookie_id) for bookie_id in replication.ensemble))
        if replication.error is not None:
            raise replication.failure()
        if replication.acks.last_sent == last.entry:
            self._generations = self._connections()  # nothing was sent that could have been lost with another one
        for bookie_id, generation in self._connections().items():
            if generation != self._generations[bookie_id]:
                replication.failed(
                    BookieUnavailableError(
                        "the connection was lost before everything was synced: "
                        f"entries behind {last.entry} may be lost",
                        bookie=bookie_id,
                        retriable=False,
                        outcome_unknown=True,
                    )
                )
                raise replication.failure(last.entry + 1)
        last.forced(target, length)
        return last.entry

    async def _force(self, bookie_id: str) -> None:
        replication = self._batcher.replication
        ledger_id = replication.ledger_id
        channel = self._pool.channel(bookie_id)
        # A bookie syncs what it has stored by then, and an append may wait there, or be refused first for want of a
        # key: what it takes later could be lost behind last add confirmed, and nobody would know that it misses it.
        await channel.appends_answered(ledger_id, timeout_s=self._timeout_s)
        reply = await channel.call_as_owner(
            Op.FORCE, m.pack([ledger_id]), ledger_id=ledger_id, timeout_s=self._timeout_s
        )
        status = m.reply_status(reply.head)
        if status in m.ENDS_WRITER:
            replication.failed(m.end_of_writer(status, ledger_id=ledger_id, bookie=bookie_id))
        elif status != Status.OK:
            raise m.error_of(status, ledger_id=ledger_id, bookie=bookie_id)

    def _connections(self) -> dict[str, int]:
        """Which connection to each bookie this is: another one means that something may have been lost."""
        return {bookie_id: self._pool.channel(bookie_id).generation for bookie_id in self._batcher.replication.ensemble}
