"""`bkpy bookie recover`: copy what a bookie that is gone had to other bookies, ledger by ledger, and name those."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.connecting import connect, connect_option
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.progress import progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import human_bytes
from bkpy.cli.running import run
from bkpy.config.recovery import RecoverySettings
from bkpy.errors import BookieUnavailableError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    import bkpy
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.rereplication import Plan
    from bkpy.replication.context import ReplicationContext
    from bkpy.replication.worker.worker import ReplicationWorker

_POLL_S = 0.1
_SHOWN_MAX = 20


def _default(name: str) -> Any:
    return RecoverySettings.model_fields[name].default


@click.command()
@connect_option
@click.argument("bookie_id", metavar="ID")
@click.option("--to", "target", metavar="ID", help="Copy to this bookie alone.  [default: chosen for each fragment]")
@click.option("--dry-run", is_flag=True, help="Only say what would be copied.")
@click.option(
    "--open_ledger_grace_s",
    type=click.FloatRange(min=0, min_open=True),
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

    For a bookie that is not coming back, where the cluster doesn't do this by itself. It may be interrupted, and run
    again: it goes on where it was. Exits with status 1 if some ledgers could not be completed, or
    have metadata that can't be read.
    """
    values["copy_bytes_per_s_min"] = min(_default("copy_bytes_per_s_min"), values["copy_bytes_per_s_max"])
    report = run(_recover(uri, bookie_id, target, dry_run, RecoverySettings(**values)))
    if as_json:
        print_json(report)
    else:
        _show(report)
    return 1 if report["stuck"] or report["unreadable"] else 0


async def _recover(
    uri: str, bookie_id: str, target: str | None, dry_run: bool, settings: RecoverySettings
) -> dict[str, Any]:
    async with connect(uri) as client:
        _check(client, bookie_id, target)
        named, unreadable = await _named(client.replication_context, bookie_id, settings)
        if dry_run:
            report = await _plan(client.replication_context, bookie_id, target, named, settings)
        else:
            report = await _work(client, bookie_id, target, named, settings)
        return {**report, "unreadable": unreadable}


def _check(client: bkpy.Client, bookie_id: str, target: str | None) -> None:
    from bkpy.metadata.paths import checked_bookie_id

    checked_bookie_id(bookie_id)
    if _is_registered(client, bookie_id):
        raise ConfigError("the bookie is running: there is nothing to recover as long as it is", bookie=bookie_id)
    if target is not None and target not in client.bookies:
        why = "it is read-only" if target in client.read_only_bookies else "see `bkpy bookies list`"
        raise BookieUnavailableError(f"no bookie that takes entries is registered under this id: {why}", bookie=target)


def _is_registered(client: bkpy.Client, bookie_id: str) -> bool:
    return bookie_id in client.bookies or bookie_id in client.read_only_bookies


async def _named(
    context: ReplicationContext, bookie_id: str, settings: RecoverySettings
) -> tuple[list[int], list[int]]:
    """The ids of the ledgers that name the bookie, and of those of which nobody can tell."""
    from bkpy.metadata.ledgers.all_ledgers import all_ledgers

    named: list[int] = []
    unreadable: list[int] = []
    with progress(unit="ledgers") as bar:
        task = bar.add_task("looking for ledgers", total=None)
        async for some in all_ledgers(context.cluster.catalog, reads_at_once=settings.repair_looks_at_once):
            for ledger_id, metadata in some:
                if metadata is None:
                    unreadable.append(ledger_id)
                elif bookie_id in metadata.needed_bookies:
                    named.append(ledger_id)
            bar.advance(task, len(some))
    return named, unreadable


async def _plan(
    context: ReplicationContext, bookie_id: str, target: str | None, named: list[int], settings: RecoverySettings
) -> dict[str, Any]:
    """What would be done, by the bookies that are there now."""
    from bkpy.metadata.ledgers.all_ledgers import read_ledgers
    from bkpy.protocol.repair.rereplication import plan

    bookies = context.bookies()
    if target is not None:
        bookies = bookies._replace(writable=bookies.writable & {target})
    report = _report(bookie_id, dry_run=True, named=len(named))
    for start in range(0, len(named), settings.repair_looks_at_once):
        some = named[start : start + settings.repair_looks_at_once]
        for ledger_id, metadata in await read_ledgers(context.cluster.catalog, some):
            if metadata is not None:
                _count(report, ledger_id, metadata, plan(metadata, {bookie_id}, bookies))
    return report


