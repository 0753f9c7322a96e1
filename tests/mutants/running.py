"""Runs the tests of each mutant with the mutant in place, in a copy of the sources, and says what came of it.

Invariants: the sources themselves are never changed; a mutant counts as noticed only if its tests run to a verdict
other than the one without it: a failure, or no end. What can't even be imported or collected is the mutant's own fault.
"""

from __future__ import annotations

import contextlib
import enum
import os
import re
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from . import forks
from .planting import Change, DoesNotApply, change_of, modules_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from . import Mutant

# What a mutant brings about that was written wrongly, as pytest's summary has it. It isn't what its tests look for.
_OWN_FAULT = re.compile(
    r"^(?:FAILED|ERROR) .* - (?:NameError|UnboundLocalError|ImportError|ModuleNotFoundError)\b", re.M
)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.M)
_UNUSED = ("hypothesispytest", "platformdirs", "pytest_cov", "xdist.looponfail")  # plugins, which take time to load
_OPTIONS = (
    *("-q", "--no-header", "-p", "no:cacheprovider", "--tb=short", "-rfE"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # plugins are loaded already
    *(word for plugin in _UNUSED for word in ("-p", f"no:{plugin}")),
)
_WITHOUT_MUTANTS_TIMEOUT_S = 3600.0
_IN_THIS_PROCESS = ("tests/unit/", "tests/sim/")  # where tests start few processes, or none


class Outcome(enum.StrEnum):
    NOTICED = "noticed"
    HUNG = "hung"  # which somebody notices, too
    SURVIVED = "SURVIVED"
    WRONG = "WRONG"


class Result(NamedTuple):
    mutant: Mutant
    outcome: Outcome
    detail: str
    seconds: float = 0.0
    cpu_s: float = 0.0
    output: str = ""  # of pytest, where somebody has to look at it

    @property
    def good(self) -> bool:
        return self.outcome in (Outcome.NOTICED, Outcome.HUNG)


class Project(NamedTuple):
    """A directory with `src` and the tests."""

    root: Path
    timeout_s: float
    test_timeout_s: float


class Copy:
    """A copy of `src` to plant something in, with bytecode: every process of the tests would compile it anew."""

    def __init__(self, project: Project, directory: Path) -> None:
        self._original = project.root / "src"
        self.source = directory / "src"
        self.temporary = directory / "tmp"  # of its own: runs side by side tidy up after themselves alone
        shutil.copytree(self._original, self.source, ignore=shutil.ignore_patterns("*.pyc.*"))  # not being written
        self._change: Change | None = None
        self._changes = 0

    def plant(self, change: Change | None) -> None:
        """Undo the change before, and make this one."""
        if self._change is not None:
            shutil.copy2(self._original / self._change.path, self.source / self._change.path)
        self._change = change
        if change is not None:
            path = self.source / change.path
            path.write_text(change.text, encoding="utf-8")
            for bytecode in path.parent.glob(f"__pycache__/{path.stem}.*"):
                bytecode.unlink()
            # A second of its own, by which Python tells whether bytecode is of this text or of one before.
            self._changes += 1
            os.utime(path, (self._changes, self._changes))


class Trial(NamedTuple):
    """Tests to run, and what to change before."""

    ids: Sequence[str]
    options: Sequence[str]
    timeout_s: float
    change: Change | None = None
    mutant: Mutant | None = None


class Run(NamedTuple):
    """What came of a trial."""

    trial: Trial
    status: int | None  # pytest's; None if it had to be killed
    output: str
    seconds: float
    cpu_s: float  # of its processes, as far as their parents waited for them


class _Fork:
    """A trial that runs."""

    def __init__(self, project: Project, copy: Copy, trial: Trial) -> None:
        self.trial = trial
        self.copy = copy
        copy.plant(trial.change)
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        options = [*_OPTIONS, f"--basetemp={copy.temporary}", *trial.options, *trial.ids]
        self._began = time.monotonic()
        self.deadline = self._began + trial.timeout_s
        self._pid = forks.start(project.root, copy.source, options, self._output)
        self.pidfd = os.pidfd_open(self._pid)

    def end(self, *, kill: bool) -> Run:
        """What came of it, once it has ended or is killed."""
        if kill:
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # the group is there a moment after the process
            os.killpg(self._pid, signal.SIGKILL)  # and may have what a failed test has left behind
        _, status, usage = os.wait4(self._pid, 0)
        while left := list(_started_by(self._pid)):  # in sessions of their own; each may just have started another one
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        os.close(self.pidfd)
        with self._output as output:
            output.seek(0)
            text = output.read().decode(errors="replace")
        seconds = time.monotonic() - self._began
        return Run(
            self.trial,
            None if kill else os.waitstatus_to_exitcode(status),
            text,
            seconds,
            usage.ru_utime + usage.ru_stime,
        )


def _started_by(fork: int) -> Iterator[int]:
    """The processes that a fork, or one of these, has started."""
    mark = f"{forks.OF_FORK}={fork}".encode()
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended, or is another account's
                if mark in Path("/proc", name, "environ").read_bytes().split(b"\0"):
                    yield int(name)


def run_trials(project: Project, trials: Iterable[Trial], jobs: int) -> Iterator[Run]:
    """What came of each, as they end, `jobs` at a time."""
    waiting = iter(trials)
    running: dict[int, _Fork] = {}
    poll = select.poll()
    directory = Path(tempfile.mkdtemp(prefix="mutants-"))  # that no fork removes at its end
    try:
        free = [Copy(project, directory / str(number)) for number in range(jobs)]
        while True:
            while free and (trial := next(waiting, None)) is not None:
                fork = _Fork(project, free.pop(), trial)
                running[fork.pidfd] = fork
                poll.register(fork.pidfd, select.POLLIN)
            if not running:
                return
            first = min(fork.deadline for fork in running.values())
            ended = {fd for fd, _ in poll.poll(max(first - time.monotonic(), 0) * 1000)}
            late = {fd for fd, fork in running.items() if fork.deadline <= time.monotonic()} - ended
            for fd in ended | late:
                poll.unregister(fd)
                fork = running.pop(fd)
                free.append(fork.copy)
                yield fork.end(kill=fd in late)
    finally:
        for fork in running.values():
            fork.end(kill=True)
        shutil.rmtree(directory, ignore_errors=True)  # processes of the last tests may still be ending there


def check_without(project: Project, mutants: Sequence[Mutant], jobs: int) -> str:
    """Run all their tests with the sources as they are; what pytest wrote if they don't pass, else nothing."""
    folders: dict[Path, list[str]] = {}  # with what their tests share
    for test in dict.fromkeys(test for mutant in _longest_first(mutants) for test in mutant.tests):
        folders.setdefault(Path(test.partition("::")[0]).parent, []).append(test)
    # Each as long as it takes: only mutants make them hang, and a busy machine is no reason to try none.
    trials = [Trial(ids, ("--timeout=0",), _WITHOUT_MUTANTS_TIMEOUT_S) for ids in folders.values()]
    return "".join(run.output for run in run_trials(project, trials, jobs) if run.status != 0)


def try_all(
    project: Project, mutants: Sequence[Mutant], jobs: int, on_result: Callable[[Result], None] = lambda result: None
) -> list[Result]:
    """The results in the mutants' order, `jobs` at a time."""
    results: dict[str, Result] = {}

    def note(result: Result) -> None:
        results[result.mutant.name] = result
        on_result(result)

    def trials() -> Iterator[Trial]:
        modules = modules_of(project.root / "src")
        options = ("-x", f"--timeout={project.test_timeout_s}")
        for mutant in _longest_first(mutants):
            try:
                change = change_of(mutant, project.root / "src", modules)
            except DoesNotApply as e:
                note(Result(mutant, Outcome.WRONG, str(e)))
            else:
                yield Trial(mutant.tests, options, project.timeout_s, change, mutant)

    for run in run_trials(project, trials(), jobs):
        note(_result(run))
    return [results[mutant.name] for mutant in mutants]


def _longest_first(mutants: Sequence[Mutant]) -> list[Mutant]:
    """Those whose tests start processes begin first, so that what ends last is short."""
    return sorted(mutants, key=lambda mutant: mutant.tests[0].startswith(_IN_THIS_PROCESS))


def _result(run: Run) -> Result:
    mutant = run.trial.mutant
    assert mutant is not None

    def result(outcome: Outcome, detail: str, output: str = "") -> Result:
        return Result(mutant, outcome, detail, run.seconds, run.cpu_s, output)

    failed = _FAILED.search(run.output)
    if run.status is None:
        return result(Outcome.HUNG, "its tests did not end")
    if run.status == 0:
        return result(Outcome.SURVIVED, mutant.danger, run.output)
    if run.status != 1 or failed is None:
        return result(Outcome.WRONG, f"its tests can't be run: pytest ended with status {run.status}", run.output)
    if _OWN_FAULT.search(run.output):
        return result(Outcome.WRONG, "it names what isn't there", run.output)
    return result(Outcome.NOTICED, failed[1])
