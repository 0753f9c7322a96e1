"""How commands start work on a bookie, follow it, and report it: as JSON or as tables, with a status."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import click
import pytest

from bkpy.cli.bookie import admin_command
from bkpy.cli.bookie.admin_command import AdminCommand, Report, work_on_page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


class Bookie:
    """A page of a bookie whose runs take `reports` reports each, and fail from run `fails_from` on."""

    def __init__(self, running: int = 0, reports: int = 2, fails_from: int = 99) -> None:
        self.runs = 1 if running else 0
        self.left = running
        self.reports = reports
        self.fails_from = fails_from
        self.requests: list[Any] = []

    async def get(self) -> Report:
        report = {"runs": self.runs, "left": self.left, "failed": self.runs >= self.fails_from}
        self.left = max(0, self.left - 1)
        return report

    async def post(self, request: Any) -> Report | None:
        self.requests.append(request)
        if self.left:
            return None
        self.runs, self.left = self.runs + 1, self.reports
        return {}


class Command(AdminCommand):
    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.shown: list[int] = []

    async def report(self) -> Report:
        return await work_on_page(self, "/work", {"admin": "here"}, **self.arguments)

    def is_running(self, report: Report, first: Report) -> bool:
        assert report["left"] <= first["left"]
        return bool(report["left"])

    @contextlib.contextmanager
    def progress(self) -> Iterator[Callable[[Report], None]]:
        yield lambda report: self.shown.append(report["left"])

    def show(self, report: Report) -> None:
        click.echo(f"{report['runs']} runs")

    def exit_status(self, report: Report) -> int:
        return 1 if report["failed"] else 0


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[Bookie], Bookie]:
    def place(bookie: Bookie) -> Bookie:
        @contextlib.asynccontextmanager
        async def open_pages(path: str, *, admin: str) -> AsyncIterator[Bookie]:
            assert (path, admin) == ("/work", "here")
            yield bookie

        monkeypatch.setattr(admin_command, "open_pages", open_pages)
        return bookie

    return place


def test_without_work_of_its_own_a_command_reports_what_is_known(at: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bookie = at(Bookie(running=3))
    command = Command(start=False)
    assert command.execute(as_json=False) == 0
    assert (capsys.readouterr().out, command.shown, bookie.requests) == ("1 runs\n", [], [])


def test_a_command_that_waits_follows_what_is_running_to_its_end(at: Any) -> None:
    bookie = at(Bookie(running=3))
    command = Command(start=False, wait=True)
    assert command.execute(as_json=True) == 0
    assert (command.shown, bookie.requests) == ([3, 2, 1], [])


def test_work_is_started_with_its_request_and_its_last_report_is_printed(
    at: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    bookie = at(Bookie())
    command = Command(start=True, request={"dry_run": True})
    assert command.execute(as_json=True) == 0
    assert (command.shown, bookie.requests) == ([2, 1], [{"dry_run": True}])
    assert json.loads(capsys.readouterr().out) == {"runs": 1, "left": 0, "failed": False}


def test_another_run_is_started_after_the_one_that_was_running(at: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bookie = at(Bookie(running=1))
    command = Command(start=True)
    assert command.execute(as_json=False) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err, len(bookie.requests)) == ("2 runs\n", "", 2)


def test_a_command_may_join_the_run_that_is_running_and_says_so(at: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bookie = at(Bookie(running=2))
    command = Command(start=True, already_running="it is running already")
    assert command.execute(as_json=False) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("1 runs\n", "it is running already\n")
    assert (command.shown, len(bookie.requests)) == ([2, 1], 1)


@pytest.mark.parametrize("as_json", [False, True])
def test_the_exit_status_follows_from_the_last_report(at: Any, as_json: bool) -> None:
    at(Bookie(reports=1, fails_from=1))
    assert Command(start=True).execute(as_json=as_json) == 1
    at(Bookie(running=1, reports=1, fails_from=2))
    assert Command(start=True).execute(as_json=as_json) == 1
    at(Bookie(reports=1, fails_from=2))
    assert Command(start=True).execute(as_json=as_json) == 0
