"""Small defects that were once, or could easily be, in the code, each with the tests that have to notice it.

A mutant names the code that it changes by its text and not by its place, so that code may move. One area, one module.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One defect. `find` occurs exactly once in all of `src/`, whatever the indentation of its lines."""

    name: str
    danger: str  # what a user would lose
    find: str  # source text: whole lines, or a part of one
    replace: str
    tests: tuple[str, ...]  # node ids, of which at least one fails with the defect; all pass without it
