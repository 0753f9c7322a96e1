"""All ledgers of a cluster, one after the other, their metadata read some at a time.

Invariants: not more than `at_once` reads are in flight, and no more ledgers in memory; one whose metadata can't
be read is told of, and holds up no other.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from bkpy.errors import CorruptDataError, NoSuchLedgerError
from bkpy.protocol.ledger_metadata import UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bkpy.metadata.ledgers import LedgerCatalog
    from bkpy.protocol.ledger_metadata import LedgerMetadata

log = logging.getLogger("bkpy.recovery")


async def all_ledgers(catalog: LedgerCatalog, at_once: int, *, after: int = -1) -> AsyncIterator[LedgerMetadata]:
    """Those with ids above `after`, ascending; what is made or deleted meanwhile may be among them or not."""
    some: list[int] = []
    async for ledger_id in catalog.ids():
        if ledger_id <= after:
            continue
        some.append(ledger_id)
        if len(some) == at_once:
            for metadata in await _read(catalog, some):
                yield metadata
            some = []
    for metadata in await _read(catalog, some):
        yield metadata


async def _read(catalog: LedgerCatalog, ledger_ids: list[int]) -> list[LedgerMetadata]:
    found = await asyncio.gather(*(_read_one(catalog, ledger_id) for ledger_id in ledger_ids))
    return [metadata for metadata in found if metadata is not None]


async def _read_one(catalog: LedgerCatalog, ledger_id: int) -> LedgerMetadata | None:
    try:
        return (await catalog.read(ledger_id))[0]
    except NoSuchLedgerError:
        return None  # deleted since it was listed
    except (CorruptDataError, UnsupportedVersionError) as error:
        log.warning("ledger %d is left out: %s", ledger_id, error)
        return None
