"""Reads a bookie's settings from a TOML file, from environment variables `BKPY_<NAME>` and from flags `--<name>`.

The later ones override the earlier. An unknown name is refused with the nearest valid one, a bad value with the place
it came from.
"""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from bkpy.config.bookie import BookieSettings
from bkpy.config.checking import build, check_name, check_names
from bkpy.config.client import ClientSettings
from bkpy.config.toml_file import read_toml
from bkpy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bkpy.config.base import Settings

ENVIRONMENT_PREFIX = "BKPY_"

# Variables with our prefix that are no settings: the command line's own, and those that Kubernetes puts into every
# container for a service called "bkpy", or "bkpy-" and something.
_OTHER_VARIABLES = re.compile(
    r"BKPY_(CONNECT|PORT|PORT_.*|SERVICE_.*|\w+_SERVICE_HOST|\w+_SERVICE_PORT(_.*)?|\w+_PORT_[0-9]+_(TCP|UDP|SCTP)(_.*)?)"
)
_OTHER_VALUES = re.compile(r"(tcp|udp|sctp)://\S+")  # of such a service's variable that ends in _PORT


def load_bookie_settings(
    path: str | None, environ: Mapping[str, str], flags: Mapping[str, str | Sequence[str]]
) -> BookieSettings:
    """A bookie's settings from the TOML file `path` (or none), `environ` and `flags`, in rising priority.

    `ConfigError` naming the setting and where its value came from. An empty variable counts as not set, and one of a
    client's settings is no bookie's: commands of both are run in one shell.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if path is not None:
        for name, value in _read_toml(path).items():
            check_name(BookieSettings, name, f"file {path}")
            values[name], origins[name] = value, f"file {path}"
    for variable, text in sorted(environ.items()):
        if variable.startswith(ENVIRONMENT_PREFIX) and text:
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            if name in BookieSettings.model_fields:
                values[name], origins[name] = parse_text(BookieSettings, name, text, "environment"), "environment"
            else:
                check_variable(variable, text)
    for name, given in flags.items():
        check_name(BookieSettings, name, "flag")
        if name in BookieSettings.secrets():
            raise ConfigError(
                f"flag: {name} could be seen by everybody on this machine: use {_variable(name)} or a file"
            )
        values[name], origins[name] = parse_text(BookieSettings, name, given, "flag"), "flag"
    for name in ("journal_directories", "ledger_directories"):
        if isinstance(values.get(name), list):
            values[name] = [_absolute(directory) for directory in values[name]]
    return build(BookieSettings, values, origins)


def _absolute(directory: object) -> object:
    """A bookie's cookie keeps where its directories are, which must not depend on where it was started."""
    return str(Path(directory).absolute()) if isinstance(directory, str) and directory else directory


def check_variable(variable: str, text: str) -> None:
    """`ConfigError` for a variable with our prefix that is neither a bookie's nor a client's setting."""
    name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
    if not _OTHER_VARIABLES.fullmatch(variable) and not _OTHER_VALUES.fullmatch(text):
        check_names([*BookieSettings.model_fields, *ClientSettings.model_fields], name, "environment", _variable)


def check_bookie_names(names: Iterable[str], origin: str) -> None:
    """`ConfigError` if one of the names, which came from `origin`, is not a bookie's setting."""
    for name in names:
        check_name(BookieSettings, name, origin)


def parse_text(model: type[Settings], name: str, given: str | Sequence[str], origin: str) -> object:
    """The value that a variable's or flag's text stands for, by the type of the setting."""
    kind = _kind(model.model_fields[name].annotation)
    if kind is list:
        texts = [given] if isinstance(given, str) else given
        return [part.strip() for text in texts for part in text.split(",") if part.strip()]
    text = given if isinstance(given, str) else given[-1]
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise ConfigError(f"{origin}: {name} must be {what}, not {text!r}") from None
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{origin}: {name} must be true or false, not {text!r}")
        return text.lower() == "true"
    return text


def _kind(annotation: Any) -> type:
    """The plain type behind an annotation: int, float, bool, list or str."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kind(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return _kind(next(a for a in get_args(annotation) if a is not type(None)))
    if origin is Literal:
        return str
    return list if origin is list else annotation


def _read_toml(path: str) -> dict[str, Any]:
    try:
        return read_toml(path)
    except OSError as e:
        raise ConfigError(f"file {path}: {e.strerror}") from e
    except ValueError as e:  # also of bytes that are no text, numbers too long, and deep nesting
        raise ConfigError(f"file {path}: not TOML: {e}") from e


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()
