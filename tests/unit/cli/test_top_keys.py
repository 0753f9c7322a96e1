"""The keys of `bkpy cluster top`, as a terminal sends them."""

from __future__ import annotations

import pytest

from bkpy.cli.cluster.top import keys_of


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        (b"s", ["s"]),
        (b"sl", ["s", "l"]),
        (b"\x1b", ["q"]),
        (b"", ["q"]),  # the terminal has gone
        (b"\x1b[A", []),  # an arrow
        (b"\x1bOB", []),
        (b"\x1b[15;5~w", ["w"]),
        (b"\xc3\xb6w", ["\xf6", "w"]),
    ],
)
def test_only_an_escape_by_itself_ends_it(typed: bytes, keys: list[str]) -> None:
    assert keys_of(typed) == keys
