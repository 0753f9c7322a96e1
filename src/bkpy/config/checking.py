"""Checks names and values of settings; an error names the setting and the place that it came from.

Users may still give former names, and settings that have become internal tuning. Both are accepted until the next minor
version, with a notice. Inside the package there are only the names of today.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from bkpy.config.base import Settings, check_names
from bkpy.config.renamed import RENAMED
from bkpy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

S = TypeVar("S", bound=Settings)
V = TypeVar("V")


@functools.cache
def accepted_names(model: type[Settings]) -> frozenset[str]:
    """Every name that users may give: the names of today, and the former ones."""
    return frozenset((*model.model_fields, *(old for old, new in RENAMED.items() if new in model.model_fields)))


def current_names(
    model: type[Settings],
    given: Mapping[str, V],
    origin: str,
    notify: Callable[[str], object],
    written: Callable[[str], str] = str,
) -> dict[str, V]:
    """What users gave in one place, by the names of today.

    `notify` gets one line for each name that the next minor version refuses. `ConfigError` for an unknown name, and
    for a setting that is given by both its names.
    """
    accepted, groups = accepted_names(model), model.groups()
    found: dict[str, V] = {}
    for name, value in given.items():
        if name not in accepted:
            check_names(model.model_fields, name, origin, written)
        new = RENAMED.get(name, name)
        if new in found:
            old = name if name != new else next(old for old in given if RENAMED.get(old) == new)
            raise ConfigError(f"{origin}: {written(old)} is the former name of {written(new)}: give only the latter")
        found[new] = value
        changes = []
        if new != name:
            changes.append(f"is called {written(new)} now")
        if groups[new] is None:
            changes.append("has become internal")
        if changes:
            notify(f"{origin}: setting {written(name)} {' and '.join(changes)}; the next minor version refuses it")
    return found


def build(model: type[S], values: Mapping[str, object], origins: Mapping[str, str]) -> S:
    try:
        return model.model_validate(dict(values))
    except ValidationError as e:
        error = e.errors()[0]
        message = error["msg"].removeprefix("Value error, ")
        message = message[:1].lower() + message[1:]
        if not error["loc"]:  # a check across settings: the message names them
            raise ConfigError(message) from e
        name = str(error["loc"][0])
        if error["type"] == "missing":
            raise ConfigError(f"setting {name} is missing: {model.model_fields[name].description}") from e
        origin = f"{origins[name]}: " if name in origins else ""
        given = "..." if name in model.secrets() else repr(values.get(name))
        raise ConfigError(f"{origin}{name} = {given}: {message}") from e
