"""The `bkpy` command as its users meet it: another process, its output, its exit status."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from typing import Any

from tests.preloaded import Fork, Preloaded

PATIENCE_S = 100.0
COMMAND = [sys.executable, "-m", "bkpy"]
PRELOADED = Preloaded()


def environment(uri: str | None) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BKPY_")}
    return clean if uri is None else {**clean, "BKPY_CONNECT": uri}


def bkpy(
    *arguments: object, uri: str | None = None, stdin: bytes = b"", status: int = 0, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    """Run the command to its end; its status must be the expected one, and errors are one line without a traceback."""
    env = {**environment(uri), **variables}
    words = list(map(str, arguments))
    if any(name.startswith("PYTHON") for name in variables):  # Python reads them when it starts
        done = subprocess.run([*COMMAND, *words], input=stdin, capture_output=True, timeout=PATIENCE_S, env=env)
    else:
        done = PRELOADED.run(words, stdin=stdin, env=env, timeout_s=PATIENCE_S)
    assert done.returncode == status, done.stderr.decode()
    if status:
        assert done.stderr.count(b"\n") == 1, done.stderr.decode()
        assert done.stderr.startswith(b"bkpy: ")
        assert b"Traceback" not in done.stderr
    return done


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
