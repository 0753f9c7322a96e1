"""Plants each mutant in a copy of the sources and runs the tests that have to notice it.

    python -m tests.mutants [PART OF A NAME ...] [--jobs 2] [--list]

The exit status is 1 if one survives, if one has to be written anew, or if their tests fail without any.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter
from pathlib import Path

from .forks import load_libraries
from .planting import all_mutants
from .running import Outcome, Project, Result, check_without, try_all

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 180.0  # of one mutant's tests together: beyond, they hang
TEST_TIMEOUT_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only mutants whose name contains this")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tried at a time (2)")
    parser.add_argument("--list", action="store_true", help="only print them")
    arguments = parser.parse_args()
    mutants = all_mutants()
    if arguments.names:
        mutants = [mutant for mutant in mutants if any(part in mutant.name for part in arguments.names)]
    if arguments.list or not mutants:
        for mutant in mutants:
            print(f"{mutant.name}: {mutant.danger}")
        return 0 if arguments.list else _refuse("there are no such mutants")

    load_libraries()
    began = time.monotonic()
    project = Project(ROOT, timeout_s=TIMEOUT_S, test_timeout_s=TEST_TIMEOUT_S)
    print(f"the tests of {len(mutants)} mutants, without any of them ...", flush=True)
    if problem := check_without(project, mutants, arguments.jobs):
        print(problem)
        return _refuse("the tests fail without any mutant, so nothing can be said of those")
    print(f"they pass, after {time.monotonic() - began:.0f} s", flush=True)
    numbers = itertools.count(1)

    def report(result: Result) -> None:
        place = f"{next(numbers):{len(str(len(mutants)))}}/{len(mutants)}"
        times = f"{result.seconds:6.1f} s {result.cpu_s:6.1f} s CPU"
        print(f"{place}  {result.outcome:8}  {times}  {result.mutant.name}", flush=True)

    status = summarise(try_all(project, mutants, arguments.jobs, report))
    print(f"in {time.monotonic() - began:.0f} s")
    return status


def summarise(results: list[Result]) -> int:
    """Print the table, and what has to be looked at; the exit status."""
    width = max(len(result.mutant.name) for result in results)
    print()
    for result in sorted(results, key=lambda result: not result.good):  # what is bad stands where one looks first
        print(f"{result.outcome:8}  {result.mutant.name:{width}}  {result.detail}")
    bad = [result for result in results if not result.good]
    for result in bad:
        if result.outcome is Outcome.WRONG and result.output:
            print(f"\n--- {result.mutant.name}\n{result.output}")
    counts = Counter(result.outcome for result in results)
    print("\n" + ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome]))
    return 1 if bad else 0


def _refuse(reason: str) -> int:
    print(reason, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
