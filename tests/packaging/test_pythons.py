"""On the other Pythons that bkpy is for, too: those that are on the machine, and those that Debian has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pythons import missing_tools

SOURCE = Path(__file__).parents[2]
TIMEOUT_S = 3000.0  # of three interpreters, each with its packages and some minutes of tests


@pytest.mark.long
@pytest.mark.exhaustive
@pytest.mark.timeout(TIMEOUT_S + 60)
def test_a_part_of_the_tests_passes_on_each_other_python(capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "tests.pythons", "--short"]
    done = subprocess.run(
        command, cwd=SOURCE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False
    )
    lines = done.stdout.splitlines()
    with capsys.disabled():  # nothing is left out silently
        print("", *(line for line in lines if "not tested" in line or line.startswith("tests pass")), sep="\n")
    assert done.returncode == 0, done.stdout[-20_000:]
    assert lines[-1].startswith("tests pass on Python 3."), f"no other Python is here; Debian's need {missing_tools()}"
