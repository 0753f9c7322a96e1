"""Deleting a ledger for a user."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from bkpy.errors import CorruptDataError, MetadataConflictError, NoSuchLedgerError
from bkpy.metadata.logs.maintenance import LogMaintenance
from bkpy.metadata.store.outcome import Changed, Gone, Missing, NotDone, Superseded, Unknown, to_error
from bkpy.protocol.ledger.ledger_metadata import UnsupportedVersionError

if TYPE_CHECKING:
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.metadata.logs.catalog import LogStore
    from bkpy.metadata.store.outcome import DeleteOutcome


async def delete_ledger(ledger_id: int, catalog: LedgerCatalog, logs: LogStore) -> None:
    """See `Client.delete_ledger`."""
    outcome = await _deleted(ledger_id, catalog, logs)
    match outcome:
        case Gone():
            return
        case Missing():
            raise NoSuchLedgerError("there is no such ledger", ledger_id=ledger_id)
        case Changed() | Superseded():
            raise MetadataConflictError(
                "there are nodes below the ledger's in ZooKeeper",
                ledger_id=ledger_id,
                outcome_unknown=isinstance(outcome, Superseded),
            )
        case NotDone() | Unknown():
            raise to_error(outcome, ledger_id=ledger_id)
        case _:
            assert_never(outcome)


async def _deleted(ledger_id: int, catalog: LedgerCatalog, logs: LogStore) -> DeleteOutcome:
    try:
        metadata, _ = await catalog.read(ledger_id)
    except (CorruptDataError, UnsupportedVersionError):  # of what can't be read, deleting it is what is left to do
        return await catalog.delete(ledger_id)
    return await LogMaintenance(logs, catalog).delete_ledger(metadata)
