"""Names of files: of numbered ones, 16 hexadecimal digits, so that their order is that of the numbers, and a suffix."""

from __future__ import annotations

from typing import Final

LOCK_NAME: Final = "lock"  # of the file that the process which uses a directory has locked
INDEX_NAME: Final = "index"  # of the directory of a ledger directory's LMDB environment
NEW_INDEX_NAME: Final = "index.new"  # of one that is being made of the entry logs
SHRUNK_INDEX_NAME: Final = "index.shrunk"  # of a copy of the index, until the two have exchanged their names
OLD_INDEX_NAME: Final = "index.old"  # of the one in whose place that came; further ones have a number behind it
SCRUB_NAME: Final = "scrub.json"  # of what keeps how far the scrub of a ledger directory is


def numbered_name(number: int, suffix: str) -> str:
    return f"{number:016x}{suffix}"


def number_of(name: str, suffix: str) -> int | None:
    """The number in a file's name, None if it isn't such a name."""
    stem = name.removesuffix(suffix)
    if len(stem) != 16 or stem == name or not set(stem) <= set("0123456789abcdef"):
        return None
    return int(stem, 16)
