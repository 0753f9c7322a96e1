"""`bkpy cluster rebalance`: moves copies of closed ledgers to bookies that hold less than their share."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.connecting import connect_admin, connect_option
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.progress import byte_progress, progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import human_bytes
from bkpy.cli.running import run
from bkpy.config.recovery import RecoverySettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.admin.rebalance import RebalanceReport

_SHOWN_MAX = 20


def _default(name: str) -> Any:
    return RecoverySettings.model_fields[name].default


@click.command(short_help="Move copies of closed ledgers to bookies that hold less than their share.")
@connect_option
@click.option("--dry-run", is_flag=True, help="Only report what would be moved.")
@click.option(
    "--copy_bytes_per_s_max",
    type=click.IntRange(min=1),
    default=_default("copy_bytes_per_s_max"),
    show_default=True,
    help="Bytes a second to copy at most.",
)
@json_option
def rebalance(uri: str, dry_run: bool, as_json: bool, **values: Any) -> int:
    """Move copies of closed ledgers to bookies that hold less than their share, as new bookies do.

    Each registered bookie's share is the same. The command verifies copies on the way, and replaces a bookie in the
    metadata once its copies are all there, so that readers don't notice. It moves no more than needed, and keeps copies
    on as many racks as they are. You may interrupt it and run it again. Exits with status 1 if it failed to move some
    copies.
    """
    values["copy_bytes_per_s_min"] = min(_default("copy_bytes_per_s_min"), values["copy_bytes_per_s_max"])
    report = run(_rebalance(uri, dry_run, RecoverySettings(**values)))
    if as_json:
        print_json(dataclasses.asdict(report))
    else:
        _show(report)
    return 1 if report.failed else 0


async def _rebalance(uri: str, dry_run: bool, settings: RecoverySettings) -> RebalanceReport:
    async with connect_admin(uri, settings) as admin:
        with contextlib.ExitStack() as bars:
            bar = bars.enter_context(progress(unit="ledgers"))
            task = bar.add_task("counting what each bookie holds", total=None)
            show_moved: Callable[[int], None] | None = None

            def scanned(count: int) -> None:
                bar.update(task, completed=count)

            def moved(count: int, planned: int) -> None:
                nonlocal show_moved
                if show_moved is None and not dry_run:
                    bar.stop()  # a terminal shows one at a time
                    show_moved = bars.enter_context(byte_progress("moving", planned))
                if show_moved is not None:
                    show_moved(count)

            return await admin.rebalance(dry_run=dry_run, on_scanned=scanned, on_moved=moved)


def _show(report: RebalanceReport) -> None:
    now = "would hold" if report.dry_run else "holds"
    rows = [(name, human_bytes(load.before), human_bytes(load.after)) for name, load in sorted(report.bookies.items())]
    print_table(
        ("bookie", "held of closed ledgers", now), rows, title=f"the share of each is {human_bytes(report.share)}"
    )
    what = f"{report.moves:,} moves, each of one bookie's copies of a ledger, about {human_bytes(report.size)}"
    if report.dry_run:
        click.echo(f"planned: {what}")
        return
    click.echo(
        f"done in {report.seconds:.1f} s: {what}; copied and verified: {report.entries:,} entries, "
        f"{human_bytes(report.bytes)}"
    )
    for ledger_id, why in list(report.failed.items())[:_SHOWN_MAX]:
        click.echo(f"ledger {ledger_id}: {why}")
    if len(report.failed) > _SHOWN_MAX:
        click.echo(f"and {len(report.failed) - _SHOWN_MAX:,} others")
