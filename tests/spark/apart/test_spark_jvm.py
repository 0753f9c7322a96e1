"""The guard that the Java process is started by: it ends a command, and what that has started, with its own input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hooks import without_jvm

from bkpy.errors import BookKeeperError
from bkpy.local.process import free_port
from bkpy.spark import jvm, jvm_guard

GUARD = [sys.executable, "-I", "-S", str(Path(jvm_guard.__file__))]


def guarded(script: str, grace_s: str = "600") -> subprocess.Popen[bytes]:
    """A shell that runs the script behind a guard, and has printed a line."""
    guard = subprocess.Popen(
        [*GUARD, grace_s, "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert guard.stdout is not None
    assert guard.stdout.readline() == b"ready\n"
    return guard


def ended(guard: subprocess.Popen[bytes]) -> int:
    """The guard's status, when nothing of what it has started is left: each of them holds the pipe's other end."""
    rest, _ = guard.communicate()
    assert rest == b""
    return guard.returncode


def test_the_command_ends_with_the_guards_input() -> None:
    # The shell waits for a child that doesn't know of any pipe.
    assert ended(guarded("echo ready; sleep 3600; true")) == 128 + signal.SIGTERM


def test_what_a_shell_leaves_behind_is_killed() -> None:
    assert ended(guarded("(trap '' TERM; echo ready; sleep 3600; sleep 3600) & wait")) == 128 + signal.SIGTERM


def test_a_command_that_does_not_want_to_end_is_killed() -> None:
    assert ended(guarded("trap '' TERM; echo ready; while true; do sleep 3600; done", "0.01")) == 128 + signal.SIGKILL


def test_it_ends_when_its_parent_is_killed() -> None:
    script = "import subprocess, sys, time; p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE); time.sleep(3600)"
    parent = subprocess.Popen(
        [sys.executable, "-c", script, *GUARD, "600", "sh", "-c", "echo ready; sleep 3600; true"],
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    parent.send_signal(signal.SIGKILL)
    assert ended(parent) == -signal.SIGKILL


def test_the_commands_input_does_not_end_and_its_status_is_the_guards() -> None:
    guard = subprocess.Popen([*GUARD, "600", "sh", "-c", "exit 7"], stdin=subprocess.PIPE)
    assert guard.wait() == 7
    assert guard.stdin is not None
    guard.stdin.close()


def test_a_java_process_that_does_not_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # there is no bin/java
    without_jvm(monkeypatch)
    with open(tmp_path / "log", "wb") as log, pytest.raises(BookKeeperError, match="ended with status 1 while"):
        jvm.start_jvm({}, output=log.fileno(), grace_s=10.0)
    assert b"java" in (tmp_path / "log").read_bytes()


def test_a_java_process_that_ends_before_there_is_a_session_is_told_in_words() -> None:
    """In a process of its own: this one may have a session already."""
    gateway = {jvm.GATEWAY_PORT: str(free_port()), "PYSPARK_GATEWAY_SECRET": "x"}
    script = "from bkpy.spark.session import local_session; local_session('test')"
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | gateway, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("bkpy.errors.BookKeeperError: Spark's Java process has ended")
