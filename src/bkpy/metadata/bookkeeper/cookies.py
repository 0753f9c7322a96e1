"""Cookies of bookies in a BookKeeper cluster: the auditor and the shell list them as *all bookies*.

    5<newline>       then CookieFormat in protobuf's text format; 4 is the same
    3<newline>       then a line each: bookie id, journal directories, ledger directories

Ledger and index directories are tab-separated, with their number in front; journal directories are joined by commas.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import text_format

from bkpy.errors import CorruptDataError, UnsupportedVersionError
from bkpy.metadata.paths import checked_bookie_id
from bkpy.protocol.bookkeeper.schema import message_class

_VERSION: Final = re.compile(rb"([0-9]{1,9})[ \t\r]*\n")
_NEWEST: Final = 5
_LINES: Final = 3
_Message: Final = message_class("CookieFormat")


@dataclass(frozen=True, slots=True)
class BookKeeperCookie:
    """What the cluster knows of a bookie's directories. `instance_id` is that of the cluster, "" if it isn't stored."""

    bookie_id: str
    journal_directories: str
    ledger_directories: tuple[str, ...]
    instance_id: str = ""
    index_directories: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """The stored value, in the newest format."""
        message = _Message(
            bookieHost=checked_bookie_id(self.bookie_id),
            journalDir=self.journal_directories,
            ledgerDirs=_joined(self.ledger_directories),
        )
        if self.instance_id:
            message.instanceId = self.instance_id
        if self.index_directories:
            message.indexDirs = _joined(self.index_directories)
        return f"{_NEWEST}\n{text_format.MessageToString(message, as_utf8=False)}".encode("ascii")

    @classmethod
    def decode(cls, bookie_id: str, data: bytes) -> BookKeeperCookie:
        """The cookie stored for `bookie_id`. Raises `CorruptDataError` and `UnsupportedVersionError`."""
        begin = _VERSION.match(data)
        version = -1 if begin is None else int(begin[1])
        if version > _NEWEST:
            raise UnsupportedVersionError(
                f"the bookie's cookie has format version {version}, this bkpy reads up to {_NEWEST}: upgrade it",
                bookie=bookie_id,
            )
        try:
            if begin is None or version < _LINES:
                raise ValueError("it has no format version that is known")
            found = data[begin.end() :]
            return _of_lines(found) if version == _LINES else _of_message(text_format.Parse(found, _Message()))
        except (ValueError, text_format.ParseError) as error:
            raise CorruptDataError(f"the bookie's cookie is unreadable: {error!r}", bookie=bookie_id) from error


def _of_lines(data: bytes) -> BookKeeperCookie:
    bookie_id, journal, ledgers = data.decode("utf-8").split("\n")[:3]
    return BookKeeperCookie(bookie_id, journal, _split(ledgers))


def _of_message(message: Any) -> BookKeeperCookie:
    return BookKeeperCookie(
        _text(message.bookieHost),
        _text(message.journalDir),
        _split(_text(message.ledgerDirs)),
        _text(message.instanceId),
        _split(_text(message.indexDirs)) if message.HasField("indexDirs") else (),
    )


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _joined(directories: tuple[str, ...]) -> str:
    return "\t".join((str(len(directories)), *directories))


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split("\t")[1:])
