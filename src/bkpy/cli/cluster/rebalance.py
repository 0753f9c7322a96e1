"""`bkpy cluster rebalance`: move copies of closed ledgers to bookies that have less than their share."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.connecting import connect, connect_option
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.progress import byte_progress, progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import human_bytes
from bkpy.cli.running import run
from bkpy.config.recovery import RecoverySettings

if TYPE_CHECKING:
    from bkpy.admin.rebalance import Rebalancer
    from bkpy.protocol.repair.rebalance import Balance

_POLL_S = 0.1
_SHOWN_MAX = 20


def _default(name: str) -> Any:
    return RecoverySettings.model_fields[name].default


@click.command(short_help="Move copies of closed ledgers to bookies that have less than their share.")
@connect_option
@click.option("--dry-run", is_flag=True, help="Only say what would be moved.")
@click.option(
    "--copy_bytes_per_s_max",
    type=click.IntRange(min=1),
    default=_default("copy_bytes_per_s_max"),
    show_default=True,
    help="Bytes a second to copy at most.",
)
@json_option
def rebalance(uri: str, dry_run: bool, as_json: bool, **values: Any) -> int:
    """Move copies of closed ledgers to bookies that have less than their share, as new ones do.

    Each registered bookie's share is the same. Copies are verified on the way, and take the place of the others when
    all of them are there; readers don't notice. No more is moved than is needed, and racks stay as far apart as they
    are. It may be interrupted, and run again. Exits with status 1 if some copies could not be moved.
    """
    values["copy_bytes_per_s_min"] = min(_default("copy_bytes_per_s_min"), values["copy_bytes_per_s_max"])
    report = run(_rebalance(uri, dry_run, RecoverySettings(**values)))
    if as_json:
        print_json(report)
    else:
        _show(report)
    return 1 if report["failed"] else 0


async def _rebalance(uri: str, dry_run: bool, settings: RecoverySettings) -> dict[str, Any]:
    from bkpy.admin.rebalance import Rebalancer
    from bkpy.metadata.replication.locks import LedgerLocks
    from bkpy.metadata.replication.manual import manual_moves

    async with connect(uri) as client:
        cluster = client.replication_context.cluster
        runtime = cluster.store.runtime
        locks = LedgerLocks(cluster.store, cluster.root, "bkpy cluster rebalance", runtime, settings)
        rebalancer = Rebalancer(client.replication_context, locks, settings, runtime)
        began = time.monotonic()
        with progress(unit="ledgers") as bar:
            task = bar.add_task("looking at what each bookie has", total=None)
            looking = asyncio.create_task(rebalancer.look())
            while not looking.done():
                await asyncio.wait([looking], timeout=_POLL_S)
                bar.update(task, completed=rebalancer.read)
        balance = await looking
        if dry_run:
            await _plan(rebalancer, balance)
        else:
            async with manual_moves(cluster.store, cluster.root, locks.holder, runtime, settings):
                await _work(rebalancer, balance)
        return _report(rebalancer, balance.share, None if dry_run else time.monotonic() - began)


async def _plan(rebalancer: Rebalancer, balance: Balance) -> None:
    async for moves in rebalancer.plan(balance):
        for move in moves:
            rebalancer.moves += 1
            rebalancer.done += move.size
            rebalancer.given[move.source] = rebalancer.given.get(move.source, 0) + move.size
            rebalancer.taken[move.target] = rebalancer.taken.get(move.target, 0) + move.size


async def _work(rebalancer: Rebalancer, balance: Balance) -> None:
    working = asyncio.create_task(rebalancer.run(balance))
    try:
        with byte_progress("moving", rebalancer.planned) as moved:
            while not working.done():
                await asyncio.wait([working], timeout=_POLL_S)
                moved(rebalancer.done)
    finally:
        working.cancel()
        await asyncio.wait([working])
    working.result()


def _report(rebalancer: Rebalancer, share: int, seconds: float | None) -> dict[str, Any]:
    loads, given, taken = rebalancer.loads, rebalancer.given, rebalancer.taken
    return {
        "dry_run": seconds is None,
        "share": share,
        "bookies": {
            name: {"before": load, "after": load - given.get(name, 0) + taken.get(name, 0)}
            for name, load in loads.items()
        },
        "moves": rebalancer.moves,
        "size": rebalancer.done,
        "fragments": rebalancer.count.fragments,
        "entries": rebalancer.count.entries,
        "bytes": rebalancer.count.bytes,
        "failed": {str(ledger_id): why for ledger_id, why in rebalancer.failed.items()},
        "seconds": None if seconds is None else round(seconds, 3),
    }


def _show(report: dict[str, Any]) -> None:
    now = "would have" if report["dry_run"] else "has"
    rows = [
        (name, human_bytes(load["before"]), human_bytes(load["after"]))
        for name, load in sorted(report["bookies"].items())
    ]
    print_table(
        ("bookie", "had of closed ledgers", now), rows, title=f"the share of each is {human_bytes(report['share'])}"
    )
    what = f"{report['moves']:,} times what a bookie has of a ledger, about {human_bytes(report['size'])}"
    if report["dry_run"]:
        click.echo(f"to move: {what}")
        return
    click.echo(
        f"moved in {report['seconds']:.1f} s: {what}; copied and verified: {report['entries']:,} entries, "
        f"{human_bytes(report['bytes'])}"
    )
    for ledger_id, why in list(report["failed"].items())[:_SHOWN_MAX]:
        click.echo(f"ledger {ledger_id}: {why}")
    if len(report["failed"]) > _SHOWN_MAX:
        click.echo(f"and {len(report['failed']) - _SHOWN_MAX:,} others")
