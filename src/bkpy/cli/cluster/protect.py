"""`bkpy cluster protect`: closes the cluster's nodes in ZooKeeper to clients without the password."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bkpy.cli.connecting import connect_option, settings
from bkpy.cli.input import confirm
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.progress import progress
from bkpy.cli.running import run

if TYPE_CHECKING:
    from bkpy.metadata.store.zookeeper.store import ZooKeeperStore


@click.command()
@connect_option
@click.option(
    "--also",
    "other",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="A file with another USER:PASSWORD that gets the same rights, so that you can replace a password.",
)
@click.option("--yes", is_flag=True, help="Don't ask.")
@json_option
def protect(uri: str, other: str | None, yes: bool, as_json: bool) -> None:
    """Let only clients with `zookeeper_auth` read and change the cluster's nodes in ZooKeeper.

    This locks out clients and bookies that connect without it: give it to all of them first. New nodes get this
    protection anyway; the command protects nodes that are older than the password. You may repeat it.
    """
    if not yes:
        confirm("Bookies and clients without these credentials are locked out. Go on?", "nothing was changed")
    count = run(_protect(uri, other))
    if as_json:
        print_json({"nodes": count})
    else:
        click.echo(f"{count:,} nodes are protected")


async def _protect(uri: str, other: str | None) -> int:
    from bkpy.config.password_file import read_user_and_password
    from bkpy.errors import ConfigError
    from bkpy.metadata.audit_trail import ActKind, AuditTrail, client_actor
    from bkpy.metadata.cluster import open_cluster
    from bkpy.metadata.connect import connect_store, zookeeper_credentials
    from bkpy.metadata.store.zookeeper.store import ZooKeeperStore
    from bkpy.runtime.process import process_runtime

    given = settings()
    auth = zookeeper_credentials(given)
    if not auth:
        raise ConfigError(
            "there is no password to protect the nodes with: set BKPY_ZOOKEEPER_AUTH or BKPY_ZOOKEEPER_AUTH_FILE"
        )
    if other is not None:
        auth.append(("digest", read_user_and_password(other)))
    store, root = await connect_store(
        uri,
        process_runtime(),
        session_timeout_s=given.session_timeout_s,
        connect_timeout_s=given.metadata_timeout_s,
        auth=auth,
        settings=given,
    )
    try:
        assert isinstance(store, ZooKeeperStore)
        await open_cluster(store, root)
        trail = AuditTrail(store, root, store.runtime, given, client_actor(given, store.runtime))
        details = "" if other is None else "with a second password"
        async with trail.recorded(ActKind.PROTECT, root, details):
            return await _protect_all(store, root, given.metadata_requests_in_flight_max)
    finally:
        await store.close()


async def _protect_all(store: ZooKeeperStore, root: str, at_once: int) -> int:
    from bkpy.metadata.store.zookeeper.protection import protect_tree

    with progress(unit="nodes") as bar:
        task = bar.add_task("protecting", total=None)
        return await protect_tree(store, root, at_once, lambda count: bar.update(task, completed=count))
