"""`bkpy cluster backup` and `bkpy cluster restore`: the metadata of a cluster in a file, and a cluster made of that."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.arguments import NewPath
from bkpy.cli.connecting import connect, connect_option, metadata, settings
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.progress import progress
from bkpy.cli.output.text import say
from bkpy.cli.running import interruptible, run

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

    from bkpy.admin.restore_confirmation import ConfirmationProgress
    from bkpy.metadata.backup.backup import BackedUp
    from bkpy.metadata.backup.restore import Restored
    from bkpy.protocol.restore.restoring import Restore


@click.command()
@click.argument("file", metavar="FILE", type=NewPath(dir_okay=False))
@connect_option
@json_option
def backup(file: str, uri: str, as_json: bool) -> None:
    """Write the cluster's metadata to the new file FILE: ledgers, logs, consumers, cookies; no entries.

    The cluster may be in use. FILE gets the keys of ledgers, so only this account may read it.
    """
    with interruptible("no file was written"):
        done = run(_backup(uri, os.path.abspath(file)))
    if as_json:
        print_json(done._asdict())
    else:
        click.echo(f"{file}: {done.ledgers:,} ledgers and {done.logs:,} logs, {done.nodes:,} nodes in all")


async def _backup(uri: str, path: str) -> BackedUp:
    from bkpy._version import VERSION
    from bkpy.metadata.backup.backup import back_up
    from bkpy.metadata.cluster import open_cluster
    from bkpy.runtime.system import RealFiles

    async with metadata(uri) as (store, root):
        cluster = await open_cluster(store, root, settings=settings())
        with progress(unit="nodes") as bar:
            task = bar.add_task("backup", total=None)
            return await back_up(
                cluster, RealFiles(), path, software=VERSION, wrote=lambda count: bar.update(task, completed=count)
            )


@click.command()
@click.argument("file", metavar="[FILE]", required=False, type=NewPath(dir_okay=False))
@connect_option
@click.option(
    "--also-from",
    metavar="CLUSTER",
    type=click.UUID,
    multiple=True,
    help="With FILE: let the bookies of this cluster join, too. It was restored before, and is given up: ledgers that "
    "were created in it are in no metadata then. May be given again.",
)
@click.option("--confirm", is_flag=True, help="Finish the restore of the cluster at URI, after all bookies joined it.")
@click.option(
    "--without",
    metavar="BOOKIE",
    multiple=True,
    help="With --confirm: go on without this bookie, which never comes back. May be given again.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="With --confirm: go on although ledgers can't be closed, or entries are on no bookie.",
)
@click.option(
    "--collect-later-ledgers",
    is_flag=True,
    help="With --confirm: bookies may delete what they hold of ledgers that are not in the backup.",
)
@json_option
def restore(
    file: str | None,
    uri: str,
    also_from: tuple[UUID, ...],
    confirm: bool,
    without: tuple[str, ...],
    accept_loss: bool,
    collect_later_ledgers: bool,
    as_json: bool,
) -> None:
    """Make a cluster of the backup FILE under the root of URI, which must be empty and not the former root.

    Then start every bookie with the new URI, and run this with --confirm and without FILE. Until that is done, the
    cluster is read-only: bookies delete nothing and deny nothing. If the command is interrupted, run it again. See
    docs/how-to/backup.md.
    """
    if confirm == (file is not None):
        raise click.UsageError("give FILE to restore a backup, or --confirm to finish a restore")
    if not confirm and (without or accept_loss or collect_later_ledgers):
        raise click.UsageError("--without, --accept-loss and --collect-later-ledgers go with --confirm")
    if confirm and also_from:
        raise click.UsageError("--also-from goes with FILE")
    if file is not None:
        with interruptible("the restore isn't whole: run it again with the same file"):
            _show_restored(run(_restore(uri, os.path.abspath(file), [*map(str, also_from)])), as_json)
        return
    with interruptible("the restore isn't confirmed: run this again"):
        done = run(_confirm(uri, set(without), accept_loss=accept_loss, collect_later=collect_later_ledgers))
    if as_json:
        print_json(_json(done))
    else:
        click.echo("the restore is confirmed: bookies get writable one after the other, as they trust what they have")


def _json(done: Restore) -> dict[str, Any]:
    return {
        "state": done.state.value,
        "instance_id": done.instance_id,
        "former_instance_id": done.former,
        "also_from": done.also_from,
        "kept_from": done.kept_from,
        "kept_to": done.kept_to,
        "collects_later_ledgers": done.collects_later,
    }


def _show_restored(done: Restored, as_json: bool) -> None:
    if as_json:
        print_json({**_json(done.restore), "nodes": done.nodes, "ledgers": done.ledgers, "was_done": done.done})
        return
    if done.done:
        click.echo(f"this backup was restored here before; its state is {done.restore.state}")
        if done.restore.also_from:
            click.echo(f"bookies of these clusters may join, too: {', '.join(done.restore.also_from)}")
        return
    click.echo(f"restored {done.ledgers:,} ledgers, {done.nodes:,} nodes in all, as cluster {done.restore.instance_id}")
    click.echo("Nothing can be written yet. Start every bookie with this URI, then: bkpy cluster restore --confirm")


async def _restore(uri: str, path: str, also_from: Collection[str]) -> Restored:
    from bkpy.metadata.audit_trail import AuditTrail, client_actor
    from bkpy.metadata.backup.restore import restore_backup
    from bkpy.runtime.system import RealFiles

    given = settings()
    async with metadata(uri) as (store, root):
        trail = AuditTrail(store, root, store.runtime, given, client_actor(given, store.runtime))
        with progress(unit="nodes") as bar:
            verifying = bar.add_task("verify", total=None)
            writing = bar.add_task("restore", total=None)
            return await restore_backup(
                store,
                root,
                RealFiles(),
                path,
                also_from=also_from,
                settings=given,
                trail=trail,
                verified=lambda count: bar.update(verifying, completed=count),
                wrote=lambda count: bar.update(writing, completed=count, total=bar.tasks[0].completed),
            )


async def _confirm(uri: str, without: set[str], *, accept_loss: bool, collect_later: bool) -> Restore:
    from bkpy.admin.restore_confirmation import RestoreConfirmation
    from bkpy.client.client import audit_trail, replication_context
    from bkpy.config.recovery import RecoverySettings

    said: list[str] = []

    def show(done: ConfirmationProgress) -> None:
        bar.update(task, completed=done.closed)
        if done.waiting_for != said:
            said[:] = done.waiting_for
            for line in said:
                say(f"waiting: {line}")

    async with connect(uri) as client:
        with progress(unit="ledgers closed") as bar:
            task = bar.add_task("confirm", total=None)
            confirmation = RestoreConfirmation(replication_context(client), RecoverySettings(), audit_trail(client))
            return await confirmation.run(
                without=without, accept_loss=accept_loss, collect_later=collect_later, progress=show
            )
