"""The runs by their names, and ranges of their seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .crowd import crowd_run
from .exposed import exposed_run
from .failover import failover_run
from .healing import healing_run
from .logs import logs_run
from .marks import EXPECTED
from .rebuilding import rebuilding_run
from .scenario import standard_run
from .storage import StorageRun, storage_run

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from .cluster import Cluster

RUNS: Mapping[str, Callable[[int], tuple[Cluster | StorageRun, Coroutine[Any, Any, None]]]] = {
    "standard": standard_run,
    "failover": failover_run,
    "crowd": crowd_run,
    "exposed": exposed_run,
    "healing": healing_run,
    "logs": logs_run,
    "rebuilding": rebuilding_run,
    "storage": storage_run,
}


@dataclass
class Range:
    """What came of a range of seeds."""

    failed: list[int] = field(default_factory=list)
    marks: Counter[str] = field(default_factory=Counter)  # what happened, and how often


def play_all(scenario: str, seeds: range, *, everything: bool) -> list[Cluster]:
    """Run them all. They have to go well, and (`everything`) to go through what such runs are expected to."""
    clusters = []
    marks: Counter[str] = Counter()
    for seed in seeds:
        cluster, run = RUNS[scenario](seed)
        try:
            cluster.run(run)
        except BaseException as error:
            error.add_note(f"make sim SCENARIO={scenario} SEED={seed}")
            raise
        marks.update(cluster.world.marks)
        clusters.append(cluster)
    missed = [mark for mark in EXPECTED[scenario] if not marks[mark]]
    assert not (everything and missed), f"in no run of seeds {seeds.start} to {seeds.stop - 1}: {'; '.join(missed)}"
    return clusters


def play(scenario: str, seed: int, into: Range) -> BaseException | None:
    """Run one seed; the error that it failed with."""
    cluster, run = RUNS[scenario](seed)
    try:
        cluster.run(run)
    except Exception as error:
        into.failed.append(seed)
        return error
    finally:
        into.marks.update(cluster.world.marks)
    return None


def trace_hash_elsewhere(scenario: str, seed: int) -> str:
    """Run one seed in another process, in which sets are in another order than here."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim", scenario, str(seed)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-1]
