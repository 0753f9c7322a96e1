"""`bkpy cluster top`: what the bookies of a cluster do now, what is busiest, and how it heals, in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import termios
import tty
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from bkpy.cli.arguments import SecondsRange
from bkpy.cli.connecting import connect_admin, connect_option, settings
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import human_bytes, printable_lines
from bkpy.cli.running import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from rich.console import Group
    from rich.table import Table

    from bkpy.dashboard.models import BookieState
    from bkpy.dashboard.watching import ClusterWatch

# By its key: the heading, and what the rows are sorted by. All but the first are sorted from the highest down.
_SORTS: Final[dict[str, tuple[str, str]]] = {
    "b": ("bookie", "bookie_id"),
    "s": ("copies/s", "entries_stored"),
    "w": ("stored/s", "bytes_stored"),
    "r": ("read/s", "bytes_read"),
    "p": ("p99 ms", "add_p99_ms"),
    "f": ("space", "free_bytes"),
    "m": ("memory", "memory_bytes"),
    "j": ("queue", "journal_queue_bytes"),
}
# By the width of the terminal that has room for them: the columns that are shown.
_COLUMNS: Final = {
    100: ("bookie", "state", "copies/s", "stored/s", "read/s", "p99 ms", "space", "memory", "queue", "doing"),
    70: ("bookie", "state", "copies/s", "stored/s", "p99 ms", "space", "queue"),
    0: ("bookie", "state", "copies/s", "p99 ms"),
}
_TEXTS: Final = ("bookie", "state", "doing", "log", "ledger")
_BUSIEST: Final = ("log", "ledger", "entries/s", "bytes/s")
_BUSIEST_MAX: Final = 20
_BUSIEST_LINES_MIN: Final = 4  # with the blank line and the heading; bookies give way for so many
_QUIT: Final = "q"
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)?")  # what arrows and other such keys send
_TOGGLE: Final = "l"
_TYPED_BYTES_MAX: Final = 64


@click.command()
@connect_option
@click.option("--once", is_flag=True, help="Print one look, over one interval, and end.")
@click.option("--interval", type=SecondsRange(min=0.5), default=2.0, show_default=True, help="Seconds between looks.")
@click.option("--sort", type=click.Choice([name for name, _ in _SORTS.values()]), default="bookie", show_default=True)
@json_option
def top(uri: str, once: bool, interval: float, sort: str, as_json: bool) -> None:
    """Show what each bookie stores, reads and does, which ledgers and logs are busiest, and how the cluster heals.

    Rates are of the last interval; a bookie counts each copy of an entry, a ledger or log what is appended. Keys sort:
    b bookie, s copies, w bytes, r bytes read, p p99, f space, m memory, j journal queue; l hides all but ledgers and
    logs; q or Ctrl-C ends. Without a terminal, on a dumb one, or with --json, it prints one look.
    """
    order = next(key for key, (name, _) in _SORTS.items() if name == sort)
    if once or as_json or not sys.stdout.isatty() or not sys.stdin.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        run(_once(uri, interval, order, as_json))
    else:
        run(_live(uri, interval, order))


@contextlib.asynccontextmanager
async def _watch(uri: str) -> AsyncIterator[ClusterWatch]:
    from bkpy.admin.bookie_pages import ClusterPages
    from bkpy.cli.bookie.pages import tls_context
    from bkpy.client.client import replication_context
    from bkpy.config.recovery import RecoverySettings
    from bkpy.dashboard.watching import ClusterWatch

    recovery = RecoverySettings()
    tls = None if settings().tls_ca_file is None else tls_context()
    async with connect_admin(uri, recovery) as admin:
        cluster = replication_context(admin.client).cluster
        async with ClusterPages(cluster.store.runtime.clock, recovery, tls) as pages:
            yield ClusterWatch(cluster, recovery, pages)


async def _once(uri: str, interval: float, order: str, as_json: bool) -> None:
    async with _watch(uri) as watch:
        await watch.look()
        await asyncio.sleep(interval)
        await watch.look()
        bookies = _sorted(watch.bookies(), order)
        if as_json:
            print_json(
                {
                    "health": watch.health().model_dump(),
                    "bookies": [one.model_dump() for one in bookies],
                    **watch.busiest().model_dump(),
                }
            )
            return
        click.echo("\n".join(_summary(watch)))
        columns = _COLUMNS[max(_COLUMNS)]
        print_table(columns, [[_cells(one)[column] for column in columns] for one in bookies])
        if busiest := _busiest(watch):
            click.echo()
            print_table(_BUSIEST, busiest)


async def _live(uri: str, interval: float, order: str) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, markup=False, emoji=False)
    pressed = asyncio.Event()
    keys: list[str] = []

    def read() -> None:
        keys.extend(keys_of(os.read(sys.stdin.fileno(), _TYPED_BYTES_MAX)))  # all at once: nothing tells of the rest
        pressed.set()

    async with _watch(uri) as watch:
        with _raw_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
            asyncio.get_running_loop().add_reader(sys.stdin, read)
            looking = asyncio.create_task(_look_again(watch, interval, pressed), name="top")
            bookies = True
            try:
                while True:
                    live.update(_screen(watch, order, console.width, console.height, bookies=bookies), refresh=True)
                    await pressed.wait()
                    pressed.clear()
                    for key in keys:
                        if key == _QUIT:
                            return
                        order = key if key in _SORTS else order
                        bookies = bookies != (key == _TOGGLE)
                    keys.clear()
            finally:
                asyncio.get_running_loop().remove_reader(sys.stdin)
                looking.cancel()


async def _look_again(watch: ClusterWatch, interval: float, looked: asyncio.Event) -> None:
    while True:
        await watch.look()
        looked.set()
        await asyncio.sleep(interval)


def keys_of(typed: bytes) -> list[str]:
    """The keys that these bytes are of. An escape by itself quits, as the end of the terminal does."""
    if typed in (b"", b"\x1b"):
        return [_QUIT]
    return list(_SEQUENCE.sub("", typed.decode(errors="replace")))


@contextlib.contextmanager
def _raw_keys() -> Iterator[None]:
    """Meanwhile a key is read when it is pressed, and not shown. Ctrl-C is still that."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _screen(watch: ClusterWatch, order: str, width: int, height: int, *, bookies: bool) -> Group:
    """What fits the terminal; without `bookies`, only what is busiest."""
    from rich.console import Group
    from rich.text import Text

    summary, busiest = _summary(watch), _busiest(watch)
    keys = "sort: " + " ".join(f"{key} {name}" for key, (name, _) in _SORTS.items()) + "   l ledgers   q ends"
    if len(keys) > width:
        keys = " ".join(_SORTS) + " sort, l ledgers, q ends"
    room = height - len(summary) - 2  # the blank line above the table, and the keys
    parts: list[Any] = [Text(line, no_wrap=True, overflow="ellipsis") for line in summary]
    if bookies:
        columns = next(columns for least, columns in _COLUMNS.items() if width >= least)
        rows = [[cells[column] for column in columns] for cells in map(_cells, _sorted(watch.bookies(), order))]
        reserved = min(_BUSIEST_LINES_MIN, len(busiest) + 2) if busiest else 0
        shown = max(1, min(len(rows), room - reserved - 1))
        if shown < len(rows):
            shown = max(1, shown - 1)
        parts += [Text(""), _table(columns, rows[:shown])]
        room -= shown + 1
        if shown < len(rows):
            parts.append(Text(f"and {len(rows) - shown} more"))
            room -= 1
        room -= 1  # the blank line above what is busiest
    if busiest and room > 1:
        parts += [Text(""), _table(_BUSIEST, busiest[: room - 1])]
    elif not bookies:
        parts += [Text(""), Text("nothing is appended, or no bookie's metrics page can be read")]
    return Group(*parts, Text(keys, style="dim", no_wrap=True, overflow="ellipsis"))


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, expand=False)
    for column in columns:
        justify: Literal["left", "right"] = "left" if column in _TEXTS else "right"
        table.add_column(column, justify=justify, no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*row)
    return table


