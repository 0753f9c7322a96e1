"""Whatever ends an export or the demo, at whatever moment, ends its Java process as well."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.logs import PATIENCE_S
from tests.waiting import eventually_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.spark.conftest import Ledgers

pytestmark = pytest.mark.timeout(900)

INTERVAL_S = 0.01  # short moments are to be caught
REST = "has all whole batches; the same command adds the rest"


class Program:
    """A `bkpy` command, and every process that it has started, known by a variable that they all inherit."""

    def __init__(self, *arguments: object, stdout: int = subprocess.DEVNULL) -> None:
        self._mark = f"BKPY_TEST_{uuid.uuid4().hex}".encode()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BKPY_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bkpy", *map(str, arguments)],
            env=environment | {"TEST_MARK": self._mark.decode()},
            stdout=stdout,
            stderr=subprocess.PIPE,
            start_new_session=True,
            # What runs in a shell's background ignores Ctrl-C, and so would all that it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def commands(self) -> dict[int, str]:
        """By process id; without the program itself and without what has ended."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.process.pid:
                continue
            try:
                if self._mark in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError, PermissionError):  # ended, or not ours
                continue
        return found

    def wait_for(self, condition: Callable[[], bool]) -> None:
        def holds() -> bool:
            ended, held = self.process.poll() is not None, condition()
            assert held or not ended, self.process.communicate()[1].decode()
            return held

        eventually_here(holds, pause_s=INTERVAL_S, deadline_s=PATIENCE_S)

    def runs(self, *names: str) -> bool:
        return any(name in command for command in self.commands().values() for name in names)

    def end(self) -> tuple[int, str]:
        """Status and standard error, when all its processes have ended."""
        stderr = self.process.communicate()[1].decode()
        eventually_here(lambda: not self.commands(), "all its processes end", deadline_s=PATIENCE_S)
        return self.process.returncode, stderr


@pytest.fixture
def export(ledgers: Ledgers, tmp_path: Path) -> Iterator[Program]:
    program = Program("export", "--connect", ledgers.uri, "--ledgers", ledgers.plain, "--to", tmp_path / "out")
    yield program
    for pid in (*program.commands(), program.process.pid):
        if program.process.poll() is None or pid != program.process.pid:
            os.kill(pid, signal.SIGKILL)


def moment(program: Program, target: Path, name: str) -> Callable[[], bool]:
    """Whether the program has got that far. Some moments are so short that the next one counts, too."""
    return {
        "guard": lambda: program.runs("jvm_guard"),
        "launcher": lambda: program.runs("org.apache.spark.launcher.Main", "SparkSubmit"),
        "java": lambda: program.runs("SparkSubmit"),
        "workers": lambda: program.runs("pyspark.daemon"),
        "writing": lambda: any(target.glob("_bkpy/staging-*/*/_temporary")),
        "service": lambda: program.runs("bkpy.demo.service"),
        "stream": lambda: (target / "demo" / "delays.parquet" / "_spark_metadata").exists(),
        "picture": lambda: (target / "demo" / "delays.png").exists(),
    }[name]


slow = pytest.mark.exhaustive


@slow
@pytest.mark.parametrize("name", ["launcher", "java", "guard", "workers", "writing"])
def test_ctrl_c_leaves_no_process(export: Program, tmp_path: Path, name: str) -> None:
    export.wait_for(moment(export, tmp_path / "out", name))
    os.killpg(export.process.pid, signal.SIGINT)
    assert export.end() == (130, f"bkpy: interrupted; {tmp_path / 'out'} {REST}\n")


@slow
@pytest.mark.parametrize("name", ["java", "launcher", "writing"])
def test_sigterm_leaves_no_process(export: Program, tmp_path: Path, name: str) -> None:
    export.wait_for(moment(export, tmp_path / "out", name))
    export.process.send_signal(signal.SIGTERM)
    assert export.end() == (143, f"bkpy: terminated; {tmp_path / 'out'} {REST}\n")


@slow
@pytest.mark.parametrize("name", ["java", "launcher", "writing"])
def test_sigkill_leaves_no_process(export: Program, tmp_path: Path, name: str) -> None:
    export.wait_for(moment(export, tmp_path / "out", name))
    export.process.send_signal(signal.SIGKILL)
    assert export.end() == (-signal.SIGKILL, "")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["workers", "writing"])
def test_an_export_whose_java_process_is_killed_says_so(export: Program, tmp_path: Path, name: str) -> None:
    export.wait_for(moment(export, tmp_path / "out", name))
    java = [pid for pid, command in export.commands().items() if "java" in command and "SparkSubmit" in command]
    for pid in java:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    status, stderr = export.end()
    assert (status, bool(java)) == (1, True)
    assert "bkpy: Spark's Java process has ended" in stderr
    assert "no part of an export: try again" in stderr
    assert "Traceback" not in stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    ["java", *(pytest.param(name, marks=pytest.mark.long) for name in ("launcher", "service", "stream", "picture"))],
)
def test_ctrl_c_ends_the_demo_with_all_its_processes(tmp_path: Path, name: str) -> None:
    program = Program("demo", "--dir", tmp_path / "demo")
    program.wait_for(moment(program, tmp_path, name))
    os.killpg(program.process.pid, signal.SIGINT)
    status, stderr = program.end()
    assert status == 130
    assert stderr.splitlines()[-1] == f"bkpy: interrupted; the demo in {tmp_path / 'demo'} was not finished"
