"""`bkpy bookie gc`: what garbage collection of a running bookie has done, and a run of it now."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.bookie.admin_command import AdminCommand, Report, work_on_page
from bkpy.cli.bookie.pages import pages_options
from bkpy.cli.output.json import json_option
from bkpy.cli.output.progress import progress
from bkpy.cli.output.tables import print_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@click.command()
@click.option("--now", is_flag=True, help="Start a run, and wait until it has ended.")
@click.option("--dry-run", is_flag=True, help="The same, but only count what would be collected.")
@pages_options
@json_option
def gc(now: bool, dry_run: bool, as_json: bool, **where: str | None) -> int:
    """Show the last run of a bookie's garbage collection, or collect now.

    Name the bookie by --bookie and --connect, which find it by its registration, or by --admin HOST:PORT. It has to run
    with a metrics_port, and answers this command on its own machine only, unless its admin_clients says otherwise.
    """
    return GarbageCollection(where, start=now or dry_run, dry_run=dry_run).execute(as_json=as_json)


class GarbageCollection(AdminCommand):
    """`bkpy bookie gc`."""

    def __init__(self, where: dict[str, str | None], *, start: bool, dry_run: bool) -> None:
        self._where = where
        self._start = start
        self._dry_run = dry_run

    async def report(self) -> Report:
        # It joins no other run, which may not look for what this one is to find.
        return await work_on_page(self, "/gc", self._where, start=self._start, request={"dry_run": self._dry_run})

    def is_running(self, report: Report, first: Report) -> bool:
        return bool(report["run"]["outcome"] == "running")

    @contextlib.contextmanager
    def progress(self) -> Iterator[Callable[[Report], None]]:
        with progress(unit="ledgers") as bar:
            task = bar.add_task("garbage collection", total=None)

            def update(report: Report) -> None:
                latest = report["run"]
                verb = "would collect" if latest["dry_run"] else "collected"
                line = f"{verb} {latest['gone']} deleted ledgers, {latest['spare']} over-replicated copies"
                bar.update(task, completed=latest["examined"], description=line)

            yield update

    def show(self, report: Report) -> None:
        latest = report["run"]
        if latest is None:
            every = (
                f"collects every {report['interval_s']:g} s"
                if report["interval_s"]
                else "collects only on request (gc_interval_s is 0)"
            )
            click.echo(f"bookie {report['bookie_id']} has not collected since its start; it {every}")
            return
        verb = "to collect" if latest["dry_run"] else "collected"
        rows = [
            ("bookie", report["bookie_id"]),
            ("run", str(latest["number"]) + (" (dry run)" if latest["dry_run"] else "")),
            ("outcome", latest["outcome"] + (f": {latest['failure']}" if latest["failure"] else "")),
            ("seconds", "-" if latest["seconds"] is None else f"{latest['seconds']:.2f}"),
            ("ledgers examined", str(latest["examined"])),
            (f"deleted ledgers {verb}", str(latest["gone"])),
            (f"over-replicated copies {verb}", str(latest["spare"]) if latest["spares"] else "not looked for"),
            *((f"kept: {reason}", str(count)) for reason, count in sorted(latest["kept"].items())),
        ]
        if latest["collected"]:
            rows.append(("ledgers", _ids(latest["collected"], latest["gone"] + latest["spare"])))
        print_table(("", ""), rows)

    def exit_status(self, report: Report) -> int:
        return 1 if self._start and report["run"]["outcome"] == "failed" else 0


def _ids(ids: list[Any], count: int) -> str:
    return ", ".join(map(str, ids)) + (f" and {count - len(ids)} more" if count > len(ids) else "")
