"""Defects of the track record, planted again: how many seeds of which run find each."""

from __future__ import annotations

from typing import NamedTuple


class Planted(NamedTuple):
    """One row of docs/explanation/track-record.md. `mutant`: its name in tests/mutants.

    `feature`: what a plan of "everything" needs to reach the defect; other seeds are not played.
    """

    defect: str
    mutant: str
    run: str = "everything"  # whose seeds play what the defect needs
    feature: str = ""
