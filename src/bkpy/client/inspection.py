"""What the bookies of a ledger say that they have of it, for people who look after a cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bkpy.errors import BookKeeperError, CorruptDataError
from bkpy.protocol import messages as m
from bkpy.protocol.messages import Op, Status
from bkpy.protocol.records import walk

if TYPE_CHECKING:
    from bkpy.client.bookies.pool import BookiePool
    from bkpy.protocol.ledger_metadata import LedgerMetadata


async def last_entries(
    metadata: LedgerMetadata, pool: BookiePool, timeout_s: float
) -> dict[str, int | BookKeeperError]:
    """By bookie of any fragment, the last entry of the ledger that it has, or why that can't be told."""
    bookies = sorted({bookie_id for fragment in metadata.fragments for bookie_id in fragment.bookies})
    told = await asyncio.gather(*(_last_entry(metadata.ledger_id, bookie_id, pool, timeout_s) for bookie_id in bookies))
    return dict(zip(bookies, told, strict=True))


async def _last_entry(ledger_id: int, bookie_id: str, pool: BookiePool, timeout_s: float) -> int | BookKeeperError:
    """-1 for no entry. It is the bookie's own word: without the ledger's password a digest may prove nothing."""
    try:
        reply = await pool.peer(bookie_id).call(Op.READ_LAC, m.pack([0, ledger_id]), timeout_s=timeout_s)
        status = m.reply_status(reply.head)
        if status not in (Status.OK, Status.NO_SUCH_LEDGER):
            message = "it can't tell" if status == Status.UNKNOWN else ""
            return m.error_of(status, message, ledger_id=ledger_id, bookie=bookie_id)
        size = m.decode_read_lac_reply(reply.head).entry_bytes
        if not 0 <= size <= len(reply.body):
            raise CorruptDataError("a reply without the entry that it speaks of", ledger_id=ledger_id, bookie=bookie_id)
        return max((header.entry_id for header in walk(reply.body[:size])), default=-1)
    except BookKeeperError as e:
        return e
