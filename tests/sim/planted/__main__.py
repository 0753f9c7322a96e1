"""Plants each defect of the registry, and prints which seeds find it; a run that hangs finds it, too.

python -m tests.sim.planted [PART OF A DEFECT ...] [--seeds 200] [--finds 3] [--seconds 60]

The exit status is 1 if no seed finds one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .registry import PLANTED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from . import Planted

ROOT = Path(__file__).parents[3]
HANGS_S = 60.0  # of one seed, in real time


@dataclass
class Result:
    """Of one defect: how many seeds were played, and what those that find it say."""

    planted: Planted
    played: int = 0
    found: dict[int, str] = field(default_factory=dict)

    def row(self) -> str:
        first = str(min(self.found)) if self.found else "none"
        return f"| {self.planted.defect} | {self.planted.run} | {first} | {len(self.found)} of {self.played} |"


def search(planted: Planted, *, seeds: int, finds: int, seconds: float) -> Result:
    """Play the seeds from 0 on, until that many find the defect, or the time is over."""
    result = Result(planted)
    began = time.monotonic()
    while result.played < seeds:
        for seed, error in play_seeds(planted, result.played, seeds - result.played):
            result.played += 1
            if error is not None and _passes_without(planted, seed):
                result.found[seed] = error
            if len(result.found) == finds or time.monotonic() > began + seconds:
                return result
    return result


def _passes_without(planted: Planted, seed: int) -> bool:
    """What fails without the defect finds something else."""
    return all(error is None for _, error in play_seeds(planted._replace(mutant=""), seed, 1))


def play_seeds(planted: Planted, first: int, count: int) -> Iterator[tuple[int, str | None]]:
    """What one child says of its seeds; with one that hangs it is over."""
    command = [sys.executable, "-m", "tests.sim.planted.child", planted.mutant, planted.run, str(first), str(count)]
    lines: queue.Queue[str] = queue.Queue()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            output = child.stdout
            threading.Thread(target=lambda: [*map(lines.put, output), lines.put("")], daemon=True).start()
            for seed in range(first, first + count):
                with contextlib.suppress(queue.Empty):
                    line = lines.get(timeout=HANGS_S)
                    if not line:
                        raise RuntimeError(f"{planted.mutant}: its process has ended before seed {seed}")
                    yield seed, json.loads(line)["error"]
                    continue
                yield seed, f"no end within {HANGS_S} s"
                return
        finally:
            child.kill()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.planted", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only defects whose row contains this")
    parser.add_argument("--seeds", type=int, default=200, help="so many, from 0 on (200)")
    parser.add_argument("--finds", type=int, default=0, help="go on to the next defect after so many finds")
    parser.add_argument("--seconds", type=float, default=1e9, help="or after so many seconds")
    parser.add_argument("--run", help="of this run, in place of the registry's")
    arguments = parser.parse_args()
    chosen = [one for one in PLANTED if not arguments.names or any(part in one.defect for part in arguments.names)]
    if not chosen:
        parser.error("there are no such defects")
    unseen = 0
    print("| defect | run | first seed | how many |\n| --- | --- | --- | --- |")
    for planted in chosen:
        if arguments.run:
            planted = planted._replace(run=arguments.run)
        result = search(planted, seeds=arguments.seeds, finds=arguments.finds, seconds=arguments.seconds)
        print(result.row(), flush=True)
        for seed, error in [*result.found.items()][:1]:
            print(f"seed {seed}: {error}", file=sys.stderr, flush=True)
        unseen += not result.found
    print(f"{len(chosen)} planted defects, {unseen} of them not found", file=sys.stderr)
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
