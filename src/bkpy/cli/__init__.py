"""The `bkpy` command.

What every command keeps: results on standard output and nothing else there; one line on standard error for an error;
exit status 0 only on success, 1 for a failure, 2 for a wrong command line, 130 after Ctrl-C, 141 when the reader of its
output has closed it, 143 after SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its status."""
    if (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):  # else the parent ignores it, as for a job in the background
        signal.signal(signal.SIGINT, _leave)
    if os.getpid() == 1:  # in a container: the kernel ends process 1 only by signals that it handles
        signal.signal(signal.SIGTERM, _leave)
    _open_closed_streams()
    try:
        from bkpy.cli.output.errors import status_of

        status = status_of(arguments)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    sys.exit(status)


def _leave(number: int, frame: FrameType | None) -> None:
    """Ctrl-C, or SIGTERM, while the program is being loaded: no work has begun, so none has to be cleaned up."""
    os._exit(128 + number)


def _open_closed_streams() -> None:
    """Replace closed standard streams (`2>&-`): input and error by the null device, output by one that fails writes.

    Otherwise the next file or socket would get the descriptor, and what the command prints.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            mode = os.O_RDONLY if name == "stdout" else os.O_RDWR
            os.set_inheritable(os.open(os.devnull, mode), True)  # the lowest free descriptor, which is this one
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w", closefd=False))
