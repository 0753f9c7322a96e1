"""What depends on the protocol that a bookie's clients speak: its connections, and what the metadata have of it.

A bookie speaks one protocol for life, since both kinds of cluster number their ledgers from 0. Its cookies say which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from bkpy.bookie.cookie import encode_cookie, storage_part, with_storage
from bkpy.metadata.bookies.cookies import cookie_fields
from bkpy.metadata.bookies.registration import JSON, RegistrationFormat
from bkpy.metadata.stored_record import fields_of
from bkpy.protocol.ledger.ledger_metadata import LedgerMetadata

if TYPE_CHECKING:
    from collections.abc import Callable

    from bkpy.bookie.connection.served import OtherProtocol


class CookieFormat(NamedTuple):
    """The value of a bookie's cookie in the metadata store, which has the cookie of its directories in it."""

    encode: Callable[[str, str, str, bytes], bytes]  # bookie id, address, cluster, the directories' cookie
    storage_part: Callable[[bytes], bytes]
    with_storage: Callable[[bytes, bytes], bytes]
    fields: Callable[[bytes], dict[str, str]]  # the bookie's id at least; raises for what is no cookie
    address: Callable[[bytes], str]  # of the bookie when it started last, "" if the cookie doesn't say


class Dialect(NamedTuple):
    """`connect` makes connections of another protocol than bkpy's. `of_bookkeeper`: the cluster is BookKeeper's.

    In a cluster of bkpy's, ledger ids ascend, copies that no ensemble names are deleted, and bookies are drained.
    """

    connect: OtherProtocol | None
    cookie: CookieFormat
    registration: RegistrationFormat
    codec: type[LedgerMetadata]
    of_bookkeeper: bool


NATIVE: Final = Dialect(
    None,
    CookieFormat(
        encode_cookie,
        storage_part,
        with_storage,
        cookie_fields,
        lambda cookie: str(fields_of(cookie).get("address", "")),
    ),
    JSON,
    LedgerMetadata,
    of_bookkeeper=False,
)
