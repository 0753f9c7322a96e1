"""A ledger's metadata for people and programs: all but the ledger key, which opens the ledger to whoever has it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.common import human_bytes, print_table

if TYPE_CHECKING:
    from bkpy.protocol.holdings import Share
    from bkpy.protocol.ledger_metadata import LedgerMetadata


def describe(ledger: LedgerMetadata) -> dict[str, Any]:
    """All that is known, as JSON has it. What no one can know before the ledger is closed is null."""
    from bkpy.protocol.holdings import holdings

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
        "custom_metadata": {k: v.decode(errors="backslashreplace") for k, v in ledger.custom_metadata.items()},
        "fragments": [
            {
                "first_entry": fragment.first_entry,
                "last_entry": fragment.last_entry,
                "bookies": [share.bookie_id for share in fragment.shares],
                "holds": [
                    {"bookie": share.bookie_id, "every": share.step, "from": list(share.starts), "count": share.entries}
                    for share in fragment.shares
                ],
            }
            for fragment in holdings(ledger)
        ],
    }


def row(ledger: LedgerMetadata) -> tuple[object, ...]:
    """One line of a list: id, state, last entry, bytes, quorums, digest, time of creation, number of fragments."""
    described = describe(ledger)
    quorums = f"{ledger.ensemble_size},{ledger.write_quorum},{ledger.ack_quorum}"
    first, last = ("ledger_id", "state", "last_entry", "length"), ("digest", "created")
    return (*(described[n] for n in first), quorums, *(described[n] for n in last), len(ledger.fragments))


def show(ledger: LedgerMetadata) -> None:
    """Print the ledger, its fragments, and what each bookie has to hold of them."""
    described = describe(ledger)
    del described["fragments"]
    custom = described.pop("custom_metadata")
    if described["length"] is not None:
        described["length"] = f"{ledger.length} ({human_bytes(ledger.length)})"
    rows = [(name.replace("_", " "), value) for name, value in described.items()]
    rows += [(f"custom {name}", value) for name, value in custom.items()]
    print_table(("", ""), [(name, "-" if value is None else str(value)) for name, value in rows])
    click.echo()
    print_table(("fragment", "entries", "bookie", "has to hold", "count"), list(_shares(ledger)))
    if ledger.state.value != "CLOSED":
        click.echo(f"\nThe last fragment has no end yet: the ledger is {ledger.state.value}.")


def _shares(ledger: LedgerMetadata) -> Iterator[tuple[object, ...]]:
    from bkpy.protocol.holdings import holdings

    for number, fragment in enumerate(holdings(ledger)):
        entries = f"{fragment.first_entry}-{'' if fragment.last_entry is None else fragment.last_entry}"
        if fragment.last_entry is not None and fragment.last_entry < fragment.first_entry:
            entries = "none"
        for i, share in enumerate(fragment.shares):
            yield ("" if i else number, "" if i else entries, share.bookie_id, _progressions(share), share.entries)


def _progressions(share: Share) -> str:
    if not share.starts:
        return "none"
    if share.step == 1:
        return "all"
    return f"every {_ordinal(share.step)} from {' and from '.join(map(str, share.starts))}"


def _ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
