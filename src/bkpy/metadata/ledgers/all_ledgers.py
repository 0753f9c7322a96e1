"""Reads the metadata of all ledgers of a cluster, some at a time."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from bkpy.batching import batched_async
from bkpy.errors import CorruptDataError, NoSuchLedgerError, UnauthorizedError, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata

log = logging.getLogger("bkpy.recovery")

# Errors of one ledger, or of its mark: damaged, of a newer version, or forbidden to this process. The others go on.
UNREADABLE: Final = (CorruptDataError, UnsupportedVersionError, UnauthorizedError)


async def all_ledgers(
    catalog: LedgerCatalog,
    *,
    reads_at_once: int,
    after: int = -1,
    skipped: Callable[[str, UnauthorizedError], None] | None = None,
) -> AsyncIterator[list[tuple[int, LedgerMetadata | None]]]:
    """Ledgers above `after`, ascending, with metadata as they were after the call began; None if they can't be read.

    A ledger that exists the whole time is among them, unless it is below a node that can't be listed: with `skipped`,
    which is called with that node, the others go on. Raises `MetadataUnavailableError`.
    """
    partitions = catalog.partitions(skipped=skipped)
    remaining = (ledger_id async for some in partitions for ledger_id in some if ledger_id > after)
    async for some in batched_async(remaining, reads_at_once):
        yield await read_ledgers(catalog, some)


async def readable_ledgers(
    catalog: LedgerCatalog, *, reads_at_once: int, after: int = -1
) -> AsyncIterator[LedgerMetadata]:
    """The same, one after the other. Ledgers whose metadata can't be read or listed are logged, and left out."""

    def skipped(node: str, error: UnauthorizedError) -> None:
        log.warning("ledgers below %s are skipped: %s", node, error)

    async for some in all_ledgers(catalog, reads_at_once=reads_at_once, after=after, skipped=skipped):
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
