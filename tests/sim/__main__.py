"""One seed of a run: its trace, and the hash of the trace. Or a range of seeds: which fail, and what happened in them.

python -m tests.sim standard 17
python -m tests.sim crowd 0 --seeds 200
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from .runs import RUNS, Range, play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("scenario", choices=RUNS)
    parser.add_argument("seed", type=int)
    parser.add_argument("--seeds", type=int, help="how many seeds to run, from that one on")
    parser.add_argument("--few", action="store_true", help="say which few of them go through all that is expected")
    arguments = parser.parse_args()
    if arguments.seeds is not None:
        if arguments.seeds < 1:
            parser.error("--seeds: at least one")
        return run_range(arguments.scenario, arguments.seed, arguments.seeds, few=arguments.few)
    return run_one(arguments.scenario, arguments.seed)


def run_one(scenario: str, seed: int) -> int:
    cluster, run = RUNS[scenario](seed)
    try:
        cluster.run(run)
    finally:
        for event in cluster.world.trace:
            print(event)
        print(cluster.world.trace_hash())
    return 0


def run_range(scenario: str, first: int, count: int, *, few: bool = False) -> int:
    """Run them all. The first failure is printed in full, of the others the seed and one line."""
    logging.lastResort = None  # what runs do to bookies and clients makes them warn all the time
    began = time.monotonic()
    done = Range()
    for seed in range(first, first + count):
        error = play(scenario, seed, done)
        if error is not None:
            print(
                f"seed {seed}: {type(error).__name__}: {error}"
                if len(done.failed) == 1
                else f"seed {seed}: {_line(error)}"
            )
            sys.stdout.flush()
    seconds = time.monotonic() - began
    for mark, times in sorted(done.marks.items()):
        print(f"{times:8} {mark}")
    if few:
        print("seeds {}; missing: {}".format(*done.few(scenario)))
    rate = f"{count / seconds:.2f} seeds/s"
    if done.failed:
        print(f"{len(done.failed)} of {count} seeds failed, the first is {done.failed[0]} ({rate}); to see it:")
        print(f"make sim SCENARIO={scenario} SEED={done.failed[0]}")
        return 1
    print(f"{count} seeds without a failure ({rate})")
    return 0


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}"


if __name__ == "__main__":
    sys.exit(main())
