"""What the bookies of a ledger say that they have of it, for people who look after a cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bkpy.errors import BookKeeperError
from bkpy.protocol.wire import messages as m
from bkpy.protocol.wire.lac_reply import unverified_last_entry
from bkpy.protocol.wire.messages import Op

if TYPE_CHECKING:
    from bkpy.client.bookies.pool import BookiePool
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata


async def last_entries(
    metadata: LedgerMetadata, pool: BookiePool, timeout_s: float
) -> dict[str, int | BookKeeperError]:
    """By bookie of any fragment, the last entry of the ledger that it has, or why that is unknown."""
    bookies = sorted({bookie_id for fragment in metadata.fragments for bookie_id in fragment.bookies})
    last_entries = await asyncio.gather(
        *(_last_entry(metadata.ledger_id, bookie_id, pool, timeout_s) for bookie_id in bookies)
    )
    return dict(zip(bookies, last_entries, strict=True))


async def _last_entry(ledger_id: int, bookie_id: str, pool: BookiePool, timeout_s: float) -> int | BookKeeperError:
    try:
        reply = await pool.channel(bookie_id).call(Op.READ_LAC, m.pack([0, ledger_id]), timeout_s=timeout_s)
        return unverified_last_entry(reply, ledger_id, bookie_id)
    except BookKeeperError as e:
        return e
