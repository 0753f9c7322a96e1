"""`bkpy bookie`: modules of commands are imported as commands run, since supervisors ask for health all the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bkpy.cli.app import RootGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("bkpy.cli.bookie.run:run_", "Run a bookie until SIGTERM or Ctrl-C."),
    "init": ("bkpy.cli.bookie.identity:init", "Make a new bookie's directories and register its id."),
    "format": ("bkpy.cli.bookie.identity:format_", "Delete a stopped bookie's files and free its id."),
    "health": ("bkpy.cli.bookie.health:health", "Report whether a bookie on this machine lives, or is ready."),
    "check": ("bkpy.cli.bookie.check:check", "Check every checksum and reference in a bookie's directories."),
    "rebuild-index": ("bkpy.cli.bookie.rebuild:rebuild_index", "Rebuild a stopped bookie's index."),
    "config": ("bkpy.cli.bookie.config:config", "Show each setting, and where its value comes from."),
    "reload": ("bkpy.cli.bookie.reload:reload", "Have a running bookie read its settings again."),
    "recover": ("bkpy.cli.bookie.recover:recover", "Copy to other bookies what a lost one held."),
    "drain": ("bkpy.cli.bookie.drain:drain", "Drain a bookie: copy what it holds to others."),
    "decommission": ("bkpy.cli.bookie.drain:decommission", "Remove a drained bookie from its cluster for good."),
    "gc": ("bkpy.cli.bookie.gc:gc", "Show a bookie's garbage collection, or collect now."),
    "scrub": ("bkpy.cli.bookie.scrub:scrub", "Show what a bookie's scrub has found damaged, or scrub now."),
    "integrity": ("bkpy.cli.bookie.integrity:integrity", "Show what a bookie lost and copies back, or check now."),
    "cookie": (
        "bkpy.cli.bookie.identity:cookie",
        "Show and update the cookies, which say which directories are a bookie's.",
    ),
}


@click.group(cls=RootGroup, lazy=_COMMANDS)
def bookie() -> None:
    """Run a storage node, and maintain one."""
