"""Checks names and values of settings, and says which is wrong and where it came from."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from bkpy.config.base import Settings
from bkpy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

S = TypeVar("S", bound=Settings)


def check_name(model: type[Settings], name: str, origin: str, written: Callable[[str], str] = str) -> None:
    check_names(model.model_fields, name, origin, written)


def check_names(valid: Collection[str], name: str, origin: str, written: Callable[[str], str] = str) -> None:
    if name not in valid:
        near = difflib.get_close_matches(name.lower().replace("-", "_"), valid, n=1)
        nearest = f"; the nearest valid one is {written(near[0])}" if near else ""
        raise ConfigError(f"{origin}: unknown setting {written(name)}{nearest}")


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
