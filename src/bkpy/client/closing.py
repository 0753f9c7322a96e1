"""The one write that closes a ledger, repeated while others change the metadata at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bkpy.errors import LedgerClosedError, LedgerFencedError, MetadataConflictError, NoSuchLedgerError
from bkpy.metadata.ledgers import LedgerCatalog
from bkpy.protocol.closing import VERDICTS, Closer, Verdict, found
from bkpy.protocol.ledger_metadata import LedgerMetadata

_ATTEMPTS_MAX: Final = 20  # each lost to somebody else's change of the metadata


async def close_ledger(
    catalog: LedgerCatalog,
    metadata: LedgerMetadata,
    version: int,
    last_entry: int,
    length: int,
    closer: Closer,
    *,
    rebase: Callable[[LedgerMetadata], LedgerMetadata] = lambda fresh: fresh,
) -> tuple[LedgerMetadata, int]:
    """Close the ledger at `last_entry` with `length` bytes; the closed metadata and their version.

    `rebase` brings this side's own changes into a value that somebody else has written meanwhile. For a recovery, the
    metadata that are returned may have another end: that of whoever closed the ledger first. Raises `LedgerFencedError`
    and `LedgerClosedError` for a writer that came too late, `NoSuchLedgerError`, `MetadataUnavailableError`.
    """
    ledger_id = metadata.ledger_id
    for _ in range(_ATTEMPTS_MAX):
        closed = metadata.closed(last_entry, length)
        try:
            return closed, await catalog.write(closed, version)
        except MetadataConflictError:
            fresh, version = await catalog.read(ledger_id, fresh=True)
        except NoSuchLedgerError:
            raise NoSuchLedgerError("the ledger was deleted while it was open", ledger_id=ledger_id) from None
        verdict = VERDICTS[closer, found(fresh, last_entry, length)]
        if verdict is Verdict.CLOSED:
            return fresh, version
        if verdict is Verdict.CLOSED_ELSEWHERE:
            raise LedgerClosedError(
                f"somebody else closed the ledger at entry {fresh.last_entry}; "
                f"this writer's last acknowledged entry is {last_entry}",
                ledger_id=ledger_id,
            )
        if verdict is Verdict.FENCED:
            raise LedgerFencedError(
                "somebody else is recovering the ledger", ledger_id=ledger_id, outcome_unknown=False
            )
        if verdict is Verdict.IMPOSSIBLE:
            raise MetadataConflictError("the ledger is open again, which can't be", ledger_id=ledger_id)
        metadata = rebase(fresh)
    raise MetadataConflictError("the ledger's metadata kept changing", ledger_id=ledger_id)
