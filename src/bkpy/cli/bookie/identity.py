"""`bkpy bookie init`, `format` and `cookie`: creates, shows, changes and deletes a stopped bookie's identity."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

import click

from bkpy.cli.bookie.settings_command import Flags, SettingsCommand, settings_from
from bkpy.cli.connecting import metadata
from bkpy.cli.input import confirm_meanwhile
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.progress import progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import human_bytes, say
from bkpy.cli.running import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from bkpy.admin.client import AdminClient
    from bkpy.bookie.identity import BookieIdentity, FormatPlan
    from bkpy.config.bookie import BookieSettings
    from bkpy.config.shared import MetadataSettings
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata
    from bkpy.runtime.interfaces import Runtime
    from bkpy.storage.cookies import FoundCookie, UpdatePlan


yes_option = click.option("--yes", is_flag=True, help="Don't ask.")


class ClientPeers:
    """The cluster's other bookies, reached by a client of the command's own."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        return await self._admin.close_ledger(ledger_id)

    async def answers(self, bookie_id: str) -> bool:
        return await self._admin.is_reachable(bookie_id)

    async def close(self) -> None:
        await self._admin.client.close()


async def open_peers(store: MetadataStore, root: str, runtime: Runtime, settings: MetadataSettings) -> ClientPeers:
    """A client in the session of a command about a bookie with these settings."""
    from bkpy.admin.client import AdminClient
    from bkpy.client.client import open_client
    from bkpy.config.client import client_settings
    from bkpy.config.shared import MetadataSettings

    shared = {name: getattr(settings, name) for name in MetadataSettings.model_fields}
    return ClientPeers(AdminClient(await open_client(store, root, runtime, client_settings(**shared))))


@contextlib.asynccontextmanager
async def _identity(settings: BookieSettings) -> AsyncIterator[BookieIdentity]:
    from bkpy.bookie.identity import BookieIdentity
    from bkpy.metadata.audit_trail import AuditTrail, actor_of
    from bkpy.runtime.system import real_runtime

    async with metadata(settings.metadata_uri, settings) as (store, root):
        runtime = real_runtime()
        peers = functools.partial(open_peers, store, root, runtime, settings)
        trail = AuditTrail(store, root, runtime, settings, actor_of(settings, runtime))
        yield BookieIdentity(settings, store, root, runtime, peers, trail)


@click.command(cls=SettingsCommand)
@click.option("--again", is_flag=True, help="Also with the id of a bookie that was decommissioned.")
@json_option
def init(path: str | None, again: bool, as_json: bool, **flags: Flags) -> None:
    """Make a new bookie's directories and cookies, and register its id in the cluster, without serving.

    `bkpy bookie run` does the same at a bookie's first start. The command leaves a bookie that exists already as it is.
    It refuses the id of a decommissioned bookie, as `run` does; with --again a new bookie with empty directories may
    have it.
    """
    settings = settings_from(path, flags)

    async def initialise() -> bool:
        async with _identity(settings) as identity:
            return await identity.init(again=again)

    new = run(initialise())
    if as_json:
        print_json({"bookie_id": settings.bookie_id, "new": new})
    else:
        click.echo(f"bookie {settings.bookie_id} {'is ready to run' if new else 'exists already'}")


# --- format -----------------------------------------------------------------------------------------------------------


@click.command("format", cls=SettingsCommand)
@click.option("--force", is_flag=True, help="Also if ledgers name the bookie, or directories may not be its own.")
@yes_option
@json_option
def format_(path: str | None, force: bool, yes: bool, as_json: bool, **flags: Flags) -> None:
    """Delete all that a stopped bookie has in its directories, and its cookie in the metadata.

    First the command closes ledgers in recovery and reads the metadata of all ledgers. While any of them names the
    bookie, it deletes nothing. With --force it deletes the bookie's copies all the same, but keeps its cookie, so that
    no new bookie denies what this one acknowledged; `format` once more, without --force, frees the id. It never touches
    files that aren't a bookie's.
    """
    settings = settings_from(path, flags)

    async def agree(plan: FormatPlan) -> None:
        _tell(plan, settings)
        if not yes:
            await confirm_meanwhile("Delete this?")

    plan = run(_format(settings, force, agree))
    result = {
        "bookie_id": settings.bookie_id,
        "files": plan.files,
        "bytes": plan.bytes,
        "directories": list(plan.directories),
        "ledgers_naming_it": len(plan.ledgers.naming),
        "ledgers_unreadable": len(plan.ledgers.unreadable),
        "ledgers_in_recovery": len(plan.ledgers.in_recovery),
        "cookie_deleted": plan.cookie_goes,
    }
    if as_json:
        print_json(result)
    elif not plan.files and not plan.cookie_goes:
        click.echo("there was nothing to delete")
    else:
        click.echo(f"deleted {plan.files} files, {human_bytes(plan.bytes)}")


