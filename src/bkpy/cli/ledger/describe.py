"""A ledger for people: its metadata, the entries that its bookies should hold, and what they report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import human_bytes, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bkpy.admin.ledger_description import BookieAnswers
    from bkpy.metadata.replication.underreplication import UnderreplicationRecord
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.holdings import Share


def loss_text(loss: Mapping[str, Any]) -> str:
    """One of `losses`, for people."""
    whole = f", has what follows entry {loss['whole_from'] - 1}" if "whole_from" in loss else ""
    return f"{loss['reason']} since {loss['since']}{whole}"


def row(ledger: LedgerMetadata) -> tuple[object, ...]:
    """One line of a list: id, state, last entry, bytes, quorums, digest, time of creation, number of fragments."""
    from bkpy.admin.ledger_description import describe_ledger

    described = describe_ledger(ledger)
    quorums = f"{ledger.ensemble_size},{ledger.write_quorum},{ledger.ack_quorum}"
    first, last = ("ledger_id", "state", "last_entry", "length"), ("digest", "created")
    return (*(described[n] for n in first), quorums, *(described[n] for n in last), len(ledger.fragments))


def show(ledger: LedgerMetadata, answers: BookieAnswers, record: UnderreplicationRecord | None = None) -> None:
    """Print the ledger, its fragments, the entries that each bookie should hold of them, and what it reports."""
    from bkpy.admin.ledger_description import describe_ledger

    described = describe_ledger(ledger, record=record)
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
    from bkpy.admin.ledger_description import compare
    from bkpy.protocol.repair.holdings import holdings

    for number, fragment in enumerate(holdings(ledger)):
        entries = f"{fragment.first_entry}-{'' if fragment.last_entry is None else fragment.last_entry}"
        if fragment.last_entry is not None and fragment.last_entry < fragment.first_entry:
            entries = "none"
        for i, share in enumerate(fragment.shares):
            says = _says(compare(share, fragment.last_entry, answers[share.bookie_id]))
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
