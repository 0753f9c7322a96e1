"""`bkpy autorecovery`: switches re-replication on and off, shows its progress, and runs it without a bookie."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.connecting import connect_admin, connect_option, metadata, security_settings
from bkpy.cli.logs import log_format_option
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import human_bytes, say
from bkpy.cli.running import run
from bkpy.config.checking import accepted_names, build, current_names
from bkpy.config.recovery import RecoverySettings
from bkpy.config.renamed import RENAMED
from bkpy.config.shared import MetadataSettings
from bkpy.errors import ConfigError
from bkpy.runtime.logs import log_to_stderr

if TYPE_CHECKING:
    from bkpy.runtime.logs import LogFormat
    from bkpy.runtime.tls import TlsContext

log = logging.getLogger("bkpy.autorecovery")

_STUCK_SHOWN = 10


@click.group()
def autorecovery() -> None:
    """Watch and control the re-replication of under-replicated ledgers."""


@autorecovery.command()
@connect_option
@json_option
def status(uri: str, as_json: bool) -> None:
    """Show under-replicated ledgers, absent bookies, and the worker of each ledger."""
    found = run(_status(uri))
    if as_json:
        print_json(found)
    else:
        _show(found)


@autorecovery.command()
@connect_option
@json_option
def auditor(uri: str, as_json: bool) -> int:
    """Show which process is the auditor, which finds under-replicated ledgers; status 1 if there is none."""
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
    """Find and re-replicate under-replicated ledgers again, after `disable`."""
    _switch(uri, True, as_json)


@autorecovery.command()
@connect_option
@json_option
def disable(uri: str, as_json: bool) -> None:
    """Stop re-replication in the whole cluster, until `enable`: for work on several bookies at a time."""
    _switch(uri, False, as_json)


def _switch(uri: str, enabled: bool, as_json: bool) -> None:
    run(_set_enabled(uri, enabled))
    if as_json:
        print_json({"enabled": enabled})
    else:
        click.echo(f"autorecovery is {'on' if enabled else 'off'}")


def _flags() -> list[click.Parameter]:
    """A flag for each setting of recovery. Internal and former names are accepted, and not shown."""
    public = [name for name in RecoverySettings.public() if name not in MetadataSettings.model_fields]
    hidden = accepted_names(RecoverySettings) - accepted_names(MetadataSettings) - set(public)
    fields = {name: RecoverySettings.model_fields[RENAMED.get(name, name)] for name in [*public, *sorted(hidden)]}
    return [
        click.Option(
            [f"--{given}"],
            type=click.FLOAT if isinstance(field.default, float) else click.INT,
            help=f"{field.description}  [default: {field.default}]",
            hidden=given not in public,
        )
        for given, field in fields.items()
    ]


class RecoveryCommand(click.Command):
    """A command with a flag for every setting of recovery. `-` in a flag is the same as `_`."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.params += _flags()
        self.context_settings = {"token_normalize_func": lambda token: token.replace("-", "_")}


@autorecovery.command("run", cls=RecoveryCommand)
@connect_option
@click.option("--name", help="The name in its locks and in the auditor's election.  [default: HOST:PID]")
@click.option(
    "--metrics_port",
    type=click.IntRange(-1, 65535),
    default=-1,
    show_default=True,
    help="Port of the metrics page: -1 for none, 0 for any free one.",
)
@click.option("--metrics_listen", default="127.0.0.1", show_default=True, help="Host to serve metrics at.")
@click.option(
    "--metrics_tls",
    is_flag=True,
    help="Serve metrics with TLS, to clients with a certificate.  [env: BKPY_TLS_CA_FILE and the two others]",
)
@log_format_option
def run_(
    uri: str,
    name: str | None,
    metrics_port: int,
    metrics_listen: str,
    metrics_tls: bool,
    log_format: LogFormat,
    **values: Any,
) -> None:
    """Run an auditor and a replication worker without a bookie, until SIGTERM or Ctrl-C.

    Bookies do the same beside their own work, unless their auto_recovery is false.
    """
    notices: list[str] = []
    flags = {flag: value for flag, value in values.items() if value is not None}
    flags = current_names(RecoverySettings, flags, "flag", notices.append)
    given = build(RecoverySettings, {**security_settings(), **flags}, dict.fromkeys(flags, "flag"))
    log_to_stderr(logging.INFO, log_format)
    for notice in notices:
        log.warning("%s", notice)
    tls = _tls_of_metrics(given) if metrics_tls else None
    name = name or f"{socket.gethostname()}:{os.getpid()}"
    asyncio.run(_run(uri, name, given, (metrics_listen, metrics_port), tls))


def _tls_of_metrics(settings: RecoverySettings) -> TlsContext:
    from bkpy.runtime.tls import Certificates, Side, TlsFiles

    if settings.tls_ca_file is None or settings.tls_certificate_file is None:
        raise ConfigError("metrics_tls needs tls_certificate_file, tls_key_file and tls_ca_file")
    files = TlsFiles(settings.tls_ca_file, settings.tls_certificate_file, settings.tls_key_file)
    return Certificates(files, Side.BOOKIE).following(looking=True)


