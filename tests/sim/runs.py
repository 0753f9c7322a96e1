"""The runs by their names, and ranges of their seeds."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from .bookkeeper import BookKeeperRun, bookkeeper_run
from .coverage_marks import EXPECTED
from .crowd import crowd_run
from .everything.run import everything_long_run, everything_run
from .exposed import exposed_run
from .failover import failover_run
from .healing import healing_run
from .logs import logs_run
from .rebuilding import rebuilding_run
from .scenario import quick_run, standard_run
from .storage import StorageRun, storage_run

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from _pytest.mark.structures import ParameterSet

    from .cluster import Cluster

RUNS: Mapping[str, Callable[[int], tuple[Cluster | StorageRun | BookKeeperRun, Coroutine[Any, Any, None]]]] = {
    "standard": standard_run,
    "quick": quick_run,
    "failover": failover_run,
    "crowd": crowd_run,
    "everything": everything_run,
    "everything-long": everything_long_run,
    "exposed": exposed_run,
    "bookkeeper": bookkeeper_run,
    "healing": healing_run,
    "logs": logs_run,
    "rebuilding": rebuilding_run,
    "storage": storage_run,
}


# Seeds that together go through all that is expected of their run (`EXPECTED`), and that take little time to.
FEW: Mapping[str, tuple[int, ...]] = {
    "standard": (29, 114, 151),
    "quick": (28, 70, 123),
    "failover": (1, 8, 32, 49, 77, 118),
    "crowd": (27, 52, 67, 173),
    "everything": (
        *(5, 6, 13, 20, 34, 55, 72, 76, 94, 109, 111, 113, 122, 136, 139, 153),
        *(160, 169, 181, 189, 191, 199, 200, 211, 238, 272),
    ),
    "everything-long": (0,),
    "exposed": (0, 1, 2, 15),
    "bookkeeper": (0, 3),
    "healing": (8, 9, 15, 16, 23, 127),
    "logs": (2, 32, 34),
    "rebuilding": tuple(range(5)),
    "storage": (24, 26, 28, 43),
}


class Played(NamedTuple):
    """What came of one seed: how long it took the processor and in virtual time, and which marks it reached."""

    seed: int
    seconds: float
    marks: frozenset[str]
    virtual_s: float


@dataclass
class Range:
    """What came of a range of seeds."""

    failed: list[int] = field(default_factory=list)
    marks: Counter[str] = field(default_factory=Counter)  # what happened, and how often
    played: list[Played] = field(default_factory=list)

    def few(self, scenario: str) -> tuple[list[int], set[str]]:
        """Seeds that reach all expected marks in little time, and the marks that none reaches."""
        missing, few = set(EXPECTED[scenario]), list[int]()
        while missing:
            best = max(self.played, key=lambda one: len(one.marks & missing) / one.seconds)
            if not best.marks & missing:
                break
            few.append(best.seed)
            missing -= best.marks
        return sorted(few), missing


def seeds_of(scenario: str, block: int, blocks: int, *, often: int | None = None) -> list[ParameterSet]:
    """Parameters of a test that plays a run: the few seeds, and `blocks` of `block` others.

    `make test` plays the few, or the first `often` of them where they take long. `make test-full` plays the first block
    of the others, `make test-long` the rest.
    """
    if often is not None:
        few = [
            pytest.param(FEW[scenario][:often], id="some"),
            pytest.param(FEW[scenario], id="few", marks=pytest.mark.exhaustive),
        ]
    else:
        few = [pytest.param(FEW[scenario], id="few")]
    many = []
    for number in range(blocks):
        seeds = range(number * block, (number + 1) * block)
        marks = [pytest.mark.exhaustive, pytest.mark.long] if number else [pytest.mark.exhaustive]
        many.append(pytest.param(seeds, id=f"{seeds.start}-{seeds.stop - 1}", marks=marks))
    return [*few, *many]


def play_all(scenario: str, seeds: Sequence[int]) -> list[Cluster]:
    """Run them all. They have to go well, and the few to go through what such runs are expected to."""
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
    assert seeds != FEW[scenario] or not missed, (
        f"in no run of seeds {seeds}: {'; '.join(missed)}; to choose others: "
        f"python -m tests.sim {scenario} 0 --seeds 200 --few"
    )
    return clusters


def play(scenario: str, seed: int, into: Range) -> BaseException | None:
    """Run one seed; the error that it failed with."""
    began = time.process_time()
    cluster, run = RUNS[scenario](seed)
    loop = cluster.world.loop
    started_at = loop.time()
    try:
        cluster.run(run)
    except Exception as error:
        into.failed.append(seed)
        return error
    finally:
        marks = cluster.world.marks
        into.marks.update(marks)
        into.played.append(Played(seed, time.process_time() - began, frozenset(+marks), loop.time() - started_at))
    return None
