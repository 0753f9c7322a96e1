"""How tests are given to several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import os
import pytest

@pytest.mark.parametrize("n", range(20))
def test_before(n):
    pass

def test_dies():
    os.kill(os.getpid(), 9)

@pytest.mark.parametrize("n", range(20))
def test_after(n):
    pass

{more}
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("processes", [2, 4])
def test_the_test_of_which_a_process_dies_fails_once_and_all_others_run(tmp_path: Path, processes: int) -> None:
    tests = tmp_path / "some" / "unit" / "test_crash.py"
    tests.parent.mkdir(parents=True)
    tests.write_text(TESTS.format(more="\n".join(f"def test_alone_{n}():\n    pass\n" for n in range(20))))
    root = Path(__file__).parents[2]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "-n",
        f"{processes}",
    ]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tests)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{root}:{root / 'src'}"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert "1 failed, 60 passed" in done.stdout
    assert done.stdout.count("FAILED") == 1
    assert "test_dies - worker" in done.stdout
