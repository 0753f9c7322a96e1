"""Plays one seed, or a directed schedule, with a rule switched off, and says how it fails."""

from __future__ import annotations

import contextlib
import io
import os
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from tests.faults.oracle import BrokenPromiseError
from tests.sim import healing
from tests.sim.runs import Range, play

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from . import Ablation

# With all rules, seeds heal in 60 s of virtual time: without one there is no need to wait for the run's usual limit.
HEALED_WITHIN_S = 100.0


def play_with(switch: AbstractContextManager[Any], run: str, seed: int) -> BaseException | None:
    """One seed while the switch is entered; the error that it fails with."""
    with switch, patch.object(healing, "HEALED_WITHIN_S", HEALED_WITHIN_S):
        return play(run, seed, Range())


def first_line(error: BaseException) -> str:
    """The invariant, if the error names one, and what it says first."""
    invariant = getattr(error, "invariant", "")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    text = lines[isinstance(error, BrokenPromiseError) and len(lines) > 1]  # behind what was promised
    if invariant and not text.startswith(invariant):
        text = f"{invariant}: {text}"
    return text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}"


def play_schedule(ablation: Ablation) -> str | None:
    """Run the test that plays the schedule, with the rule switched off: the first line of its failure, if it fails."""
    without = _Without(ablation)
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "--timeout=120", "--tb=no"]
    before = os.environ.copy()  # a run of pytest leaves a variable there, and one may have been started by another
    with contextlib.redirect_stdout(io.StringIO()):
        status = pytest.main([*options, ablation.schedule], [without])
    os.environ.clear()
    os.environ.update(before)
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise ValueError(f"{ablation.schedule} can't be run: pytest ended with status {status}")
    return without.failure


class _Without:
    """Switches the rule off while tests run; they are collected with it."""

    def __init__(self, ablation: Ablation) -> None:
        self._ablation = ablation
        self.failure: str | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        with self._ablation.switch():
            return (yield)

    def pytest_exception_interact(self, call: pytest.CallInfo[Any]) -> None:
        if call.excinfo is not None and self.failure is None:
            self.failure = first_line(call.excinfo.value)