def _busiest(watch: ClusterWatch) -> list[tuple[str, str, str, str]]:
    """The busiest logs, and the busiest ledgers that belong to none, most bytes first."""
    found = watch.busiest()
    rows = [(log.bytes, (log.log, "", f"{log.entries:,.0f}", human_bytes(log.bytes))) for log in found.logs]
    rows += [
        (ledger.bytes, ("", str(ledger.ledger_id), f"{ledger.entries:,.0f}", human_bytes(ledger.bytes)))
        for ledger in found.ledgers
        if not ledger.log
    ]
    rows.sort(key=lambda row: -row[0])
    return [row for _, row in rows[:_BUSIEST_MAX]]


def _summary(watch: ClusterWatch) -> list[str]:
    overview = watch.overview()
    if overview.error:
        return [f"can't tell: {printable_lines(overview.error)}"]
    health = overview.health
    rates = overview.rates[-1] if overview.rates else None
    lines = [f"{health.status}: {health.bookies} bookies, {health.bookies_writable} of them take entries"]
    if rates is not None:
        p99 = "-" if rates.add_p99_ms is None else f"{rates.add_p99_ms:g} ms"
        lines.append(
            f"{rates.entries_stored:,.0f} copies/s, {human_bytes(int(rates.bytes_stored))}/s stored, "
            f"{human_bytes(int(rates.bytes_read))}/s read, p99 {p99}"
        )
    replication: Any = watch.replication()
    if replication.get("ledgers"):
        eta_s = replication["eta_s"]
        when = "at an unknown time" if eta_s is None else f"in about {eta_s:,.0f} s"
        lines.append(f"{replication['ledgers']:,} ledgers miss copies; whole {when}; {replication['stuck']} stuck")
    worst = health.findings[0] if health.findings else None
    if worst is not None:
        lines.append(f"{worst.severity}: {worst.subject and worst.subject + ': '}{printable_lines(worst.message)}")
    return lines


def _sorted(bookies: Sequence[BookieState], order: str) -> list[BookieState]:
    by = _SORTS[order][1]
    if by == "bookie_id":
        return list(bookies)
    return sorted(bookies, key=lambda one: -(getattr(one, by) or 0))


def _cells(one: BookieState) -> dict[str, str]:
    """What is shown of a bookie, by column."""
    doing = f"{one.damages} damages" if one.damages else ", ".join(one.doing)
    cells = {
        "copies/s": f"{one.entries_stored:,.0f}",
        "stored/s": human_bytes(int(one.bytes_stored)),
        "read/s": human_bytes(int(one.bytes_read)),
        "p99 ms": "-" if one.add_p99_ms is None else f"{one.add_p99_ms:g}",
        "memory": human_bytes(one.memory_bytes),
        "queue": human_bytes(one.journal_queue_bytes),
        "doing": doing,
    }
    if not one.seen:
        cells = dict.fromkeys(cells, "-") | {"doing": "not seen"}
    space = "-" if one.state == "absent" else human_bytes(one.free_bytes)
    return {"bookie": one.bookie_id, "state": one.state, "space": space, **cells}
