"""The table of BookKeeper's own tests, in the docs."""

from __future__ import annotations

from pathlib import Path

from tests.bookkeeper.upstream.classes import table

PAGE = Path(__file__).parents[2] / "docs" / "bookkeeper.md"


def test_the_table_of_bookkeepers_own_tests_is_current() -> None:
    assert "\n".join(["", *table(), ""]) in PAGE.read_text(encoding="utf-8")
