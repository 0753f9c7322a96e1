"""A seed gives the same trace in every process: whoever reports a seed reports a schedule."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .runs import RUNS

if TYPE_CHECKING:
    from collections.abc import Iterable

# Of each run, one that takes little time.
SEEDS = {
    "standard": 3,
    "quick": 7,
    "failover": 1,
    "crowd": 7,
    "everything": 1,
    "everything-long": 0,
    "exposed": 0,
    "bookkeeper": 0,
    "healing": 7,
    "logs": 7,
    "rebuilding": 3,
    "storage": 3,
}


def trace_of(scenario: str, seed: int) -> str:
    cluster, run = RUNS[scenario](seed)
    cluster.run(run)
    return f"{scenario} {cluster.world.trace_hash()}"


OFTEN = ("quick", "failover", "storage")  # in `make test`: of other hosts, and little else


def traces_elsewhere(scenarios: Iterable[str]) -> list[str]:
    """Run these in another process, in which sets are in another order than here."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from {__name__} import *; print(*(trace_of(name, SEEDS[name]) for name in {(*scenarios,)}), sep='\\n')",
        ],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.thorough
def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    assert SEEDS.keys() == RUNS.keys()
    assert traces_elsewhere(OFTEN) == [trace_of(scenario, SEEDS[scenario]) for scenario in OFTEN]
    assert trace_of("quick", 4) != trace_of("quick", 3)


@pytest.mark.exhaustive
def test_so_does_that_of_any_other_run() -> None:
    others = [scenario for scenario in SEEDS if scenario not in OFTEN]
    assert traces_elsewhere(others) == [trace_of(scenario, SEEDS[scenario]) for scenario in others]
