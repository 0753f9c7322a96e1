"""Commands with a bookie's settings: each setting is also a flag, made from the settings themselves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, get_args

import click

from bkpy.cli.output.text import say
from bkpy.config.bookie import BookieSettings
from bkpy.config.checking import accepted_names
from bkpy.config.loading import load_bookie_settings
from bkpy.config.renamed import RENAMED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Flags = str | tuple[str, ...] | None


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
