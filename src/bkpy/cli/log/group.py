"""`bkpy log`: write, read and maintain logs that never end."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.arguments import duration, seconds, since_option, size
from bkpy.cli.completion import complete_bookie, complete_log
from bkpy.cli.connecting import connect, connect_admin, connect_option
from bkpy.cli.input import confirm
from bkpy.cli.ledger.group import creation_arguments, digest_option, password_option, quorums_option
from bkpy.cli.output.entries import FORMATS, json_line, payload_line, raw_option
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.progress import progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import human_ledgers, say
from bkpy.cli.running import output_has_reader, run
from bkpy.cli.several import delete_all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from datetime import datetime

    import bkpy
    from bkpy.client.client import Client
    from bkpy.log.entries import LogEntry

    Formatter = Callable[[LogEntry], bytes]

_POSITION = click.IntRange(min=0)
_POSITION.name = "position"  # in messages
_PROGRESS_ENTRIES = 1000  # between two updates of a progress bar


def _time(ctx: click.Context, _: click.Parameter, text: str | None) -> float | datetime | None:
    """Seconds since 1970, 15m for a time so long ago, or ISO 8601, in this machine's zone unless it has one."""
    from datetime import datetime

    if text is None:
        return None
    with contextlib.suppress(ValueError):
        return float(text)
    ago = seconds(text)
    if ago is not None:
        return time.time() - ago
    try:
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo is not None else moment.astimezone()
    except (ValueError, OverflowError):  # also of the first day and the last, which other zones don't have
        raise click.BadParameter(
            f"{text!r} is no time: expected 2026-01-31T12:00:00Z, 15m (fifteen minutes ago), or seconds since 1970"
        ) from None


_format_option = click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
_lines_option = click.option("--json", "as_json", is_flag=True, help="The same as --format json: one object a line.")
_yes_option = click.option("--yes", "-y", is_flag=True, help="Don't ask.")
_since_option = click.option(
    "--since",
    metavar="TIME",
    callback=_time,
    help="Begin with the first entry that isn't earlier than this; 15m means fifteen minutes ago.",
)


