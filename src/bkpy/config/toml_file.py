"""Files of settings and rights, which are TOML."""

from __future__ import annotations

import tomllib
from typing import Any


def read_toml(path: str) -> dict[str, Any]:
    """The tables of the file. `OSError` if it can't be read, `ValueError` if it is not TOML or nested too deeply.

    The text of the error depends on the file alone: a caller that logs each new error logs this one once.
    """
    with open(path, "rb") as file:
        try:
            return tomllib.load(file)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
