"""`bkpy cluster` and `bkpy bookies`: the metadata about the cluster as a whole."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.cluster.audit import audit
from bkpy.cli.cluster.backup import backup, restore
from bkpy.cli.cluster.check import check
from bkpy.cli.cluster.health import health
from bkpy.cli.cluster.protect import protect
from bkpy.cli.cluster.rebalance import rebalance
from bkpy.cli.cluster.top import top
from bkpy.cli.connecting import connect_option, metadata
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import human_bytes
from bkpy.cli.running import run
from bkpy.errors import NoSuchClusterError

if TYPE_CHECKING:
    from bkpy.metadata.store.store import MetadataStore

_LAYOUTS = ("flat", "hierarchical", "long-hierarchical")


@click.group()
def cluster() -> None:
    """Initialise, show, check, balance, back up and protect a cluster."""


cluster.add_command(audit)
cluster.add_command(backup)
cluster.add_command(restore)
cluster.add_command(check)
cluster.add_command(health)
cluster.add_command(top)
cluster.add_command(rebalance)
cluster.add_command(protect)


@cluster.command()
@connect_option
@click.option(
    "--layout",
    type=click.Choice(_LAYOUTS),
    default="long-hierarchical",
    show_default=True,
    help="How ledgers are spread over ZooKeeper's nodes. It can't be changed later.",
)
@click.option("--if-needed", is_flag=True, help="Succeed if there is a cluster already, with any layout.")
@json_option
def init(uri: str, layout: str, if_needed: bool, as_json: bool) -> None:
    """Create an empty cluster under the root of URI."""
    run(_init(uri, layout, if_needed))
    _show_cluster(run(_describe(uri)), as_json)


@cluster.command()
@connect_option
@json_option
def show(uri: str, as_json: bool) -> None:
    """Show the cluster's identity and how many bookies it has."""
    _show_cluster(run(_describe(uri)), as_json)


@click.group()
def bookies() -> None:
    """List the cluster's bookies."""


@bookies.command("list")
@connect_option
@click.option("--absent", is_flag=True, help="Also list bookies that the cluster knows and that are not registered.")
@click.option("--state", type=click.Choice(["writable", "read-only"]), help="Registered ones of this state only.")
@json_option
def list_(uri: str, absent: bool, state: str | None, as_json: bool) -> None:
    """List the bookies that are registered now."""
    found = run(_bookies(uri, with_absent=absent))
    if state is not None:
        found = [b for b in found if _mode(b).partition(":")[0] == state]
    if as_json:
        print_json(found)
        return
    rows = [
        (
            b["bookie_id"],
            b["address"],
            _mode(b),
            b["rack"],
            b["region"],
            "" if b.get("absent") else human_bytes(b["free_bytes"]),
            b["version"],
        )
        for b in found
    ]
    print_table(("bookie", "address", "mode", "rack", "region", "free", "version"), rows)


def _mode(bookie: dict[str, Any]) -> str:
    if bookie.get("absent"):
        return "absent"
    if not bookie["read_only"]:
        return "writable"
    return f"read-only: {bookie['read_only_reason']}" if bookie["read_only_reason"] else "read-only"


async def _init(uri: str, layout: str, if_needed: bool) -> None:
    from bkpy.metadata.cluster import init_cluster, open_cluster

    async with metadata(uri) as (store, root):
        if if_needed:
            with contextlib.suppress(NoSuchClusterError):
                await open_cluster(store, root)
                return
        await init_cluster(store, root, layout=layout)


async def _describe(uri: str) -> dict[str, Any]:
    from bkpy.metadata.cluster import open_cluster

    async with metadata(uri) as (store, root):
        opened = await open_cluster(store, root)
        found = await _read_bookies(store, root)
    read_only = sum(b["read_only"] for b in found)
    return {
        "connect_string": uri,
        "root": root,
        "instance_id": opened.instance_id,
        "layout": opened.layout_name,
        "bookies_writable": len(found) - read_only,
        "bookies_read_only": read_only,
    }


def _show_cluster(description: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(description)
    else:
        print_table(("", ""), [(name.replace("_", " "), str(value)) for name, value in description.items()])


async def _bookies(uri: str, *, with_absent: bool) -> list[dict[str, Any]]:
    from bkpy.metadata.bookies.cookies import list_cookies
    from bkpy.metadata.bookies.registration import BookieInfo
    from bkpy.metadata.cluster import open_cluster

    async with metadata(uri) as (store, root):
        await open_cluster(store, root)
        found = await _read_bookies(store, root)
        if with_absent:
            here = {bookie["bookie_id"] for bookie in found}
            for bookie_id in sorted({*await list_cookies(store, root)} - here):
                found.append({**dataclasses.asdict(BookieInfo(bookie_id, "")), "absent": True})
        return found


async def _read_bookies(store: MetadataStore, root: str) -> list[dict[str, Any]]:
    from bkpy.metadata.bookies.registration import BookieDirectory

    directory = BookieDirectory(store, root, store.runtime)
    await directory.refresh()
    return [dataclasses.asdict(info) for _, info in sorted((directory.bookies | directory.read_only).items())]
