"""`bkpy bookie gc`: what garbage collection of a running bookie has done, and a run of it now."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from bkpy.cli.bookie.pages import POLL_S, BookiePages, open_pages, pages_options
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.progress import progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.running import run


@click.command()
@click.option("--now", is_flag=True, help="Begin a run, and wait until it has ended.")
@click.option("--dry-run", is_flag=True, help="The same, but only count what would be collected.")
@pages_options
@json_option
def gc(now: bool, dry_run: bool, admin: str | None, bookie_id: str | None, uri: str | None, as_json: bool) -> int:
    """Show the last run of a bookie's garbage collection, or collect now.

    The bookie is named by --bookie, and found by its registration (--connect), or by --admin HOST:PORT. It has to run
    with a metrics_port, and answers this command on its own machine only, unless its admin_clients says otherwise.
    """
    report = run(_gc(now or dry_run, dry_run, admin, bookie_id, uri))
    if as_json:
        print_json(report)
    else:
        _show(report)
    failed = report["run"] is not None and report["run"]["outcome"] == "failed"
    return 1 if failed and (now or dry_run) else 0


async def _gc(begin: bool, dry_run: bool, admin: str | None, bookie_id: str | None, uri: str | None) -> dict[str, Any]:
    async with open_pages("/gc", admin, bookie_id, uri) as pages:
        if not begin:
            return await pages.get()
        while True:
            begun = await pages.post({"dry_run": dry_run})
            report = await _follow(pages)
            if begun is not None:  # else it was one that went on already: it may not look for what this one is to find
                return report


async def _follow(pages: BookiePages) -> dict[str, Any]:
    """Show how the run that goes on gets on, until it has ended; what is told of it then."""
    with progress(unit="ledgers") as bar:
        task = bar.add_task("garbage collection", total=None)
        while True:
            report = await pages.get()
            latest = report["run"]
            bar.update(task, completed=latest["examined"], description=_line(latest))
            if latest["outcome"] != "running":
                return report
            await asyncio.sleep(POLL_S)


def _line(latest: dict[str, Any]) -> str:
    verb = "would collect" if latest["dry_run"] else "collected"
    return f"{verb} {latest['gone']} deleted ledgers, {latest['spare']} spare copies"


def _show(report: dict[str, Any]) -> None:
    latest = report["run"]
    if latest is None:
        every = (
            f"every {report['interval_s']:g} s"
            if report["interval_s"]
            else "only when it is asked to (gc_interval_s is 0)"
        )
        click.echo(f"bookie {report['bookie_id']} has not collected since its start; it does {every}")
        return
    rows = [
        ("bookie", report["bookie_id"]),
        ("run", str(latest["number"]) + (" (dry run)" if latest["dry_run"] else "")),
        ("outcome", latest["outcome"] + (f": {latest['failure']}" if latest["failure"] else "")),
        ("seconds", "-" if latest["seconds"] is None else f"{latest['seconds']:.2f}"),
        ("ledgers examined", str(latest["examined"])),
        ("deleted ledgers" + (" to collect" if latest["dry_run"] else " collected"), str(latest["gone"])),
        ("spare copies" + (" to collect" if latest["dry_run"] else " collected"), _spares(latest)),
        *((f"kept: {reason}", str(count)) for reason, count in sorted(latest["kept"].items())),
    ]
    if latest["collected"]:
        rows.append(("ledgers", _ids(latest["collected"], latest["gone"] + latest["spare"])))
    print_table(("", ""), rows)


def _spares(latest: dict[str, Any]) -> str:
    return str(latest["spare"]) if latest["spares"] else "not looked for"


def _ids(ids: list[int], count: int) -> str:
    return ", ".join(map(str, ids)) + (f" and {count - len(ids)} more" if count > len(ids) else "")
