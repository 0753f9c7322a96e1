"""The command as a process: closed descriptors, Ctrl-C before it has begun, terminals and encodings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from pydantic_core import SchemaError
from tests.command import COMMAND, PATIENCE_S, PRELOADED, as_json, bkpy, environment
from tests.preloaded import CLOSED

import bkpy as bkpy_library
from bkpy.cli.output import errors as command_errors
from bkpy.local import LocalCluster

Run = Callable[..., subprocess.CompletedProcess[bytes]]


def shell(redirection: str, *arguments: str, uri: str | None, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """The command as a shell runs it with the redirection."""
    line = f'"$@" {redirection}'
    return subprocess.run(
        ["/bin/sh", "-c", line, "sh", *COMMAND, *arguments],
        capture_output=True,
        timeout=PATIENCE_S,
        env={**environment(uri), **variables},
    )


def closed_run(closed: str, *arguments: str, uri: str | None) -> subprocess.CompletedProcess[bytes]:
    """The same as `shell` with a redirection that closes streams, without the shell, and forked."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr, open(os.devnull, "rb") as nothing:
        streams = [CLOSED if str(fd) in closed else file.fileno() for fd, file in enumerate((nothing, stdout, stderr))]
        status = PRELOADED.start(arguments, env=environment(uri), streams=streams).wait(PATIENCE_S)
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(arguments, status, stdout.read(), stderr.read())


@pytest.mark.parametrize("run", [shell, closed_run])
@pytest.mark.parametrize("closed", ["0<&-", "2>&-"])
def test_a_standard_stream_that_is_closed_is_empty(cluster: LocalCluster, closed: str, run: Run) -> None:
    done = run(closed, "cluster", "show", uri=cluster.connect_string)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"instance id" in done.stdout
    done = closed_run(closed, "ledger", "write", uri=cluster.connect_string)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)


ALL_CLOSED = "0<&- 1>&- 2>&-"


@pytest.mark.parametrize("closed", ["1>&-", "0<&- 1>&-", ALL_CLOSED])
@pytest.mark.parametrize("arguments", [["cluster", "show"], ["log", "create", "closed", "--json"], ["ledger", "write"]])
def test_results_that_can_not_be_printed_are_an_error(cluster: LocalCluster, closed: str, arguments: list[str]) -> None:
    run = shell if (closed, arguments[0]) == (ALL_CLOSED, "ledger") else closed_run
    done = run(closed, *arguments, uri=cluster.connect_string)
    assert done.returncode == 1
    assert done.stdout == b""
    assert closed == ALL_CLOSED or done.stderr.count(b"\n") == 1
    # Nothing is printed, so nothing is missing.
    assert closed_run(closed, "autorecovery", "enable", uri=cluster.connect_string).returncode in (0, 1)


def in_full(value: object) -> Any:
    """A case that is like another one."""
    return pytest.param(value, marks=pytest.mark.exhaustive)


ENDED_AT = """\
import os, runpy, signal, sys

module, number, itself = sys.argv[1], int(sys.argv[2]), os.getpid()

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(itself, number)

sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, signal.default_int_handler)
os.getpid = lambda: PID or itself
sys.argv = ["bkpy", "ledger", "list", "--connect", "zk://127.0.0.1:1/ledgers"]
runpy.run_module("bkpy", run_name="__main__")
"""


def ended_at(module: str, number: int, pid: int = 0) -> tuple[int, bytes, bytes]:
    """How a command ends that gets the signal when it loads the module; `pid`: what it takes its own for."""
    words = [sys.executable, "-c", ENDED_AT.replace("PID", str(pid)), module, str(number)]
    done = subprocess.run(words, capture_output=True, timeout=PATIENCE_S)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "module",
    ["click", *map(in_full, ("bkpy.cli.output.errors", "bkpy.errors", "bkpy.cli.ledger.group")), "bkpy.client.client"],
)
def test_ctrl_c_while_the_program_is_loaded_ends_it_quietly(module: str) -> None:
    assert ended_at(module, signal.SIGINT) == (130, b"", b"")


@pytest.mark.parametrize("module", [*map(in_full, ("click", "bkpy.errors")), "bkpy.cli.ledger.group"])
def test_sigterm_while_the_program_is_loaded_ends_a_container(module: str) -> None:
    """Whose first process the kernel doesn't end for a signal that it has no handler for."""
    assert ended_at(module, signal.SIGTERM, pid=1) == (143, b"", b"")
    assert ended_at(module, signal.SIGTERM) == (-signal.SIGTERM, b"", b"")


def test_nothing_is_loaded_before_ctrl_c_is_heeded() -> None:
    code = "import sys; before = set(sys.modules); import bkpy.cli; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.split()
    assert [name for name in loaded if name.startswith((b"bkpy.", b"asyncio", b"click", b"typing"))] == [b"bkpy.cli"]


def test_every_public_name_is_there() -> None:
    names = {name: getattr(bkpy_library, name) for name in bkpy_library.__all__}
    assert all(thing.__name__ == name for name, thing in names.items() if name != "__version__")
    assert bkpy_library.local.LocalCluster is LocalCluster
    assert not hasattr(bkpy_library, "nothing_of_that_name")
    assert not hasattr(bkpy_library, "__wrapped__")


