"""Plants each defect of the registry, and prints which seeds find it; a run that hangs finds it, too.

python -m tests.sim.planted [PART OF A DEFECT ...] [--seeds 200] [--finds 3] [--seconds 60]

The exit status is 1 if no seed finds one.
"""

from __future__ import annotations

import argparse
import functools
import json
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from . import Planted
from .child import HANGS_S
from .registry import PLANTED

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
OWN_FAULT = ("NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError")  # of a mutant written wrongly


class Played(NamedTuple):
    """What came of one seed, after how much processor time."""

    seed: int
    error: str | None
    seconds: float
    plays: bool = True  # its plan has the feature that the defect needs


@dataclass
class Result:
    """Of one defect: how many seeds were gone through and played, and what those that find it say."""

    planted: Planted
    passed: int = 0
    played: int = 0
    found: dict[int, str] = field(default_factory=dict)

    def row(self) -> str:
        first = str(min(self.found)) if self.found else "none"
        return f"| {self.planted.defect} | {self.planted.run} | {first} | {len(self.found)} of {self.played} |"


def search(planted: Planted, *, seeds: int, finds: int, seconds: float) -> Result:
    """Play the seeds from 0 on, until that many find the defect, or the time is over."""
    result = Result(planted)
    spent = 0.0
    while result.passed < seeds:
        for played in play_seeds(planted, result.passed, seeds - result.passed):
            result.passed += 1
            result.played += played.plays
            spent += played.seconds
            if played.error is not None and played.error.startswith(OWN_FAULT):
                raise RuntimeError(f"{planted.mutant} has to be written anew: {played.error}")
            if played.error is not None and passes_without(planted.run, played.seed):
                result.found[played.seed] = played.error
            if len(result.found) == finds or spent > seconds:
                return result
    return result


@functools.cache
def passes_without(run: str, seed: int) -> bool:
    """Whether the seed passes without any defect: one that fails finds something else."""
    return all(played.error is None for played in play_seeds(Planted("", "", run), seed, 1))


def play_seeds(planted: Planted, first: int, count: int) -> Iterator[Played]:
    """What one child says of its seeds; with one that hangs it is over."""
    command = [sys.executable, "-m", "tests.sim.planted.child", planted.mutant, planted.run, str(first), str(count)]
    command.append(planted.feature)
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
                raise RuntimeError(f"{planted.mutant}: its process has ended at seed {seed}")
        finally:
            child.kill()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.planted", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only defects whose row contains this")
    parser.add_argument("--seeds", type=int, default=200, help="so many, from 0 on (200)")
    parser.add_argument("--finds", type=int, default=0, help="go on to the next defect after so many finds")
    parser.add_argument("--seconds", type=float, default=1e9, help="or after so many seconds of processor time")
    parser.add_argument("--run", help="of this run, in place of the registry's")
    arguments = parser.parse_args()
    chosen = [one for one in PLANTED if not arguments.names or any(part in one.defect for part in arguments.names)]
    if not chosen:
        parser.error("there are no such defects")
    unseen = 0
    print("| defect | run | first seed | how many |\n| --- | --- | --- | --- |")
    for planted in chosen:
        if arguments.run:
            planted = planted._replace(run=arguments.run, feature="")
        result = search(planted, seeds=arguments.seeds, finds=arguments.finds, seconds=arguments.seconds)
        print(result.row(), flush=True)
        for seed, error in [*result.found.items()][:1]:
            print(f"seed {seed}: {error}", file=sys.stderr, flush=True)
        unseen += not result.found
    print(f"{len(chosen)} planted defects, {unseen} of them not found", file=sys.stderr)
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
