"""Reads the metadata of all ledgers of a cluster, some at a time."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from bkpy.batching import batched_async
from bkpy.errors import CorruptDataError, NoSuchLedgerError, UnauthorizedError
from bkpy.protocol.ledger.ledger_metadata import UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata

log = logging.getLogger("bkpy.recovery")

# Errors of one ledger, or of its mark: damaged, of a newer version, or forbidden to this process. The others go on.
UNREADABLE: Final = (CorruptDataError, UnsupportedVersionError, UnauthorizedError)


async def all_ledgers(
    catalog: LedgerCatalog, *, reads_at_once: int, after: int = -1
) -> AsyncIterator[list[tuple[int, LedgerMetadata | None]]]:
    """Ledgers above `after`, ascending, with metadata as they were after the call began; None if they can't be read.

    A ledger that exists the whole time is among them. Raises `MetadataUnavailableError`.
    """
    remaining = (ledger_id async for ledger_id in catalog.ids() if ledger_id > after)
    async for some in batched_async(remaining, reads_at_once):
        yield await read_ledgers(catalog, some)


async def readable_ledgers(
    catalog: LedgerCatalog, *, reads_at_once: int, after: int = -1
) -> AsyncIterator[LedgerMetadata]:
    """The same, one after the other. A ledger whose metadata can't be read is logged, and left out."""
    async for some in all_ledgers(catalog, reads_at_once=reads_at_once, after=after):
        for ledger_id, metadata in some:
            if metadata is None:
                log.warning("ledger %d is skipped: its metadata can't be read", ledger_id)
            else:
                yield metadata


async def read_ledgers(catalog: LedgerCatalog, ledger_ids: Iterable[int]) -> list[tuple[int, LedgerMetadata | None]]:
    """The metadata of these ledgers, read concurrently; ledgers that don't exist are left out."""

    async def read(ledger_id: int) -> tuple[int, LedgerMetadata | None] | None:
        try:
            return ledger_id, (await catalog.read(ledger_id))[0]
        except NoSuchLedgerError:
            return None
        except UNREADABLE:
            return ledger_id, None

    found = await asyncio.gather(*map(read, ledger_ids))
    return [one for one in found if one is not None]
