"""The `bkpy` command as its users meet it: another process, its output, its exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

PATIENCE_S = 100.0
COMMAND = [sys.executable, "-m", "bkpy"]


def environment(uri: str | None) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BKPY_")}
    return clean if uri is None else {**clean, "BKPY_CONNECT": uri}


def bkpy(
    *arguments: object, uri: str | None = None, stdin: bytes = b"", status: int = 0, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    """Run the command to its end; its status must be the expected one, and errors are one line without a traceback."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        timeout=PATIENCE_S,
        env={**environment(uri), **variables},
    )
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


def start(*arguments: object, uri: str | None, **pipes: Any) -> subprocess.Popen[bytes]:
    """The command, running."""
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes},
        env=environment(uri),
        # As a terminal starts it: whoever runs the tests in the background may have them ignore the signal.
        preexec_fn=_heed_interrupts,
    )


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
