"""Progress displays on standard error. They show nothing unless that is a terminal."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from bkpy.cli.output.text import human_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress

    class ByteUpdate(Protocol):
        def __call__(self, done: int, size: int | None = None) -> None: ...


@contextlib.contextmanager
def progress(*, unit: str = "entries") -> Iterator[Progress]:
    """A display whose tasks the caller adds and updates."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    def whole() -> Column:
        return Column(no_wrap=True)

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}", table_column=whole()),
        BarColumn(bar_width=None),  # what the other columns leave: numbers must not be cut off
        MofNCompleteColumn(table_column=whole()),
        TextColumn(unit, table_column=whole()),
        TimeElapsedColumn(table_column=whole()),
        console=console,
        expand=True,
        disable=not console.is_terminal,
    ) as bar:
        yield bar


@contextlib.contextmanager
def byte_progress(what: str, size: int) -> Iterator[ByteUpdate]:
    """A display of `size` bytes. Its function takes how many are done by now, and a new size if that has changed."""
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
        yield lambda done, size=None: bar.update(task, completed=done, total=size)


@contextlib.contextmanager
def transfer(what: str, size: int | None) -> Iterator[Callable[[int, int], None]]:
    """A display of `size` bytes (None: unknown) with their rate.

    Its function takes the bytes sent since the last call, and the entries acknowledged until now.
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
        BarColumn(bar_width=None),  # what the other columns leave
        DownloadColumn(binary_units=True, table_column=Column(no_wrap=True)),
        Rate(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[entries]:,} entries", table_column=Column(no_wrap=True)),
        console=console,
        expand=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(what, total=size, entries=0)
        yield lambda count, entries: bar.update(task, advance=count, entries=entries)
