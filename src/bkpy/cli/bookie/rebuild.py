"""`bkpy bookie rebuild-index`: a new index for a stopped bookie whose own is damaged or gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bkpy.cli.bookie.settings_command import SettingsCommand, settings_from
from bkpy.cli.connecting import metadata
from bkpy.cli.input import confirm
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.progress import byte_progress
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import say
from bkpy.cli.running import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bkpy.config.bookie import BookieSettings
    from bkpy.storage.tools.rebuild.rebuild import Rebuilt


class _Damages:
    """Prints each damage that the rebuild finds, in a line."""

    def journal_group(self, frames: int, bytes_: int, sync_seconds: float) -> None: ...

    def checkpoint(self, bytes_: int, seconds: float) -> None: ...

    def replayed(self, frames: int, bytes_: int) -> None: ...

    def compacted(self, bytes_: int) -> None: ...

    def reclaim_failed(self) -> None: ...

    def log_removed(self, bytes_: int) -> None: ...

    def scrubbed(self, bytes_: int) -> None: ...

    def cut(self, what: str, path: str) -> None:
        say(f"{path}: {what}")

    def damage(self, what: str, path: str) -> None:
        say(f"damage in {path}: {what}")


@click.command("rebuild-index", cls=SettingsCommand)
@click.option(
    "--directory",
    "directories",
    multiple=True,
    metavar="PATH",
    help="A ledger directory whose index to rebuild. May be repeated.  [default: all]",
)
@click.option("--offline", is_flag=True, help="Don't read the cluster's metadata: all ledgers are in limbo afterwards.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@json_option
def rebuild_index(
    path: str | None,
    directories: tuple[str, ...],
    offline: bool,
    yes: bool,
    as_json: bool,
    **flags: str | tuple[str, ...] | None,
) -> None:
    """Rebuild a stopped bookie's index from its entry logs, its journals and the metadata.

    For an index that is damaged or gone. Afterwards every ledger that was found is fenced, and so is every older ledger
    that was not. A ledger that isn't closed, or isn't all here, is in limbo: the bookie returns the entries that it
    has, and answers 'unknown' for the others, but denies none. The old index stays beside the new one, as index.old.
    After an interruption, run the command again.
    """
    settings = settings_from(path, flags)
    if not yes:
        say("Every ledger of this bookie will be fenced: their writers go on without this bookie.")
        confirm("Rebuild the index?", "nothing was changed")
    done = run(_rebuild(settings, directories, offline))
    if as_json:
        print_json(done._asdict())
    else:
        _show(done)


async def _rebuild(settings: BookieSettings, directories: Sequence[str], offline: bool) -> Rebuilt:
    from bkpy.bookie.rebuild import log_bytes, rebuild_offline, rebuild_with_metadata
    from bkpy.runtime.system import real_runtime

    runtime = real_runtime()
    with byte_progress("entry logs", log_bytes(settings, runtime.files, directories)) as progress:
        if offline:
            return await rebuild_offline(
                settings, runtime, observer=_Damages(), directories=directories, progress=progress
            )
        async with metadata(settings.metadata_uri, settings) as (store, root):
            return await rebuild_with_metadata(
                settings, store, root, runtime, observer=_Damages(), directories=directories, progress=progress
            )


def _show(done: Rebuilt) -> None:
    rows = [
        ("ledgers found", str(done.ledgers)),
        ("of them in limbo", str(done.limbo)),
        ("of them without a key", str(done.keyless)),
        ("of them not in the metadata", str(done.unknown)),
        ("not found, but named by the metadata", f"{done.missing}, in limbo"),
        ("blocks", str(done.blocks)),
        ("entry logs", str(done.logs)),
        ("damages", str(len(done.damages))),
        ("ledgers not found", "fenced" if done.trusted else "in limbo: the bookie will be read-only"),
        *(("old index", path) for path in done.kept),
    ]
    print_table(("", ""), rows)
