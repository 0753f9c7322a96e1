"""Durations and sizes as people write them in options."""

from __future__ import annotations

import click
import pytest

from bkpy.cli.arguments import duration, size

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


@pytest.mark.parametrize("text", ["", "d", "-1", "7 days", "1e9", "inf", "nan", "1,5", "7d12h", "9" * 400])
def test_what_is_neither_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.BadParameter, match="such as 7d"):
        duration(CONTEXT, OPTION, text)
    with pytest.raises(click.BadParameter, match="such as 10GiB"):
        size(CONTEXT, OPTION, text)


def test_what_is_not_given_is_none() -> None:
    assert duration(CONTEXT, OPTION, None) is None
    assert size(CONTEXT, OPTION, None) is None
