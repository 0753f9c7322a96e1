"""`bkpy bookie reload`: a running bookie reads its settings, certificates and rights again."""

from __future__ import annotations

from typing import Any

import click

from bkpy.cli.bookie.pages import open_pages, pages_options
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.text import printable
from bkpy.cli.running import run


@click.command()
@pages_options
@json_option
def reload(uri: str | None, bookie_id: str | None, admin: str | None, as_json: bool) -> None:
    """Have a running bookie read its settings file, certificates and file of rights again, as SIGHUP does.

    Lists what has changed, and what has to wait for a restart. An unusable file changes nothing: the command says why,
    with exit status 1. Variables and flags stay those of the bookie's start.
    """
    report = run(_reload(admin, bookie_id, uri))
    if as_json:
        print_json(report)
        return
    for name in report["reloaded"]:
        click.echo(f"reloaded the {printable(name)}")
    for change in report["changed"]:
        click.echo(f"changed {_change(change)}")
    for change in report["needs_restart"]:
        click.echo(f"needs a restart: {_change(change)}")
    if not any(report[part] for part in ("reloaded", "changed", "needs_restart")):
        click.echo("nothing has changed")


def _change(change: dict[str, str]) -> str:
    return printable(f"{change['setting']} from {change['before']} to {change['after']}")


async def _reload(admin: str | None, bookie_id: str | None, uri: str | None) -> dict[str, Any]:
    async with open_pages("/reload", admin, bookie_id, uri) as pages:
        return await pages.command()
