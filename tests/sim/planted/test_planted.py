"""Each planted defect is a row of the track record, and seeds find one in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.planting import all_mutants
from tests.sim.everything.plan import Plan
from tests.sim.runs import RUNS
from tests.sim.search import Defect, parts_of, play_seeds

from .registry import IMAGINED, PLANTED

TRACK_RECORD = Path(__file__).parents[3] / "docs" / "explanation" / "track-record.md"


def test_each_is_a_row_of_the_track_record() -> None:
    text = TRACK_RECORD.read_text(encoding="utf-8")
    assert [one.defect for one in PLANTED if f"| {one.defect} |" not in text] == []
    assert len(PLANTED) >= 40


@pytest.mark.thorough
def test_each_is_a_mutant_and_has_a_run_and_parts_of_plans() -> None:
    parts = frozenset[str]().union(*(Plan.draw(seed).parts for seed in range(200)))
    mutants = {mutant.name for mutant in all_mutants()}
    defects = (*PLANTED, *IMAGINED)
    assert [one.mutant for one in defects if one.mutant not in mutants] == []
    assert [one.run for one in defects if one.run not in RUNS] == []
    assert [one.needs for one in defects if not parts_of(one.needs) <= parts] == []
    assert len({one.defect for one in defects}) == len(defects)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("defect", "seed", "says"),
    [
        ("State loaded during checkpoint missed rows", 293, "has entries of a ledger whose key it doesn't have"),
        ("Stranger's early key locked owner out", 12, "liveness: recovery"),
        ("Change with lost reply counted as not stored", 2, "was acknowledged when of bookie-1,"),
        ("Small cluster never copied in place", 5, "liveness: ledgers re-replicated"),
        ("Times fell behind empty ledger", 1599, "logs dense: the time fell"),
        ("Upgrade forgets fences", 42, "I8: bookie-2 would take appends to [1], which it had fenced"),
        ("Upgrade forgets losses", 319, "I9: bookie-3 acknowledged [0, 1] of ledger 0, and denies that it had them"),
        (
            "BookKeeper's bookie answers a fence that a power cut takes",
            36,
            "would take appends to [0], which it had fenced",
        ),
        ("BookKeeper's bookie denies what it can't tell", 67, "I9: bk-2 acknowledged [43, 44,"),
    ],
)
def test_a_seed_finds_one_and_passes_without_it(defect: str, seed: int, says: str) -> None:
    planted = next(one for one in (*PLANTED, *IMAGINED) if one.defect == defect)
    [found] = play_seeds(Defect("mutant", planted.mutant), planted.run, seed, 1)
    assert found.seed == seed
    assert found.error is not None
    assert says in found.error
    [passed] = play_seeds(Defect("none"), planted.run, seed, 1)
    assert passed.error is None
