"""The one write that closes a ledger, repeated while others change the metadata at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from bkpy.errors import (
    BookKeeperError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
    NoSuchLedgerError,
)
from bkpy.metadata.store.outcome import Changed, Done, Missing, NotDone, Superseded, Unknown, escalate_unknown, to_error
from bkpy.protocol.ledger.close_conflict import CLOSE_ACTIONS, CloseAction, Closer, fresh_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.metadata.ledgers.catalog import LedgerCatalog
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata


@dataclass(frozen=True, slots=True)
class Closed:
    """The ledger is closed, with these metadata at `version`."""

    metadata: LedgerMetadata
    version: int


async def close_ledger(
    catalog: LedgerCatalog,
    metadata: LedgerMetadata,
    version: int,
    last_entry: int,
    length: int,
    closer: Closer,
    *,
    conflicts_max: int,
    rebase: Callable[[LedgerMetadata], LedgerMetadata] = lambda fresh: fresh,
) -> Closed | NotDone | Unknown:
    """Close the ledger at `last_entry` with `length` bytes.

    `rebase` merges this side's own changes into metadata that another client has written meanwhile. A recovery may get
    metadata with another end: another recovery closed the ledger first. Certain failures are raised:
    `LedgerFencedError` and `LedgerClosedError` for a writer that came too late, `NoSuchLedgerError`, and
    `MetadataConflictError` if the metadata have changed more than `conflicts_max` times. Other failures are returned.
    """
    ledger_id = metadata.ledger_id
    # The first write may lose to a change of long ago, each later one only to a change since the last look.
    for _ in range(conflicts_max + 1):
        closed = metadata.closed(last_entry, length)
        outcome = await catalog.write(closed, version)
        match outcome:
            case Done():
                return Closed(closed, outcome.version)
            case NotDone() | Unknown():
                return outcome
            case Missing():
                raise _deleted(ledger_id)
            case Changed() | Superseded():
                pass
            case _:
                assert_never(outcome)
        try:
            fresh, version = await catalog.read(ledger_id, fresh=True)
        except NoSuchLedgerError:
            raise _deleted(ledger_id) from None
        except BookKeeperError as error:
            return escalate_unknown(NotDone(error), isinstance(outcome, Superseded))
        action = CLOSE_ACTIONS[closer, fresh_state(fresh, last_entry, length)]
        if action is CloseAction.CLOSED:
            return Closed(fresh, version)
        if action is not CloseAction.TRY_AGAIN:
            raise _too_late(action, fresh, last_entry)
        metadata = rebase(fresh)
    raise MetadataConflictError("the ledger's metadata kept changing", ledger_id=ledger_id)


def _too_late(action: CloseAction, fresh: LedgerMetadata, last_entry: int) -> BookKeeperError:
    if action is CloseAction.CLOSED_ELSEWHERE:
        return LedgerClosedError(
            f"another client closed the ledger at entry {fresh.last_entry}; "
            f"this writer's last acknowledged entry is {last_entry}",
            ledger_id=fresh.ledger_id,
        )
    if action is CloseAction.FENCED:
        return LedgerFencedError(
            "another client is recovering the ledger", ledger_id=fresh.ledger_id, outcome_unknown=False
        )
    return MetadataConflictError("the ledger is open again, which must never happen", ledger_id=fresh.ledger_id)


def _deleted(ledger_id: int) -> NoSuchLedgerError:
    return NoSuchLedgerError("the ledger was deleted while it was open", ledger_id=ledger_id)


async def read_again(
    catalog: LedgerCatalog, ledger_id: int, outcome: Changed | Superseded
) -> tuple[LedgerMetadata, int]:
    """The metadata after a refused write. `outcome_unknown` of an error says whether that write may be stored."""
    try:
        return await catalog.read(ledger_id, fresh=True)
    except NoSuchLedgerError:
        raise
    except BookKeeperError as error:
        raise to_error(
            escalate_unknown(NotDone(error), isinstance(outcome, Superseded)), ledger_id=ledger_id
        ) from error
