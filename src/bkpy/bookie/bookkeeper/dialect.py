"""A bookie in a cluster of Apache BookKeeper: its cookie and registration are as BookKeeper's own tools read them.

BookKeeper's cookie names directories, and only the bookie itself compares it. Each of bkpy's ledger directories has an
index with a UUID, so the cookie names `DIRECTORY#UUID` as index directories. From these, the cookie that the
directories must have is made again: a bookie whose disks are lost, or are another's, doesn't start.
"""

from __future__ import annotations

from typing import Final

from bkpy.bookie.bookkeeper.connection import BookKeeperConnection
from bkpy.bookie.dialect import CookieFormat, Dialect
from bkpy.errors import ConfigError, IdentityError
from bkpy.metadata.bookkeeper.cookies import BookKeeperCookie
from bkpy.metadata.bookkeeper.service_info import SERVICE_INFO
from bkpy.protocol.bookkeeper.ledger_metadata import BookKeeperLedgerMetadata
from bkpy.storage.identity import Cookie, LedgerDirectory, decode_cookie

_SEPARATORS: Final = (",", "\t", "\n")
_UUID: Final = "#"
_PROTOCOL: Final = "bookkeeper"


def _encode(bookie_id: str, address: str, instance_id: str, storage: bytes) -> bytes:
    cookie = decode_cookie(storage, "the storage")
    for path in cookie.paths:
        if any(separator in path for separator in _SEPARATORS):
            raise ConfigError(f"BookKeeper's cookie can't name a directory with a comma, tab or line end: {path!r}")
    return BookKeeperCookie(
        bookie_id,
        ",".join(cookie.journal_directories),
        tuple(directory.path for directory in cookie.ledger_directories),
        instance_id,
        tuple(f"{directory.path}{_UUID}{directory.uuid}" for directory in cookie.ledger_directories),
    ).encode()


def _storage_part(stored: bytes) -> bytes:
    cookie = BookKeeperCookie.decode("", stored)
    indexes = [name.rpartition(_UUID) for name in cookie.index_directories]
    if not indexes or tuple(path for path, _, _ in indexes) != cookie.ledger_directories:
        raise IdentityError(
            f"bookie {cookie.bookie_id} is one of Apache BookKeeper's own, on {', '.join(cookie.ledger_directories)}: "
            "give this bookie another bookie_id",
            bookie=cookie.bookie_id,
        )
    return Cookie(
        cookie.bookie_id,
        cookie.instance_id,
        tuple(cookie.journal_directories.split(",")),
        tuple(LedgerDirectory(path, uuid) for path, _, uuid in indexes),
        _PROTOCOL,
    ).encode()


def _with_storage(stored: bytes, storage: bytes) -> bytes:
    cookie = BookKeeperCookie.decode("", stored)
    return _encode(cookie.bookie_id, "", cookie.instance_id, storage)


def _fields(stored: bytes) -> dict[str, str]:
    return {"bookie_id": BookKeeperCookie.decode("", stored).bookie_id}


BOOKKEEPER: Final = Dialect(
    BookKeeperConnection,
    CookieFormat(_encode, _storage_part, _with_storage, _fields, lambda _: ""),
    SERVICE_INFO,
    BookKeeperLedgerMetadata,
    of_bookkeeper=True,
)
