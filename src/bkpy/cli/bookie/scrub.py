"""`bkpy bookie scrub`: what the scrub of a running bookie has found damaged, and a round of it now."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import click

from bkpy.cli.bookie.pages import POLL_S, BookiePages, open_pages, pages_options
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.progress import byte_progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import human_bytes, say
from bkpy.cli.running import run


@click.command()
@click.option("--now", is_flag=True, help="Begin a round, and wait until it has ended; or for the one that goes on.")
@pages_options
@json_option
def scrub(now: bool, admin: str | None, bookie_id: str | None, uri: str | None, as_json: bool) -> int:
    """Show what a bookie's scrub has found damaged and how far it is, or scrub now.

    A round reads everything that the bookie's indexes name, at its scrub_bytes_per_s, and goes on when this command is
    interrupted. The bookie is named by --bookie, and found by its registration (--connect), or by --admin HOST:PORT. It
    has to run with a metrics_port, and answers this command on its own machine only, unless its admin_clients says
    otherwise.

    Exit status: 0 if nothing is known to be damaged, else 1; then it is listed, with what to do about it.
    """
    report = run(_scrub(now, admin, bookie_id, uri))
    if as_json:
        print_json(report)
    else:
        _show(report)
    count = len(report["damages"]) + report["left_out"]
    if count:
        more = f", {report['left_out']} of them not listed: see scrub_damages_max" if report["left_out"] else ""
        say(f"bkpy: bookie {report['bookie_id']}: {count} damages{more}")
    return 1 if count else 0


async def _scrub(now: bool, admin: str | None, bookie_id: str | None, uri: str | None) -> dict[str, Any]:
    async with open_pages("/scrub", admin, bookie_id, uri) as pages:
        if not now:
            return await pages.get()
        if await pages.post() is None:
            say("a round goes on already: waiting for its end")
        return await _follow(pages)


async def _follow(pages: BookiePages) -> dict[str, Any]:
    """Show how the rounds under way get on, until each has ended; what is told then."""
    await asyncio.sleep(POLL_S)  # until it is known how much there is to read
    report = await pages.get()
    awaited = [status["rounds"] + status["running"] for status in report["directories"]]
    with byte_progress("scrubbing", sum(status["total_bytes"] for status in report["directories"])) as progress:
        while any(status["rounds"] < rounds for status, rounds in zip(report["directories"], awaited, strict=True)):
            progress(sum(status["done_bytes"] for status in report["directories"]))
            await asyncio.sleep(POLL_S)
            report = await pages.get()
    return report


def _show(report: dict[str, Any]) -> None:
    if report["damages"]:
        print_table(
            ("ledger", "entries", "file", "offset", "what", "what to do"),
            [
                (d["ledger_id"], _entries(d), d["path"], _or_dash(d["offset"]), d["what"], d["remedy"])
                for d in report["damages"]
            ],
        )
    print_table(
        ("directory", "full rounds", "last one ended", "state"),
        [(s["directory"], s["rounds"], _when(s["ended_s"]), _state(s)) for s in report["directories"]],
    )


def _entries(damage: dict[str, Any]) -> str:
    if damage["last"] is None:
        return "all"
    return f"{damage['first']}" if damage["first"] == damage["last"] else f"{damage['first']} to {damage['last']}"


def _state(status: dict[str, Any]) -> str:
    if status["running"]:
        return f"{human_bytes(status['done_bytes'])} of about {human_bytes(status['total_bytes'])} are done"
    if status["next_s"] is None:
        return "scrubs only when it is asked to (scrub_interval_s is 0)"
    return f"the next round begins {_when(status['next_s'])}"


def _when(seconds: float | None) -> str:
    return "never" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)