async def _format(settings: BookieSettings, force: bool, agree: Callable[[FormatPlan], Awaitable[None]]) -> FormatPlan:
    # The bar would be drawn over the question, so it ends before.
    plans: list[FormatPlan] = []
    with progress(unit="ledgers") as bar:
        task = bar.add_task(f"looking for ledgers that name {settings.bookie_id}", total=None)

        def show(count: int) -> None:
            bar.update(task, completed=count)

        async def ask(plan: FormatPlan) -> None:
            bar.stop()
            await agree(plan)

        async with _identity(settings) as identity:
            plans.append(await identity.format(force=force, agree=ask, looked_at=show))
    return plans[0]


def _tell(plan: FormatPlan, settings: BookieSettings) -> None:
    """Lists what the command is going to delete, on standard error."""
    for directory, here in plan.directories.items():
        kinds = (
            ("index", here.indexes),
            ("journal", here.journals),
            ("entry log", here.logs),
            ("scrub", here.scrubs),
            ("cookie", here.cookies),
        )
        counts = ", ".join(f"{len(paths)} {kind} files" for kind, paths in kinds if paths) or "nothing"
        foreign = " (not known to be this bookie's)" if directory in plan.foreign else ""
        say(f"{directory}{foreign}: {counts}, {human_bytes(here.bytes)}")
    looked = f"{plan.ledgers.looked_at} ledgers checked"
    ledgers = plan.ledgers
    named = len(ledgers.naming) + len(ledgers.in_recovery) + len(ledgers.unreadable)
    if plan.cookie_goes:
        say(f"{looked}: none names bookie {settings.bookie_id}; its cookie in the metadata will be deleted, too")
    elif named:
        say(f"{looked}: {named} name bookie {settings.bookie_id}, may come to, or can't be read; its cookie stays")
    else:
        say(f"{looked}: none names bookie {settings.bookie_id}; its cookie in the metadata, if any, stays")


# --- cookie -----------------------------------------------------------------------------------------------------------


@click.group()
def cookie() -> None:
    """Show and update the cookies, which say which directories are a bookie's."""


@cookie.command(cls=SettingsCommand)
@json_option
def show(path: str | None, as_json: bool, **flags: Flags) -> None:
    """Show the cookies in the metadata and in each directory beside the settings. Changes nothing."""
    settings = settings_from(path, flags)

    async def look() -> tuple[str, list[FoundCookie]]:
        async with _identity(settings) as identity:
            return await identity.show()

    instance_id, found = run(look())
    columns = [
        ("the settings", "", _of_settings(settings, instance_id)),
        *((p.where, p.problem, _fields(p)) for p in found),
    ]
    names = list(dict.fromkeys(name for _, _, fields in columns for name in fields))
    differing = [name for name in names if len({fields[name] for _, _, fields in columns if name in fields}) > 1]
    missing = [where for where, problem, _ in columns if problem]
    if as_json:
        places = [{"where": where, "problem": problem or None, **fields} for where, problem, fields in columns]
        print_json({"bookie_id": settings.bookie_id, "places": places, "differ": differing, "missing": missing})
        return
    rows: list[Sequence[object]] = [
        ("differs" if name in differing else "", name, *(fields.get(name, "") for _, _, fields in columns))
        for name in names
    ]
    if missing:
        rows.append(("missing", "", *(problem for _, problem, _ in columns)))
    print_table(("", "field", *(where for where, _, _ in columns)), rows)


def _of_settings(settings: BookieSettings, instance_id: str) -> dict[str, str]:
    return {
        "bookie id": settings.bookie_id,
        "cluster": instance_id,
        **{f"journal directory {i}": directory for i, directory in enumerate(settings.journal_directories)},
        **{f"ledger directory {i}": directory for i, directory in enumerate(settings.ledger_directories)},
    }


def _fields(place: FoundCookie) -> dict[str, str]:
    """A cookie's fields by name. Cookies of fewer directories have fewer."""
    if place.cookie is None:
        return {}
    known = place.cookie.ledger_directories
    return {
        "bookie id": place.cookie.bookie_id,
        "cluster": place.cookie.instance_id,
        **{f"journal directory {i}": directory for i, directory in enumerate(place.cookie.journal_directories)},
        **{f"ledger directory {i}": directory.path for i, directory in enumerate(known)},
        **{f"index of ledger directory {i}": directory.uuid for i, directory in enumerate(known)},
    }


@cookie.command(cls=SettingsCommand)
@yes_option
@json_option
def update(path: str | None, yes: bool, as_json: bool, **flags: Flags) -> None:
    """Rewrite a stopped bookie's cookies to match its settings and directories.

    For directories that were moved, cookies that were lost or disagree, a cookie that is gone from the metadata, and
    another number of journal directories (after a clean stop; added to or removed from the end of the list). Before it
    writes anything, the command proves that each directory is the bookie's. New ledger directories get their cookies at
    the next start.
    """
    settings = settings_from(path, flags)

    async def agree(plan: UpdatePlan) -> None:
        for step in plan.steps:
            say(step)
        if not yes:
            await confirm_meanwhile("Do this?", "nothing was changed")

    async def write() -> UpdatePlan:
        async with _identity(settings) as identity:
            return await identity.update(agree)

    plan = run(write())
    if as_json:
        print_json({"bookie_id": settings.bookie_id, "done": plan.steps})
    else:
        click.echo(f"done: {len(plan.steps)} steps" if plan.steps else "all cookies are correct; nothing was changed")
