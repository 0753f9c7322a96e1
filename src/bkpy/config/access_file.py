"""The file of rights: which names in certificates may read, write and administer. TOML with lists of names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from bkpy.config.toml_file import read_toml
from bkpy.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_LISTS: Final = ("read", "write", "administer", "bookies")


def read_access_file(path: str) -> Mapping[str, list[str]]:
    """The lists by name. `ConfigError` if the file can't be read, has another list, or one with other than text."""
    try:
        found = read_toml(path)
    except OSError as e:
        raise ConfigError(f"the file of rights can't be read: {e.strerror}", path=path) from None
    except ValueError as e:  # also of bytes that are no text, numbers too long, and deep nesting
        raise ConfigError(f"the file of rights is not TOML: {e}", path=path) from None
    for name, rules in found.items():
        if name not in _LISTS:
            raise ConfigError(f"the file of rights has {name!r}, which is none of {', '.join(_LISTS)}", path=path)
        if not isinstance(rules, list) or not all(isinstance(rule, str) for rule in rules):
            raise ConfigError(f"{name} in the file of rights is no list of names", path=path)
    return found


def access_file_stamp(path: str) -> tuple[int, int, int]:
    """A stamp that differs for another file, without reading it; zeros if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino
