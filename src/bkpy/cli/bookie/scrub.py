"""`bkpy bookie scrub`: what the scrub of a running bookie has found damaged, and a round of it now."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.bookie.admin_command import AdminCommand, Report, work_on_page
from bkpy.cli.bookie.pages import pages_options
from bkpy.cli.output.json import json_option
from bkpy.cli.output.progress import byte_progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import human_bytes, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@click.command()
@click.option(
    "--now", is_flag=True, help="Start a round, or join the one that is running, and wait until it has ended."
)
@pages_options
@json_option
def scrub(now: bool, as_json: bool, **where: str | None) -> int:
    """Show what a bookie's scrub has found damaged and how far it is, or scrub now.

    A round reads everything that the bookie's indexes name, at its scrub_bytes_per_s, and goes on when you interrupt
    this command. Name the bookie by --bookie and --connect, which find it by its registration, or by --admin HOST:PORT.
    It has to run with a metrics_port, and answers this command on its own machine only, unless its admin_clients says
    otherwise.

    Exit status: 0 if no damage is known, else 1; then the damages are listed, each with what to do about it.
    """
    return Scrubbing(where, start=now).execute(as_json=as_json)


class Scrubbing(AdminCommand):
    """`bkpy bookie scrub`."""

    def __init__(self, where: dict[str, str | None], *, start: bool) -> None:
        self._where = where
        self._start = start

    async def report(self) -> Report:
        line = "a round is running already: waiting for its end"
        return await work_on_page(self, "/scrub", self._where, start=self._start, already_running=line)

    def is_running(self, report: Report, first: Report) -> bool:
        """Directories have rounds of their own: the rounds at first have ended when each directory has counted one."""
        pairs = zip(report["directories"], first["directories"], strict=True)
        return any(now["rounds"] < before["rounds"] + before["running"] for now, before in pairs)

    @contextlib.contextmanager
    def progress(self) -> Iterator[Callable[[Report], None]]:
        with byte_progress("scrubbing", 0) as update:
            # A bookie counts the bytes to read at the start of a round, so the first reports may not have them.
            yield lambda report: update(
                sum(status["done_bytes"] for status in report["directories"]),
                sum(status["total_bytes"] for status in report["directories"]),
            )

    def show(self, report: Report) -> None:
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

    def exit_status(self, report: Report) -> int:
        count = len(report["damages"]) + report["left_out"]
        if count:
            more = f", {report['left_out']} of them not listed" if report["left_out"] else ""
            say(f"bkpy: bookie {report['bookie_id']}: {count} damages{more}")
        return 1 if count else 0


def _entries(damage: dict[str, Any]) -> str:
    if damage["last"] is None:
        return "all"
    return f"{damage['first']}" if damage["first"] == damage["last"] else f"{damage['first']} to {damage['last']}"


def _state(status: dict[str, Any]) -> str:
    if status["running"]:
        return f"{human_bytes(status['done_bytes'])} of about {human_bytes(status['total_bytes'])} done"
    if status["next_s"] is None:
        return "scrubs only on request (scrub_interval_s is 0)"
    return f"the next round begins {_when(status['next_s'])}"


def _when(seconds: float | None) -> str:
    return "never" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)
