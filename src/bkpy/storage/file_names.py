"""Names of files. Numbered files are 16 hexadecimal digits and a suffix, so that they sort by their numbers."""

from __future__ import annotations

from typing import Final

LOCK_NAME: Final = "lock"  # the process that uses a directory holds its lock
INDEX_NAME: Final = "index"  # the directory of a ledger directory's LMDB environment
NEW_INDEX_NAME: Final = "index.new"  # an index that a rebuild is making from the entry logs
SHRUNK_INDEX_NAME: Final = "index.shrunk"  # a smaller copy of the index, until the two have exchanged their names
OLD_INDEX_NAME: Final = "index.old"  # the index that a rebuild replaced; further ones have a number behind it
SCRUB_NAME: Final = "scrub.json"  # the progress and the findings of a ledger directory's scrub


_DIGITS: Final = frozenset("0123456789abcdef")


def numbered_name(number: int, suffix: str) -> str:
    return f"{number:016x}{suffix}"


def number_of(name: str, suffix: str) -> int | None:
    """The number in a file's name, None if it isn't such a name."""
    stem = name.removesuffix(suffix)
    if len(stem) != 16 or stem == name or not _DIGITS.issuperset(stem):
        return None
    return int(stem, 16)
