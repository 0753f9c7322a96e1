"""Text for people: lines on standard error, numbers with their units, and names that strangers chose.

Invariant: no byte of a name or an error reaches a terminal as a control character. Escape sequences could change the
terminal's title, its clipboard, or the lines before.
"""

from __future__ import annotations

import logging
import unicodedata
from typing import Final

import click

from bkpy.runtime.logs import logs_json

log = logging.getLogger("bkpy.cli")

_BIDIRECTIONAL: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str) -> str:
    """The text with each control character, and each that changes the direction of others, as `\\x1b` or `\\u202e`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode()
        if char != "\t" and (unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char in _BIDIRECTIONAL)
        else char
        for char in text
    )


def printable_lines(text: str) -> str:
    """The same for text of several lines, which stay lines."""
    return "\n".join(map(printable, text.split("\n")))


def say(message: str) -> None:
    """A line for people, on standard error; a log line of a command that logs JSON."""
    if logs_json():
        log.info("%s", message)
    else:
        click.echo(printable_lines(message), err=True)


def human_entries(count: int) -> str:
    """`1 entry` or `N entries`."""
    return "1 entry" if count == 1 else f"{count} entries"


def human_ledgers(count: int) -> str:
    """`1 ledger` or `N ledgers`."""
    return "1 ledger" if count == 1 else f"{count} ledgers"


def entries_acknowledged(count: int) -> str:
    """`1 entry was acknowledged` or `N entries were acknowledged`."""
    return f"{human_entries(count)} {'was' if count == 1 else 'were'} acknowledged"


def human_bytes(count: int) -> str:
    """`count` bytes in the largest binary unit that leaves at least 1."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
