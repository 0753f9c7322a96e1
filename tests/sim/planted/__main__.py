"""Plants each defect of the registry, and prints which seeds find it; a run that hangs finds it, too.

python -m tests.sim.planted [PART OF A DEFECT ...] [--seeds 200] [--finds 3] [--seconds 60]

The exit status is 1 if no seed finds one.
"""

from __future__ import annotations

import argparse
import sys

from tests.sim.search import Defect, search

from .registry import IMAGINED, PLANTED


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.planted", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only defects whose row contains this")
    parser.add_argument("--seeds", type=int, default=200, help="so many, from 0 on (200)")
    parser.add_argument("--finds", type=int, default=0, help="go on to the next defect after so many finds")
    parser.add_argument("--seconds", type=float, default=1e9, help="or after so many seconds of processor time")
    parser.add_argument("--run", help="of this run, in place of the registry's")
    arguments = parser.parse_args()
    defects = (*PLANTED, *IMAGINED)
    chosen = [one for one in defects if not arguments.names or any(part in one.defect for part in arguments.names)]
    if not chosen:
        parser.error("there are no such defects")
    unseen = 0
    print("| defect | run | first seed | how many |\n| --- | --- | --- | --- |")
    for planted in chosen:
        if arguments.run:
            planted = planted._replace(run=arguments.run, needs="")
        result = search(
            Defect("mutant", planted.mutant),
            planted.run,
            seeds=arguments.seeds,
            finds=arguments.finds,
            seconds=arguments.seconds,
            needs=planted.needs,
        )
        first = str(min(result.found)) if result.found else "none"
        counts = f"{len(result.found)} of {result.played}"
        print(f"| {planted.defect} | {planted.run} | {first} | {counts} |", flush=True)
        for seed, error in [*result.found.items()][:1]:
            print(f"seed {seed}: {error}", file=sys.stderr, flush=True)
        unseen += not result.found
    print(f"{len(chosen)} planted defects, {unseen} of them not found", file=sys.stderr)
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main())
