"""What `bkpy bookie gc`, `scrub`, `integrity` and `recover` do alike: start work, follow it to its end, report it.

Invariant: a command prints one report, as JSON or as tables, and derives its exit status from that report.
"""

from __future__ import annotations

import abc
import asyncio
from typing import TYPE_CHECKING, Any

from bkpy.cli.bookie.pages import open_pages
from bkpy.cli.output.json import print_json
from bkpy.cli.output.text import say
from bkpy.cli.running import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractContextManager

Report = dict[str, Any]

_POLL_S = 0.2


class AdminCommand(abc.ABC):
    """One command. A subclass fills in what differs: the work, its progress, how its report is shown and judged."""

    def execute(self, *, as_json: bool) -> int:
        """Do the work and print its report. Returns the exit status."""
        report = run(self.report())
        if as_json:
            print_json(report)
        else:
            self.show(report)
        return self.exit_status(report)

    @abc.abstractmethod
    async def report(self) -> Report:
        """Do the work that the user asked for, if any, and return what is known afterwards."""

    async def follow(self, ask: Callable[[], Awaitable[Report]]) -> Report:
        """Show progress until the work has ended. Returns the last report that `ask` returned."""
        first = report = await ask()
        with self.progress() as update:
            while self.is_running(report, first):
                update(report)
                await asyncio.sleep(_POLL_S)
                report = await ask()
        return report

    @abc.abstractmethod
    def is_running(self, report: Report, first: Report) -> bool:
        """Whether the work that was running at the report `first` is still running at `report`."""

    @abc.abstractmethod
    def progress(self) -> AbstractContextManager[Callable[[Report], None]]:
        """A display on standard error, and the function that updates it."""

    @abc.abstractmethod
    def show(self, report: Report) -> None:
        """Print the report for people."""

    @abc.abstractmethod
    def exit_status(self, report: Report) -> int:
        """0 if the report is good news, else 1."""


async def work_on_page(
    command: AdminCommand,
    path: str,
    where: Mapping[str, str | None],
    *,
    start: bool,
    wait: bool = False,
    request: Any = None,
    already_running: str | None = None,
) -> Report:
    """The report of a command whose work a running bookie does: a page of the bookie starts and reports that work.

    `where` has the values of `pages_options`. `start` starts the work, with `request` as the request's body, and
    follows it; `wait` only follows work that is running. If the work is running already, a command with
    `already_running` prints that line and joins it; a command without waits for its end, and then starts its own.
    """
    async with open_pages(path, **where) as pages:
        if not start:
            return await (command.follow(pages.get) if wait else pages.get())
        while True:
            started = await pages.post(request) is not None
            if not started and already_running is not None:
                say(already_running)
            report = await command.follow(pages.get)
            if started or already_running is not None:
                return report
