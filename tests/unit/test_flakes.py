"""Which tests fail now and then: how the reports of several runs are counted, and what is left of a run that ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.conftest import alive
from tests.flakes import ROOT, FailureCounts
from tests.waiting import eventually_here

if TYPE_CHECKING:
    from pathlib import Path

PASSED = '<testsuites><testsuite><testcase classname="tests.unit.test_a" name="test_one[x]"/></testsuite></testsuites>'
FAILED = (
    '<testsuites><testsuite><testcase classname="tests.unit.test_a" name="test_one[x]">'
    '<failure message="assert 1 == 2&#10;more">trace</failure></testcase>'
    '<testcase classname="tests.unit.test_b" name="test_two"><error message="no port">trace</error></testcase>'
    "</testsuite></testsuites>"
)


def test_a_test_that_fails_in_one_run_of_three_is_named_with_its_first_error() -> None:
    counts = FailureCounts()
    assert [len(counts.add(report)) for report in (PASSED, FAILED, PASSED)] == [0, 2, 0]
    _, one, two = counts.table().splitlines()
    assert one.split(maxsplit=2) == ["3", "1", "tests/unit/test_a.py::test_one[x]: assert 1 == 2"]
    assert two.split(maxsplit=2) == ["1", "1", "tests/unit/test_b.py::test_two: no port"]


def test_runs_without_a_failure_say_so() -> None:
    counts = FailureCounts()
    counts.add(PASSED)
    assert counts.table() == "1 tests, none of which has failed"


WAITS_FOR_EVER = """
import os, pathlib, subprocess, sys

def test_waits():
    daemon = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    started = pathlib.Path(__file__).with_name("started")
    started.with_suffix(".new").write_text(f"{os.getpid()} {daemon.pid}")
    started.with_suffix(".new").rename(started)
    daemon.wait()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive)])
def test_what_a_run_started_ends_with_it(tmp_path: Path, number: signal.Signals) -> None:
    tests, started = tmp_path / "test_waits.py", tmp_path / "started"
    tests.write_text(WAITS_FOR_EVER)
    command = [sys.executable, "-m", "tests.flakes", "--runs", "1", "--workers", "1", "--load", "1", str(tests)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as flakes:
        try:
            eventually_here(started.exists)
            pids = [int(pid) for pid in started.read_text().split()]
            assert all(alive(pid) for pid in pids)
        finally:
            flakes.send_signal(number)
        printed, _ = flakes.communicate()
    assert flakes.returncode == 128 + number
    assert ("none of which has failed" in printed) is (number == signal.SIGINT)  # Ctrl-C: the table, as far as it goes
    assert [pid for pid in pids if alive(pid)] == []
