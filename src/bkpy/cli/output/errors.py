"""Runs the command line, prints the error that ends it in one line, and returns the exit status."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from typing import TYPE_CHECKING

import click

from bkpy.cli.app import bkpy, debugging
from bkpy.cli.endings import INTERRUPTED, TERMINATED, AssessingCommand, Terminated
from bkpy.cli.output.text import printable_lines
from bkpy.errors import BookKeeperError
from bkpy.runtime.logs import logs_json

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger("bkpy.cli")


def status_of(arguments: Sequence[str] | None) -> int:
    """Run the command line; its exit status. Prints an error in one line, with the notes that were added to it."""
    words = sys.argv[1:] if arguments is None else arguments
    warnings.showwarning = _warn
    _print_everything()
    try:
        result = bkpy.main(arguments, prog_name="bkpy", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.Abort:
        return INTERRUPTED
    except Terminated:
        return TERMINATED
    except click.exceptions.NoArgsIsHelpError as e:
        e.show()
        return e.exit_code
    except click.UsageError as e:
        path = (e.ctx or _named(words)).command_path
        return _complain(f"{e.format_message().rstrip('.')} (see {path} --help)", _failure_status(words, 2))
    except click.ClickException as e:
        return _complain(e.format_message(), _failure_status(words, 1))
    except Exception as e:
        if debugging():
            raise
        if _was_interrupted(e):
            return INTERRUPTED
        if isinstance(e, OSError) and _output_fails():
            return _complain(f"standard output: {(e.strerror or str(e)).lower()}", _failure_status(words, 1))
        return _complain(_describe_error(e), _failure_status(words, 1))


def _failure_status(arguments: Sequence[str], usual: int) -> int:
    command = _named(arguments).command
    return command.failure_status if isinstance(command, AssessingCommand) else usual


def _named(arguments: Sequence[str]) -> click.Context:
    """The command that the arguments name: click doesn't say which command's option has no value."""
    ctx = click.Context(bkpy, info_name="bkpy")
    for word in arguments:
        command = ctx.command.get_command(ctx, word) if isinstance(ctx.command, click.Group) else None
        if command is not None:
            ctx = click.Context(command, parent=ctx, info_name=word)
    return ctx


def _print_everything() -> None:
    """Escape characters that the terminal's encoding does not have: text of a ledger must not end the command.

    Standard output gets a buffer if it has none (PYTHONUNBUFFERED). What a write fails to print stays in it, by which
    `_output_fails` recognises such an error. Each line is flushed at its end.
    """
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
        sys.stdout = open(sys.stdout.fileno(), "w", buffering=1, encoding=sys.stdout.encoding, closefd=False)  # noqa: SIM115 - for good
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused the error: pydantic makes an error of its own of one that comes while it builds a class."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        if type(error).__name__ == "SchemaError" and "KeyboardInterrupt" in str(error):
            return True
        error = error.__cause__
    return False


def _output_fails() -> bool:
    """Whether standard output fails to take what was printed. If so, nothing more goes there, even at the exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _describe_error(error: Exception) -> str:
    notes = getattr(error, "__notes__", [])
    while isinstance(error, ExceptionGroup):  # one cause is enough for a line
        error = error.exceptions[0]
    if isinstance(error, BookKeeperError):
        what = str(error)
    elif isinstance(error, OSError) and error.strerror and error.filename is not None:
        what = f"{_path(error.filename)}: {error.strerror}"
    elif isinstance(error, OSError):
        what = str(error)
    else:
        what = f"unexpected {type(error).__name__}: {error} (bkpy --debug ... shows where)"
    return "; ".join([what, *notes])


def _path(name: object) -> str:
    return (name.decode(errors="backslashreplace") if isinstance(name, bytes) else str(name)) or "''"


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    """Print a library's warning without the line of code that caused it, which means nothing to users."""
    print(printable_lines(f"bkpy: warning: {message}"), file=sys.stderr)


def _complain(message: str, status: int) -> int:
    if logs_json():
        log.critical("%s", message)
    else:
        print(printable_lines(f"bkpy: {message}"), file=sys.stderr)
    return status
