"""The creation of ledgers: the attributes of a new ledger, and its first metadata."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, NamedTuple

from bkpy.metadata.ledgers.catalog import Created, NotKnown
from bkpy.metadata.store.outcome import to_error
from bkpy.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bkpy.client.bookies.ensembles import Ensembles
    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.runtime.interfaces import Runtime


log = logging.getLogger("bkpy.client")


class NewLedger(NamedTuple):
    """The attributes of a ledger to create.

    `key` is what bookies ask its writer for, and `metadata` makes the metadata of its cluster's kind.
    """

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    digest: str
    key: bytes
    custom_metadata: Mapping[str, bytes]
    caller_ids: bool = False
    deferred_sync: bool = False
    metadata: Callable[..., LedgerMetadata] = LedgerMetadata


async def create_ledger(
    new: NewLedger, catalog: LedgerCatalog, ensembles: Ensembles, runtime: Runtime, *, allow_absent: bool
) -> Created:
    """Store the metadata of a new ledger, on writable bookies.

    With `allow_absent`, some may be absent where there are too few others; never with deferred sync, which `force`
    makes durable on all of them. Raises `NotEnoughBookiesError`, and `MetadataUnavailableError`. With
    `outcome_unknown`, the error's `ledger_id` is that of the ledger that may exist.
    """
    not_known: set[str] = set()  # absent bookies that were decommissioned, or drain by now
    while True:
        bookies, absent = await ensembles.new(
            new.ensemble_size,
            new.write_quorum,
            new.ack_quorum,
            allow_absent=allow_absent and not new.deferred_sync,
            not_known=not_known,
        )
        build = functools.partial(
            _metadata, new, bookies, int(runtime.clock.time() * 1000), runtime.rng.randbytes(16).hex()
        )
        created = await catalog.create(build, absent)
        if isinstance(created, NotKnown):
            not_known.add(created.bookie_id)
            continue
        if not isinstance(created, Created):
            raise to_error(created)
        if absent:
            names, ledger_id = ", ".join(sorted(created.absent)), created.metadata.ledger_id
            log.warning(
                "ledger %d: created though bookies are absent, which get its entries later: %s", ledger_id, names
            )
        return created


def _metadata(
    new: NewLedger, bookies: tuple[str, ...], created_ms: int, owner_token: str, ledger_id: int
) -> LedgerMetadata:
    return new.metadata(
        ledger_id=ledger_id,
        state=LedgerState.OPEN,
        ensemble_size=new.ensemble_size,
        write_quorum=new.write_quorum,
        ack_quorum=new.ack_quorum,
        digest=new.digest,
        ledger_key=new.key,
        fragments=(Fragment(0, bookies),),
        created_ms=created_ms,
        owner_token=owner_token,
        custom_metadata=dict(new.custom_metadata),
        caller_ids=new.caller_ids,
        deferred_sync=new.deferred_sync,
    )
