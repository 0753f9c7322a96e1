"""`bkpy bookie`, and of it `run`: every setting of a bookie is also a flag, made from the settings themselves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, get_args

import click

from bkpy.cli.app import RootGroup
from bkpy.cli.output.text import say
from bkpy.config.bookie import BookieSettings
from bkpy.config.checking import accepted_names
from bkpy.config.loading import load_bookie_settings
from bkpy.config.renamed import RENAMED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from prometheus_client import CollectorRegistry

    from bkpy.metadata.store.store import MetadataStore
    from bkpy.replication.auto_recovery import AutoRecovery
    from bkpy.replication.integrity import IntegrityCheck, RepairableStorage
    from bkpy.runtime.interfaces import Runtime

Flags = str | tuple[str, ...] | None

_COMMANDS: Mapping[str, tuple[str, str]] = {
    "run": ("bkpy.cli.bookie.group:run_", "Run a bookie until SIGTERM or Ctrl-C."),
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


def _setting_flags() -> list[click.Parameter]:
    """A flag for each setting, basic ones first. Internal and former names are accepted, and not shown."""
    flags: list[click.Parameter] = []
    public = BookieSettings.public()
    for given in [*public, *sorted(accepted_names(BookieSettings).difference(public))]:
        name = RENAMED.get(given, given)
        if name in BookieSettings.secrets():
            continue
        field = BookieSettings.model_fields[name]
        is_list = "list" in str(field.annotation)
        default = "" if field.is_required() or field.default in (None, "") else f"  [default: {field.default}]"
        choices = [a for a in get_args(field.annotation) if isinstance(a, str)]
        flags.append(
            click.Option(
                [f"--{given}"],
                metavar="|".join(choices) or ("PATH[,PATH...]" if is_list else "VALUE"),
                multiple=is_list,
                help=f"{field.description}{default}",
                hidden=given not in public,
            )
        )
    return flags


class SettingsCommand(click.Command):
    """A command with `--config` and a flag for every setting. `--bookie-id` is the same as `--bookie_id`."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        config = "A TOML file with settings of the same names as the flags."
        self.params += [click.Option(["--config", "path"], metavar="FILE", help=config), *_setting_flags()]
        self.context_settings = {"token_normalize_func": lambda token: token.replace("-", "_")}


def settings_from(
    path: str | None, flags: Mapping[str, str | tuple[str, ...] | None], notify: Callable[[str], object] = say
) -> BookieSettings:
    """The settings from the file, from variables BKPY_<NAME> and from flags; later sources win."""
    return load_bookie_settings(path, os.environ, {name: value for name, value in flags.items() if value}, notify)


@click.command("run", cls=SettingsCommand)
@click.option(
    "--rebuild",
    is_flag=True,
    help="The disks were replaced: start with empty directories, and copy what the bookie held from other bookies.",
)
def run_(path: str | None, rebuild: bool, **flags: str | tuple[str, ...] | None) -> int:
    """Run a bookie until SIGTERM or Ctrl-C.

    With --rebuild, a bookie that the cluster knows and whose directories are all empty copies back what it held. Until
    then it is read-only, and denies no entry. Where the directories are intact, --rebuild changes nothing.

    Settings come from the file, then from variables BKPY_<NAME>, then from flags; later sources win.
    """
    notices: list[str] = []
    settings = settings_from(path, flags, notices.append)
    from bkpy.bookie.process import run_bookie

    native = settings.protocol == "bkpy"  # else BookKeeper's own auditor and workers repair
    return run_bookie(
        settings,
        _auto_recovery if native and settings.auto_recovery else None,
        _integrity_check if native else None,
        rebuild=rebuild,
        notices=notices,
        read_again=lambda: settings_from(path, flags, lambda notice: None),
    )


def _integrity_check(
    settings: BookieSettings,
    store: MetadataStore,
    root: str,
    runtime: Runtime,
    losses: RepairableStorage,
    registry: CollectorRegistry,
) -> IntegrityCheck:
    from bkpy.replication.integrity import IntegrityCheck  # imported when the bookie's storage is open already

    return IntegrityCheck(settings, store, root, runtime, settings.bookie_id, losses, registry)


def _auto_recovery(
    settings: BookieSettings,
    store: MetadataStore,
    root: str,
    runtime: Runtime,
    registry: CollectorRegistry,
    appended: Callable[[], int],
) -> AutoRecovery:
    from bkpy.replication.auto_recovery import AutoRecovery  # imported when the bookie serves already

    return AutoRecovery(settings, store, root, runtime, settings.bookie_id, registry, appended)
