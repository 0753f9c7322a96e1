"""The option of commands that run for long: how they log."""

from __future__ import annotations

from typing import get_args

import click

from bkpy.runtime.logs import LogFormat

log_format_option = click.option(
    "--log-format",
    type=click.Choice(get_args(LogFormat)),
    default="text",
    show_default=True,
    envvar="BKPY_LOG_FORMAT",
    help="Log as text, or one JSON object a line.  [env: BKPY_LOG_FORMAT]",
)