async def _run(
    uri: str, name: str, settings: RecoverySettings, metrics: tuple[str, int], tls: TlsContext | None
) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from bkpy.metadata.cluster import open_cluster
    from bkpy.replication.auto_recovery import AutoRecovery
    from bkpy.runtime.metrics_page import metrics_page

    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    registry = CollectorRegistry()
    async with contextlib.AsyncExitStack() as stack:
        store, root = await stack.enter_async_context(metadata(uri))
        await open_cluster(store, root)
        if metrics[1] >= 0:
            most = settings.metrics_connections_max
            page = metrics_page(lambda: generate_latest(registry), *metrics, tls=tls, connections_max=most)
            port = await stack.enter_async_context(page)
            say(f"metrics at {'http' if tls is None else 'https'}://{metrics[0]}:{port}/metrics")
        recovery = AutoRecovery(settings, store, root, store.runtime, name, registry)
        recovery.start()
        say(f"autorecovery runs as {name}; Ctrl-C stops it")
        await stopping.wait()
        await recovery.stop()


async def _status(uri: str) -> dict[str, Any]:
    async with connect_admin(uri) as admin:
        return await admin.replication_status()


async def _auditor(uri: str) -> dict[str, Any] | None:
    async with connect_admin(uri) as admin:
        return await admin.auditor()


async def _set_enabled(uri: str, enabled: bool) -> None:
    async with connect_admin(uri) as admin:
        await admin.set_auto_recovery(enabled)


def _show(found: dict[str, Any]) -> None:
    auditor = found["auditor"]
    rows = [
        ("autorecovery", "on" if found["enabled"] else "off: see `bkpy autorecovery enable`"),
        ("auditor", "none: no bookie runs with auto_recovery" if auditor is None else auditor["name"]),
        ("under-replicated ledgers", f"{found['ledgers']:,}"),
        *(
            (f"  with {left} {'copy' if left == '1' else 'copies'} left", f"{count:,}")
            for left, count in found["ledgers_by_copies_left"].items()
        ),
        *(
            (f"  missing on {n} {'bookie' if n == '1' else 'bookies'}", f"{count:,}")
            for n, count in found["ledgers_by_bookies_missed"].items()
        ),
    ]
    if found["marked"]:
        rows += _rows_of_work(found)
    if found["unreadable"]:
        rows.append(("unreadable metadata or records", f"{found['unreadable']:,}"))
    if found["most_absent"]:
        rows.append(("bookies", "most are absent: the auditor is suspended until more are back"))
    print_table(("", ""), rows)
    if found["rebuilding"]:
        print_table(
            ("bookie that copies back what it lost", "ledgers left", "entries copied", "bytes"),
            [
                (
                    bookie,
                    "being counted" if one["ledgers"] is None else f"{one['ledgers']:,}",
                    f"{one['entries_copied']:,}",
                    human_bytes(one["bytes_copied"]),
                )
                for bookie, one in found["rebuilding"].items()
            ],
        )
    if found["absent"]:
        print_table(
            ("bookie", "absent for", "state", "under-replicated ledgers"),
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
            ("check", "ended before", "running for", "ledgers", "under-replicated"),
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
    if found["marked"] or found["working"]:
        _show_workers(found)
    if found["stuck_ledgers"]:
        some = list(found["stuck_ledgers"].items())
        print_table(("ledger", "stuck because"), some[:_STUCK_SHOWN])
        if len(some) > _STUCK_SHOWN:
            click.echo(f"and {found['stuck'] - _STUCK_SHOWN:,} more: see --json, or `bkpy ledger explain ID`")


def _rows_of_work(found: dict[str, Any]) -> list[tuple[str, str]]:
    eta_s = found["eta_s"]
    rate = f"{human_bytes(found['bytes_per_s'])}/s, {found['ledgers_per_s']:,.1f} ledgers/s"
    rows = [
        ("to be copied", human_bytes(found["bytes_left"])),
        ("copied lately", rate),
        ("done in about", "unknown" if eta_s is None else f"{eta_s:,.0f} s"),
    ]
    if found["waiting_for_writers"]:
        rows.append(("waiting for their writers", f"{found['waiting_for_writers']:,}"))
    if found["stuck"]:
        rows.append(("stuck", f"{found['stuck']:,}"))
    if found["oldest_mark_s"] is not None:
        rows.append(("oldest, under-replicated for", f"{found['oldest_mark_s']:,.0f} s"))
    return rows


def _show_workers(found: dict[str, Any]) -> None:
    if found["workers"]:
        print_table(
            ("worker", "at work on", "waiting", "postponed", "stuck", "done", "copied", "rate"),
            [
                (
                    one["name"],
                    len(one.get("working_on", ())),
                    one.get("queued", 0),
                    one.get("postponed", 0),
                    one.get("stuck", 0),
                    one.get("ledgers_done", 0),
                    human_bytes(one.get("bytes_copied", 0)),
                    f"{human_bytes(one.get('bytes_per_s', 0))}/s",
                )
                for one in found["workers"]
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
        return "lost; re-replication has ended"
    if absent["lost"]:
        return "lost"
    return "came back without its data; its ledgers are being queued" if absent["replaced"] else "absent, not lost yet"
