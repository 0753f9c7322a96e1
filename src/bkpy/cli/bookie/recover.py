"""`bkpy bookie recover`: copy to other bookies what a lost bookie held, ledger by ledger, and name those."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.bookie.admin_command import AdminCommand, Report
from bkpy.cli.connecting import connect, connect_option
from bkpy.cli.output.json import json_option
from bkpy.cli.output.progress import progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import human_bytes
from bkpy.config.recovery import RecoverySettings
from bkpy.errors import BookieUnavailableError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import bkpy
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.protocol.repair.rereplication import Plan
    from bkpy.replication.context import ReplicationContext

_SHOWN_MAX = 20


def _default(name: str) -> Any:
    return RecoverySettings.model_fields[name].default


@click.command()
@connect_option
@click.argument("bookie_id", metavar="ID")
@click.option("--to", "target", metavar="ID", help="Copy to this bookie alone.  [default: chosen for each fragment]")
@click.option("--dry-run", is_flag=True, help="Only report what would be copied.")
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

    For a bookie that is not coming back, where the cluster doesn't do this by itself. You may interrupt it and run it
    again: it goes on where it was. Exits with status 1 if some ledgers could not be completed, or have metadata that
    can't be read.
    """
    values["copy_bytes_per_s_min"] = min(_default("copy_bytes_per_s_min"), values["copy_bytes_per_s_max"])
    return BookieRecovery(uri, bookie_id, target, dry_run, RecoverySettings(**values)).execute(as_json=as_json)


