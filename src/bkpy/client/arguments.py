"""Checks of the arguments of public calls, before the call does anything.

Invariant: only whole numbers that fit the wire's 63 bits get into a request as ids.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from bkpy.config.base import encodes
from bkpy.config.password_file import PASSWORD_BYTES_MAX
from bkpy.errors import ConfigError
from bkpy.protocol.ledger.ledger_metadata import ENTRY_ID_MAX, LEDGER_ID_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

LEDGERS_MAX: Final = 1_000_000  # in one argument

_IDS: Final = re.compile(r"\s*(\d{1,19})\s*(?:-\s*(\d{1,19})\s*)?", re.ASCII)
_RESERVED: Final = "bkpy."  # begins the names of bkpy's own custom metadata


def check_ledger_id(ledger_id: Any) -> None:
    """`ConfigError` unless it is an id that a ledger can have."""
    _check_whole("ledger_id", ledger_id)
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise ConfigError(f"ledger_id must be from 0 to {LEDGER_ID_MAX}, not {ledger_id}")


def parse_ledger_ids(text: str) -> tuple[int, ...]:
    """The ids, ascending, of ids and ranges such as "7,9-12". `ValueError` for anything else."""
    ids: set[int] = set()
    for part in text.split(","):
        found = _IDS.fullmatch(part)
        if found is None:
            raise ValueError(f"expected ledger ids such as 7,9-12; {part.strip()!r} is none")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ValueError(f"the range {part.strip()} ends before it begins")
        if last > LEDGER_ID_MAX:
            raise ValueError(f"{last} is too large: a ledger id is at most {LEDGER_ID_MAX}")
        if last - first >= LEDGERS_MAX or len(ids) + (last - first) >= LEDGERS_MAX:
            raise ValueError(f"at most {LEDGERS_MAX} ledgers can be named")
        ids.update(range(first, last + 1))
    return tuple(sorted(ids))


def format_ledger_ids(ids: Iterable[int]) -> str:
    """The shortest text that `parse_ledger_ids` parses into these ids."""
    runs = [
        [ledger_id for _, ledger_id in run]
        for _, run in groupby(enumerate(sorted(set(ids))), key=lambda pair: pair[1] - pair[0])
    ]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def check_first(first: Any, ledger_id: int) -> None:
    """`ConfigError` unless it is an id that an entry can have."""
    _check_whole("first", first, ledger_id)
    if not 0 <= first <= ENTRY_ID_MAX:
        raise ConfigError(f"first must be from 0 to {ENTRY_ID_MAX}, not {first}", ledger_id=ledger_id)


def check_last(last: Any, ledger_id: int) -> None:
    """`ConfigError` unless it is an id that an entry can have, or negative, for none."""
    _check_whole("last", last, ledger_id)
    if last > ENTRY_ID_MAX:
        raise ConfigError(f"last must not be above {ENTRY_ID_MAX}, and is {last}", ledger_id=ledger_id)


def check_position(name: str, position: Any) -> None:
    """`ConfigError` unless it is a position that an entry of a log can have."""
    _check_whole(name, position)
    if not 0 <= position <= ENTRY_ID_MAX:
        raise ConfigError(f"{name} must be from 0 to {ENTRY_ID_MAX}, not {position}")


def check_size(name: str, size: Any) -> None:
    """`ConfigError` unless it is a whole number. Whether sizes fit together is checked elsewhere."""
    _check_whole(name, size)


def check_seconds(name: str, seconds: Any) -> None:
    """`ConfigError` unless it is a number of seconds that a float can hold, and not negative."""
    if type(seconds) not in (int, float):
        raise ConfigError(f"{name} must be a number of seconds, not {seconds!r}")
    if not 0 <= seconds <= sys.float_info.max:
        raise ConfigError(f"{name} must be a finite number of seconds, and not negative: it is {seconds}")


def check_time(name: str, seconds: Any) -> None:
    """`ConfigError` unless it is a time in seconds since the epoch, perhaps before that."""
    if type(seconds) not in (int, float):
        raise ConfigError(f"{name} must be seconds since the epoch, not {seconds!r}")
    if not -sys.float_info.max <= seconds <= sys.float_info.max:
        raise ConfigError(f"{name} must be a finite number of seconds since the epoch")


def check_bytes(name: str, value: Any) -> None:
    """`ConfigError` unless it is bytes."""
    if not isinstance(value, bytes):
        raise ConfigError(f"{name} must be bytes, not {type(value).__name__}")


def check_password(value: Any) -> None:
    """`ConfigError` unless it can be a ledger's password, which a file can hold. The value isn't shown."""
    check_bytes("password", value)
    if len(value) > PASSWORD_BYTES_MAX:
        raise ConfigError(f"password must have at most {PASSWORD_BYTES_MAX} bytes, not {len(value)}")


def checked_custom(given: Mapping[str, bytes] | None) -> dict[str, bytes]:
    """Custom metadata, copied; `ConfigError` unless it maps text to bytes, and leaves bkpy's own names alone."""
    if given is not None and not isinstance(given, Mapping):
        raise ConfigError(f"custom_metadata is a mapping of text to bytes, not {_described(given)}")
    custom = dict(given or {})
    for name, value in custom.items():
        if not isinstance(name, str) or not isinstance(value, bytes | bytearray | memoryview):
            raise ConfigError(f"custom metadata maps text to bytes; {name!r} does not")
        if not encodes(name):
            raise ConfigError(f"custom metadata can't have the name {name!r}: it is no UTF-8")
        if name.startswith(_RESERVED):
            raise ConfigError(
                f"custom metadata can't have the name {name!r}: names that begin with {_RESERVED!r} are bkpy's, which "
                "deletes ledgers by them"
            )
    return {name: bytes(value) for name, value in custom.items()}


def payload_of(data: Any) -> bytes:
    """An entry's bytes, copied, so that a buffer that changes later doesn't change the entry; else `ConfigError`."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise ConfigError(f"an entry is bytes, not {type(data).__name__}")


def payloads_of(entries: Iterable[Any]) -> list[bytes]:
    """The bytes of some entries, copied where that is needed; else `ConfigError`."""
    try:
        given = iter(entries)
    except TypeError:
        raise ConfigError(f"entries are a sequence of bytes, not {type(entries).__name__}") from None
    return [data if type(data) is bytes else payload_of(data) for data in given]


def _check_whole(name: str, value: Any, ledger_id: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool):  # a bool is one by inheritance, and a mistake
        raise ConfigError(f"{name} must be a whole number, not {_described(value)}", ledger_id=ledger_id)


def _described(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:40] + '...'} ({type(value).__name__})"
