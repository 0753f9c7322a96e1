"""What commands share: the cluster's address, the event loop, tables and JSON, progress bars."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import errno
import json
import os
import select
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bkpy.cli.output.formats import printable_lines

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from types import FrameType

    from rich.progress import Progress

    from bkpy.client.client import Client
    from bkpy.config.base import MetadataSettings
    from bkpy.config.client import ClientSettings
    from bkpy.errors import BookKeeperError
    from bkpy.metadata.store.store import MetadataStore

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_OUTPUT_LOOK_S = 0.2  # between two looks whether standard output has a reader
_TABLE_WIDTH_MAX = 4096  # characters; what is piped into another program is never cut off or wrapped


def _required_uri(ctx: click.Context, _: click.Parameter, uri: str | None) -> str:
    if not uri:
        ctx.fail("which cluster? Give --connect URI or set BKPY_CONNECT, for example to zk://127.0.0.1:2181/ledgers")
    return uri


connect_option = click.option(
    "--connect",
    "uri",
    metavar="URI",
    envvar="BKPY_CONNECT",
    callback=_required_uri,
    help="The cluster, as zk://HOST:PORT[,HOST:PORT...]/ROOT.  [env: BKPY_CONNECT]",
)


def given_settings(ctx: click.Context, _: click.Parameter, pairs: tuple[str, ...]) -> dict[str, Any]:
    """Settings from `NAME=VALUE`. A value is a number, true, false or a list as JSON has them; any other is text."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"expected NAME=VALUE, not {pair!r}")
        if name == "zookeeper_auth":
            raise click.BadParameter("a password in a command can be seen by others: set BKPY_ZOOKEEPER_AUTH instead")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values


_client_settings: dict[str, Any] = {}


def set_client_settings(values: dict[str, Any]) -> None:
    """Clients are made with these, and with what variables `BKPY_<NAME>` say in their place.

    `ConfigError`, with the variable's name, if one is unknown or out of its range.
    """
    from_environment = _from_environment()
    if values or from_environment:
        from bkpy.config.checking import build, check_name
        from bkpy.config.client import ClientSettings

        for name in values:
            check_name(ClientSettings, name, "argument")
        origins = {name: f"variable BKPY_{name.upper()}" for name in from_environment.keys() - values.keys()}
        values = {**from_environment, **values}
        build(ClientSettings, values, origins)
    _client_settings.clear()
    _client_settings.update(values)


def security_settings() -> dict[str, Any]:
    """Those of the clients' settings that bookies and recovery have as well: certificates and passwords."""
    return {name: value for name, value in _client_settings.items() if name in _SECURITY}


_SECURITY = (
    "tls_ca_file",
    "tls_certificate_file",
    "tls_key_file",
    "zookeeper_tls_ca_file",
    "zookeeper_tls_certificate_file",
    "zookeeper_tls_key_file",
    "zookeeper_auth",
    "zookeeper_auth_file",
    "zookeeper_acl",
)


def _from_environment() -> dict[str, Any]:
    """The client's settings that variables give. A bookie on the same machine takes its own from the same ones."""
    given = {variable: text for variable, text in os.environ.items() if variable.startswith("BKPY_") and text}
    given.pop("BKPY_CONNECT", None)
    if not given:
        return {}  # most commands: nothing has to be imported for them
    from bkpy.config.client import ClientSettings
    from bkpy.config.loading import ENVIRONMENT_PREFIX, check_variable, parse_text

    found = {}
    for variable, text in sorted(given.items()):
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name in ClientSettings.model_fields:
            found[name] = parse_text(ClientSettings, name, text, f"variable {variable}")
        else:
            check_variable(variable, text)
    return found


def settings() -> ClientSettings:
    """What clients are made with."""
    from bkpy.config.client import client_settings

    return client_settings(**_client_settings)


def connect(uri: str) -> AbstractAsyncContextManager[Client]:
    """A client of the cluster, with the settings from the command line."""
    import bkpy

    return bkpy.connect(uri, **_client_settings)