class BookieRecovery(AdminCommand):
    """`bkpy bookie recover`. This command does the work itself, as a replication worker without an auditor."""

    def __init__(self, uri: str, bookie_id: str, target: str | None, dry_run: bool, settings: RecoverySettings) -> None:
        self._uri = uri
        self._bookie_id = bookie_id
        self._target = target
        self._dry_run = dry_run
        self._settings = settings

    async def report(self) -> Report:
        async with connect(self._uri) as client:
            self._check(client)
            named, unreadable = await self._find_ledgers(client.replication_context)
            work = self._plan(client.replication_context, named) if self._dry_run else self._work(client, named)
            return {**await work, "unreadable": unreadable}

    def _check(self, client: bkpy.Client) -> None:
        from bkpy.metadata.paths import checked_bookie_id

        checked_bookie_id(self._bookie_id)
        if self._is_registered(client):
            raise ConfigError(
                "the bookie is running: there is nothing to recover as long as it is", bookie=self._bookie_id
            )
        if self._target is not None and self._target not in client.bookies:
            why = "it is read-only" if self._target in client.read_only_bookies else "see `bkpy bookies list`"
            raise BookieUnavailableError(f"no writable bookie is registered under this id: {why}", bookie=self._target)

    def _is_registered(self, client: bkpy.Client) -> bool:
        return self._bookie_id in client.bookies or self._bookie_id in client.read_only_bookies

    async def _find_ledgers(self, context: ReplicationContext) -> tuple[list[int], list[int]]:
        """The ids of the ledgers that name the bookie, and of the ledgers whose metadata can't be read."""
        from bkpy.metadata.ledgers.all_ledgers import all_ledgers

        named: list[int] = []
        unreadable: list[int] = []
        with progress(unit="ledgers") as bar:
            task = bar.add_task("looking for ledgers", total=None)
            async for some in all_ledgers(context.cluster.catalog, reads_at_once=self._settings.repair_looks_at_once):
                for ledger_id, metadata in some:
                    if metadata is None:
                        unreadable.append(ledger_id)
                    elif self._bookie_id in metadata.needed_bookies:
                        named.append(ledger_id)
                bar.advance(task, len(some))
        return named, unreadable

    async def _plan(self, context: ReplicationContext, named: list[int]) -> Report:
        """What the command would do with the bookies that are registered now."""
        from bkpy.metadata.ledgers.all_ledgers import read_ledgers
        from bkpy.protocol.repair.rereplication import plan

        bookies = context.bookies()
        if self._target is not None:
            bookies = bookies._replace(writable=bookies.writable & {self._target})
        report = self._empty_report(len(named))
        for start in range(0, len(named), self._settings.repair_looks_at_once):
            some = named[start : start + self._settings.repair_looks_at_once]
            for ledger_id, metadata in await read_ledgers(context.cluster.catalog, some):
                if metadata is not None:
                    _count(report, ledger_id, metadata, plan(metadata, {self._bookie_id}, bookies))
        return report

    async def _work(self, client: bkpy.Client, named: list[int]) -> Report:
        from bkpy.metadata.replication.locks import LedgerLocks
        from bkpy.metadata.replication.manual import manual_moves
        from bkpy.replication.worker.manual_queue import ManualQueue
        from bkpy.replication.worker.worker import ReplicationWorker

        context, settings = client.replication_context, self._settings
        cluster = context.cluster
        runtime = cluster.store.runtime
        locks = LedgerLocks(cluster.store, cluster.root, f"bkpy bookie recover {self._bookie_id}", runtime, settings)
        queue = ManualQueue(self._bookie_id, named)
        worker = ReplicationWorker(context, queue, locks, runtime, settings, locks.holder, target=self._target)
        began = time.monotonic()

        async def state() -> Report:
            """The worker's; it runs until nothing is left, all that is left is stuck, or the bookie comes back."""
            ended = not len(queue) or working.done() or self._is_registered(client) or (worker.looked and worker.idle)
            waiting = worker.status()["postponed"]
            counts = {"entries": worker.count.entries, "bytes": worker.count.bytes}
            return {"running": not ended, "named": len(named), "left": len(queue), "waiting": waiting, **counts}

        async with manual_moves(cluster.store, cluster.root, locks.holder, runtime, settings):
            working = asyncio.create_task(worker.run())
            try:
                await self.follow(state)
            finally:
                working.cancel()
                await asyncio.wait([working])
        if not working.cancelled() and (error := working.exception()) is not None:
            raise error
        if len(queue) and self._is_registered(client):
            raise ConfigError(
                f"the bookie came back, so recovery stopped: {len(named) - len(queue)} of {len(named)} ledgers don't "
                f"name it any more, {len(queue)} were left as they are; drain the bookie to move its copies",
                bookie=self._bookie_id,
            )
        return {
            **self._empty_report(len(named)),
            "ledgers": len(named) - len(queue),
            "fragments": worker.count.fragments,
            "entries": worker.count.entries,
            "bytes": worker.count.bytes,
            "stuck": worker.status()["stuck_ledgers"],
            "seconds": round(time.monotonic() - began, 3),
        }

    def _empty_report(self, named: int) -> Report:
        return {
            "bookie_id": self._bookie_id,
            "dry_run": self._dry_run,
            "named_by": named,
            "ledgers": 0,
            "open_ledgers": 0,
            "fragments": 0,
            "entries": 0,
            "bytes": 0,
            "stuck": {},
            "seconds": None,
        }

    def is_running(self, report: Report, first: Report) -> bool:
        return bool(report["running"])

    @contextlib.contextmanager
    def progress(self) -> Iterator[Callable[[Report], None]]:
        with progress(unit="ledgers") as bar:
            task = bar.add_task("copying", total=None)

            def update(state: Report) -> None:
                line = f"copied and verified {state['entries']:,} entries, {human_bytes(state['bytes'])}"
                line += f", {state['waiting']} ledgers wait" if state["waiting"] else ""
                done = state["named"] - state["left"]
                bar.update(task, total=state["named"], completed=done, description=line)

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


def _count(report: Report, ledger_id: int, metadata: LedgerMetadata, planned: Plan) -> None:
    """Add what the plan of one ledger copies. Bytes are an estimate: entries of average length."""
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
