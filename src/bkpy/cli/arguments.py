"""Arguments and options that several commands have: ledgers by id, durations and sizes with their units."""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from bkpy.cli.completion import complete_ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

F = TypeVar("F", bound="Callable[..., Any]")

_SECONDS: Final[Mapping[str, int]] = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_BYTES: Final[Mapping[str, int]] = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
_QUORUMS: Final = re.compile(r"\s*(\d{1,9})\s*,\s*(\d{1,9})\s*,\s*(\d{1,9})\s*")
_NUMBER: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def _ledger_ids(text: str) -> tuple[int, ...]:
    """Ids and ranges, as in 7,9-12, which every command about ledgers takes."""
    from bkpy.client.arguments import parse_ledger_ids

    try:
        return parse_ledger_ids(text)
    except ValueError as e:
        raise click.BadParameter(str(e)) from None


def one_ledger(ctx: click.Context, _: click.Parameter, text: str | None) -> int | None:
    """The callback of an option or argument that takes one ledger."""
    if text is None:
        return None
    ids = _ledger_ids(text)
    if len(ids) != 1:
        raise click.BadParameter(f"expected one ledger, but {text} names {len(ids)}")
    return ids[0]


def _each_once(ctx: click.Context, _: click.Parameter, given: Sequence[str]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(ledger_id for text in given for ledger_id in _ledger_ids(text)))


ledger_argument = click.argument("ledger_id", metavar="LEDGER", callback=one_ledger, shell_complete=complete_ledger)
ledgers_argument = click.argument(
    "ledger_ids", nargs=-1, required=True, metavar="LEDGERS...", callback=_each_once, shell_complete=complete_ledger
)


def quorums(ctx: click.Context, _: click.Parameter, text: str | None) -> tuple[int, int, int] | None:
    """The callback of an option that takes ensemble size, write quorum and ack quorum, as in 3,3,2."""
    if text is None:
        return None
    parts = _QUORUMS.fullmatch(text)
    if parts is None:
        raise click.BadParameter("expected three numbers: ensemble size, write quorum, ack quorum")
    return int(parts[1]), int(parts[2]), int(parts[3])


def parse_since(text: str) -> float:
    """Seconds since the epoch, of a time in ISO 8601 (UTC unless it says otherwise) or of a duration ago."""
    if (ago := _parsed(text, _SECONDS)) is not None:
        return time.time() - ago
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise click.BadParameter(
            f"{text} is neither a duration, as 90s or 7d, nor a time, as 2026-03-01T09:00"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def since_option(what: str) -> Callable[[F], F]:
    """`--since TIME`, seconds since the epoch or None."""
    return click.option(
        "--since",
        metavar="TIME",
        callback=lambda ctx, param, text: None if text is None else parse_since(text),
        help=f"{what}: a duration ago, as 90s or 7d, or a time of UTC, as 2026-03-01T09:00.",
    )


class NewPath(click.Path):
    """A file or directory that need not be there. No empty text, as of a variable that isn't set: no name is empty."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail("the name is empty", param, ctx)
        return super().convert(value, param, ctx)


class SecondsRange(click.FloatRange):
    """Seconds that a wait can take: neither infinite nor no number, both of which are floats."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from bkpy.config.base import SECONDS_MAX

        found: float = super().convert(value, param, ctx)
        if not found <= SECONDS_MAX:
            self.fail(f"{value} is not a number of seconds up to {SECONDS_MAX:g}", param, ctx)
        return found


def _parsed(text: str, units: Mapping[str, int]) -> float | None:
    """The number with its unit, without regard to case; None if it is neither."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        return None
    value = float(match[1]) * units[match[2].lower()]
    return value if math.isfinite(value) else None


def seconds(text: str) -> float | None:
    """A duration in seconds, such as `90`, `15m` and `7d`; None if it is no duration."""
    return _parsed(text, _SECONDS)


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
    found = None if text is None else _parsed(text, _BYTES)
    if text is not None and found is None:
        raise click.BadParameter(
            f"{text!r} is no size: expected bytes, or a number with kB, MB, KiB, MiB, such as 10GiB"
        )
    return None if found is None else round(found)