def _ledger_ids(text: str) -> tuple[int, ...]:
    """Ids and ranges, as in 7,9-12: what every command that takes ledgers is given."""
    from bkpy.client.arguments import parse_ledger_ids

    try:
        return parse_ledger_ids(text)
    except ValueError as e:
        raise click.BadParameter(str(e)) from None


def one_ledger(ctx: click.Context, _: click.Parameter, text: str | None) -> int | None:
    """The same, of a command that takes one ledger."""
    if text is None:
        return None
    ids = _ledger_ids(text)
    if len(ids) != 1:
        raise click.BadParameter(f"expected one ledger, and {text} names {len(ids)}")
    return ids[0]


def _each_once(ctx: click.Context, _: click.Parameter, given: Sequence[str]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(ledger_id for text in given for ledger_id in _ledger_ids(text)))


ledger_argument = click.argument("ledger_id", metavar="LEDGER", callback=one_ledger)
ledgers_argument = click.argument("ledger_ids", nargs=-1, required=True, metavar="LEDGERS...", callback=_each_once)


def show_each(
    uri: str,
    ledger_ids: Sequence[int],
    act: Callable[[Client, int], Coroutine[Any, Any, T]],
    described: Callable[[T], object],
    show: Callable[[T], None],
    *,
    as_json: bool,
) -> None:
    """Show what `act` returns for each ledger: one as an object, several as a list.

    Of several, one that fails holds up no other, and is an error in the end. What was done is shown however it ends.
    """
    found: dict[int, T] = {}
    failed: dict[int, BookKeeperError] = {}

    def show_found() -> None:
        if as_json:
            results = [described(one) for one in found.values()]
            print_json(results[0] if len(ledger_ids) == 1 else results)
        else:
            for one in found.values():
                show(one)

    try:
        run(_each(uri, ledger_ids, act, found, failed))
    except BaseException:
        if found or failed:
            show_found()
            say(f"bkpy: {_failures(ledger_ids, found, failed)}")
        raise
    show_found()
    if failed:
        raise click.ClickException(_failures(ledger_ids, found, failed))


async def _each(
    uri: str,
    ledger_ids: Sequence[int],
    act: Callable[[Client, int], Coroutine[Any, Any, T]],
    found: dict[int, T],
    failed: dict[int, BookKeeperError],
) -> None:
    """Notes what became of each. Raises the error of a single one, and that nobody tells of ledgers any more."""
    from bkpy.errors import BookKeeperError, ClientClosedError, MetadataUnavailableError

    async with connect(uri) as client:
        for ledger_id in ledger_ids:
            try:
                found[ledger_id] = await act(client, ledger_id)
            except BookKeeperError as e:
                if len(ledger_ids) == 1 or isinstance(e, MetadataUnavailableError | ClientClosedError):
                    raise
                failed[ledger_id] = e


def _failures(ledger_ids: Sequence[int], found: Mapping[int, T], failed: Mapping[int, BookKeeperError]) -> str:
    from bkpy.client.arguments import format_ledger_ids

    parts = [
        f"{reason} [ledger{'s' if len(ids) > 1 else ''} {format_ledger_ids(ids)}]"
        for reason, ids in by_reason(failed).items()
    ]
    if rest := [ledger_id for ledger_id in ledger_ids if ledger_id not in found and ledger_id not in failed]:
        parts.append(f"not tried, or unknown: {format_ledger_ids(rest)}")
    return "; ".join(parts)


def by_reason(failed: Mapping[T, BookKeeperError]) -> dict[str, list[T]]:
    """What failed, by why: thousands of ledgers that don't exist take one line."""
    reasons: dict[str, list[T]] = {}
    for name, error in failed.items():
        alike = copy.copy(error)
        alike.ledger_id = None
        reasons.setdefault(str(alike), []).append(name)
    return reasons


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


class Terminated(BaseException):
    """SIGTERM has ended a command, as Ctrl-C does by `KeyboardInterrupt`."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result. Ctrl-C cancels it and becomes `KeyboardInterrupt` when it has ended, SIGTERM likewise.

    A SIGTERM that comes before it has begun, or when it has ended and the loop hasn't, ends the command all the same.
    """
    sigterm = _Sigterm()
    before = signal.signal(signal.SIGTERM, sigterm)
    try:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(sigterm.handled(coroutine))
    except asyncio.CancelledError:
        if sigterm.received:
            raise Terminated from None
        raise
    finally:
        coroutine.close()  # Ctrl-C may have come before it was begun
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
        if sigterm.unhandled:
            raise Terminated


