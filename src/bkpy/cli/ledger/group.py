"""`bkpy ledger`: write, read, show, recover and delete ledgers."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.arguments import ledger_argument, ledgers_argument, quorums, since_option
from bkpy.cli.completion import complete_bookie
from bkpy.cli.connecting import connect, connect_admin, connect_option
from bkpy.cli.ledger import describe
from bkpy.cli.ledger.explain import explain
from bkpy.cli.output.entries import FORMATS, json_line, payload_line, raw_option
from bkpy.cli.output.json import JsonList, json_option, print_json
from bkpy.cli.output.progress import progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import say
from bkpy.cli.running import output_has_reader, run
from bkpy.cli.several import delete_all, show_each
from bkpy.config.password_file import read_password

if TYPE_CHECKING:
    import bkpy
    from bkpy.client.client import Client
    from bkpy.client.read.block import Entry
    from bkpy.client.read.reader import LedgerReader
    from bkpy.errors import BookKeeperError
    from bkpy.metadata.replication.underreplication import UnderreplicationRecord
    from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata

_ENTRY = click.IntRange(min=0)


def _password(ctx: click.Context, _: click.Parameter, path: str | None) -> bytes:
    return b"" if path is None else read_password(path)


password_option = click.option(
    "--password-file",
    "password",
    metavar="FILE",
    callback=_password,
    help="A file with the password of the ledger or log: its whole content but one line break at its end.  "
    "[default: no password]",
)


def _custom_metadata(ctx: click.Context, _: click.Parameter, pairs: tuple[str, ...]) -> dict[str, bytes]:
    given: dict[str, bytes] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise click.BadParameter(f"expected KEY=VALUE, not {pair!r}")
        if key in given:
            raise click.BadParameter(f"{key!r} is given twice")
        given[key] = os.fsencode(value)
    return given


digest_option = click.option(
    "--digest", type=click.Choice(["crc32c", "hmac-sha256"]), default="crc32c", show_default=True
)
quorums_option = click.option(
    "--ensemble",
    "quorums",
    default="3,3,2",
    show_default=True,
    metavar="E,QW,QA",
    callback=quorums,
    help="Bookies of the ledger, copies of each entry, and copies that must be durable before an acknowledgement.",
)


def creation_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that describe a new ledger."""
    for option in (
        click.option(
            "--metadata",
            "custom_metadata",
            multiple=True,
            metavar="KEY=VALUE",
            callback=_custom_metadata,
            help="Custom metadata to store with the ledger. May be repeated.",
        ),
        digest_option,
        password_option,
        quorums_option,
    ):
        function = option(function)
    return function


@click.group()
def ledger() -> None:
    """Write, read and inspect ledgers."""


ledger.add_command(explain)


@ledger.command(short_help="Create an empty ledger.")
@connect_option
@creation_options
@json_option
def create(uri: str, as_json: bool, **creation: Any) -> None:
    """Create an empty ledger, close it, and print its id.

    A ledger has one writer for life, so the command that appends entries also creates the ledger: bkpy ledger write.
    """
    ledger_id = run(_create(uri, creation))
    if as_json:
        print_json({"ledger_id": ledger_id})
    else:
        click.echo(ledger_id)


@ledger.command(short_help="Create a ledger and append lines to it.")
@connect_option
@click.argument("file", default="-", metavar="[FILE]")
@creation_options
@json_option
def write(uri: str, file: str, as_json: bool, **creation: Any) -> None:
    """Create a ledger and append the lines of FILE, or of standard input, each as one entry.

    The command prints the ledger's id before it appends the first line, so that others can follow it, and closes the
    ledger at the end. However it ends, it reports how many entries were acknowledged, and warns of bookies that may be
    missing some of them.
    """
    from bkpy.cli.ledger.write import Writing

    writing = Writing()
    try:
        run(writing.run(uri, file, creation_arguments(creation), announce=not as_json))
    except BaseException as e:
        writing.tell_of(e)
        raise
    if as_json:
        print_json(writing.result())
    else:
        say(writing.summary())
    writing.warn()


