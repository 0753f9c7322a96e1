"""Plays seeds with a defect planted, or a rule switched off, in a process of its own, until enough of them notice.

A seed notices if it fails so, and passes without. One that takes more than `HANGS_S` of processor time fails.

    python -m tests.sim.search mutant "the mutant's name" everything 0 200 logs  # of plans with logs; "": of all plans
    python -m tests.sim.search rule "S8 marks are taken behind the seal" storage 0 200 ""
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

HANGS_S: Final = 60
ROOT: Final = Path(__file__).parents[2]
OWN_FAULT: Final = ("NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError")  # of a wrong change


class Defect(NamedTuple):
    """What the process has that plays the seeds: a mutant or a rule switched off, by name."""

    kind: Literal["mutant", "rule", "none"]
    name: str = ""

    def switch(self) -> AbstractContextManager[Any]:
        if self.kind == "mutant":
            from tests.mutants.in_process import mutant, planted

            one = mutant(self.name)
            return planted(one.find, one.replace)
        if self.kind == "rule":
            from .ablations.registry import ABLATIONS

            return next(one for one in ABLATIONS if one.name == self.name).switch()
        return contextlib.nullcontext()


class Played(NamedTuple):
    """What came of one seed, after how much processor time."""

    seed: int
    error: str | None
    seconds: float
    plays: bool = True  # its plan has what was asked for


@dataclass
class Search:
    """How many seeds were gone through and played, and what those that notice say."""

    passed: int = 0
    played: int = 0
    found: dict[int, str] = field(default_factory=dict)


def search(
    defect: Defect, run: str, *, first: int = 0, seeds: int, finds: int = 0, seconds: float = 1e9, needs: str = ""
) -> Search:
    """Play seeds from the first on, until so many notice, or until so much processor time has gone.

    `needs`: the parts that a plan of "everything" needs to reach the defect, "one + another" if it needs both; other
    seeds are not played.
    """
    result = Search()
    spent = 0.0
    while result.passed < seeds:
        for played in play_seeds(defect, run, first + result.passed, seeds - result.passed, needs):
            result.passed += 1
            result.played += played.plays
            spent += played.seconds
            if played.error is not None and played.error.startswith(OWN_FAULT):
                raise RuntimeError(f"{defect.name} has to be written anew: {played.error}")
            if played.error is not None and passes_without(run, played.seed):
                result.found[played.seed] = played.error
            if (finds and len(result.found) >= finds) or spent > seconds:
                return result
    return result


@functools.cache
def passes_without(run: str, seed: int) -> bool:
    """Whether the seed passes without any defect: one that fails finds something else."""
    return all(played.error is None for played in play_seeds(Defect("none"), run, seed, 1))


def parts_of(needs: str) -> set[str]:
    """The parts of a plan of which "one + another" are the names."""
    return set(filter(None, needs.split(" + ")))


def play_seeds(defect: Defect, run: str, first: int, count: int, needs: str = "") -> Iterator[Played]:
    """What one process says of its seeds; with one that hangs it is over."""
    command = [sys.executable, "-m", "tests.sim.search", *defect, run, str(first), str(count), needs]
    seed = first
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            for line in child.stdout:
                yield Played(**json.loads(line))
                seed += 1
            if child.wait() == -signal.SIGXCPU:
                yield Played(seed, f"no end within {HANGS_S} s", HANGS_S)
            elif child.returncode:
                raise RuntimeError(f"{defect.name}: its process has ended at seed {seed}")
        finally:
            child.kill()


def main(defect: Defect, run: str, first: int, count: int, needs: str) -> None:
    from .ablations.playing import first_line, play_with
    from .everything.plan import Plan

    logging.lastResort = None  # what runs do to bookies and clients makes them warn all the time
    for seed in range(first, first + count):
        began = time.process_time()
        resource.setrlimit(resource.RLIMIT_CPU, (int(began) + HANGS_S, resource.RLIM_INFINITY))
        plays = not needs or parts_of(needs) <= Plan.draw(seed).parts
        error = play_with(defect.switch(), run, seed) if plays else None
        line = first_line(error)[:200] if error is not None else None
        played = Played(seed, line, time.process_time() - began, plays)
        print(json.dumps(played._asdict()), flush=True)


if __name__ == "__main__":
    _, kind, name, run, first, count, needs = sys.argv
    main(Defect(kind, name), run, int(first), int(count), needs)  # type: ignore[arg-type]
