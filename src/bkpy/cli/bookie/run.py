"""`bkpy bookie run`: a bookie, until SIGTERM or Ctrl-C."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bkpy.cli.bookie.settings_command import SettingsCommand, settings_from

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry

    from bkpy.config.bookie import BookieSettings
    from bkpy.metadata.store.store import MetadataStore
    from bkpy.replication.auto_recovery import AutoRecovery
    from bkpy.replication.integrity import IntegrityCheck, RepairableStorage
    from bkpy.runtime.interfaces import Runtime


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