@ledger.command(short_help="Print entries.")
@connect_option
@ledger_argument
@click.option("--first", type=_ENTRY, default=0, show_default=True, help="The first entry to print.")
@click.option("--last", type=_ENTRY, help="The last entry to print.  [default: the last acknowledged one]")
@click.option(
    "--unconfirmed",
    is_flag=True,
    help="Also entries that may never have been acknowledged; without --last, up to the first that no bookie has.",
)
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json: one object a line.")
@raw_option
@password_option
def read(
    uri: str,
    ledger_id: int,
    first: int,
    last: int | None,
    unconfirmed: bool,
    form: str,
    as_json: bool,
    password: bytes,
) -> None:
    """Print the entries of LEDGER, one a line. The command never disturbs the ledger's writer."""
    if last is not None and last < first:
        raise click.UsageError(f"--last {last} lies before --first {first}")
    formatter = _formatter("json" if as_json else form)
    run(_read(uri, ledger_id, first, last, unconfirmed, formatter, password))


@ledger.command(short_help="Print entries as they come.")
@connect_option
@ledger_argument
@click.option("--first", type=_ENTRY, default=0, show_default=True, help="The first entry to print.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json: one object a line.")
@raw_option
@password_option
def tail(uri: str, ledger_id: int, first: int, form: str, as_json: bool, password: bytes) -> None:
    """Print the entries of LEDGER and go on as more are acknowledged, until the ledger is closed."""
    run(_tail(uri, ledger_id, first, _formatter("json" if as_json else form), password))


@ledger.command(short_help="Show ledgers, and the entries that each bookie should hold and does hold.")
@connect_option
@ledgers_argument
@json_option
def show(uri: str, ledger_ids: tuple[int, ...], as_json: bool) -> None:
    """Show the metadata of ledgers, the entries that each bookie should hold, and what the bookies report.

    LEDGERS are ids and ranges, as in 7,9-12. Each bookie reports the last entry that it holds of a ledger. This shows
    entries that are missing at the end, but no holes before it. A bookie that holds later entries reports nothing about
    earlier fragments.
    """
    from bkpy.admin.ledger_description import describe_ledger

    show_each(
        uri,
        ledger_ids,
        _metadata,
        lambda found: describe_ledger(*found),
        lambda found: describe.show(*found),
        as_json=as_json,
    )


@ledger.command(short_help="Close the ledgers of writers that are gone.")
@connect_option
@ledgers_argument
@password_option
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Close it although bookies that are gone for good may have entries that no other bookie has. Shows what is "
    "known, and asks for the ledger's id.",
)
@click.option("--yes", "-y", is_flag=True, help="With --accept-loss: don't ask.")
@json_option
def recover(
    uri: str, ledger_ids: tuple[int, ...], password: bytes, accept_loss: bool, yes: bool, as_json: bool
) -> None:
    """Find out where a ledger ends, and close it there. Recovery fences its writer, if there still is one.

    LEDGERS are ids and ranges, as in 7,9-12; with --accept-loss one id. No acknowledged entry is lost. If too few
    bookies answer to decide where a ledger ends, it stays IN_RECOVERY, and you can try again later. A ledger that is
    CLOSED stays as it is.
    """
    if yes and not accept_loss:
        raise click.UsageError("--yes goes with --accept-loss")
    if accept_loss:
        if len(ledger_ids) > 1:
            raise click.UsageError("--accept-loss takes one ledger at a time")
        from bkpy.cli.ledger.accept_loss import recover_accepting_loss, show

        show(recover_accepting_loss(uri, ledger_ids[0], password, yes=yes, as_json=as_json), as_json=as_json)
        return

    async def recover_one(client: Client, ledger_id: int) -> dict[str, Any]:
        return await _recover(client, ledger_id, password)

    show_each(uri, ledger_ids, recover_one, lambda result: result, _show_recovered, as_json=as_json)


def _show_recovered(result: dict[str, Any]) -> None:
    rows = [(name.replace("_", " "), value) for name, value in result.items()]
    print_table(("", ""), [(name, f"{v:.3f}" if isinstance(v, float) else str(v)) for name, v in rows])


