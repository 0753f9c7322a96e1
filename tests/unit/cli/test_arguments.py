"""Durations and sizes as people write them in options."""

from __future__ import annotations

import click
import pytest

from bkpy.cli.arguments import duration, quorums, size
from bkpy.cli.bench import bench
from bkpy.cli.bookie.drain import drain
from bkpy.cli.bookie.recover import recover
from bkpy.cli.cluster.backup import backup, restore
from bkpy.cli.cluster.top import top
from bkpy.cli.export import export
from bkpy.cli.inspect import salvage
from bkpy.cli.local import local
from bkpy.cli.log.group import log

OPTION = click.Option(["--kept"])
CONTEXT = click.Context(click.Command("command"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("90", 90), ("1.5", 1.5), ("30s", 30), ("15m", 900), ("2H", 7200), ("7d", 604_800), ("1.5 w", 907_200)],
)
def test_durations(text: str, expected: float) -> None:
    assert duration(CONTEXT, OPTION, text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("1048576", 1 << 20), ("3B", 3), ("10GB", 10**10), ("10 GiB", 10 << 30), ("1.5KiB", 1536)],
)
def test_sizes(text: str, expected: int) -> None:
    assert size(CONTEXT, OPTION, text) == expected


def test_quorums() -> None:
    assert quorums(CONTEXT, OPTION, "3,3,2") == (3, 3, 2)
    assert quorums(CONTEXT, OPTION, " 5, 3 ,2 ") == (5, 3, 2)
    assert quorums(CONTEXT, OPTION, None) is None


@pytest.mark.parametrize("text", ["", "3", "3,3", "3,3,2,1", "3,3,x", "3,3,-2", "3,3,2.5", "3,3," + "2" * 5000])
def test_what_is_no_three_quorums_is_refused(text: str) -> None:
    """Also more digits than Python reads."""
    with pytest.raises(click.BadParameter, match="expected three numbers"):
        quorums(CONTEXT, OPTION, text)


@pytest.mark.parametrize("text", ["", "d", "-1", "7 days", "1e9", "inf", "nan", "1,5", "7d12h", "9" * 400])
def test_what_is_neither_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.BadParameter, match="such as 7d"):
        duration(CONTEXT, OPTION, text)
    with pytest.raises(click.BadParameter, match="such as 10GiB"):
        size(CONTEXT, OPTION, text)


@pytest.mark.parametrize("name", ["", "7", "zk://h:1/first"])
def test_a_cluster_whose_bookies_may_join_is_named_by_its_id(name: str) -> None:
    with pytest.raises(click.BadParameter, match="not a valid UUID"):
        restore.make_context("restore", ["backup", "--also-from", name, "--connect", "zk://h:1/r"])


def test_what_is_not_given_is_none() -> None:
    assert duration(CONTEXT, OPTION, None) is None
    assert size(CONTEXT, OPTION, None) is None


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (bench, "roll_s"),
        (bench, "seconds"),
        (drain, "open_ledger_grace_s"),
        (export, "interval"),
        (recover, "open_ledger_grace_s"),
        (top, "interval"),
    ],
)
def test_seconds_that_nothing_waits_for_are_refused(command: click.Command, name: str) -> None:
    """Some failed at the first wait, which came after work that had taken minutes."""
    (option,) = (param for param in command.params if param.name == name)
    assert option.type.convert("1.5", option, CONTEXT) == 1.5
    for text in ("nan", "inf", "1e400", "1e10"):
        with pytest.raises(click.BadParameter, match="not a number of seconds up to 1e"):
            option.type.convert(text, option, CONTEXT)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (backup, [""]),
        (restore, [""]),
        (salvage, ["/", "--to", ""]),
        (export, ["--log", "orders", "--to", ""]),
        (local, ["--dir", ""]),
    ],
)
def test_a_file_without_a_name_is_refused(command: click.Command, words: list[str]) -> None:
    """As `$FILE` is where the variable isn't set. It was taken for the present directory."""
    with pytest.raises(click.BadParameter, match="the name is empty"):
        command.make_context("command", [*words, *([] if command in (salvage, local) else ["--connect", "zk://h:1/r"])])


@pytest.mark.parametrize("name", ["since", "until"])
def test_a_time_that_this_machines_zone_has_not_is_refused(name: str) -> None:
    assert isinstance(log, click.Group)
    (option,) = (param for param in log.commands["read"].params if param.name == name)
    assert option.callback is not None
    with pytest.raises(click.BadParameter, match="is no time: expected 2026-01-31T12:00:00Z"):
        option.callback(CONTEXT, option, "0001-01-01")
