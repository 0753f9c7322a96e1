"""A short run of chaos compares every entry and leaves no process; an interrupted one ends in order."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import eventually_here

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "tests.chaos", "--minutes", "0.35", "--no-stream", "--seed"]

pytestmark = pytest.mark.exhaustive


def processes_in(directory: str) -> list[str]:
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [path.parent.name] if directory in path.read_bytes().decode(errors="replace") else []
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def directory_of(output: str) -> str:
    return re.findall(r", in (\S+)", output)[0]


def test_a_short_run_loses_nothing_and_leaves_no_process() -> None:
    run = subprocess.run([*COMMAND, "5"], cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stdout + run.stderr
    compared, acknowledged = map(int, re.findall(r"(\d+) entries compared, (\d+)", run.stdout)[0])
    assert compared >= acknowledged > 0
    assert not processes_in(directory_of(run.stdout))
    assert not Path(directory_of(run.stdout)).exists()


def test_an_interrupted_run_ends_in_order(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with output.open("w") as file:
        run = subprocess.Popen([*COMMAND, "6"], cwd=ROOT, stdout=file, stderr=file)
    try:
        eventually_here(lambda: "acknowledged" in output.read_text())
        assert processes_in(directory_of(output.read_text()))
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 130, output.read_text()
    finally:
        run.kill()
        run.wait()
    assert "interrupted" in output.read_text()
    assert not processes_in(directory_of(output.read_text()))
    shutil.rmtree(directory_of(output.read_text()))
