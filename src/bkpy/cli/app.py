"""The tree of commands. A command's module is imported only when the command runs, so that help comes at once."""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from bkpy.cli.connecting import given_settings, set_client_settings
from bkpy.cli.endings import INTERRUPTED, OUTPUT_CLOSED

if TYPE_CHECKING:
    from collections.abc import Mapping

# name -> (module:attribute, its line in `bkpy --help`)
_TOP: Mapping[str, tuple[str, str]] = {
    "local": ("bkpy.cli.local:local", "Run a whole cluster on this machine."),
    "demo": ("bkpy.cli.demo:demo", "Store a year of flights, query and stream them with Spark."),
    "ledger": ("bkpy.cli.ledger.group:ledger", "Write, read and inspect ledgers."),
    "log": ("bkpy.cli.log.group:log", "Write, read and maintain logs that never end."),
    "bookie": ("bkpy.cli.bookie.group:bookie", "Run a storage node, and maintain one."),
    "bookies": ("bkpy.cli.cluster.group:bookies", "List the cluster's bookies."),
    "inspect": ("bkpy.cli.inspect:inspect", "Look into a bookie's files, whether it runs or not."),
    "bench": ("bkpy.cli.bench:bench", "Measure appends and reads."),
    "autorecovery": ("bkpy.cli.cluster.autorecovery:autorecovery", "Watch and control the re-replication of ledgers."),
    "cluster": ("bkpy.cli.cluster.group:cluster", "Initialise, show, balance and protect a cluster."),
    "dashboard": ("bkpy.cli.dashboard:dashboard", "Show the cluster in a browser."),
    "import": ("bkpy.cli.importing:import_", "Copy closed ledgers of an Apache BookKeeper cluster into this one."),
    "export": ("bkpy.cli.export:export", "Write closed ledgers to files, with Spark."),
}


class RootGroup(click.Group):
    """A group that imports a command only when it runs, and that exits with the statuses that shells expect.

    For Ctrl-C and a closed output click has messages, or statuses, of its own.
    """

    def __init__(self, lazy: Mapping[str, tuple[str, str]], **attributes: object) -> None:
        super().__init__(**attributes)  # type: ignore[arg-type]
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self._lazy and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], self._lazy, n=1)
            ctx.fail(f"no command {args[0]!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._lazy.items()])

    def invoke(self, ctx: click.Context) -> object:
        try:
            result: object = super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            # Otherwise the interpreter complains once more when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(OUTPUT_CLOSED)
        return result


_debug = False


def debugging() -> bool:
    """Whether errors are shown with their tracebacks."""
    return _debug


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from bkpy._version import VERSION

        click.echo(f"bkpy {VERSION}")
        ctx.exit()


@click.group(
    cls=RootGroup,
    lazy=_TOP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Commands that use a cluster take its address as --connect URI or from the variable BKPY_CONNECT.",
)
@click.option("--debug", is_flag=True, help="Show tracebacks and the libraries' own messages.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
@click.option(
    "--set",
    "client_settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=given_settings,
    help="A setting of the command's client, an argument of bkpy.connect. May be repeated.",
)
def bkpy(debug: bool, client_settings: dict[str, Any]) -> None:
    """A replicated log store: append-only ledgers, durable on several machines."""
    global _debug
    _debug = debug
    if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on, there may be work to clean up
    set_client_settings(client_settings)
    # The command prints an error once, in one line. The event loop would log it again for every append that failed.
    logging.basicConfig(level=logging.DEBUG if debug else logging.CRITICAL)
