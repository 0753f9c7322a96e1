"""The `bkpy` command as its users meet it: its output, its exit status, and where it matters a process of its own.

What commands parse and print doesn't depend on the process: most runs are in the test's, on its standard streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from bkpy.cli import main
from bkpy.cli.connecting import set_client_settings
from tests.preloaded import Fork, Preloaded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PATIENCE_S = 100.0
COMMAND = [sys.executable, "-m", "bkpy"]
PRELOADED = Preloaded()
_HERE = frozenset({"autorecovery", "bookies", "cluster", "ledger", "log", "--set"})  # groups that start no process
_ENCODING = "PYTHONIOENCODING"
_PIPE_BYTES = 4096  # that every pipe takes before somebody reads
_IGNORED = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)  # by Python itself


def environment(uri: str | None) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BKPY_")}
    return clean if uri is None else {**clean, "BKPY_CONNECT": uri}


def bkpy(
    *arguments: object, uri: str | None = None, stdin: bytes = b"", status: int = 0, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    """Run the command to its end; its status must be the expected one, and errors are one line without a traceback.

    In this process, if nothing else runs here: no event loop, no other thread's work.
    """
    env = {**environment(uri), **variables}
    words = list(map(str, arguments))
    read_by_python = {name for name in variables if name.startswith("PYTHON")}  # when it starts
    if read_by_python <= {_ENCODING} and _runs_here(words, stdin):
        done = _run_here(words, stdin, env)
    elif read_by_python:
        done = subprocess.run([*COMMAND, *words], input=stdin, capture_output=True, timeout=PATIENCE_S, env=env)
    else:
        done = PRELOADED.run(words, stdin=stdin, env=env, timeout_s=PATIENCE_S)
    assert done.returncode == status, done.stderr.decode()
    if status:
        assert done.stderr.count(b"\n") == 1, done.stderr.decode()
        assert done.stderr.startswith(b"bkpy: ")
        assert b"Traceback" not in done.stderr
    return done


def _runs_here(words: Sequence[str], stdin: bytes) -> bool:
    """Whether the command needs no process of its own, and the loop and the signals that it needs are free here."""
    if words and (words[0] not in _HERE or words[1:2] == ["run"]):
        return False
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return threading.current_thread() is threading.main_thread() and len(stdin) <= _PIPE_BYTES
    return False


def _run_here(words: Sequence[str], stdin: bytes, env: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    """The same run in this process, which afterwards is as before."""
    source, sink = os.pipe()
    with open(sink, "wb") as pipe:
        pipe.write(stdin)
    with open(source, "rb") as given, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        streams = [given.fileno(), stdout.fileno(), stderr.fileno()]
        with pytest.raises(SystemExit) as ending, _as_a_process(streams, env):
            main(words)
        stdout.seek(0)
        stderr.seek(0)
        return subprocess.CompletedProcess(words, ending.value.code, stdout.read(), stderr.read())


@contextlib.contextmanager
def _as_a_process(descriptors: Sequence[int], env: Mapping[str, str]) -> Iterator[None]:
    """Meanwhile standard streams, environment, handlers of signals, logging and warnings are a new process's."""
    environ, root, numbers = dict(os.environ), logging.getLogger(), (signal.SIGINT, signal.SIGTERM)
    streams, logged, handlers = (sys.stdin, sys.stdout, sys.stderr), (root.handlers[:], root.level), {}
    for number in numbers:
        handlers[number] = signal.getsignal(number)
    for stream in streams[1:]:
        stream.flush()
    kept = [os.dup(number) for number in range(3)]
    try:
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, "rww"[number], encoding=env.get(_ENCODING), closefd=False) for number in range(3)
        )
        root.handlers[:] = []
        root.setLevel(logging.WARNING)
        os.environ.clear()
        os.environ.update(env)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with warnings.catch_warnings():
            warnings.resetwarnings()
            for category in _IGNORED:
                warnings.simplefilter("ignore", category)
            yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.environ.clear()
        set_client_settings({})
        os.environ.update(environ)
        root.handlers[:], level = logged
        root.setLevel(level)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        sys.stdin, sys.stdout, sys.stderr = streams
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
            os.close(descriptor)


def as_json(*arguments: object, uri: str) -> Any:
    return json.loads(bkpy(*arguments, "--json", uri=uri).stdout)


def write(uri: str, lines: bytes, *options: str) -> int:
    """The id of a ledger with these lines."""
    return int(bkpy("ledger", "write", *options, uri=uri, stdin=lines).stdout)


def on_terminal(columns: int, *arguments: object, uri: str | None, term: str = "xterm") -> list[str]:
    """The lines that the command shows on a terminal with so many columns, without the blank ones."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    clean = {name: value for name, value in environment(uri).items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    with start(*arguments, uri=uri, stdin=slave, stdout=slave, stderr=slave, env={**clean, "TERM": term}) as running:
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # what Linux says when the other side is closed
            while chunk := os.read(master, 65536):
                shown += chunk
        os.close(master)
        assert running.wait(PATIENCE_S) == 0, shown.decode()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode(errors="replace"))
    return [line.rstrip() for line in re.split(r"[\r\n]+", text) if line.strip()]


def start(*arguments: object, uri: str | None, **pipes: Any) -> Fork:
    """The command, running."""
    return PRELOADED.popen(list(map(str, arguments)), **{"env": environment(uri), **pipes})


def start_real(*arguments: object, uri: str | None, **pipes: Any) -> subprocess.Popen[bytes]:
    """The command, running as its users start it: where its loading, or its parent, is what matters."""
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment(uri), **pipes},
        # As a terminal starts it: whoever runs the tests in the background may have them ignore the signal.
        preexec_fn=_heed_interrupts,
    )


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
