"""How commands end: exit statuses, and SIGTERM as an exception. Loads fast: every command needs it."""

from __future__ import annotations

import signal
from typing import Final

import click

# Exit statuses of commands that a signal, or their reader, has ended, as shells know them.
INTERRUPTED: Final = 128 + signal.SIGINT
OUTPUT_CLOSED: Final = 128 + signal.SIGPIPE
TERMINATED: Final = 128 + signal.SIGTERM


class AssessingCommand(click.Command):
    """A command whose statuses 1 and 2 are findings: where it fails to look, also for a wrong command line, it is 3."""

    failure_status: Final = 3


class Terminated(BaseException):
    """SIGTERM ends the command, as `KeyboardInterrupt` does for Ctrl-C."""