def test_text_that_the_terminal_can_not_show_is_escaped(cluster: LocalCluster) -> None:
    uri = cluster.connect_string
    ledger_id = as_json("ledger", "create", "--metadata", "stadt=Zürich", uri=uri)["ledger_id"]
    shown = bkpy("ledger", "show", ledger_id, uri=uri, PYTHONIOENCODING="ascii").stdout
    assert rb"Z\xfcrich" in shown
    assert "Zürich" in bkpy("ledger", "show", ledger_id, uri=uri, PYTHONIOENCODING="utf-8").stdout.decode()


def test_clients_take_settings_from_the_command_line(cluster: LocalCluster) -> None:
    uri = cluster.connect_string
    ledger_id = int(bkpy("--set", "entry_bytes_max=10", "ledger", "write", uri=uri, stdin=b"ten bytes.\n").stdout)
    assert bkpy("ledger", "read", ledger_id, uri=uri).stdout == b"ten bytes.\n"
    done = bkpy("--set", "entry_bytes_max=9", "ledger", "write", "--json", uri=uri, stdin=b"ten bytes.\n", status=1)
    assert b"line 1 is longer than 9 bytes" in done.stderr
    for wrong, words in [
        ("read_timeout=1", ["unknown setting read_timeout;", "read_timeout_s"]),
        ("read_timeout_s=soon", ["read_timeout_s", "'soon'"]),
    ]:
        message = bkpy("--set", wrong, "ledger", "list", uri=uri, status=1).stderr.decode()
        assert all(word in message for word in words), message
    assert b"NAME=VALUE, not 'x'" in bkpy("--set", "x", "ledger", "list", uri=uri, status=2).stderr


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["l"], {"local", "ledger", "log"}),
        (["ledger", "re"], {"read", "recover"}),
        (["ledger", "list", "--l"], {"--long"}),
    ],
)
def test_shells_can_complete_commands_and_options(words: list[str], wanted: set[str]) -> None:
    line = " ".join(["bkpy", *words])
    completion = {"_BKPY_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    done = PRELOADED.run([], stdin=b"", env={**environment(None), **completion}, timeout_s=PATIENCE_S)
    shown = done.stdout.decode().split()
    assert {entry.partition(",")[2] for entry in shown} == wanted


@pytest.mark.parametrize("arguments", [["--version"], ["ledger", "write", "--help"], ["ledger", "lits"]])
def test_a_run_that_was_forked_ends_as_one_that_was_started(arguments: list[str]) -> None:
    """What most tests of the command rest on."""
    forked = PRELOADED.run(arguments, stdin=b"x" * 1_000_000, env=environment(None), timeout_s=PATIENCE_S)
    started = subprocess.run([*COMMAND, *arguments], capture_output=True, env=environment(None), timeout=PATIENCE_S)
    ends = [(done.returncode, done.stdout, done.stderr) for done in (forked, started)]
    assert ends[0] == ends[1]


def test_a_forked_run_that_takes_too_long_is_ended_and_the_next_is_not_told_of_it() -> None:
    with pytest.raises(TimeoutError):
        PRELOADED.run(["ledger", "tail", "1"], stdin=b"", env=environment("zk://127.0.0.1:1/x"), timeout_s=0.001)
    assert bkpy("--version").stdout.startswith(b"bkpy ")


OUTPUT_FULL = (1, b"bkpy: standard output: no space left on device\n")


@pytest.mark.parametrize("arguments", [["--help"], in_full(["demo", "--help"]), in_full(["--version"])])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_takes_nothing_is_named(arguments: list[str], unbuffered: str) -> None:
    done = shell(">/dev/full", *arguments, uri=None, PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == OUTPUT_FULL


@pytest.mark.parametrize("arguments", [["demo", "--help"], ["--version"]])
def test_an_output_that_takes_nothing_is_named_by_every_command(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full, PRELOADED.popen(arguments, env=environment(None), stdout=full) as running:
        assert running.stderr is not None
        assert (running.wait(PATIENCE_S), running.stderr.read()) == OUTPUT_FULL


@pytest.mark.parametrize("arguments", [[], ["ledger"]])
def test_a_group_without_a_command_shows_its_help_and_nothing_else(arguments: list[str]) -> None:
    done = PRELOADED.run(arguments, stdin=b"", env=environment(None), timeout_s=PATIENCE_S)
    assert done.returncode == 2
    assert done.stderr.startswith(b"Usage: bkpy")


SIGTERM_BETWEEN_LOOPS = """\
import os, signal, sys, time
from bkpy.cli.running import run
from bkpy.cli.running import interruptible

async def nothing():
    pass

with interruptible("the rest is not done"):
    run(nothing())
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)
"""


def test_sigterm_is_heeded_after_a_loop_has_ended() -> None:
    done = subprocess.run([sys.executable, "-c", SIGTERM_BETWEEN_LOOPS], capture_output=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (143, b"bkpy: terminated; the rest is not done\n")


@pytest.mark.parametrize(("text", "status"), [("KeyboardInterrupt: ", 130), ("no such field", 1)])
def test_ctrl_c_that_pydantic_makes_an_error_of_is_ctrl_c(
    text: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise SchemaError(f'Error building "model" validator:\n  {text}')

    monkeypatch.setattr(command_errors.bkpy, "main", fail)
    assert command_errors.status_of([]) == status
    assert (capsys.readouterr().err == "") is (status == 130)
