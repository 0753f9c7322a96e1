"""Each rule that the documentation marks can be switched off in this process, and then a run or a schedule fails.

Seeds that notice cheaply are played always, the others exhaustively, as are the directed schedules.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .ablations.playing import first_line, play_with
from .ablations.registry import ABLATIONS
from .ablations.table import table
from .runs import RUNS, Range, play

if TYPE_CHECKING:
    from .ablations import Ablation, Found

ROOT = Path(__file__).parents[2]
EXPLANATION = ROOT / "docs" / "explanation"


def marked() -> set[str]:
    """The rules that the documentation says can be switched off: starred ones of the protocol, all of storage."""
    protocol = (EXPLANATION / "protocol.md").read_text(encoding="utf-8")
    storage = (EXPLANATION / "storage.md").read_text(encoding="utf-8")
    starred, numbered = (
        re.findall(r"^\| ★ (\d+) \|", protocol, re.MULTILINE),
        re.findall(r"^\| (S\d+) \|", storage, re.M),
    )
    assert starred
    assert numbered
    return {*starred, *numbered}


def test_every_marked_rule_can_be_switched_off() -> None:
    assert marked() <= {one.rule for one in ABLATIONS}


def test_every_ablation_has_something_that_notices() -> None:
    assert not [one.name for one in ABLATIONS if one.found_by is None and not one.schedule]
    assert {run for one in ABLATIONS for run in one.runs} <= RUNS.keys()
    assert all(one.found_by is None or one.found_by.run in one.runs for one in ABLATIONS)


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda one: one.name)
def test_the_switch_fits_the_code(ablation: Ablation) -> None:
    with ablation.switch():
        pass


def test_the_table_says_what_is_here() -> None:
    page = (EXPLANATION / "simulation.md").read_text(encoding="utf-8")
    assert "\n".join(table()) in page, "python -m tests.sim.ablations --table"


@pytest.mark.parametrize(
    ("ablation", "found"),
    [
        pytest.param(
            one, one.found_by, id=one.name, marks=pytest.mark.thorough if one.found_by.cheap else pytest.mark.exhaustive
        )
        for one in ABLATIONS
        if one.found_by is not None
    ],
)
def test_without_the_rule_its_seed_fails(ablation: Ablation, found: Found) -> None:
    error = play_with(ablation.switch(), found.run, found.seed)
    assert error is not None, "it passes unnoticed"
    assert found.notice in first_line(error)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("run", "seed"), sorted({(one.found_by.run, one.found_by.seed) for one in ABLATIONS if one.found_by is not None})
)
def test_with_all_rules_the_seed_passes(run: str, seed: int) -> None:
    assert play(run, seed, Range()) is None


@pytest.mark.exhaustive
@pytest.mark.timeout(600)  # the tests of some thirty modules
def test_without_the_rule_its_schedule_fails() -> None:
    command = [sys.executable, "-m", "tests.sim.ablations", "--schedules"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
