"""Runs a command whose standard input never ends, and ends it, and all it has started, when its own does.

    python -I -S jvm_guard.py GRACE_S COMMAND [ARGUMENT...]

The process at the other end of the pipe ends the command by closing it, or by dying in any way. That works at any
moment, also while the command is still a shell script that has yet to become the program, which a signal at the
parent's death would not reach everywhere. Not imported by anything: it needs the standard library and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading


def _end_with_input(command: subprocess.Popen[bytes], grace_s: float) -> None:
    while os.read(0, 4096):
        pass
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(command.pid, signal.SIGTERM)  # so that Spark can remove its temporary files
        command.wait(grace_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(command.pid, signal.SIGKILL)  # also what a shell has left behind


def main() -> int:
    """Run the command in a process group of its own; its exit status, 128 + N if signal N ended it."""
    command = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, process_group=0)
    ending = threading.Thread(target=_end_with_input, args=(command, float(sys.argv[1])), daemon=True)
    ending.start()
    status = command.wait()
    if status < 0:  # perhaps killed by the thread, which has more to do then
        ending.join(1.0)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
