"""`bkpy bookie drain` and `bkpy bookie decommission`: move a bookie's copies elsewhere, and remove it for good."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import click

from bkpy.cli.arguments import SecondsRange
from bkpy.cli.completion import complete_bookie
from bkpy.cli.connecting import connect_admin, connect_option
from bkpy.cli.input import confirm_meanwhile
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.progress import progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import human_bytes, say
from bkpy.cli.running import run
from bkpy.config.recovery import RecoverySettings
from bkpy.errors import ConfigError

if TYPE_CHECKING:
    from bkpy.admin.drain import DrainProgress
    from bkpy.metadata.bookies.naming import ReferencingLedgers

_SHOWN_MAX = 20


@click.command()
@connect_option
@click.argument("bookie_id", metavar="ID", shell_complete=complete_bookie)
@click.option(
    "--cancel", is_flag=True, help="Stop draining: the bookie stays. What has been copied elsewhere stays there."
)
@click.option("--status", is_flag=True, help="Only report the progress.")
@click.option(
    "--open_ledger_grace_s",
    type=SecondsRange(min=0, min_open=True),
    default=RecoverySettings.model_fields["open_ledger_grace_s"].default,
    show_default=True,
    help="Seconds that writers have to leave the bookie by themselves, if this command does the work.",
)
@json_option
def drain(uri: str, bookie_id: str, cancel: bool, status: bool, as_json: bool, open_ledger_grace_s: float) -> int:
    """Drain a bookie, and wait until all that it holds is copied to others.

    From now on the bookie is read-only: it serves reads, so no entry has fewer copies meanwhile, and writers replace it
    by others. Draining goes on when you interrupt this command; only --cancel stops it. When no ledger names the bookie
    any more, `bkpy bookie decommission` removes it. Exits with status 1 if the draining was cancelled meanwhile.
    """
    if cancel and status:
        raise ConfigError("--cancel and --status can't be given together")
    settings = RecoverySettings(open_ledger_grace_s=open_ledger_grace_s)
    if cancel:
        was = run(_cancel(uri, bookie_id, settings))
        if as_json:
            print_json({"bookie_id": bookie_id, "cancelled": was})
        else:
            click.echo(f"bookie {bookie_id} stays" if was else f"bookie {bookie_id} was not draining")
        return 0
    began = time.monotonic()
    found = run(_look(uri, bookie_id, settings) if status else _drain(uri, bookie_id, settings))
    done = found.draining and not found.ledgers
    if as_json:
        fields = dataclasses.asdict(found)
        fields["blocked"] = {str(ledger_id): why for ledger_id, why in found.blocked.items()}
        seconds = None if status else round(time.monotonic() - began, 3)
        print_json({"bookie_id": bookie_id, "done": done, **fields, "seconds": seconds})
    else:
        _show(bookie_id, found, done)
    return 0 if done or status else 1


async def _cancel(uri: str, bookie_id: str, settings: RecoverySettings) -> bool:
    async with connect_admin(uri, settings) as admin:
        return await admin.cancel_drain(bookie_id)


async def _look(uri: str, bookie_id: str, settings: RecoverySettings) -> DrainProgress:
    async with connect_admin(uri, settings) as admin:
        return await admin.drain_progress(bookie_id)


async def _drain(uri: str, bookie_id: str, settings: RecoverySettings) -> DrainProgress:
    async with connect_admin(uri, settings) as admin:
        await admin.start_drain(bookie_id)
        with progress(unit="ledgers") as bar:
            task = bar.add_task("looking for ledgers", total=None)
            most = 0

            reported: set[str] = set()

            def show(now: DrainProgress) -> None:
                nonlocal most
                for kind in now.missing.keys() - reported:
                    say(f"bkpy: draining {bookie_id} waits: {now.missing[kind]}")
                reported.clear()
                reported.update(now.missing)
                most = max(most, now.ledgers)
                bar.update(task, total=most, completed=most - now.ledgers, description=_line(now))

            return await admin.wait_for_drain(bookie_id, on_progress=show)


def _line(now: DrainProgress) -> str:
    line = f"{_size(now)} left"
    if now.eta_s is not None and now.ledgers:
        line += f", {now.eta_s:,.0f} s to go"
    if not now.refuses:
        line += ", the bookie has not confirmed yet that it refuses entries"
    return line + (f", {len(now.blocked)} ledgers wait" if now.blocked else "")


def _size(now: DrainProgress) -> str:
    """The bytes, marked as an estimate unless they are exact."""
    about = "" if now.bytes_exact else "about "
    size = human_bytes(now.bytes)
    return f"{about}{now.bytes:,} bytes" + (f" ({size})" if now.bytes >= 1024 else "")


def _show(bookie_id: str, found: DrainProgress, done: bool) -> None:
    rows = [
        ("bookie", bookie_id),
        ("draining", "yes" if found.draining else "no"),
        ("refuses entries", "yes" if found.refuses else "not confirmed: " + _why_not(found)),
        ("ledgers that name it", f"{found.ledgers:,}"),
        ("bytes to copy", _size(found)),
        ("worked on by", found.worked_on_by or "nobody: `bkpy bookie drain` does, while it runs"),
    ]
    rows += [("missing", what) for what in found.missing.values()]
    for ledger_id, why in list(found.blocked.items())[:_SHOWN_MAX]:
        rows.append((f"ledger {ledger_id}", why))
    if len(found.blocked) > _SHOWN_MAX:
        rows.append(("and others", f"{len(found.blocked) - _SHOWN_MAX:,} ledgers"))
    print_table(("", ""), rows)
    if done:
        click.echo(f"no ledger needs it any more: `bkpy bookie decommission {bookie_id}` removes it from the cluster")


def _why_not(found: DrainProgress) -> str:
    if not found.draining:
        return "it is writable"
    return "it will in a moment" if found.registered else "it isn't running"


# --- decommission -----------------------------------------------------------------------------------------------------


@click.command()
@connect_option
@click.argument("bookie_id", metavar="ID", shell_complete=complete_bookie)
@click.option("--lost", is_flag=True, help="The bookie is not running, and will never come back with its data.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@json_option
def decommission(uri: str, bookie_id: str, lost: bool, yes: bool, as_json: bool) -> int:
    """Remove a drained bookie from its cluster for good.

    First the command reads the metadata of all ledgers. While any of them names the bookie, or may come to name it,
    the command changes nothing, and exits with status 1. Afterwards you can stop the bookie and erase its disks.
    """
    looked = run(_decommission(uri, bookie_id, lost=lost, yes=yes))
    scan = looked.scan
    if as_json:
        counts = {
            "ledgers": looked.ledgers,
            "named_by": scan.named,
            "in_recovery": scan.unsettled,
            "unreadable": scan.unreadable,
        }
        blocking = sorted((*looked.named, *looked.unsettled, *looked.unreadable))[:_SHOWN_MAX]
        print_json({"bookie_id": bookie_id, "decommissioned": scan.clear, **counts, "blocking": blocking})
    elif scan.clear:
        click.echo(f"bookie {bookie_id} is no part of the cluster any more: stop it if it runs")
    else:
        say(f"bkpy: {_refusal(bookie_id, looked)}")
    return 0 if scan.clear else 1


async def _decommission(uri: str, bookie_id: str, *, lost: bool, yes: bool) -> ReferencingLedgers:
    async with connect_admin(uri) as admin:
        with progress(unit="ledgers") as bar:
            task = bar.add_task(f"looking for ledgers that need {bookie_id}", total=None)

            def show(count: int) -> None:
                bar.update(task, completed=count)

            async def agree(looked: ReferencingLedgers) -> None:
                bar.stop()  # otherwise it would be drawn over the question
                if not yes:
                    say(f"{looked.ledgers} ledgers checked: none needs bookie {bookie_id}")
                    await confirm_meanwhile("Remove it from the cluster for good?", "nothing was changed")

            return await admin.decommission(bookie_id, lost=lost, confirm=agree, on_scanned=show)


def _refusal(bookie_id: str, looked: ReferencingLedgers) -> str:
    parts = [
        (looked.named, "name it (see `bkpy bookie drain`, or, for a lost bookie, `bkpy bookie recover`)"),
        (looked.unsettled, "are in recovery, and closing them failed (see `bkpy ledger recover`)"),
        (looked.unreadable, "have metadata that can't be read"),
    ]
    report = [
        f"{len(ids):,} {what}: {', '.join(map(str, ids[:_SHOWN_MAX]))}{', ...' * (len(ids) > _SHOWN_MAX)}"
        for ids, what in parts
        if ids
    ]
    return f"bookie {bookie_id} stays: of {looked.ledgers:,} ledgers, " + "; ".join(report)
