"""Files of settings and rights, which are TOML."""

from __future__ import annotations

import tomllib
from typing import Any, Final

_BYTES_MAX: Final = 16 << 20  # a longer file is another one, or a device, named by mistake


def read_toml(path: str) -> dict[str, Any]:
    """The tables of the file. `OSError` if it can't be read, `ValueError` if it is not TOML or nested too deeply.

    The text of the error depends on the file alone: a caller that logs each new error logs this one once.
    """
    with open(path, "rb") as file:
        data = file.read(_BYTES_MAX + 1)
    if len(data) > _BYTES_MAX:
        raise ValueError(f"it has over {_BYTES_MAX} bytes")
    try:
        return tomllib.loads(data.decode("utf-8-sig"))  # some editors put a mark before the text
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