@ledger.command("list")
@connect_option
@click.option("--long", "-l", "long_", is_flag=True, help="Show the state, size and ensemble of each.")
@click.option(
    "--state", type=click.Choice(["OPEN", "IN_RECOVERY", "CLOSED"], case_sensitive=False), help="Of this state."
)
@since_option("Ledgers created since then only")
@click.option("--bookie", metavar="ID", shell_complete=complete_bookie, help="Ledgers that name this bookie only.")
@click.option(
    "--custom",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_custom_metadata,
    help="Ledgers with this custom metadata only. May be repeated.",
)
@click.option("--missing-copies", is_flag=True, help="Ledgers with an under-replication record only.")
@json_option
def list_(uri: str, long_: bool, as_json: bool, **wanted: Any) -> None:
    """List the ledgers by id: all, or the ones that are as all given options say.

    Prints each ledger as it is found.
    """
    run(_list(uri, long_, as_json, wanted))


@ledger.command(short_help="Delete ledgers, for good.")
@connect_option
@ledgers_argument
@click.option("--yes", "-y", is_flag=True, help="Don't ask.")
def delete(uri: str, ledger_ids: tuple[int, ...], yes: bool) -> None:
    """Delete ledgers, for good.

    LEDGERS are ids and ranges, as in 7,9-12. The command asks first, and reads the answer from standard input. Without
    an answer it deletes nothing, and exits with status 2. It reports ledgers that do not exist at the end, and deletes
    the others all the same.
    """
    from bkpy.client.arguments import format_ledger_ids
    from bkpy.errors import NoSuchLedgerError

    async def delete_one(client: Client, ledger_id: int) -> None:
        await client.delete_ledger(ledger_id)

    delete_all(uri, ledger_ids, delete_one, NoSuchLedgerError, yes=yes, listed=format_ledger_ids)


# --- what they do ---------------------------------------------------------------------------------------------------


async def _create(uri: str, creation: dict[str, Any]) -> int:

    async with connect(uri) as client:
        writer = await client.create_ledger(**creation_arguments(creation))
        await writer.close()
        return writer.ledger_id


def creation_arguments(creation: dict[str, Any]) -> dict[str, Any]:
    """The options' values as `Client` takes them."""
    ensemble_size, write_quorum, ack_quorum = creation.pop("quorums")
    return {**creation, "ensemble_size": ensemble_size, "write_quorum": write_quorum, "ack_quorum": ack_quorum}


_Formatter = Callable[[int, int, bytes], bytes]


def _formatter(form: str) -> _Formatter:
    """From ledger id, entry id and payload to a line of output."""
    if form == "json":
        return lambda ledger_id, entry_id, data: json_line({"ledger_id": ledger_id, "entry_id": entry_id}, data)
    line = payload_line(form)
    return lambda ledger_id, entry_id, data: line(data)


async def _read(
    uri: str, ledger_id: int, first: int, last: int | None, unconfirmed: bool, form: _Formatter, password: bytes
) -> None:

    out = sys.stdout.buffer
    async with connect(uri) as client:
        reader = await client.open_ledger(ledger_id, password=password)
        end = reader.last_add_confirmed if last is None else last
        if unconfirmed:
            entries = _unconfirmed(reader, first, last)
        elif first > max(end, 0):  # to read an empty ledger from its first entry on is no mistake
            raise _past_the_end(reader, first)
        else:
            entries = reader.read(first, last)
        # On a terminal the entries themselves are the progress.
        with progress() if not out.isatty() else contextlib.nullcontext() as bar:
            task = None if bar is None else bar.add_task(f"ledger {ledger_id}", total=end - first + 1)
            async for entry in entries:
                out.write(form(ledger_id, entry.entry_id, entry.data))
                if bar is not None and task is not None and entry.entry_id % 1000 == 999:
                    bar.update(task, completed=entry.entry_id - first + 1)
            if bar is not None and task is not None:
                bar.update(task, completed=end - first + 1)
        await reader.close()
    out.flush()


