"""`bkpy bookie integrity`: what a running bookie has lost and copies back from others, and a check of all of it now."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import click

from bkpy.cli.bookie.admin_command import AdminCommand, Report, work_on_page
from bkpy.cli.bookie.pages import pages_options
from bkpy.cli.output.json import json_option
from bkpy.cli.output.progress import progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import human_bytes, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@click.command()
@click.option("--now", is_flag=True, help="Check all ledgers that name this bookie, and wait until that is done.")
@click.option("--wait", is_flag=True, help="Wait until no ledger is in doubt any more: after `run --rebuild`, say.")
@pages_options
@json_option
def integrity(now: bool, wait: bool, as_json: bool, **where: str | None) -> int:
    """Show what a bookie has lost and how far it has copied that back from other bookies, or check now.

    Name the bookie by --bookie and --connect, which find it by its registration, or by --admin HOST:PORT. It has to run
    with a metrics_port, and answers this command on its own machine only, unless its admin_clients says otherwise.

    Exit status: 0 if the bookie holds all that it should, as far as it has checked, else 1; then the ledgers that are
    not whole are listed, each with the reason.
    """
    return Integrity(where, start=now, wait=wait).execute(as_json=as_json)


class Integrity(AdminCommand):
    """`bkpy bookie integrity`."""

    def __init__(self, where: dict[str, str | None], *, start: bool, wait: bool) -> None:
        self._where = where
        self._start = start
        self._wait = wait

    async def report(self) -> Report:
        line = "a check of all ledgers is running already: waiting for its end"
        return await work_on_page(
            self, "/integrity", self._where, start=self._start, wait=self._wait, already_running=line
        )

    def is_running(self, report: Report, first: Report) -> bool:
        look = report["look"]
        return bool(report["asked"] or report["in_doubt"] or (look is not None and look["ended_s"] is None))

    @contextlib.contextmanager
    def progress(self) -> Iterator[Callable[[Report], None]]:
        with progress(unit="ledgers") as bar:
            task = bar.add_task("checked", total=None)
            yield lambda report: bar.update(task, completed=report["look"]["looked_at"] if report["look"] else 0)

    def show(self, report: Report) -> None:
        look = report["look"]
        if report["in_doubt"]:
            say("this bookie lost data: it is read-only until it has checked all ledgers")
        if look is not None:
            took = (time.time() if look["ended_s"] is None else look["ended_s"]) - look["began_s"]
            goes_on = " so far" if look["ended_s"] is None else ""
            what = "all ledgers" if look["whole"] else "ledgers in limbo or damaged"
            repaired = look["mended"]  # bookies of 0.2 have no other name for it
            say(f"last check, of {what}: {look['looked_at']} in {took:.1f} s{goes_on}, {repaired} repaired")
        say(f"copied since the start: {report['copied_entries']} entries, {human_bytes(report['copied_bytes'])}")
        rows = [(one["ledger_id"], one["why"]) for one in report["left"]]
        rows += [(ledger_id, "its writer has time to close it by itself") for ledger_id in report["waiting"]]
        if rows:
            print_table(("ledger", "why it is not whole here yet"), rows)

    def exit_status(self, report: Report) -> int:
        return 1 if report["in_doubt"] or report["left"] or report["waiting"] else 0
