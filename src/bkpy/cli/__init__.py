"""The `bkpy` command.

What every command keeps: results on standard output and nothing else there; one line on standard error for an error;
exit status 0 only on success, 1 for a failure, 2 for a wrong command line, 130 after Ctrl-C, 141 when the reader of its
output has gone.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its status."""
    from bkpy.cli.app import INTERRUPTED

    try:
        status = _run(arguments)
    except KeyboardInterrupt:
        status = INTERRUPTED
    sys.exit(status)


def _run(arguments: Sequence[str] | None) -> int:
    import click

    from bkpy.cli.app import INTERRUPTED, bkpy, debugging
    from bkpy.errors import BookKeeperError

    warnings.showwarning = _warn
    try:
        result = bkpy.main(arguments, prog_name="bkpy", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.Abort:
        return INTERRUPTED
    except click.UsageError as e:
        path = e.ctx.command_path if e.ctx is not None else "bkpy"
        return _complain(f"{e.format_message().rstrip('.')} (see {path} --help)", 2)
    except click.ClickException as e:
        return _complain(e.format_message(), 1)
    except (BookKeeperError, OSError) as e:
        if debugging():
            raise
        return _complain(str(e), 1)
    except Exception as e:
        if debugging():
            raise
        while isinstance(e, ExceptionGroup):  # one cause is enough for a line
            e = e.exceptions[0]
        if isinstance(e, BookKeeperError | OSError):
            return _complain(str(e), 1)
        return _complain(f"unexpected {type(e).__name__}: {e} (bkpy --debug ... shows where)", 1)


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """What a library warns of is for the user of the command; the line of code that caused it is not."""
    print(f"bkpy: warning: {message}", file=sys.stderr)


def _complain(message: str, status: int) -> int:
    print(f"bkpy: {message}", file=sys.stderr)
    return status