class _Sigterm:
    """What SIGTERM does meanwhile: it cancels the coroutine, or is remembered if there is nothing to cancel."""

    def __init__(self) -> None:
        self.received = False
        self.unhandled = False
        self._task: asyncio.Task[Any] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        if self._task is None:
            self.unhandled = True
        elif self._task.cancel():
            self._task.get_loop().call_soon_threadsafe(lambda: None)  # it may be asleep

    async def handled(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._task = asyncio.current_task()
        try:
            if self.unhandled:
                raise asyncio.CancelledError
            return await coroutine
        finally:
            self._task = None


@contextlib.asynccontextmanager
async def output_has_reader() -> AsyncIterator[None]:
    """Meanwhile, end with `BrokenPipeError` soon after the reader of standard output has gone.

    A command that waits for entries writes nothing for hours, and would learn it with the next entry. The pipe is
    polled: an event loop that watched it would make it non-blocking.
    """
    task = asyncio.current_task()
    assert task is not None
    closed = False

    async def watch(pipe: select.poll) -> None:
        nonlocal closed
        while not pipe.poll(0):  # noqa: ASYNC110 - nothing but a look tells
            await asyncio.sleep(_OUTPUT_LOOK_S)
        closed = True
        task.cancel()

    watching = None
    if (pipe := _output_pipe()) is not None:
        watching = asyncio.create_task(watch(pipe), name="watch of standard output")
    try:
        yield
    except asyncio.CancelledError:
        if not closed or task.uncancel():
            raise
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
    finally:
        if watching is not None:
            watching.cancel()


def _output_pipe() -> select.poll | None:
    """Standard output, to be asked for errors; None if it is no pipe."""
    try:
        fd = sys.stdout.fileno()
        if not stat.S_ISFIFO(os.fstat(fd).st_mode):
            return None
    except (OSError, ValueError):  # a test's
        return None
    poll = select.poll()
    poll.register(fd, 0)
    return poll


@contextlib.asynccontextmanager
async def metadata(uri: str, secured: MetadataSettings | None = None) -> AsyncIterator[tuple[MetadataStore, str]]:
    """A session with the cluster's metadata: (store, root). `secured`: as these say, and not as clients are."""
    from bkpy.metadata.connect import connect_store
    from bkpy.runtime.process import process_runtime

    store, root = await connect_store(
        uri,
        process_runtime(),
        session_timeout_s=settings().session_timeout_s,
        connect_timeout_s=settings().metadata_timeout_s,
        settings=secured or settings(),
    )
    try:
        yield store, root
    finally:
        await store.close()


def print_json(value: object) -> None:
    """One JSON document on standard output, for people and programs."""
    click.echo(json.dumps(value, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str | None = None) -> None:
    """A table on standard output; numbers to the right. A column's name is its heading.

    On a terminal that is too narrow for it, each row becomes a paragraph: nothing is cut off.
    """
    from rich import box
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _TABLE_WIDTH_MAX
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, title=title, title_justify="left")
    for i, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[i], int | float) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=any(columns), overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    wide = Measurement.get(console, console.options.update(max_width=_TABLE_WIDTH_MAX), table).maximum
    if wide <= console.width or not any(columns):
        console.print(table)
        return
    if title is not None:
        click.echo(title)
    for row in rows:
        click.echo(_paragraph(columns, row, console.width))


def _paragraph(columns: Sequence[str], row: Sequence[object], width: int) -> str:
    """The row's cells with their headings, in as many lines as it takes. A cell is broken only if it is wider."""
    cells = [f"{name} {_cell(value)}" for name, value in zip(columns, row, strict=True) if _cell(value)]
    lines = [cells[0]]
    for cell in cells[1:]:
        if len(lines[-1]) + 3 + len(cell) <= width:
            lines[-1] += f",  {cell}"
        else:
            lines.append(f"    {cell}")
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return "-" if value is None else printable_lines(str(value))


