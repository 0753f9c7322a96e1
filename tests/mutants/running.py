"""Runs the tests of each mutant with the mutant in place, in a copy of the sources, and says what came of it.

Invariants: the sources themselves are never changed; a mutant counts as noticed only if its tests run to a verdict
other than the one without it: a failure, or no end. What can't even be imported or collected is the mutant's own fault.
"""

from __future__ import annotations

import enum
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bkpy.local.process import ended_with_parent

from .planting import DoesNotApply, plant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from . import Mutant

# What a mutant brings about that was written wrongly, as pytest's summary has it. It isn't what its tests look for.
_OWN_FAULT = re.compile(
    r"^(?:FAILED|ERROR) .* - (?:NameError|UnboundLocalError|ImportError|ModuleNotFoundError)\b", re.M
)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.M)
_UNUSED = ("hypothesispytest", "platformdirs", "pytest_cov", "xdist.looponfail")  # plugins, which take time to load


class Outcome(enum.StrEnum):
    NOTICED = "noticed"
    HUNG = "hung"  # which somebody notices, too
    SURVIVED = "SURVIVED"
    WRONG = "WRONG"


class Result(NamedTuple):
    mutant: Mutant
    outcome: Outcome
    detail: str
    seconds: float
    output: str = ""  # of pytest, where somebody has to look at it

    @property
    def good(self) -> bool:
        return self.outcome in (Outcome.NOTICED, Outcome.HUNG)


class Run(NamedTuple):
    status: int | None  # pytest's; None if it had to be killed
    output: str


class Project:
    """A directory with `src` and the tests."""

    def __init__(self, root: Path, *, timeout_s: float, test_timeout_s: float) -> None:
        self.root = root
        self._timeout_s = timeout_s
        self._test_timeout_s = test_timeout_s

    @contextmanager
    def copy(self) -> Iterator[Path]:
        """A copy of `src` to plant something in, with bytecode: every process of the tests would compile it anew."""
        with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
            source = Path(directory) / "src"
            shutil.copytree(self.root / "src", source, ignore=shutil.ignore_patterns("*.pyc.*"))  # not being written
            yield source

    def run_tests(self, ids: Sequence[str], source: Path, *options: str, timeout_s: float | None = None) -> Run:
        """pytest's verdict on the tests, with the packages of `source`."""
        temporary = source.parent / "tmp"  # of its own: runs side by side tidy up after themselves alone
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "--tb=short", "-rfE"]
        command += [word for plugin in _UNUSED for word in ("-p", f"no:{plugin}")]
        command += [f"--basetemp={temporary}", f"--timeout={self._test_timeout_s}", *options, *ids]
        path = os.pathsep.join(filter(None, (str(source), os.environ.get("PYTHONPATH", ""))))
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                ended_with_parent(command),  # a test that hangs must not outlive a runner that was killed
                cwd=self.root,
                env={**os.environ, "PYTHONPATH": path, "COLUMNS": "400"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status: int | None = process.wait(timeout_s or self._timeout_s)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            output.seek(0)
            return Run(status, output.read().decode(errors="replace"))


def try_mutant(project: Project, mutant: Mutant) -> Result:
    """Plant it and run its tests until one fails."""
    began = time.monotonic()

    def result(outcome: Outcome, detail: str, output: str = "") -> Result:
        return Result(mutant, outcome, detail, time.monotonic() - began, output)

    with project.copy() as source:
        try:
            plant(mutant, source)
        except DoesNotApply as e:
            return result(Outcome.WRONG, str(e))
        status, output = project.run_tests(mutant.tests, source, "-x")
    failed = _FAILED.search(output)
    if status is None:
        return result(Outcome.HUNG, "its tests did not end")
    if status == 0:
        return result(Outcome.SURVIVED, mutant.danger, output)
    if status != 1 or failed is None:
        return result(Outcome.WRONG, f"its tests can't be run: pytest ended with status {status}", output)
    if _OWN_FAULT.search(output):
        return result(Outcome.WRONG, "it names what isn't there", output)
    return result(Outcome.NOTICED, failed[1])


def check_without(project: Project, mutants: Sequence[Mutant], jobs: int) -> str:
    """Run all their tests with the sources as they are; what pytest wrote if they don't pass, else nothing."""
    ids = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    with project.copy() as source:
        parallel = ["-n", str(jobs)] if jobs > 1 else []
        # Each as long as it takes: only mutants make them hang, and a busy machine is no reason to try none.
        status, output = project.run_tests(ids, source, *parallel, "--timeout=0", timeout_s=3600.0)
    return "" if status == 0 else output


def try_all(
    project: Project, mutants: Sequence[Mutant], jobs: int, on_result: Callable[[Result], None] = lambda result: None
) -> list[Result]:
    """The results in the mutants' order, `jobs` at a time."""

    def attempt(mutant: Mutant) -> Result:
        result = try_mutant(project, mutant)
        on_result(result)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(attempt, mutants))