def creation_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that describe a new log."""
    for option in (
        click.option(
            "--consumer-expiry",
            "consumer_expiry_s",
            callback=duration,
            metavar="SECONDS",
            help="Keep nothing any longer for a consumer that has committed nothing for so long though there was "
            "something to read, such as 30d.  [default: keep it]",
        ),
        click.option(
            "--consumer-lag-max",
            "consumer_lag_max_s",
            callback=duration,
            metavar="SECONDS",
            help="How much longer entries are kept for consumers that have yet to read them, such as 30d.  "
            "[default: for ever]",
        ),
        click.option(
            "--retention-bytes",
            callback=size,
            metavar="BYTES",
            help="Keep the last BYTES of entries, such as 10GiB, rounded up to whole ledgers; with --retention, what "
            "either keeps.  [default: all]",
        ),
        click.option(
            "--retention",
            "retention_s",
            callback=duration,
            metavar="SECONDS",
            help="Keep entries that are no older than this, such as 7d, rounded up to whole ledgers.  [default: all]",
        ),
        digest_option,
        password_option,
        quorums_option,
    ):
        function = option(function)
    return function


@click.group()
def log() -> None:
    """Write, read and maintain logs: entries under a name, on ledgers that follow each other."""


@log.command(short_help="Create a log.")
@connect_option
@click.argument("name", shell_complete=complete_log)
@creation_options
@json_option
def create(uri: str, name: str, as_json: bool, **creation: Any) -> None:
    """Create the log NAME, without entries.

    \b
    Examples:
      bkpy log create orders
      bkpy log create clicks --retention 7d --retention-bytes 100GiB
    """
    run(_create(uri, name, creation_arguments(creation)))
    if as_json:
        print_json({"log": name})


@log.command(short_help="Append lines to a log.")
@connect_option
@click.argument("name", shell_complete=complete_log)
@click.argument("file", default="-", metavar="[FILE]")
@click.option("--create", is_flag=True, help="Create the log if there is none, as the options below describe.")
@click.option(
    "--takeover/--no-takeover",
    help="Fence the log's writer, if it has one, and take its place. The default is to fail.",
)
@creation_options
@json_option
def write(uri: str, name: str, file: str, as_json: bool, takeover: bool, **opening: Any) -> None:
    """Append the lines of FILE, or of standard input, to the log NAME, each as one entry.

    A log has one writer. If another client has the log open for writing, the command writes nothing, and its error
    names that client. --takeover fences the client, so that its next append fails. The command prints the position of
    the first line before it appends it, so that others can follow. However it ends, it reports how many entries were
    acknowledged.

    \b
    Examples:
      seq 1000 | bkpy log write orders --create
      bkpy log write orders --takeover lines.txt
    """
    from bkpy.cli.log.write import Appending
    from bkpy.errors import LogLockedError

    writing = Appending(name)
    try:
        run(writing.run(uri, file, {**creation_arguments(opening), "wait": takeover}, announce=not as_json))
    except LogLockedError as e:
        e.add_note("end it, or fence it and take its place with --takeover")
        raise
    except BaseException as e:
        writing.tell_of(e)
        raise
    if as_json:
        print_json(writing.result())
    else:
        say(writing.summary())


@log.command(short_help="Print entries.")
@connect_option
@click.argument("name", shell_complete=complete_log)
@click.option("--first", type=_POSITION, help="The first position to print.  [default: where the log begins]")
@click.option("--last", type=_POSITION, help="The last position to print.  [default: the last acknowledged one]")
@_since_option
@click.option(
    "--until", metavar="TIME", callback=_time, help="End before the first entry that isn't earlier than this."
)
@_format_option
@raw_option
@_lines_option
@password_option
def read(
    uri: str,
    name: str,
    first: int | None,
    last: int | None,
    since: float | datetime | None,
    until: float | datetime | None,
    form: str,
    as_json: bool,
    password: bytes,
) -> None:
    """Print the entries of the log NAME, one a line. The command never disturbs the log's writer.

    \b
    Examples:
      bkpy log read orders --first 100 --last 199
      bkpy log read orders --since 15m --json
      bkpy log read orders --since 2026-01-31T12:00Z --until 2026-01-31T13:00Z
    """
    if first is not None and last is not None and last < first:
        raise click.UsageError(f"--last {last} lies before --first {first}")
    _check_one(first=first, since=since)
    _check_one(last=last, until=until)
    run(_read(uri, name, (first, since), (last, until), _formatter("json" if as_json else form), password))


@log.command(short_help="Print entries as they come.")
@connect_option
@click.argument("name", shell_complete=complete_log)
@click.option("--first", type=_POSITION, help="The first position to print.  [default: where the log begins]")
@_since_option
@click.option("--new", is_flag=True, help="Only what is appended from now on.")
@_format_option
@raw_option
@_lines_option
@password_option
def tail(
    uri: str,
    name: str,
    first: int | None,
    since: float | datetime | None,
    new: bool,
    form: str,
    as_json: bool,
    password: bytes,
) -> None:
    """Print the entries of the log NAME and go on as more are acknowledged, from any writer, until Ctrl-C.

    \b
    Examples:
      bkpy log tail orders --new
      bkpy log tail orders --since 1h --json
    """
    _check_one(first=first, since=since, new=new or None)
    run(_tail(uri, name, (first, since), new, _formatter("json" if as_json else form), password))


@log.command(short_help="Show a log, its ledgers and its consumers.")
@connect_option
@click.argument("name", shell_complete=complete_log)
@password_option
@click.option("--all", "-a", "whole", is_flag=True, help="Show all ledgers of a log that has hundreds, too.")
@json_option
def show(uri: str, name: str, password: bytes, whole: bool, as_json: bool) -> None:
    """Show where the log NAME begins and ends, who writes it, and its ledgers and consumers.

    Of a log with hundreds of ledgers it shows the newest. Without the password of a log that has one, the end of its
    open ledger is unknown.
    """
    from bkpy.cli.log import describe as log_describe

    described = run(log_describe.described(uri, name, password, whole=whole))
    if as_json:
        print_json(described)
    else:
        log_describe.show(described)


@log.command("list")
@connect_option
@click.option("--long", "-l", "long_", is_flag=True, help="Show positions, ledgers, size and writer of each.")
@since_option("Logs created since then only")
@click.option(
    "--written/--not-written", default=None, help="Logs that a client has, or no client has, open for writing."
)
@click.option("--behind", is_flag=True, help="Logs with a consumer that has yet to read sealed ledgers only.")
@click.option("--bookie", metavar="ID", shell_complete=complete_bookie, help="Logs with a ledger on this bookie only.")
@click.option("--missing-copies", is_flag=True, help="Logs with a ledger that has an under-replication record only.")
@json_option
def list_(uri: str, long_: bool, as_json: bool, **filters: Any) -> None:
    """List the logs by name: all, or the ones that are as all given options say.

    An unreadable log is in each list.
    """
    from bkpy.cli.log import describe as log_describe

    wanted = log_describe.Wanted(**filters)
    if long_ or as_json or wanted != log_describe.Wanted():
        found = run(log_describe.listed(uri, wanted))
        if as_json:
            print_json(found)
        elif not long_:
            click.echo("".join(f"{row['log']}\n" for row in found), nl=False)
        else:
            print_table(
                ("log", "first position", "known end", "ledgers", "bytes", "consumers", "lag", "writer"),
                [[row[name] for name in log_describe.SUMMARY] for row in found],
            )
    else:
        click.echo("".join(f"{name}\n" for name in run(_names(uri))), nl=False)


@log.command(short_help="Delete the oldest entries of a log, for good.")
@connect_option
@click.argument("name", shell_complete=complete_log)
@click.argument("before", type=_POSITION)
@click.option("--ignore-consumers", is_flag=True, help="Also delete what consumers have yet to read.")
@password_option
@_yes_option
@json_option
def truncate(
    uri: str, name: str, before: int, ignore_consumers: bool, password: bytes, yes: bool, as_json: bool
) -> None:
    """Delete the entries of the log NAME below the position BEFORE, for good. Its writer goes on.

    Readers no longer reach these entries. A ledger that has later entries as well is deleted with them. Asks first, as
    bkpy ledger delete does.
    """
    if not yes:
        confirm(f"Delete what lies before position {before} of log {name}, for good?")
    result = run(_truncate(uri, name, before, ignore_consumers, password))
    if as_json:
        print_json(result)
    else:
        say(f"log {name} begins at position {result['first_position']} now, in {human_ledgers(result['ledgers'])}")


@log.command(short_help="Delete logs, for good.")
@connect_option
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_log)
@_yes_option
def delete(uri: str, names: tuple[str, ...], yes: bool) -> None:
    """Delete logs with all their entries and consumers, for good.

    Asks first, as bkpy ledger delete does. Reports logs that do not exist at the end, and deletes the others all the
    same.
    """
    from bkpy.errors import NoSuchLogError

    async def delete_one(client: Client, name: str) -> None:
        await client.delete_log(name)

    delete_all(uri, names, delete_one, NoSuchLogError, yes=yes)


@log.command(short_help="List and change consumers: names with the position that each has read to.")
@connect_option
@click.argument("name", shell_complete=complete_log)
@click.option("--set", "moved", nargs=2, type=(str, _POSITION), help="CONSUMER POSITION: register or move one.")
@click.option("--delete", "deleted", metavar="CONSUMER", help="Delete one; the log keeps no entries for it any more.")
@password_option
@_yes_option
@json_option
def consumers(
    uri: str,
    name: str,
    moved: tuple[str, int] | None,
    deleted: str | None,
    password: bytes,
    yes: bool,
    as_json: bool,
) -> None:
    """List the consumers of the log NAME, with the next position and what each has yet to read; or change one.

    A consumer is idle while it commits nothing though there is something to read. Without the log's password, what
    there is to read is unknown, and --set is refused: no consumer can be past the log's end.

    \b
    Examples:
      bkpy log consumers orders
      bkpy log consumers orders --set billing 1000
      bkpy log consumers orders --delete billing
    """
    _check_one(set=moved, delete=deleted)
    if deleted is not None and not yes:
        confirm(f"Delete consumer {deleted} of log {name}?")
    found = run(_consumers(uri, name, moved, deleted, password))
    if as_json:
        print_json(found)
    else:
        from bkpy.cli.log.describe import print_consumers

        print_consumers(found)


@log.command(short_help="List and remove writer ids of Spark jobs.")
@connect_option
@click.argument("name", shell_complete=complete_log)
@click.option("--delete", "deleted", metavar="WRITER_ID", help="Remove the id of a job that never runs again.")
@_yes_option
@json_option
def sinks(uri: str, name: str, deleted: str | None, yes: bool, as_json: bool) -> None:
    """List the writer ids of the jobs that commit batches to the log NAME, with the last batch of each; or remove one.

    A log remembers at most log_producers_max of them, producers included. Remove an id only if its job never runs
    again: otherwise a batch that the job repeats is in the log twice.

    \b
    Examples:
      bkpy log sinks orders
      bkpy log sinks orders --delete load-2026-01-31
    """
    if deleted is not None and not yes:
        confirm(f"Remove writer id {deleted} of log {name}? A batch that it repeats will be written twice.")
    found = run(_sinks(uri, name, deleted))
    if as_json:
        print_json(found)
    else:
        print_table(("writer id", "last batch"), list(found.items()))


@log.command(short_help="List and remove producers of numbered entries.")
@connect_option
@click.argument("name", shell_complete=complete_log)
@click.option("--delete", "deleted", metavar="PRODUCER", help="Remove a producer that never comes back.")
@_yes_option
@json_option
def producers(uri: str, name: str, deleted: str | None, yes: bool, as_json: bool) -> None:
    """List the producers of the log NAME, with the last number of each in sealed ledgers; or remove one.

    A log remembers at most log_producers_max of them. A producer that was removed can't open the log again without
    saying that it is new.

    \b
    Examples:
      bkpy log producers orders
      bkpy log producers orders --delete orders-service
    """
    if deleted is not None and not yes:
        confirm(f"Remove producer {deleted} of log {name}? What it has appended can't be recognised any more.")
    found = run(_producers(uri, name, deleted))
    if as_json:
        print_json(found)
    else:
        rows = [(one["producer"], one["last_sequence"], one["last_position"], one["active"]) for one in found]
        print_table(("producer", "last number", "position", "active"), rows)


def _check_one(**given: object) -> None:
    names = [f"--{name}" for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise click.UsageError(f"{' and '.join(names)} can't be given together")


# --- what they do ---------------------------------------------------------------------------------------------------


async def _create(uri: str, name: str, creation: dict[str, Any]) -> None:
    async with connect_admin(uri) as admin:
        if not await admin.create_log(name, **creation):
            raise click.ClickException(f"there is a log {name} already, or it is being deleted")


def _formatter(form: str) -> Formatter:
    if form != "json":
        line = payload_line(form)
        return lambda entry: line(entry.data)
    return lambda entry: json_line(
        {
            "position": entry.position,
            "time": entry.time,
            "ledger_id": entry.ledger_id,
            "entry_id": entry.entry_id,
            **({} if entry.producer is None else {"producer": entry.producer, "sequence": entry.sequence}),
        },
        entry.data,
    )


async def _position(reader: bkpy.LogReader, given: tuple[int | None, float | datetime | None], default: int) -> int:
    """The given position, or the position at the given time."""
    position, moment = given
    if position is not None:
        return position
    return default if moment is None else await reader.position_at(moment)


async def _read(
    uri: str,
    name: str,
    begin: tuple[int | None, float | datetime | None],
    end: tuple[int | None, float | datetime | None],
    form: Formatter,
    password: bytes,
) -> None:
    import bkpy
    from bkpy.log.entries import past_the_end

    out = sys.stdout.buffer
    async with connect(uri) as client, await client.read_log(name, password=password) as reader:
        first = await _position(reader, begin, reader.first_position)
        if end[0] is not None and begin == (None, None) and end[0] < first:
            raise bkpy.TruncatedError(f"log {name} begins at position {first}, {end[0]} is gone")
        behind = await _position(reader, (None if end[0] is None else end[0] + 1, end[1]), reader.next_position)
        if first > reader.next_position or (first == reader.next_position and begin[0] not in (None, 0)):
            raise past_the_end(name, first, reader.next_position)
        # On a terminal the entries themselves are the progress.
        with progress() if not out.isatty() else contextlib.nullcontext() as bar:
            task = None if bar is None else bar.add_task(f"log {name}", total=max(0, behind - first))
            async for entry in _entries(reader, first, behind):
                out.write(form(entry))
                if bar is not None and task is not None and entry.position % _PROGRESS_ENTRIES == 0:
                    bar.update(task, completed=entry.position - first)
            if bar is not None and task is not None:
                bar.update(task, completed=max(0, behind - first))
    out.flush()


async def _entries(reader: bkpy.LogReader, first: int, behind: int) -> AsyncIterator[LogEntry]:
    if first < behind:
        async for entry in reader.read(first, behind - 1):
            yield entry


async def _tail(
    uri: str,
    name: str,
    begin: tuple[int | None, float | datetime | None],
    new: bool,
    form: Formatter,
    password: bytes,
) -> None:
    out = sys.stdout.buffer
    async with output_has_reader(), connect(uri) as client, await client.read_log(name, password=password) as reader:
        first = reader.next_position if new else await _position(reader, begin, reader.first_position)
        async for block in reader.tail_blocks(first):
            out.writelines(map(form, block))
            out.flush()


async def _names(uri: str) -> list[str]:
    async with connect(uri) as client:
        return [name async for name in client.list_logs()]


async def _truncate(uri: str, name: str, before: int, ignore_consumers: bool, password: bytes) -> dict[str, Any]:
    async with connect_admin(uri) as admin:
        log_list = await admin.truncate_log(name, before, password=password, ignore_consumers=ignore_consumers)
        return {"log": name, "first_position": log_list.first_position, "ledgers": log_list.ledgers}


async def _sinks(uri: str, name: str, deleted: str | None) -> dict[str, int]:
    async with connect_admin(uri) as admin:
        if deleted is not None and not await admin.delete_log_sink(name, deleted):
            raise click.ClickException(f"log {name} has no writer id {deleted}")
        return await admin.log_sinks(name)


async def _producers(uri: str, name: str, deleted: str | None) -> list[dict[str, Any]]:
    from bkpy.cli.log.describe import producer_rows

    async with connect_admin(uri) as admin:
        if deleted is not None and not await admin.delete_log_producer(name, deleted):
            raise click.ClickException(f"log {name} has no producer {deleted}")
        return producer_rows(await admin.log_producers(name))


async def _consumers(
    uri: str, name: str, moved: tuple[str, int] | None, deleted: str | None, password: bytes
) -> list[dict[str, Any]]:
    from bkpy.cli.log.describe import consumers_listed

    async with connect_admin(uri) as admin:
        if moved is not None:
            async with await admin.client.read_log(name, password=password) as reader:
                consumer = await reader.consumer(moved[0], position=moved[1], create=True)
                if consumer.position != moved[1]:
                    await consumer.commit(moved[1])
        if deleted is not None and not await admin.delete_log_consumer(name, deleted):
            raise click.ClickException(f"log {name} has no consumer {deleted}")
        return await consumers_listed(admin, name, password)
