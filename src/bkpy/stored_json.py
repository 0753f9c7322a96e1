"""JSON that somebody has stored, or sent, and that may be anything: read without surprises."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def parsed(data: bytes) -> Any:
    """What the bytes say. `ValueError` if they are no JSON, are nested too deeply to be read, or have no finite number.

    Python's own raises `RecursionError` for what is nested deeply, and takes 1e999 and NaN, of which no `int` can be
    made.
    """
    try:
        return _DECODER.decode(data.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large a number")
    return value


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)
