"""Reads a bookie's settings from a TOML file, from environment variables `BKPY_<NAME>` and from flags `--<name>`.

The later ones override the earlier. An unknown name is refused with the nearest valid one, a bad value with the place
it came from.
"""

from __future__ import annotations

import re
import types
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from bkpy.config.base import check_names
from bkpy.config.bookie import BookieSettings
from bkpy.config.checking import accepted_names, build, current_names
from bkpy.config.client import ClientSettings
from bkpy.config.renamed import RENAMED
from bkpy.config.toml_file import read_toml
from bkpy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from bkpy.config.base import Settings

ENVIRONMENT_PREFIX = "BKPY_"

# Variables with our prefix that are no settings: the command line's own, and the ones that Kubernetes sets in every
# container for a service called "bkpy", or "bkpy-" and something.
_OTHER_VARIABLES = re.compile(
    r"BKPY_(CONNECT|PORT|PORT_.*|SERVICE_.*|\w+_SERVICE_HOST|\w+_SERVICE_PORT(_.*)?|\w+_PORT_[0-9]+_(TCP|UDP|SCTP)(_.*)?)"
)
_OTHER_VALUES = re.compile(r"(tcp|udp|sctp)://\S+")  # of such a service's variable that ends in _PORT


def load_bookie_settings(
    path: str | None,
    environ: Mapping[str, str],
    flags: Mapping[str, str | Sequence[str]],
    notify: Callable[[str], object] = lambda notice: None,
) -> BookieSettings:
    """A bookie's settings from the TOML file `path` (or none), `environ` and `flags`, in rising priority.

    `ConfigError` naming the setting and where its value came from. An empty variable counts as not set. Commands of
    clients and bookies share a shell, so a variable of a client's setting is no error. `notify` gets a line for each
    name that the next minor version refuses; callers that aren't users may leave it out.
    """
    return explained_bookie_settings(path, environ, flags, notify)[0]


def explained_bookie_settings(
    path: str | None,
    environ: Mapping[str, str],
    flags: Mapping[str, str | Sequence[str]],
    notify: Callable[[str], object] = lambda notice: None,
) -> tuple[BookieSettings, dict[str, str]]:
    """`load_bookie_settings`, and by setting where its value comes from, if it is no default."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}

    def take(found: Mapping[str, Any], origin: str) -> None:
        values.update(found)
        origins.update(dict.fromkeys(found, origin))

    if path is not None:
        take(current_names(BookieSettings, _read_toml(path), f"file {path}", notify), f"file {path}")
    take(_parsed(variables_of(BookieSettings, environ, notify), "environment"), "environment")
    named = current_names(BookieSettings, flags, "flag", notify)
    for name in named.keys() & BookieSettings.secrets():
        raise ConfigError(f"flag: {name} could be seen by everybody on this machine: use {variable_of(name)} or a file")
    take(_parsed(named, "flag"), "flag")
    for name in ("journal_directories", "ledger_directories"):
        if isinstance(values.get(name), list):
            values[name] = [_absolute(directory) for directory in values[name]]
    return build(BookieSettings, values, origins), origins


def line_of(path: str, name: str) -> int | None:
    """The line of a TOML file that gives this setting, by its name of today or a former one."""
    names = {name, *(old for old, new in RENAMED.items() if new == name)}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.partition("=")[0].strip().strip("\"'") in names:
                return number
    return None


def _parsed(texts: Mapping[str, str | Sequence[str]], origin: str) -> dict[str, object]:
    return {name: parse_text(BookieSettings, name, text, origin) for name, text in texts.items()}


def _absolute(directory: object) -> object:
    """A bookie's cookie stores the paths of its directories, which must not depend on where it was started."""
    return str(Path(directory).absolute()) if isinstance(directory, str) and directory else directory


def variables_of(model: type[Settings], environ: Mapping[str, str], notify: Callable[[str], object]) -> dict[str, str]:
    """The texts that variables `BKPY_<NAME>` give for settings of the model, by the names of today.

    `ConfigError` for a variable with our prefix that names neither a bookie's nor a client's setting.
    """
    accepted = accepted_names(model)
    found = {}
    for variable, text in sorted(environ.items()):
        if variable.startswith(ENVIRONMENT_PREFIX) and text:
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            if name in accepted:
                found[name] = text
            elif not _OTHER_VARIABLES.fullmatch(variable) and not _OTHER_VALUES.fullmatch(text):
                valid = accepted_names(BookieSettings) | accepted_names(ClientSettings)
                check_names(sorted(valid), name, "environment", variable_of)
    return current_names(model, found, "environment", notify, variable_of)


def check_bookie_names(names: Iterable[str], origin: str) -> None:
    """`ConfigError` if one of the names, which came from `origin`, is not a bookie's setting."""
    for name in names:
        check_names(sorted(accepted_names(BookieSettings)), name, origin)


def parse_text(model: type[Settings], name: str, given: str | Sequence[str], origin: str) -> object:
    """The value of a variable's or flag's text, by the type of the setting."""
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
    except ValueError as e:  # also for bytes that are no text, numbers too long, and deep nesting
        raise ConfigError(f"file {path}: not TOML: {e}") from e


def variable_of(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()
