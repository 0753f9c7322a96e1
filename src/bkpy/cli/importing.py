"""`bkpy import`: copies closed ledgers of an Apache BookKeeper cluster into a cluster of bkpy."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.arguments import quorums
from bkpy.cli.connecting import connect_admin
from bkpy.cli.ledger.group import password_option
from bkpy.cli.output.json import JsonList, json_option
from bkpy.cli.output.progress import progress
from bkpy.cli.output.text import human_bytes, say
from bkpy.cli.running import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from rich.progress import Progress, TaskID

    from bkpy.admin.ledger_import import CopiedLedger, LedgerImport

    Copy = Callable[[int, Callable[[int, int], None]], Awaitable[CopiedLedger | None]]


def _ledger_ids(ctx: click.Context, _: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    from bkpy.client.arguments import parse_ledger_ids

    try:
        return None if text is None else parse_ledger_ids(text)
    except ValueError as e:
        raise click.BadParameter(str(e)) from None


@click.command("import")
@click.option("--from", "source", required=True, metavar="URI", help="The BookKeeper cluster, as zk://HOST:PORT/ROOT.")
@click.option("--to", "target", required=True, metavar="URI", help="The cluster of bkpy, as zk://HOST:PORT/ROOT.")
@click.option(
    "--ledgers",
    "ledger_ids",
    metavar="LEDGERS",
    callback=_ledger_ids,
    help="Ids and ranges, as in 7,9-12.  [default: all closed ones]",
)
@click.option(
    "--ensemble",
    "quorums",
    metavar="E,QW,QA",
    callback=quorums,
    help="Ensemble size, write and ack quorum of the copies.  [default: those of each ledger]",
)
@password_option
@click.option("--stored-password", is_flag=True, help="Open each ledger with the password that its metadata store.")
@json_option
def import_(
    source: str,
    target: str,
    ledger_ids: tuple[int, ...] | None,
    quorums: tuple[int, int, int] | None,
    password: bytes,
    stored_password: bool,
    as_json: bool,
) -> None:
    """Copy closed ledgers of an Apache BookKeeper cluster into a cluster of bkpy.

    A copy has a new id, the entries with their ids, the password, the custom metadata, and in these the name
    bookkeeper.ledger, which says what it is a copy of. Each copy is read back before it counts. Run again, also after
    a kill, the command goes on where it was; several at the same time share the work. It names ledgers that can't be
    copied whole, and copies the others.

    Prints a line for each ledger: its id, that of its copy, and its size.
    """
    if stored_password and password:
        raise click.UsageError("give either --password-file or --stored-password")
    done, failed = run(_import(source, target, ledger_ids, quorums, None if stored_password else password, as_json))
    if failed:
        each = "; ".join(f"ledger {ledger_id}: {error}" for ledger_id, error in failed.items())
        raise click.ClickException(f"{done}; not copied: {each}")
    say(done)


async def _import(
    source: str,
    target: str,
    ledger_ids: tuple[int, ...] | None,
    quorums: tuple[int, int, int] | None,
    password: bytes | None,
    as_json: bool,
) -> tuple[str, dict[int, str]]:
    """What was done, and the ledgers that could not be copied, and why. Raises errors that concern all of them."""
    from bkpy.admin.ledger_import import LedgerImport
    from bkpy.errors import BookKeeperError, ClientClosedError, MetadataUnavailableError, NotEnoughBookiesError

    failed: dict[int, str] = {}
    listed = JsonList()
    ledgers = entries = size = 0
    async with connect_admin(source) as theirs, connect_admin(target) as ours:
        importing = LedgerImport(theirs, ours, password=password, quorums=quorums)
        await importing.begin()
        locked: list[int] = []  # by other imports
        with progress() as bar:
            async for ledger_id, copy in _chosen(importing, ledger_ids, locked):
                task = bar.add_task(f"ledger {ledger_id}", total=None)
                try:
                    copied = await copy(ledger_id, partial(_update, bar, task))
                except BookKeeperError as e:
                    if isinstance(e, ClientClosedError | MetadataUnavailableError | NotEnoughBookiesError):
                        raise
                    failed[ledger_id] = e.message
                else:
                    if copied is None:
                        locked.append(ledger_id)
                    else:
                        ledgers, entries, size = ledgers + copied.new, entries + copied.entries, size + copied.bytes
                        _show(copied, listed if as_json else None)
                bar.remove_task(task)
    if as_json:
        listed.end()
    return f"{ledgers} ledgers copied; all copies have {entries:,} entries, {human_bytes(size)}", failed


async def _chosen(
    importing: LedgerImport, ledger_ids: tuple[int, ...] | None, locked: list[int]
) -> AsyncIterator[tuple[int, Copy]]:
    """The ledgers, and how to copy each: at the end the ones that then are `locked`, for which it waits."""
    if ledger_ids is None:
        async for ledger_id in importing.closed_ledgers():
            yield ledger_id, importing.copy_unless_locked
    else:
        for ledger_id in ledger_ids:
            yield ledger_id, importing.copy_unless_locked
    for ledger_id in locked:
        yield ledger_id, importing.copy


def _update(bar: Progress, task: TaskID, done: int, total: int) -> None:
    bar.update(task, completed=done, total=total)


def _show(copied: CopiedLedger, listed: JsonList | None) -> None:
    if listed is not None:
        fields: dict[str, Any] = copied._asdict()
        listed.add(fields)
        return
    done = "" if copied.new else ", copied before"
    click.echo(f"{copied.ledger_id} -> {copied.copy_id}: {copied.entries:,} entries, {human_bytes(copied.bytes)}{done}")