def _count(report: dict[str, Any], ledger_id: int, metadata: LedgerMetadata, planned: Plan) -> None:
    entries = sum(copy.share.entries or 0 for copy in planned.copies)
    average = metadata.length / (metadata.last_entry + 1) if metadata.last_entry >= 0 else 0
    report["fragments"] += len(planned.copies)
    report["entries"] += entries
    report["bytes"] += round(entries * average)
    if planned.unclosed:
        report["open_ledgers"] += 1
    if planned.stuck:
        report["stuck"][str(ledger_id)] = "; ".join(one.description for one in planned.stuck)
    else:
        report["ledgers"] += 1


async def _work(
    client: bkpy.Client, bookie_id: str, target: str | None, named: list[int], settings: RecoverySettings
) -> dict[str, Any]:
    from bkpy.metadata.replication.locks import LedgerLocks
    from bkpy.metadata.replication.manual import manual_moves
    from bkpy.replication.worker.manual_queue import ManualQueue
    from bkpy.replication.worker.worker import ReplicationWorker

    cluster = client.replication_context.cluster
    runtime = cluster.store.runtime
    locks = LedgerLocks(cluster.store, cluster.root, f"bkpy bookie recover {bookie_id}", runtime, settings)
    marks = ManualQueue(bookie_id, named)
    worker = ReplicationWorker(client.replication_context, marks, locks, runtime, settings, locks.holder, target=target)
    began = time.monotonic()
    async with manual_moves(cluster.store, cluster.root, locks.holder, runtime, settings):
        working = asyncio.create_task(worker.run())
        try:
            await _follow(worker, marks, working, len(named), lambda: _is_registered(client, bookie_id))
        finally:
            working.cancel()
            await asyncio.wait([working])
    if not working.cancelled() and (error := working.exception()) is not None:
        raise error
    if len(marks) and _is_registered(client, bookie_id):
        raise ConfigError(
            f"the bookie came back, so recovery stopped: {len(named) - len(marks)} of {len(named)} ledgers don't name "
            f"it any more, {len(marks)} were left as they are; drain the bookie to move its copies",
            bookie=bookie_id,
        )
    status = worker.status()
    return {
        **_report(bookie_id, dry_run=False, named=len(named)),
        "ledgers": len(named) - len(marks),
        "fragments": worker.count.fragments,
        "entries": worker.count.entries,
        "bytes": worker.count.bytes,
        "stuck": status["stuck_ledgers"],
        "seconds": round(time.monotonic() - began, 3),
    }


async def _follow(
    worker: ReplicationWorker, marks: Any, working: asyncio.Task[None], total: int, is_back: Callable[[], bool]
) -> None:
    """Show progress until nothing is left, what is left is stuck, or the bookie comes back."""
    with progress(unit="ledgers") as bar:
        task = bar.add_task("copying", total=total)
        while len(marks) and not working.done() and not is_back():
            await asyncio.wait([working], timeout=_POLL_S)
            count = worker.count
            line = f"copied and verified {count.entries:,} entries, {human_bytes(count.bytes)}"
            waiting = worker.status()["postponed"]
            line += f", {waiting} ledgers wait" if waiting else ""
            bar.update(task, completed=total - len(marks), description=line)
            if worker.looked and worker.idle:
                return


def _report(bookie_id: str, *, dry_run: bool, named: int) -> dict[str, Any]:
    return {
        "bookie_id": bookie_id,
        "dry_run": dry_run,
        "named_by": named,
        "ledgers": 0,
        "open_ledgers": 0,
        "fragments": 0,
        "entries": 0,
        "bytes": 0,
        "stuck": {},
        "seconds": None,
    }


def _show(report: dict[str, Any]) -> None:
    verb = "to copy" if report["dry_run"] else "copied and verified"
    rows = [
        ("bookie", report["bookie_id"]),
        ("ledgers that named it", f"{report['named_by']:,}"),
        ("ledgers " + ("that can be completed" if report["dry_run"] else "completed"), f"{report['ledgers']:,}"),
        ("fragments " + ("to copy" if report["dry_run"] else "copied"), f"{report['fragments']:,}"),
        (f"entries {verb}", f"{report['entries']:,}"),
        (f"bytes {verb}", ("about " if report["dry_run"] else "") + human_bytes(report["bytes"])),
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
        which = ", ".join(map(str, report["unreadable"][:_SHOWN_MAX])) + ", ..." * (
            len(report["unreadable"]) > _SHOWN_MAX
        )
        rows.append(("ledgers whose metadata can't be read", f"{len(report['unreadable']):,}: {which}"))
    print_table(("", ""), rows)
