"""Each planted defect is a row of the track record, and seeds find one in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.planting import all_mutants
from tests.sim.runs import RUNS
from tests.sim.search import Defect, play_seeds

from .registry import PLANTED

TRACK_RECORD = Path(__file__).parents[3] / "docs" / "explanation" / "track-record.md"


def test_each_is_a_row_of_the_track_record_and_a_mutant() -> None:
    text = TRACK_RECORD.read_text(encoding="utf-8")
    mutants = {mutant.name for mutant in all_mutants()}
    assert [one.defect for one in PLANTED if f"| {one.defect} |" not in text] == []
    assert [one.mutant for one in PLANTED if one.mutant not in mutants] == []
    assert [one.run for one in PLANTED if one.run not in RUNS] == []
    assert len({one.defect for one in PLANTED}) == len(PLANTED) >= 40


@pytest.mark.exhaustive
def test_a_seed_finds_one_and_passes_without_it() -> None:
    planted = next(one for one in PLANTED if one.defect == "Stranger's early key locked owner out")
    [found] = play_seeds(Defect("mutant", planted.mutant), planted.run, 12, 1)
    assert found.seed == 12
    assert found.error is not None
    assert "liveness: recovery" in found.error
    [passed] = play_seeds(Defect("none"), planted.run, 12, 1)
    assert passed.error is None
