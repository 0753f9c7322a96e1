"""`bkpy bookie config`: each setting of a bookie, its value, and where that comes from."""

from __future__ import annotations

import os
from typing import Any

import click

from bkpy.cli.bookie.settings_command import Flags, SettingsCommand
from bkpy.cli.output.json import json_option, print_json
from bkpy.cli.output.tables import print_table
from bkpy.cli.output.text import say
from bkpy.config.bookie import BookieSettings
from bkpy.config.loading import explained_bookie_settings, line_of, variable_of
from bkpy.config.reloading import reloadable, shown


@click.command(cls=SettingsCommand)
@click.option("--all", "internal", is_flag=True, help="Internal tuning, too.")
@json_option
def config(path: str | None, internal: bool, as_json: bool, **flags: Flags) -> None:
    """Show each setting of a bookie with its value, and where that comes from.

    Give the file, the variables and the flags that `bkpy bookie run` gets. Nothing asks a bookie: one that runs may
    have been started with others. Secrets are not shown.
    """
    given = {name: value for name, value in flags.items() if value}
    settings, origins = explained_bookie_settings(path, os.environ, given, say)
    names = BookieSettings.public()
    if internal:
        names += sorted(BookieSettings.model_fields.keys() - set(names))
    may = reloadable(BookieSettings)
    rows: list[dict[str, Any]] = [
        {
            "setting": name,
            "value": shown(BookieSettings, name, getattr(settings, name)),
            "from": _origin(name, origins.get(name), path),
            "reloadable": name in may,
        }
        for name in names
    ]
    if as_json:
        print_json(rows)
        return
    print_table(("setting", "value", "from"), [(row["setting"], row["value"], row["from"]) for row in rows])


def _origin(name: str, origin: str | None, path: str | None) -> str:
    if origin is None:
        return "default"
    if origin == "environment":
        return f"environment {variable_of(name)}"
    if origin == "flag":
        return f"option --{name}"
    line = None if path is None else line_of(path, name)
    return origin if line is None else f"{origin}, line {line}"
