"""Values of options as people write them: `7d` for seconds, `10GiB` for bytes; a mere number is what it is."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECONDS: Final[Mapping[str, int]] = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES: Final[Mapping[str, int]] = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
_NUMBER: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def parsed(text: str, units: Mapping[str, int]) -> float | None:
    """The number with its unit, without regard to case; None if it is neither."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        return None
    value = float(match[1]) * units[match[2].lower()]
    return value if math.isfinite(value) else None


def seconds(text: str) -> float | None:
    """A duration in seconds, such as `90`, `15m` and `7d`; None if it is no duration."""
    return parsed(text, _SECONDS)


def duration(ctx: click.Context, _: click.Parameter, text: str | None) -> float | None:
    """The callback of an option that is a duration, in seconds."""
    found = None if text is None else seconds(text)
    if text is not None and found is None:
        raise click.BadParameter(
            f"{text!r} is no duration: expected seconds, or a number with s, m, h, d or w, such as 7d"
        )
    return found


def size(ctx: click.Context, _: click.Parameter, text: str | None) -> int | None:
    """The callback of an option that is a size, in bytes."""
    found = None if text is None else parsed(text, _BYTES)
    if text is not None and found is None:
        raise click.BadParameter(
            f"{text!r} is no size: expected bytes, or a number with kB, MB, KiB, MiB, such as 10GiB"
        )
    return None if found is None else round(found)
