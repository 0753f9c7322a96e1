"""`bkpy ledger explain`: how many copies a ledger has left, what repairs it, and what prevents the repair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.arguments import ledgers_argument
from bkpy.cli.connecting import connect_option
from bkpy.cli.ledger.describe import loss_text
from bkpy.cli.output.json import json_option
from bkpy.cli.output.progress import progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.several import show_each

if TYPE_CHECKING:
    import bkpy
    from bkpy.admin.client import AdminClient
    from bkpy.metadata.replication.underreplication import UnderreplicationRecord
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.rereplication import Copy, Plan

_RANGES_MAX = 20  # of entries that no bookie returns, for each copy to make


@click.command(short_help="Show which copies of ledgers are missing, and why.")
@connect_option
@ledgers_argument
@click.option("--read", is_flag=True, help="Read all entries to copy, and report which of them no bookie returns.")
@json_option
def explain(uri: str, ledger_ids: tuple[int, ...], read: bool, as_json: bool) -> None:
    """Show where the copies of ledgers are, which are missing, what repairs them, and what prevents the repair.

    LEDGERS are ids and ranges, as in 7,9-12. The command reads the metadata. Only with --read does it find out whether
    a running bookie holds all that it should.
    """

    async def explain_one(client: bkpy.Client, ledger_id: int) -> dict[str, Any]:
        return await _explain(client, ledger_id, read)

    show_each(uri, ledger_ids, explain_one, lambda report: report, _show, as_json=as_json)


async def _explain(client: bkpy.Client, ledger_id: int, read: bool) -> dict[str, Any]:
    from bkpy.admin.client import AdminClient
    from bkpy.admin.ledger_description import losses

    admin = AdminClient(client)
    metadata, record, locked_by, planned = await admin.describe_replication(ledger_id)
    unreadable = [line for copy in planned.copies for line in await _read(admin, metadata, copy)] if read else []
    return {
        "ledger_id": ledger_id,
        "state": metadata.state.value,
        "fragments": list(_fragments(admin, metadata, record)),
        "marked": None if record is None else losses(record),
        "locked_by": locked_by,
        "to_do": _to_do(planned),
        "lost": [list(hole) for hole in (() if metadata.accepted_loss is None else metadata.accepted_loss.holes)],
        "in_the_way": [*(one.description for one in planned.stuck), *unreadable],
    }


async def _read(admin: AdminClient, metadata: LedgerMetadata, copy: Copy) -> list[str]:
    """The entries to copy that no bookie returns, and the bookies that may hold them."""
    from bkpy.errors import BookieUnavailableError

    try:
        with progress(unit="entries") as bar:
            task = bar.add_task(f"reading the copies of {copy.old}", total=copy.last - copy.first + 1)
            ranges = await admin.unreadable_entries(
                metadata,
                copy,
                ranges_max=_RANGES_MAX,
                on_read=lambda entry_id: bar.update(task, completed=entry_id - copy.first + 1),
            )
    except BookieUnavailableError as error:
        return [f"entries of {copy.old}'s: {error}"]
    lines = [_nowhere(admin, metadata, copy, first, last) for first, last in ranges]
    return [*lines, "and perhaps more"] if len(ranges) == _RANGES_MAX else lines


def _nowhere(admin: AdminClient, metadata: LedgerMetadata, copy: Copy, first: int, last: int) -> str:
    from bkpy.protocol.ledger.quorum import write_set
    from bkpy.protocol.repair.checks import wanted

    size, quorum = metadata.ensemble_size, metadata.write_quorum
    names = metadata.fragments[copy.fragment].bookies
    some = wanted(copy.share, first, min(last, first + size - 1))  # later entries are on the same bookies again
    members = {names[i] for entry_id in some for i in write_set(entry_id, size, quorum)}
    away = sorted(members - admin.registered_bookies)
    which = f"entry {first}" if first == last else f"entries {first} to {last}"
    if copy.share.step > 1 and first != last:
        which = f"{copy.old}'s of the {which}"
    rest = f"{' or '.join(away)} has to come back" if away else "every bookie that should hold a copy is here"
    return f"{which}: no bookie returns what was written; {rest}"


def _fragments(admin: AdminClient, metadata: LedgerMetadata, mark: UnderreplicationRecord | None) -> Any:
    from bkpy.protocol.ledger.quorum import write_set
    from bkpy.protocol.repair.holdings import holdings

    readable = admin.registered_bookies
    for number, held in enumerate(holdings(metadata)):
        names = metadata.fragments[number].bookies
        sets = [write_set(first, metadata.ensemble_size, metadata.write_quorum) for first in range(len(names))]
        yield {
            "first_entry": held.first_entry,
            "last_entry": held.last_entry,
            "bookies": {name: _standing(admin.client, name, mark) for name in names},
            "copies_left": min(sum(names[i] in readable for i in members) for members in sets),
            "copies_wanted": metadata.write_quorum,
        }


def _standing(client: bkpy.Client, bookie_id: str, mark: UnderreplicationRecord | None) -> str:
    here = "writable" if bookie_id in client.bookies else "read-only" if bookie_id in client.read_only_bookies else ""
    loss = None if mark is None else mark.lost.get(bookie_id)
    if loss is None:
        return here or "away"
    return f"{here or 'away'}, marked: {loss.reason}"


def _to_do(planned: Plan) -> list[str]:
    report = [
        f"copy {copy.share.entries} of the entries {copy.first} to {copy.last} to {_where(copy)}"
        for copy in planned.copies
    ]
    if planned.unclosed:
        report.append(f"wait until its writer leaves {', '.join(planned.unclosed)}, then recover it: it is not closed")
    return report


def _where(copy: Copy) -> str:
    if copy.in_place:
        return f"{copy.old} itself, which is missing some: no other bookie can replace it"
    return f"a bookie that replaces {copy.old}"


def _show(report: dict[str, Any]) -> None:
    rows = []
    for fragment in report["fragments"]:
        last = "-" if fragment["last_entry"] is None else fragment["last_entry"]
        bookies = ", ".join(
            name if standing == "writable" else f"{name} ({standing})" for name, standing in fragment["bookies"].items()
        )
        rows.append(
            (fragment["first_entry"], last, f"{fragment['copies_left']} of {fragment['copies_wanted']}", bookies)
        )
    print_table(("from", "to", "copies", "bookies"), rows, title=f"ledger {report['ledger_id']}, {report['state']}")
    lines = [("marked", f"{name}: {loss_text(mark)}") for name, mark in (report["marked"] or {}).items()]
    if report["locked_by"]:
        lines.append(("at work", report["locked_by"]))
    lines += [("to do", what) for what in report["to_do"]]
    lines += [("in the way", what) for what in report["in_the_way"]]
    if lines:
        print_table(("", ""), lines)
    else:
        click.echo("it has all its copies, according to the metadata")
