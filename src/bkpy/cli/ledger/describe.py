"""A ledger for people and programs: its metadata, the entries that its bookies should hold, and what they report.

The ledger key is left out, since it gives access to the ledger.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import human_bytes, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bkpy.errors import BookKeeperError
    from bkpy.metadata.replication.underreplication import LostBookie, UnderreplicationRecord
    from bkpy.protocol.repair.holdings import Share

    # By bookie, its last entry of the ledger, or the error that it answered with.
    BookieAnswers = Mapping[str, int | BookKeeperError]
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata


def describe(
    ledger: LedgerMetadata, answers: BookieAnswers | None = None, record: UnderreplicationRecord | None = None
) -> dict[str, Any]:
    """All that is known, for JSON, with `answers` added to the bookies that gave them.

    `record`: the ledger's under-replication record, if it has one. Fields that have no value before the ledger is
    closed are null.
    """
    from bkpy.protocol.repair.holdings import holdings

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
        "created": datetime.fromtimestamp(ledger.created_ms / 1000, UTC).isoformat(timespec="milliseconds"),
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
                        **({} if answers is None else _compare(share, fragment.last_entry, answers[share.bookie_id])),
                    }
                    for share in fragment.shares
                ],
            }
            for fragment in holdings(ledger)
        ],
    }


def losses(record: UnderreplicationRecord) -> dict[str, dict[str, Any]]:
    """By bookie whose copy is missing: the reason, since when, and from which entry on a bookie has them again."""
    return {bookie_id: _loss(loss) for bookie_id, loss in record.lost.items()}


def _loss(loss: LostBookie) -> dict[str, Any]:
    since = datetime.fromtimestamp(loss.since_ms / 1000, UTC).isoformat(timespec="seconds")
    whole = {} if loss.whole_from is None else {"whole_from": loss.whole_from}
    return {"reason": loss.reason, "since": since, **whole}


def loss_text(loss: Mapping[str, Any]) -> str:
    """One of `losses`, for people."""
    whole = f", has what follows entry {loss['whole_from'] - 1}" if "whole_from" in loss else ""
    return f"{loss['reason']} since {loss['since']}{whole}"


def row(ledger: LedgerMetadata) -> tuple[object, ...]:
    """One line of a list: id, state, last entry, bytes, quorums, digest, time of creation, number of fragments."""
    described = describe(ledger)
    quorums = f"{ledger.ensemble_size},{ledger.write_quorum},{ledger.ack_quorum}"
    first, last = ("ledger_id", "state", "last_entry", "length"), ("digest", "created")
    return (*(described[n] for n in first), quorums, *(described[n] for n in last), len(ledger.fragments))


def _compare(share: Share, last: int | None, answers: int | BookKeeperError) -> dict[str, Any]:
    """What a bookie holds of its share of a fragment that ends with entry `last` (None: nowhere yet)."""
    if not isinstance(answers, int):
        from bkpy.errors import CorruptDataError

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


def show(ledger: LedgerMetadata, answers: BookieAnswers, record: UnderreplicationRecord | None = None) -> None:
    """Print the ledger, its fragments, the entries that each bookie should hold of them, and what it reports."""
    described = describe(ledger, record=record)
    missing = described.pop("under_replicated", {})
    del described["fragments"]
    custom = described.pop("custom_metadata")
    if described["length"] is not None:
        described["length"] = f"{ledger.length} ({human_bytes(ledger.length)})"
    if (loss := described.get("accepted_loss")) is not None:
        described["accepted_loss"] = (
            f"acknowledged up to {loss['acknowledged']}, seen up to {loss['seen']}; "
            f"given up: {', '.join(loss['bookies']) or 'damaged copies'}"
            + (f"; lost: entries {', '.join(f'{a}-{b}' for a, b in loss['holes'])}" if "holes" in loss else "")
        )
    rows = [(name.replace("_", " "), value) for name, value in described.items()]
    rows += [(printable(f"missing on {name}"), printable(loss_text(loss))) for name, loss in missing.items()]
    rows += [(printable(f"custom {name}"), printable(value)) for name, value in custom.items()]
    print_table(("", ""), [(name, "-" if value is None else str(value)) for name, value in rows])
    click.echo()
    print_table(("fragment", "entries", "bookie", "should hold", "count", "reports"), list(_shares(ledger, answers)))
    click.echo(_SAYS)
    if ledger.state.value != "CLOSED":
        click.echo(f"\nThe last fragment has no end yet: the ledger is {ledger.state.value}.")


_SAYS = """
to the end: the bookie has its last
entry. Others may be missing or damaged:
see `bkpy ledger explain ID --read`."""


def _shares(ledger: LedgerMetadata, answers: BookieAnswers) -> Iterator[tuple[object, ...]]:
    from bkpy.protocol.repair.holdings import holdings

    for number, fragment in enumerate(holdings(ledger)):
        entries = f"{fragment.first_entry}-{'' if fragment.last_entry is None else fragment.last_entry}"
        if fragment.last_entry is not None and fragment.last_entry < fragment.first_entry:
            entries = "none"
        for i, share in enumerate(fragment.shares):
            says = _says(_compare(share, fragment.last_entry, answers[share.bookie_id]))
            place = ("", "") if i else (number, entries)
            yield (*place, share.bookie_id, _progressions(share), share.entries, says)


def _says(compared: dict[str, Any]) -> str:
    if compared["state"] == "incomplete":
        return f"missing from {compared['missing_from']} on"
    if compared["state"] == "growing":
        return "nothing yet" if compared["has_up_to"] < 0 else f"up to {compared['has_up_to']}"
    state: str = compared["state"]
    return {"unknown": "unknown", "later": "later entries", "complete": "to the end"}.get(state, state)


def _progressions(share: Share) -> str:
    if not share.starts:
        return "none"
    if share.step == 1:
        return "all"
    return f"every {_ordinal(share.step)} from {' and from '.join(map(str, share.starts))}"


def _ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
