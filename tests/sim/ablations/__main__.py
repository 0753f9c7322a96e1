"""Plays each rule's runs and its schedule with the rule switched off, until something notices.

python -m tests.sim.ablations                      # all, 20 seeds of each run
python -m tests.sim.ablations --rule S1 --seeds 500
python -m tests.sim.ablations --schedules          # the directed schedules alone

The exit status is 1 if one goes unnoticed.
"""

from __future__ import annotations

import argparse
import sys

from tests.sim.search import Defect, search

from .playing import play_schedule
from .registry import ABLATIONS
from .table import table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.ablations", description=__doc__)
    parser.add_argument("--rule", action="append", default=[], help="such as 13 or S1; by default all")
    parser.add_argument("--run", action="append", default=[], help="of the rule's runs, these alone")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=20, help="so many of each run, at most")
    parser.add_argument("--finds", type=int, default=1, help="go on after so many seeds that notice (1)")
    parser.add_argument("--seconds", type=float, default=1e9, help="or after so many seconds of processor time")
    parser.add_argument("--schedules", action="store_true", help="no seeds")
    parser.add_argument("--table", action="store_true", help="print the table of docs/explanation/simulation.md")
    arguments = parser.parse_args()
    if arguments.table:
        print("\n".join(table()))
        return 0
    chosen = [one for one in ABLATIONS if not arguments.rule or one.rule in arguments.rule]
    if not chosen:
        parser.error(f"there is no rule {', '.join(arguments.rule)}")
    unnoticed = 0
    for ablation in chosen:
        print(f"{ablation.rule:8} {ablation.title}", flush=True)
        noticed = False
        runs = [run for run in ablation.runs if not arguments.run or run in arguments.run]
        for run in [] if arguments.schedules else runs:
            result = search(
                Defect("rule", ablation.name),
                run,
                first=arguments.first,
                seeds=arguments.seeds,
                finds=arguments.finds,
                seconds=arguments.seconds,
            )
            noticed = bool(result.found)
            if not noticed:
                print(f"         {run}: not by {result.played} seeds", flush=True)
                continue
            seed, error = next(iter(result.found.items()))
            print(f"         {run}: seed {seed}, {len(result.found)} of {result.played}: {error}", flush=True)
            break
        if ablation.schedule:
            failure = play_schedule(ablation)
            noticed = noticed or failure is not None
            print(f"         {ablation.schedule}: {failure or 'NOT NOTICED'}", flush=True)
        if not noticed and not (arguments.schedules and not ablation.schedule):
            unnoticed += 1
            print("         NOT NOTICED", flush=True)
    print(f"{len(chosen)} ablations, {unnoticed} not noticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
