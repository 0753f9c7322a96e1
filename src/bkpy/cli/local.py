"""`bkpy local`: a whole cluster in the foreground, until Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.common import json_option, print_json, run, say

if TYPE_CHECKING:
    from bkpy.local import LocalBookie, LocalCluster
    from bkpy.local_zookeeper import ZooKeeperServer

_LOOK_INTERVAL_S = 0.5


@click.command()
@click.option(
    "--dir", "directory", default="bkpy-local", show_default=True, metavar="DIR", help="Where data and logs are kept."
)
@click.option("--bookies", type=click.IntRange(min=1), default=3, show_default=True, help="How many bookies at least.")
@json_option
def local(directory: str, bookies: int, as_json: bool) -> int:
    """Run a ZooKeeper and some bookies on this machine until Ctrl-C, and print what to connect to.

    Run it again on the same directory and it finds its data.
    """
    return run(_serve(directory, bookies, as_json))


async def _serve(directory: str, bookies: int, as_json: bool) -> int:
    from bkpy.local import LocalCluster

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    cluster = LocalCluster(directory, bookies)
    starting = asyncio.ensure_future(cluster.start())
    await _first(starting, stopping)
    if not starting.done():
        starting.cancel()  # it leaves nothing running
        await asyncio.wait([starting])
        return 128 + signal.SIGINT
    starting.result()
    try:
        _announce(cluster, as_json)
        await _watch(cluster, stopping)
    finally:
        stopping.clear()
        say("Stopping; once more to kill.")
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


def _announce(cluster: LocalCluster, as_json: bool) -> None:
    if as_json:
        parts = [
            {"id": b.id, "address": b.address, "pid": b.pid, "directory": str(b.directory), "log_path": str(b.log_path)}
            for b in cluster.bookies
        ]
        print_json({"connect_string": cluster.connect_string, "bookies": parts})
    else:
        click.echo(cluster.connect_string)
    say(f"ZooKeeper  {cluster.zookeeper.connect_string}  {cluster.zookeeper.log_path}")
    for bookie in cluster.bookies:
        say(f"{bookie.id}   {bookie.address}  {bookie.log_path}")
    say(f"To use it elsewhere:  export BKPY_CONNECT={cluster.connect_string}")
    say("Ctrl-C stops it; the data stay.")


def _again(part: LocalBookie | ZooKeeperServer) -> str:
    """How to have it back: a bookie comes back with its data and the same settings."""
    return f"; to start it again: bkpy bookie run --config {part.config_path}" if isinstance(part, LocalBookie) else ""


async def _watch(cluster: LocalCluster, stopping: asyncio.Event) -> None:
    """Until told to stop, say when a process has ended by itself."""
    parts: list[tuple[str, LocalBookie | ZooKeeperServer]] = [("ZooKeeper", cluster.zookeeper)]
    parts += [(bookie.id, bookie) for bookie in cluster.bookies]
    lost: set[str] = set()
    while not stopping.is_set():
        for name, part in parts:
            if part.pid is None and name not in lost:
                lost.add(name)
                say(f"{name} has ended; its log is {part.log_path}{_again(part)}")
        try:
            async with asyncio.timeout(_LOOK_INTERVAL_S):
                await stopping.wait()
        except TimeoutError:
            continue
