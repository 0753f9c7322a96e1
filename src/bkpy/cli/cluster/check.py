"""`bkpy cluster check`: whether this cluster can be used from here, shown by ledgers on each of its bookies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.connecting import connect_option, metadata, settings
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.progress import progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.running import interruptible, run

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from bkpy.admin.cluster_check import CheckRound
    from bkpy.client.bookies.placement import Placement
    from bkpy.client.client import Client


@click.command()
@connect_option
@json_option
def check(uri: str, as_json: bool) -> int:
    """Write, read, fence, recover and delete small ledgers on every bookie that takes entries, with times.

    Each ledger is on up to three bookies, all of which must acknowledge each of its entries; ledgers overlap. Status 1
    if one of them failed.
    """
    with interruptible('a ledger with the custom metadata check="bkpy cluster check" may be left'):
        rounds, others = run(_check(uri))
    failed = any(one.error for one in rounds) or not rounds
    if as_json:
        print_json({"ok": not failed, "rounds": [one.to_json() for one in rounds], "not_written": others})
        return int(failed)
    columns = ("bookies", "create ms", "append ms", "read ms", "recover ms", "delete ms", "result")
    print_table(columns, [_row(one) for one in rounds])
    for bookie_id, why in others.items():
        click.echo(f"not written: {bookie_id}: {why}")
    if not rounds:
        click.echo("no bookie takes entries")
    return int(failed)


def _row(one: CheckRound) -> tuple[object, ...]:
    times = (one.created_s, one.appended_s, one.read_s, one.recovered_s, one.deleted_s)
    return (", ".join(one.bookies), *(None if t is None else f"{t * 1000:,.1f}" for t in times), one.error or "ok")


async def _check(uri: str) -> tuple[list[CheckRound], dict[str, str]]:
    from bkpy.admin.cluster_check import check_cluster, rounds
    from bkpy.client.connecting import Connecting
    from bkpy.metadata.bookies.cookies import list_cookies
    from bkpy.metadata.bookies.registration import BookieDirectory
    from bkpy.metadata.cluster import open_cluster

    async with metadata(uri) as (store, root):
        await open_cluster(store, root)
        directory = BookieDirectory(store, root, store.runtime)
        await directory.refresh()
        others: dict[str, Any] = {
            bookie_id: "it isn't registered"
            for bookie_id in sorted(await list_cookies(store, root))
            if bookie_id not in directory.readable
        }
        for bookie_id, info in sorted(directory.read_only.items()):
            others[bookie_id] = f"it takes no entries: {info.read_only_reason or 'it says no reason'}"
        clock = store.runtime.clock

    def connect(placement: Placement) -> AbstractAsyncContextManager[Client]:
        return Connecting(uri, settings(), placement=placement)

    done: list[CheckRound] = []
    with progress(unit="ledgers") as bar:
        task = bar.add_task("check", total=len(rounds(directory.bookies)))
        async for one in check_cluster(connect, clock, directory.bookies):
            done.append(one)
            bar.update(task, completed=len(done))
    return done, others
