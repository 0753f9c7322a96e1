"""`bkpy cluster health`: one line that says whether all is well, or what isn't, worst first."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import click

from bkpy.cli.connecting import connect_admin, connect_option, settings
from bkpy.cli.endings import AssessingCommand
from bkpy.cli.output.json import json_option, print_json, print_json_line
from bkpy.cli.output.text import printable_lines, say
from bkpy.cli.running import output_has_reader, run
from bkpy.errors import BookKeeperError

if TYPE_CHECKING:
    from bkpy.admin.cluster_health import ClusterHealth

_WATCH_S: Final = 2.0


@click.command(cls=AssessingCommand)
@connect_option
@json_option
@click.option("--watch", is_flag=True, help="Look every two seconds, and report each change, until Ctrl-C.")
def health(uri: str, as_json: bool, watch: bool) -> int:
    """Report whether all is well with the cluster, or what isn't, worst first, with the page of the docs that helps.

    Bookies' disks, clocks and certificates are seen on their metrics pages, as far as this machine can reach them.

    Exit status: 0 if it is healthy, 1 for a warning, 2 if data is at risk, 3 if nobody can tell, also for a
    wrong command line.
    """
    if watch:
        run(_watch(uri, as_json))
    try:
        found = run(_look(uri))
    except BookKeeperError as error:
        say(f"bkpy: can't tell: {error}")
        return AssessingCommand.failure_status
    if as_json:
        print_json(found.to_json())
    else:
        click.echo("\n".join(_lines(found)))
    return int(found.worst)


async def _look(uri: str) -> ClusterHealth:
    async with connect_admin(uri) as admin:
        return await admin.health(tls=_tls())


async def _watch(uri: str, as_json: bool) -> None:
    last: Any = None
    async with output_has_reader(), connect_admin(uri) as admin:
        while True:
            try:
                found = await admin.health(tls=_tls())
                lines, report = _lines(found), found.to_json()
            except BookKeeperError as error:
                lines, report = [f"can't tell: {error}"], {"status": "unknown", "error": str(error)}
            if _gist(report) != last:
                last = _gist(report)
                print_json_line(report) if as_json else click.echo("\n".join(lines))
            await asyncio.sleep(_WATCH_S)


def _gist(report: dict[str, Any]) -> Any:
    """What makes two reports different: not the numbers in messages, which change all the time."""
    return report["status"], [(f["code"], f["subject"]) for f in report.get("findings", ())]


def _tls() -> Any:
    from bkpy.cli.bookie.pages import tls_context

    return None if settings().tls_ca_file is None else tls_context()


def _lines(found: ClusterHealth) -> list[str]:
    head = f"{found.status}: {found.bookies} bookies, {found.writable} of them take entries"
    if found.ledgers_missing_copies:
        head += f", {found.ledgers_missing_copies:,} ledgers miss copies"
    lines = [head]
    for finding in found.findings:
        subject = f"bookie {finding.subject}: " if finding.subject else ""
        lines.append(f"  {finding.severity.name.lower():7}  {subject}{printable_lines(finding.message)}")
        lines.append(f"           see {finding.help}")
    return lines
