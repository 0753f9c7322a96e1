"""`bkpy autorecovery`: switch re-replication on and off, see how it gets on, and run it without a bookie."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.common import connect_option, json_option, metadata, print_json, print_table, run, say, security_settings
from bkpy.config.base import MetadataSettings
from bkpy.config.checking import build
from bkpy.config.recovery import RecoverySettings
from bkpy.metadata.outcome import Done, NotDone, Unknown, told

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bkpy.metadata.store import MetadataStore


@click.group()
def autorecovery() -> None:
    """See and control how the copies that lost bookies had are made anew."""


@autorecovery.command()
@connect_option
@json_option
def status(uri: str, as_json: bool) -> None:
    """Show which ledgers miss copies, which bookies are absent, and who works on what."""
    found = run(_status(uri))
    if as_json:
        print_json(found)
    else:
        _show(found)


@autorecovery.command()
@connect_option
@json_option
def auditor(uri: str, as_json: bool) -> int:
    """Show which process is the auditor, which finds what bookies have lost; status 1 if there is none."""
    found = run(_auditor(uri))
    if as_json:
        print_json({"auditor": found})
    elif found is None:
        say("bkpy: no bookie stands for auditor: none runs with auto_recovery")
    else:
        click.echo(found["name"])
    return 1 if found is None else 0


@autorecovery.command()
@connect_option
@json_option
def enable(uri: str, as_json: bool) -> None:
    """Mark and copy again what bookies have lost, after `disable`."""
    _switch(uri, True, as_json)


@autorecovery.command()
@connect_option
@json_option
def disable(uri: str, as_json: bool) -> None:
    """Mark and copy nothing in the whole cluster, until `enable`: for work on several bookies at a time."""
    _switch(uri, False, as_json)


def _switch(uri: str, enabled: bool, as_json: bool) -> None:
    run(_set_enabled(uri, enabled))
    if as_json:
        print_json({"enabled": enabled})
    else:
        click.echo(f"autorecovery is {'on' if enabled else 'off'}")


def _flags() -> list[click.Parameter]:
    return [
        click.Option(
            [f"--{name}"],
            type=click.FLOAT if isinstance(field.default, float) else click.INT,
            default=field.default,
            show_default=True,
            help=str(field.description),
        )
        for name, field in RecoverySettings.model_fields.items()
        if name not in MetadataSettings.model_fields
    ]


class RecoveryCommand(click.Command):
    """A command with a flag for every setting of recovery. `-` in its name is taken for `_`."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.params += _flags()
        self.context_settings = {"token_normalize_func": lambda token: token.replace("-", "_")}


@autorecovery.command("run", cls=RecoveryCommand)
@connect_option
@click.option("--name", help="What its locks and its place in the election are known by.  [default: HOST:PID]")
def run_(uri: str, name: str | None, **values: Any) -> None:
    """Stand for auditor and copy what is lost, without a bookie, until SIGTERM or Ctrl-C.

    Bookies do the same beside their own work, unless their auto_recovery is false.
    """
    given = build(RecoverySettings, {**security_settings(), **values}, dict.fromkeys(values, "flag"))
    logging.basicConfig(
        stream=sys.stderr, force=True, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    asyncio.run(_run(uri, name or f"{socket.gethostname()}:{os.getpid()}", given))


@contextlib.asynccontextmanager
async def _cluster(uri: str) -> AsyncIterator[tuple[MetadataStore, str]]:
    from bkpy.metadata.cluster import open_cluster

    async with metadata(uri) as (store, root):
        await open_cluster(store, root)  # or there is none, and that is said
        yield store, root


async def _run(uri: str, name: str, settings: RecoverySettings) -> None:
    from prometheus_client import CollectorRegistry

    from bkpy.recovery.auto_recovery import AutoRecovery

    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with _cluster(uri) as (store, root):
        recovery = AutoRecovery(settings, store, root, store.runtime, name, CollectorRegistry())
        recovery.start()
        say(f"autorecovery runs as {name}; Ctrl-C stops it")
        await stopping.wait()
        await recovery.stop()


async def _status(uri: str) -> dict[str, Any]:
    from bkpy.recovery.overview import overview

    async with _cluster(uri) as (store, root):
        return await overview(store, root, store.runtime, RecoverySettings())


async def _auditor(uri: str) -> dict[str, Any] | None:
    from bkpy.recovery.overview import auditor_of

    async with _cluster(uri) as (store, root):
        return await auditor_of(store, root)


async def _set_enabled(uri: str, enabled: bool) -> None:
    from bkpy.metadata.marks import Marks

    async with _cluster(uri) as (store, root):
        outcome = await Marks(store, root, store.runtime).set_enabled(enabled)
    if isinstance(outcome, NotDone | Unknown):
        raise told(outcome)
    assert isinstance(outcome, Done)


def _show(found: dict[str, Any]) -> None:
    auditor = found["auditor"]
    rows = [
        ("autorecovery", "on" if found["enabled"] else "off: see `bkpy autorecovery enable`"),
        ("auditor", "none: no bookie runs with auto_recovery" if auditor is None else auditor["name"]),
        ("under-replicated ledgers", f"{found['ledgers']:,}"),
        *(
            (f"  that miss {n} {'bookie' if n == '1' else 'bookies'}", f"{count:,}")
            for n, count in found["ledgers_by_bookies_missed"].items()
        ),
    ]
    if found["oldest_mark_s"] is not None:
        rows.append(("oldest for", f"{found['oldest_mark_s']:,.0f} s"))
    if found["unreadable"]:
        rows.append(("marks that can't be read", f"{found['unreadable']:,}"))
    if found["most_absent"]:
        rows.append(("bookies", "most are absent: nothing is marked until more are back"))
    print_table(("", ""), rows)
    if found["absent"]:
        print_table(
            ("bookie", "absent for", "state", "ledgers that miss it"),
            [
                (
                    bookie,
                    f"{absent['absent_s']:,.0f} s",
                    _state(absent),
                    f"{found['ledgers_by_bookie'].get(bookie, 0):,}",
                )
                for bookie, absent in found["absent"].items()
            ],
        )
    if found["checks"]:
        print_table(
            ("check", "ended before", "running for", "ledgers", "of which fall short"),
            [
                (
                    name,
                    _seconds(one["ended_s"]),
                    _seconds(one["running_s"]),
                    f"{one['ledgers']:,}",
                    f"{one['marked']:,}",
                )
                for name, one in found["checks"].items()
            ],
        )
    if found["working"]:
        print_table(
            ("ledger", "worked on by", "for"),
            [(str(one["ledger_id"]), one["holder"], f"{one['for_s']:.1f} s") for one in found["working"]],
        )


def _seconds(count: float | None) -> str:
    return "-" if count is None else f"{count:,.0f} s"


def _state(absent: dict[str, Any]) -> str:
    if absent["worked_off"]:
        return "lost; nothing misses it any more"
    if absent["lost"]:
        return "lost"
    return "has another storage; its ledgers are being marked" if absent["replaced"] else "absent, not lost yet"
