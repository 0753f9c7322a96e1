"""`bkpy cluster audit`: lists who did what to the cluster, when, and from where."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from bkpy.cli.arguments import since_option
from bkpy.cli.connecting import connect_admin, connect_option
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import printable
from bkpy.cli.running import run

if TYPE_CHECKING:
    from bkpy.metadata.audit_trail import RecordedAct


@click.command()
@connect_option
@since_option("Acts since then only")
@json_option
def audit(uri: str, since: float | None, as_json: bool) -> None:
    """List who did what to the cluster: some 100 acts of each kind, the oldest first.

    "begun" is an act that was recorded before it began, and may have failed. Who it was is what the process said of
    itself: docs/how-to/security.md has what is proof.
    """
    found = run(_audit(uri, since or 0.0))
    if as_json:
        print_json([record.to_json() for record in found])
        return
    rows = [
        (
            datetime.fromtimestamp(record.time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
            record.act,
            printable(record.subject),
            "done" if record.done else "begun",
            printable(", ".join((record.actor.user, *record.actor.identities))),
            printable(" ".join(filter(None, (record.actor.process, record.actor.client)))),
            printable(record.details),
        )
        for record in found
    ]
    print_table(("time", "act", "of", "", "by", "from", "details"), rows)


async def _audit(uri: str, since: float) -> list[RecordedAct]:
    async with connect_admin(uri) as admin:
        return await admin.audit_trail(since=since)
