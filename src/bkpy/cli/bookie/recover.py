"""`bkpy bookie recover`: copy to other bookies what a lost bookie held, ledger by ledger, and name those."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.arguments import SecondsRange
from bkpy.cli.bookie.admin_command import AdminCommand, Report
from bkpy.cli.completion import complete_bookie
from bkpy.cli.connecting import connect_admin, connect_option
from bkpy.cli.output.json import json_option
from bkpy.cli.output.progress import progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import human_bytes
from bkpy.config.recovery import RecoverySettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bkpy.admin.bookie_recovery import RecoveryProgress

_SHOWN_MAX = 20


def _default(name: str) -> Any:
    return RecoverySettings.model_fields[name].default


@click.command()
@connect_option
@click.argument("bookie_id", metavar="ID", shell_complete=complete_bookie)
@click.option("--to", "target", metavar="ID", help="Copy to this bookie alone.  [default: chosen for each fragment]")
@click.option("--dry-run", is_flag=True, help="Only report what would be copied.")
@click.option(
    "--open_ledger_grace_s",
    type=SecondsRange(min=0, min_open=True),
    default=_default("open_ledger_grace_s"),
    show_default=True,
    help="Seconds that writers have to leave the bookie by themselves, before open ledgers are recovered.",
)
@click.option(
    "--copy_bytes_per_s_max",
    type=click.IntRange(min=1),
    default=_default("copy_bytes_per_s_max"),
    show_default=True,
    help="Bytes a second to copy at most.",
)
@json_option
def recover(uri: str, bookie_id: str, target: str | None, dry_run: bool, as_json: bool, **values: Any) -> int:
    """Copy to others what the ledgers of a lost bookie had on it, so that they have all their copies again.

    For a bookie that is not coming back, where the cluster doesn't do this by itself. You may interrupt it and run it
    again: it goes on where it was. Exits with status 1 if some ledgers could not be completed, or have metadata that
    can't be read.
    """
    values["copy_bytes_per_s_min"] = min(_default("copy_bytes_per_s_min"), values["copy_bytes_per_s_max"])
    return RecoverCommand(uri, bookie_id, target, dry_run, RecoverySettings(**values)).execute(as_json=as_json)


class RecoverCommand(AdminCommand):
    """`bkpy bookie recover`. This command does the work itself, as a replication worker without an auditor."""

    def __init__(self, uri: str, bookie_id: str, target: str | None, dry_run: bool, settings: RecoverySettings) -> None:
        self._uri = uri
        self._bookie_id = bookie_id
        self._target = target
        self._dry_run = dry_run
        self._settings = settings

    async def report(self) -> Report:
        state: Report = {"running": True, "scanned": 0, "copying": None}

        async def ask() -> Report:
            return {**state, "running": not working.done()}

        async with connect_admin(self._uri, self._settings) as admin:
            working = asyncio.create_task(
                admin.recover_bookie(
                    self._bookie_id,
                    target=self._target,
                    dry_run=self._dry_run,
                    on_scanned=lambda count: state.update(scanned=count),
                    on_progress=lambda now: state.update(copying=now),
                )
            )
            try:
                await self.follow(ask)
            finally:
                working.cancel()
                await asyncio.wait([working])
            return dataclasses.asdict(await working)

    def is_running(self, report: Report, first: Report) -> bool:
        return bool(report["running"])

    @contextlib.contextmanager
    def progress(self) -> Iterator[Callable[[Report], None]]:
        with progress(unit="ledgers") as bar:
            task = bar.add_task("looking for ledgers", total=None)

            def update(state: Report) -> None:
                now: RecoveryProgress | None = state["copying"]
                if now is None:
                    bar.update(task, completed=state["scanned"])
                    return
                line = f"copied and verified {now.entries:,} entries, {human_bytes(now.bytes)}"
                line += f", {now.postponed} ledgers wait" if now.postponed else ""
                bar.update(task, total=now.ledgers, completed=now.ledgers_done, description=line)

            yield update

    def show(self, report: Report) -> None:
        dry_run = report["dry_run"]
        verb = "to copy" if dry_run else "copied and verified"
        rows = [
            ("bookie", report["bookie_id"]),
            ("ledgers that named it", f"{report['named_by']:,}"),
            ("ledgers " + ("that can be completed" if dry_run else "completed"), f"{report['ledgers']:,}"),
            ("fragments " + ("to copy" if dry_run else "copied"), f"{report['fragments']:,}"),
            (f"entries {verb}", f"{report['entries']:,}"),
            (f"bytes {verb}", ("about " if dry_run else "") + human_bytes(report["bytes"])),
        ]
        if report["open_ledgers"]:
            rows.append(("open ledgers to recover", f"{report['open_ledgers']:,}"))
        if report["seconds"] is not None:
            rows.append(("seconds", f"{report['seconds']:.1f}"))
        for ledger_id, why in list(report["stuck"].items())[:_SHOWN_MAX]:
            rows.append((f"ledger {ledger_id}", why))
        if len(report["stuck"]) > _SHOWN_MAX:
            rows.append(("and others", f"{len(report['stuck']) - _SHOWN_MAX:,} ledgers"))
        if report["unreadable"]:
            unreadable = report["unreadable"]
            which = ", ".join(map(str, unreadable[:_SHOWN_MAX])) + ", ..." * (len(unreadable) > _SHOWN_MAX)
            rows.append(("ledgers whose metadata can't be read", f"{len(unreadable):,}: {which}"))
        print_table(("", ""), rows)

    def exit_status(self, report: Report) -> int:
        return 1 if report["stuck"] or report["unreadable"] else 0
