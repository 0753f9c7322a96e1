"""Runs the suite many times over, to see which tests do not pass each time.

    python -m tests.flakes [--runs 10] [--load 2] [--workers 4] [--random] [--seed 7] [PYTEST ARGUMENT ...]

`--load` starts processes that keep processors busy beside the tests. `--random` draws the order of the modules, from a
seed that each run prints. The exit status is 1 if a test has failed in any run. Whatever a run started ends with it,
also when SIGTERM or Ctrl-C ends this process.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
# The variable with the seed of the order of modules, for tests/conftest.py. Commands refuse unknown names of BKPY_.
ORDER = "TESTS_MODULE_ORDER"
_BURN = "while True: pass"
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_USUAL = ["-m", "not exhaustive and not privileged"]


@dataclass
class FailureCounts:
    """What the runs have come to."""

    runs: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    first_errors: dict[str, str] = field(default_factory=dict)

    def add(self, report: str) -> list[str]:
        """Count the tests of a JUnit report; the names of those that failed."""
        failed = []
        for case in ET.fromstring(report).iter("testcase"):
            name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
            self.runs[name] += 1
            wrong = case.find("failure")
            if wrong is None:
                wrong = case.find("error")
            if wrong is not None:
                failed.append(name)
                self.failures[name] += 1
                self.first_errors.setdefault(name, (wrong.get("message") or "").partition("\n")[0][:160])
        return failed

    def table(self) -> str:
        """Each test that has failed: its runs, its failures and its first error."""
        if not self.failures:
            return f"{len(self.runs)} tests, none of which has failed"
        rows = [f"{'runs':>5} {'failures':>8}  test: first error"]
        for name, count in self.failures.most_common():
            rows.append(f"{self.runs[name]:>5} {count:>8}  {name}: {self.first_errors[name]}")
        return "\n".join(rows)


@contextlib.contextmanager
def burning(count: int) -> Iterator[None]:
    """Keep so many processors busy meanwhile."""
    burners = [subprocess.Popen([sys.executable, "-c", _BURN]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def adopt_orphans() -> None:
    """Become the parent of each descendant whose own parent ends: daemons of tests can then be found."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def end_descendants(spared: set[int]) -> None:
    """Kill all descendants but these children, until none is left."""
    while found := _descendants() - spared:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in found:
            with contextlib.suppress(ChildProcessError):  # a grandchild, which is adopted when its parent is reaped
                os.waitpid(pid, 0)


def _descendants() -> set[int]:
    """The processes that descend from this one, those that have ended and are not reaped among them."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found, waiting = set[int](), [os.getpid()]
    while waiting:
        of_one = children.get(waiting.pop(), [])
        found.update(of_one)
        waiting += of_one
    return found


def one_run(arguments: list[str], workers: int, order: int | None) -> tuple[str, int]:
    """The JUnit report of one run of the tests, and pytest's exit status. Prints why, if that one couldn't run."""
    environment = os.environ if order is None else {**os.environ, ORDER: str(order)}
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        several = [] if workers == 1 else ["-n", str(workers)]
        command = [sys.executable, "-m", "pytest", "-q", *several, f"--junit-xml={report}", *arguments]
        spared = _descendants()
        try:
            with (Path(directory) / "output").open("w+") as output:
                done = subprocess.run(command, cwd=ROOT, env=environment, stdout=output, check=False)
                if done.returncode not in (0, 1):
                    output.seek(0)
                    print("".join(output.readlines()[-20:]), end="", flush=True)
        finally:
            end_descendants(spared)
        return (report.read_text() if report.exists() else ""), done.returncode


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=_positive, default=10, help="how often (10)")
    parser.add_argument("--load", type=int, default=0, help="processes that keep processors busy (0)")
    parser.add_argument("--workers", type=_positive, default=4, help="processes of tests (4)")
    parser.add_argument("--random", action="store_true", help="draw the order of the modules")
    parser.add_argument("--seed", type=int, help="of the first run's order; the next ones follow it")
    known, arguments = parser.parse_known_args()
    seed = known.seed if known.seed is not None else random.SystemRandom().randrange(1 << 30)
    random_order = known.random or known.seed is not None
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background of a shell, which ignores it
    adopt_orphans()
    counts, broken, interrupted = FailureCounts(), 0, True
    with contextlib.suppress(KeyboardInterrupt), burning(known.load):  # Ctrl-C: what there is so far
        for number in range(known.runs):
            order = seed + number if random_order else None
            began = time.monotonic()
            report, status = one_run([*_USUAL, *arguments], known.workers, order)
            failed = counts.add(report) if report else []
            broken += status not in (0, 1) or not report
            taken = time.monotonic() - began
            drawn = "" if order is None else f", order {order}"
            ended = f"{len(failed)} failed, {taken:.0f} s, status {status}{drawn}"
            print("\n    ".join([f"run {number + 1} of {known.runs}: {ended}", *failed]), flush=True)
        interrupted = False
    print(counts.table())
    return 128 + signal.SIGINT if interrupted else 1 if counts.failures or broken else 0


if __name__ == "__main__":
    sys.exit(main())
