"""Tables: results on standard output, and a display on standard error that is drawn again and again."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING, Final

import click

from bkpy.cli.output.text import printable_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_TABLE_WIDTH_MAX: Final = 4096  # characters; output to another program is never cut off or wrapped


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str | None = None) -> None:
    """A table on standard output, with numbers to the right. Columns are headings.

    On a terminal that is too narrow for it, each row becomes a paragraph: nothing is cut off.
    """
    from rich import box
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    class Output(Console):
        def on_broken_pipe(self) -> None:
            """Rich would end the command with status 1, and without a word. It has a status for this."""
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    console = Output(highlight=False, markup=False, emoji=False)
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
    """The row's cells with their headings, in as many lines as needed. Only a cell wider than a line is broken."""
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
    """A table on standard error, which each call draws again and the end removes. Shows nothing without a terminal."""
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
