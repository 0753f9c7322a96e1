"""A ledger for programs: its metadata, the entries that its bookies should hold, and what they report.

The ledger key is left out, since it gives access to the ledger.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from bkpy.errors import CorruptDataError
from bkpy.protocol.repair.holdings import holdings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bkpy.errors import BookKeeperError
    from bkpy.metadata.replication.underreplication import LostBookie, UnderreplicationRecord
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.holdings import Share

    # By bookie, its last entry of the ledger, or the error that it answered with.
    BookieAnswers = Mapping[str, int | BookKeeperError]


def describe_ledger(
    ledger: LedgerMetadata, answers: BookieAnswers | None = None, record: UnderreplicationRecord | None = None
) -> dict[str, Any]:
    """All that is known, for JSON, with `answers` added to the bookies that gave them.

    `record`: the ledger's under-replication record, if it has one. Fields that have no value before the ledger is
    closed are null.
    """
    closed = ledger.state.value == "CLOSED"
    return {
        "ledger_id": ledger.ledger_id,
        "state": ledger.state.value,
        "last_entry": ledger.last_entry if closed else None,
        "length": ledger.length if closed else None,
        "ensemble_size": ledger.ensemble_size,
        "write_quorum": ledger.write_quorum,
        "ack_quorum": ledger.ack_quorum,
        "digest": ledger.digest,
        "created": _created(ledger.created_ms),
        "caller_ids": ledger.caller_ids,
        "deferred_sync": ledger.deferred_sync,
        **({} if ledger.accepted_loss is None else {"accepted_loss": ledger.accepted_loss.fields()}),
        **({} if record is None else {"under_replicated": losses(record)}),
        "custom_metadata": {k: v.decode(errors="backslashreplace") for k, v in ledger.custom_metadata.items()},
        "fragments": [
            {
                "first_entry": fragment.first_entry,
                "last_entry": fragment.last_entry,
                "bookies": [share.bookie_id for share in fragment.shares],
                "holds": [
                    {
                        "bookie": share.bookie_id,
                        "every": share.step,
                        "from": list(share.starts),
                        "count": share.entries,
                        **({} if answers is None else compare(share, fragment.last_entry, answers[share.bookie_id])),
                    }
                    for share in fragment.shares
                ],
            }
            for fragment in holdings(ledger)
        ],
    }


def _created(ms: int) -> str | None:
    """None where the metadata don't say it, as those of BookKeeper by default."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds") if ms else None


def losses(record: UnderreplicationRecord) -> dict[str, dict[str, Any]]:
    """By bookie whose copy is missing: the reason, since when, and from which entry on a bookie has them again."""
    return {bookie_id: _loss(loss) for bookie_id, loss in record.lost.items()}


def _loss(loss: LostBookie) -> dict[str, Any]:
    since = datetime.fromtimestamp(loss.since_ms / 1000, UTC).isoformat(timespec="seconds")
    whole = {} if loss.whole_from is None else {"whole_from": loss.whole_from}
    return {"reason": loss.reason, "since": since, **whole}


def compare(share: Share, last: int | None, answers: int | BookKeeperError) -> dict[str, Any]:
    """What a bookie holds of its share of a fragment that ends with entry `last` (None: nowhere yet)."""
    if not isinstance(answers, int):
        state = "unknown" if isinstance(answers, CorruptDataError) else "unreachable"
        return {"state": state, "has_up_to": None, "missing_from": None, "error": str(answers)}
    missing = share.following(answers)
    if last is None:
        state, missing = "growing", None
    elif missing is not None and missing <= last:
        state = "incomplete"
    else:
        state, missing = "complete" if answers <= last or not share.starts else "later", None
    return {"state": state, "has_up_to": answers, "missing_from": missing, "error": None}
