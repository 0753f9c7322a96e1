"""`bkpy bookie integrity`: what a running bookie has lost and gets back from others, and a look at all of it now."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import click

from bkpy.cli.bookie.pages import POLL_S, BookiePages, open_pages, pages_options
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.progress import progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import human_bytes, say
from bkpy.cli.running import run


@click.command()
@click.option("--now", is_flag=True, help="Look through all ledgers that name this bookie, and wait until it is done.")
@click.option("--wait", is_flag=True, help="Wait until nothing is in doubt any more: after `run --rebuild`, say.")
@pages_options
@json_option
def integrity(now: bool, wait: bool, admin: str | None, bookie_id: str | None, uri: str | None, as_json: bool) -> int:
    """Show what a bookie has lost and how far it is copied back from other bookies, or look now.

    The bookie is named by --bookie, and found by its registration (--connect), or by --admin HOST:PORT. It has to run
    with a metrics_port, and answers this command on its own machine only, unless its admin_clients says otherwise.

    Exit status: 0 if all is here that should be, as far as was looked, else 1; then it is listed what is not, and why.
    """
    report = run(_integrity(now, wait, admin, bookie_id, uri))
    if as_json:
        print_json(report)
    else:
        _show(report)
    return 1 if report["in_doubt"] or report["left"] or report["waiting"] else 0


async def _integrity(
    now: bool, wait: bool, admin: str | None, bookie_id: str | None, uri: str | None
) -> dict[str, Any]:
    async with open_pages("/integrity", admin, bookie_id, uri) as pages:
        if now and await pages.post() is None:
            say("all ledgers are being looked through already: waiting for the end")
        return await _follow(pages) if now or wait else await pages.get()


async def _follow(pages: BookiePages) -> dict[str, Any]:
    """Show how it gets on, until it has ended; what is told then."""
    with progress(unit="ledgers") as bar:
        task = bar.add_task("looked at", total=None)
        while _goes_on(report := await pages.get()):
            bar.update(task, completed=report["look"]["looked_at"] if report["look"] else 0)
            await asyncio.sleep(POLL_S)
    return report


def _goes_on(report: dict[str, Any]) -> bool:
    look = report["look"]
    return bool(report["asked"] or report["in_doubt"] or (look is not None and look["ended_s"] is None))


def _show(report: dict[str, Any]) -> None:
    look = report["look"]
    if report["in_doubt"]:
        say("data was lost here: no new entries are taken until all ledgers were looked at")
    if look is not None:
        took = (time.time() if look["ended_s"] is None else look["ended_s"]) - look["began_s"]
        goes_on = " so far" if look["ended_s"] is None else ""
        what = "all ledgers" if look["whole"] else "ledgers in limbo or damaged"
        say(f"last look, at {what}: {look['looked_at']} in {took:.1f} s{goes_on}, {look['mended']} whole again")
    say(f"copied since the start: {report['copied_entries']} entries, {human_bytes(report['copied_bytes'])}")
    rows = [(one["ledger_id"], one["why"]) for one in report["left"]]
    rows += [(ledger_id, "its writer has time to close it by itself") for ledger_id in report["waiting"]]
    if rows:
        print_table(("ledger", "why it is not whole here yet"), rows)