async def _unconfirmed(reader: LedgerReader, first: int, last: int | None) -> AsyncIterator[Entry]:
    """Entries first..last, acknowledged or not; `last=None` is up to the first that doesn't exist."""
    import bkpy
    from bkpy.protocol.ledger.ledger_metadata import ENTRY_ID_MAX

    following = first
    try:
        async for entry in reader.read_unconfirmed(first, ENTRY_ID_MAX if last is None else last):
            yield entry
            following = entry.entry_id + 1
    except bkpy.NoSuchEntryError:
        if last is not None:
            raise
        # A closed ledger denies entries past its end at once, before it returns the entries ahead of them.
        if following <= reader.last_add_confirmed:
            async for entry in reader.read(following):
                yield entry
        elif following == first > 0:
            if reader.closed:
                raise _past_the_end(reader, first) from None
            raise


def _past_the_end(reader: LedgerReader, entry_id: int) -> bkpy.NoSuchEntryError:
    import bkpy

    what = "last entry" if reader.closed else "last add confirmed"
    return bkpy.NoSuchEntryError(
        f"entry {entry_id} is past the {what}, {reader.last_add_confirmed}",
        ledger_id=reader.ledger_id,
        entry_id=entry_id,
    )


async def _tail(uri: str, ledger_id: int, first: int, form: _Formatter, password: bytes) -> None:

    out = sys.stdout.buffer
    async with output_has_reader(), connect(uri) as client:
        reader = await client.open_ledger(ledger_id, password=password)
        async for entry in reader.tail(first):
            out.write(form(ledger_id, entry.entry_id, entry.data))
            out.flush()
        await reader.close()


async def _metadata(
    client: Client, ledger_id: int
) -> tuple[LedgerMetadata, Mapping[str, int | BookKeeperError], UnderreplicationRecord | None]:
    """The ledger's metadata, the last entry that each bookie holds, and the ledger's under-replication record."""
    from bkpy.admin.client import AdminClient
    from bkpy.client.client import is_of_bookkeeper

    admin, metadata = AdminClient(client), await client.ledger_metadata(ledger_id)
    record = None if is_of_bookkeeper(client) else await admin.under_replication(ledger_id)
    return metadata, await admin.last_entries(metadata), record


async def _recover(client: Client, ledger_id: int, password: bytes) -> dict[str, Any]:
    import time

    before = await client.ledger_metadata(ledger_id)
    started = time.monotonic()
    with progress(unit="") as bar:
        bar.add_task(f"ledger {ledger_id} was {before.state.value}, recovering", total=None)
        reader = await client.recover_ledger(ledger_id, password=password)
    seconds = time.monotonic() - started
    after = reader.metadata
    await reader.close()
    return {
        "ledger_id": ledger_id,
        "state_before": before.state.value,
        "state": after.state.value,
        "fragments_before": len(before.fragments),
        "fragments": len(after.fragments),
        "last_entry": after.last_entry,
        "length": after.length,
        "seconds": round(seconds, 3),
    }


async def _list(uri: str, long_: bool, as_json: bool, wanted: dict[str, Any]) -> None:
    from bkpy.admin.ledger_description import describe_ledger

    plain = not long_ and not any(wanted.values())
    if wanted["state"] is not None:
        wanted["state"] = wanted["state"].upper()
    rows: list[Any] = []
    listed = JsonList()
    async with connect_admin(uri) as admin:
        if plain:  # no metadata need be read
            async for ledger_id in admin.client.list_ledgers():
                if as_json:
                    listed.add({"ledger_id": ledger_id})
                else:
                    click.echo(ledger_id)
        else:
            async for metadata in admin.find_ledgers(**wanted):
                if as_json:
                    listed.add(describe_ledger(metadata))
                elif long_:
                    rows.append(describe.row(metadata))
                else:
                    click.echo(metadata.ledger_id)
    if as_json:
        listed.end()
    elif long_:
        columns = ("ledger", "state", "last entry", "bytes", "E,Qw,Qa", "digest", "created", "fragments")
        print_table(columns, rows)
