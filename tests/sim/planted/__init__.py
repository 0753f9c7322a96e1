"""Defects of the track record, planted again, and imagined ones: how many seeds of which run find each."""

from __future__ import annotations

from typing import NamedTuple


class Planted(NamedTuple):
    """One defect. `mutant`: its name in tests/mutants.

    `needs`: the parts that a plan of "everything" needs to reach the defect, "one + another" if it needs both; other
    seeds are not played.
    """

    defect: str
    mutant: str
    run: str = "everything"  # whose seeds play what the defect needs
    needs: str = ""
