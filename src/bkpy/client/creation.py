"""The creation of ledgers: the attributes of a new ledger, and its first metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bkpy.metadata.ledgers.catalog import Created
from bkpy.metadata.store.outcome import to_error
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bkpy.client.bookies.ensembles import Ensembles
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.runtime.interfaces import Runtime


class NewLedger(NamedTuple):
    """The attributes of a ledger to create. `key` is `bkpy.protocol.wire.records.ledger_key` of its password."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    digest: str
    key: bytes
    custom_metadata: Mapping[str, bytes]
    caller_ids: bool = False
    deferred_sync: bool = False


async def create_ledger(new: NewLedger, catalog: LedgerCatalog, ensembles: Ensembles, runtime: Runtime) -> Created:
    """Store the metadata of a new ledger, on writable bookies.

    Raises `NotEnoughBookiesError`, and `MetadataUnavailableError`. With `outcome_unknown`, the error's `ledger_id` is
    that of the ledger that may exist.
    """
    bookies = await ensembles.new(new.ensemble_size)
    created_ms = int(runtime.clock.time() * 1000)
    token = runtime.rng.randbytes(16).hex()
    created = await catalog.create(
        lambda ledger_id: LedgerMetadata(
            ledger_id=ledger_id,
            state=LedgerState.OPEN,
            ensemble_size=new.ensemble_size,
            write_quorum=new.write_quorum,
            ack_quorum=new.ack_quorum,
            digest=new.digest,
            ledger_key=new.key,
            fragments=(Fragment(0, bookies),),
            created_ms=created_ms,
            owner_token=token,
            custom_metadata=dict(new.custom_metadata),
            caller_ids=new.caller_ids,
            deferred_sync=new.deferred_sync,
        )
    )
    if not isinstance(created, Created):
        raise to_error(created)
    return created