@contextlib.contextmanager
def live_table(columns: Sequence[str]) -> Iterator[Callable[[Sequence[Sequence[object]]], None]]:
    """A table on standard error that is drawn anew by each call, and taken away at the end.

    It shows nothing when that isn't a terminal.
    """
    from rich import box
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        yield lambda rows: None
        return
    with Live(console=console, transient=True, auto_refresh=False) as live:

        def show(rows: Sequence[Sequence[object]]) -> None:
            table = Table(*columns, box=box.SIMPLE_HEAD)
            for row in rows:
                table.add_row(*(_cell(value) for value in row))
            live.update(table, refresh=True)

        yield show


@contextlib.contextmanager
def progress(*, unit: str = "entries") -> Iterator[Progress]:
    """A progress display on standard error, which shows nothing when that isn't a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    def whole() -> Column:
        return Column(no_wrap=True)

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}", table_column=whole()),
        BarColumn(bar_width=None),  # what the others leave: numbers that are cut off say nothing
        MofNCompleteColumn(table_column=whole()),
        TextColumn(unit, table_column=whole()),
        TimeElapsedColumn(table_column=whole()),
        console=console,
        expand=True,
        disable=not console.is_terminal,
    ) as bar:
        yield bar


@contextlib.contextmanager
def byte_progress(what: str, size: int) -> Iterator[Callable[[int], None]]:
    """A display like `progress` of `size` bytes. It is told how many of them are done by now."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(what, total=size)
        yield lambda done: bar.update(task, completed=done)


@contextlib.contextmanager
def transfer(what: str, size: int | None) -> Iterator[Callable[[int, int], None]]:
    """A display like `progress` of `size` bytes (None: unknown) with their rate.

    It is told of by calls with the bytes that have gone since the last one, and the entries acknowledged until now.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.table import Column
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{human_bytes(round(task.finished_speed or task.speed or 0))}/s")

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=None),  # what the others leave
        DownloadColumn(binary_units=True, table_column=Column(no_wrap=True)),
        Rate(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[entries]:,} entries", table_column=Column(no_wrap=True)),
        console=console,
        expand=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(what, total=size, entries=0)
        yield lambda count, entries: bar.update(task, advance=count, entries=entries)


def confirm(question: str, nothing: str = "nothing was deleted") -> None:
    """Return if the answer, from standard input, is yes; else end the command with what `nothing` says."""
    if _answer(f"{question} [y/N]", nothing).lower() not in ("y", "yes"):
        raise click.ClickException(nothing)


def confirm_by_typing(question: str, expected: str, nothing: str) -> None:
    """Return if the answer, from standard input, is `expected`; else end the command with what `nothing` says."""
    if _answer(question, nothing) != expected:
        raise click.ClickException(nothing)


def _answer(question: str, nothing: str) -> str:
    asked = sys.stdin.isatty() or sys.stderr.isatty()
    if asked:
        click.echo(f"{question} ", nl=False, err=True)
    answer = sys.stdin.readline()
    if asked and not (answer and sys.stdin.isatty()):  # no terminal has ended the line
        click.echo(err=True)
    if not answer and not sys.stdin.isatty():
        raise click.UsageError(f"{nothing}: there is nobody to ask; give --yes to go on without being asked")
    return answer.strip()


def say(message: str) -> None:
    """A line for people, on standard error."""
    click.echo(printable_lines(message), err=True)


def human_entries(count: int) -> str:
    """`count` entries, in words."""
    return "1 entry" if count == 1 else f"{count} entries"


def human_ledgers(count: int) -> str:
    """`count` ledgers, in words."""
    return "1 ledger" if count == 1 else f"{count} ledgers"


def entries_acknowledged(count: int) -> str:
    """That `count` entries were acknowledged."""
    return f"{human_entries(count)} {'was' if count == 1 else 'were'} acknowledged"


def human_bytes(count: int) -> str:
    """`count` bytes in the largest binary unit that leaves at least 1."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
