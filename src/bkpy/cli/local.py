"""`bkpy local`: runs a whole cluster in the foreground, until Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.arguments import NewPath
from bkpy.cli.connecting import given_settings
from bkpy.cli.endings import INTERRUPTED, TERMINATED
from bkpy.cli.logs import log_format_option
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.text import say
from bkpy.cli.running import run
from bkpy.errors import BookKeeperError, ConfigError
from bkpy.runtime.logs import log_to_stderr

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from bkpy.local import LocalCluster
    from bkpy.runtime.logs import LogFormat


@click.command()
@click.option(
    "--dir",
    "directory",
    type=NewPath(),
    default="bkpy-local",
    show_default=True,
    metavar="DIR",
    help="The directory for data and logs.",
)
@click.option(
    "--bookies", type=click.IntRange(min=1), default=3, show_default=True, help="The least number of bookies."
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="The port where ZooKeeper listens.  [default: the last one, or any free port]",
)
@click.option("--restart/--no-restart", default=True, show_default=True, help="Restart processes that die, or don't.")
@click.option(
    "--set",
    "config",
    multiple=True,
    metavar="NAME=VALUE",
    callback=given_settings,
    help="A setting of the bookies (bkpy bookie run --help lists them). May be repeated.",
)
@click.option(
    "--dashboard/--no-dashboard",
    default=True,
    show_default=True,
    help="Show the cluster in a browser, at a port of this machine that is printed, or don't.",
)
@click.option(
    "--protocol",
    type=click.Choice(["bkpy", "bookkeeper"]),
    help="The protocol of clients: bkpy's own, or Apache BookKeeper's.  [default: that of the directory, or bkpy's]",
)
@log_format_option
@json_option
def local(
    directory: str,
    bookies: int,
    port: int | None,
    restart: bool,
    config: dict[str, Any],
    dashboard: bool,
    protocol: str | None,
    log_format: LogFormat,
    as_json: bool,
) -> int:
    """Run a ZooKeeper and some bookies on this machine until Ctrl-C, and print the address of the cluster.

    Run it again on the same directory and it finds its data. It restarts processes that die, after pauses that grow
    while a process dies again and again; the others go on. A bookie whose directories were deleted, now or before,
    copies back what it held from the others.
    """
    from bkpy.local import LocalCluster

    if config.get("log_format", log_format) == "json":
        config["log_format"] = "json"
        log_to_stderr(logging.INFO, "json")
    _check_directory(Path(directory))
    if protocol is not None:
        config["protocol"] = protocol
    if dashboard:
        config.setdefault("metrics_port", 0)  # on a page of its own a bookie says what it does
    cluster = LocalCluster(directory, bookies, config, port=port, rebuild=say)
    return run(serve(cluster, restart=restart, dashboard=dashboard, as_json=as_json))


def _check_directory(directory: Path) -> None:
    """`ConfigError` for a directory with other files: a cluster shares its directory with nothing else."""
    from bkpy.local.cluster import LOCK_NAME

    if directory.is_dir() and any(directory.iterdir()) and not (directory / LOCK_NAME).exists():
        raise ConfigError(f"{directory} is not empty and holds no cluster; choose another with --dir")


async def serve(cluster: LocalCluster, *, restart: bool, dashboard: bool, as_json: bool) -> int:
    """Run it until a signal comes. Returns the command's status: 0, or that of the signal that ended the start."""
    from bkpy.local.supervisor import Supervisor

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    ended_by = INTERRUPTED

    def stop(status: int) -> None:
        nonlocal ended_by
        ended_by = status
        stopping.set()

    for number, status in ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)):
        loop.add_signal_handler(number, stop, status)
    starting = asyncio.ensure_future(cluster.start())
    await _first(starting, stopping)
    if not starting.done():
        starting.cancel()  # which leaves nothing running
        await asyncio.wait([starting])
        say("bkpy: interrupted; the cluster was not started")
        return ended_by
    starting.result()
    try:
        _announce(cluster, as_json)
        supervisor = Supervisor([cluster.zookeeper, *cluster.bookies], say, restart=restart)
        dashboard = dashboard and not cluster.of_bookkeeper
        showing = _show_dashboard(cluster.connect_string) if dashboard else asyncio.Event().wait()
        await _until(stopping, _together(supervisor.watch(), showing))
    finally:
        stopping.clear()
        say("Stopping; Ctrl-C once more kills.")
        ending = asyncio.ensure_future(cluster.stop())
        await _first(ending, stopping)
        if not ending.done():
            await cluster.kill()
        await ending
    return 0


async def _first(task: asyncio.Future[None], event: asyncio.Event) -> None:
    """Return when the task has ended or the event is set."""
    waiting = asyncio.ensure_future(event.wait())
    both: list[asyncio.Future[Any]] = [task, waiting]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


async def _until(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do work that has no end of its own until the event is set. Returns when the work has ended."""
    working = asyncio.ensure_future(work)
    try:
        await _first(working, event)
    finally:
        working.cancel()
        await asyncio.wait([working])
    if not working.cancelled():
        working.result()


async def _together(work: Coroutine[Any, Any, Any], beside: Coroutine[Any, Any, Any]) -> None:
    """Do both until the first of them ends."""
    async with asyncio.TaskGroup() as group:
        other = group.create_task(beside)
        await work
        other.cancel()


async def _show_dashboard(uri: str) -> None:
    """Serve the dashboard until it is cancelled. The cluster runs without it, if need be."""
    from bkpy.cli.dashboard import DEFAULT_LISTEN, shown_at

    host, _, port = DEFAULT_LISTEN.rpartition(":")
    for number in (int(port), 0):  # that one may be taken
        try:
            async with shown_at(uri, host, number) as where:
                say(f"Dashboard  {where}")
                await asyncio.Event().wait()
        except ConfigError as error:
            failure: BookKeeperError = error
        except BookKeeperError as error:
            failure = error
            break
    say(f"There is no dashboard: {failure}")
    await asyncio.Event().wait()


def _announce(cluster: LocalCluster, as_json: bool) -> None:
    if as_json:
        parts = [
            {"id": b.id, "address": b.address, "pid": b.pid, "directory": str(b.directory), "log_path": str(b.log_path)}
            for b in cluster.bookies
        ]
        print_json({"connect_string": cluster.connect_string, "bookies": parts})
    else:
        click.echo(cluster.connect_string)
        if cluster.of_bookkeeper:
            say(f"For Java: metadataServiceUri={cluster.connect_string.replace('zk://', 'zk+null://', 1)}")
    say(f"ZooKeeper  {cluster.zookeeper.connect_string}  {cluster.zookeeper.log_path}")
    for bookie in cluster.bookies:
        say(f"{bookie.id}   {bookie.address}  {bookie.log_path}")
    for bookie_id in cluster.retired:
        say(f"{bookie_id} was decommissioned, and is not started. You may delete its directory.")
    for name, port in cluster.moved.items():
        say(f"Port {port}, which {name} had the last time, is taken: it has another one now.")
    say(f"To use it elsewhere:  export BKPY_CONNECT={cluster.connect_string}")
    say("Ctrl-C stops it and keeps the data.")
