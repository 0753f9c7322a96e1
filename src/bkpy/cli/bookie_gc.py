"""`bkpy bookie gc`: what garbage collection of a running bookie has done, and a run of it now."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.common import json_option, metadata, print_json, print_table, progress, run
from bkpy.errors import BookieUnavailableError, BookKeeperError, ConfigError

if TYPE_CHECKING:
    import aiohttp

_POLL_S = 0.2
_TIMEOUT_S = 10.0


@click.command()
@click.option("--now", is_flag=True, help="Begin a run, and wait until it has ended.")
@click.option("--dry-run", is_flag=True, help="The same, but only count what would be collected.")
@click.option("--admin", "admin", metavar="HOST:PORT", help="The port of the bookie's metrics page.")
@click.option("--bookie", "bookie_id", metavar="ID", help="The bookie, to be found by its registration in the cluster.")
@click.option("--connect", "uri", metavar="URI", envvar="BKPY_CONNECT", help="The cluster.  [env: BKPY_CONNECT]")
@json_option
def gc(now: bool, dry_run: bool, admin: str | None, bookie_id: str | None, uri: str | None, as_json: bool) -> int:
    """Show the last run of a bookie's garbage collection, or collect now.

    The bookie is named by --bookie, and found by its registration (--connect), or by --admin HOST:PORT. It has to run
    with a metrics_port, and answers this command on its own machine only, unless its admin_clients says otherwise.
    """
    told = run(_gc(now or dry_run, dry_run, admin, bookie_id, uri))
    if as_json:
        print_json(told)
    else:
        _show(told)
    failed = told["run"] is not None and told["run"]["outcome"] == "failed"
    return 1 if failed and (now or dry_run) else 0


async def _gc(begin: bool, dry_run: bool, admin: str | None, bookie_id: str | None, uri: str | None) -> dict[str, Any]:
    import aiohttp

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session:
        where = await _find(session, admin, bookie_id, uri)
        if not begin:
            latest: dict[str, Any] = await _ask(session, "GET", where)
            return latest
        while True:
            begun = await _ask(session, "POST", where, {"dry_run": dry_run})
            told = await _follow(session, where)
            if begun is not None:  # else it was one that went on already: it may not look for what this one is to find
                return told


async def _follow(session: aiohttp.ClientSession, where: str) -> dict[str, Any]:
    """Show how the run that goes on gets on, until it has ended; what is told of it then."""
    with progress(unit="ledgers") as bar:
        task = bar.add_task("garbage collection", total=None)
        while True:
            told: dict[str, Any] = await _ask(session, "GET", where)
            latest = told["run"]
            bar.update(task, completed=latest["examined"], description=_line(latest))
            if latest["outcome"] != "running":
                return told
            await asyncio.sleep(_POLL_S)


async def _find(session: aiohttp.ClientSession, admin: str | None, bookie_id: str | None, uri: str | None) -> str:
    """HOST:PORT of the bookie's pages."""
    if admin is not None:
        told = await _ask(session, "GET", admin)
        if bookie_id not in (None, told["bookie_id"]):
            raise ConfigError(f"at {admin} is bookie {told['bookie_id']}, not {bookie_id}")
        return admin
    if not bookie_id or not uri:
        raise click.UsageError("which bookie? Give --admin HOST:PORT, or --bookie ID and --connect URI")
    info = await _registered(uri, bookie_id)
    if not info.metrics_port:
        raise ConfigError("the bookie has no metrics page: run it with a metrics_port", bookie=bookie_id)
    host = info.address.rpartition(":")[0]
    # Without a setting the page is for the bookie's own machine, which this one is then.
    places = list(dict.fromkeys(f"{h}:{info.metrics_port}" for h in ("127.0.0.1", host)))
    errors = []
    for place in places:
        try:
            if (await _ask(session, "GET", place))["bookie_id"] == bookie_id:
                return place
            errors.append(f"{place} is another bookie's")
        except BookKeeperError as error:
            errors.append(str(error))
    raise BookieUnavailableError(
        f"its pages can't be reached ({'; '.join(errors)}): run this on its machine, or give --admin HOST:PORT",
        bookie=bookie_id,
    )


async def _registered(uri: str, bookie_id: str) -> Any:
    from bkpy.metadata.cluster import open_cluster
    from bkpy.metadata.registration import BookieDirectory

    async with metadata(uri) as (store, root):
        await open_cluster(store, root)
        directory = BookieDirectory(store, root, store.runtime)
        await directory.refresh()
    found = directory.bookies | directory.read_only
    if bookie_id not in found:
        raise BookieUnavailableError("no such bookie is registered now: see `bkpy bookies list`", bookie=bookie_id)
    return found[bookie_id]


async def _ask(session: aiohttp.ClientSession, method: str, where: str, body: Any = None) -> Any:
    """The answer, a JSON object; None if a run goes on already, so that none was begun."""
    import aiohttp

    try:
        async with session.request(method, f"http://{where}/gc", json=body) as response:
            told = await response.json()
            status = response.status
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise BookieUnavailableError(f"no bookie answers at {where}: {str(error) or 'no answer in time'}") from error
    if status == 409:
        return None
    if status != 200 or not isinstance(told, dict):
        why = told.get("error", told) if isinstance(told, dict) else told
        raise BookieUnavailableError(f"{where} refuses: {why}", retriable=False)
    return told


def _line(latest: dict[str, Any]) -> str:
    verb = "would collect" if latest["dry_run"] else "collected"
    return f"{verb} {latest['gone']} deleted ledgers, {latest['spare']} spare copies"


def _show(told: dict[str, Any]) -> None:
    latest = told["run"]
    if latest is None:
        every = (
            f"every {told['interval_s']:g} s" if told["interval_s"] else "only when it is asked to (gc_interval_s is 0)"
        )
        click.echo(f"bookie {told['bookie_id']} has not collected since its start; it does {every}")
        return
    rows = [
        ("bookie", told["bookie_id"]),
        ("run", str(latest["number"]) + (" (dry run)" if latest["dry_run"] else "")),
        ("outcome", latest["outcome"] + (f": {latest['failure']}" if latest["failure"] else "")),
        ("seconds", "-" if latest["seconds"] is None else f"{latest['seconds']:.2f}"),
        ("ledgers examined", str(latest["examined"])),
        ("deleted ledgers" + (" to collect" if latest["dry_run"] else " collected"), str(latest["gone"])),
        ("spare copies" + (" to collect" if latest["dry_run"] else " collected"), _spares(latest)),
        *((f"kept: {reason}", str(count)) for reason, count in sorted(latest["kept"].items())),
    ]
    if latest["collected"]:
        rows.append(("ledgers", _ids(latest["collected"], latest["gone"] + latest["spare"])))
    print_table(("", ""), rows)


def _spares(latest: dict[str, Any]) -> str:
    return str(latest["spare"]) if latest["spares"] else "not looked for"


def _ids(ids: list[int], count: int) -> str:
    return ", ".join(map(str, ids)) + (f" and {count - len(ids)} more" if count > len(ids) else "")
