"""The statuses of BookKeeper's two protocols, and what they are in bkpy's own.

    bkpy                                              v3                       v2
    OK                                                EOK                      0
    (an entry was never acknowledged here)            ENOENTRY                 2
    NO_SUCH_LEDGER                                    ENOLEDGER                1
    UNKNOWN, KEY_REQUIRED (the key is lost)           EUNKNOWNLEDGERSTATE      101, which is EIO
    FENCED                                            EFENCED                  104
    UNAUTHORIZED, FORBIDDEN, TLS_REQUIRED             EUA                      102
    READ_ONLY                                         EREADONLY                105
    TOO_MANY_REQUESTS                                 ETOOMANYREQUESTS         106
    BAD_REQUEST, TOO_LARGE, WRONG_BOOKIE              EBADREQ                  100
    UNAVAILABLE                                       the connection is closed

v2 has 107 for EUNKNOWNLEDGERSTATE, which Java's v2 client of 4.17 and 4.18 can't decode: no bookie of ours sends it.

In the other direction a number is a *denial* if it is ENOENTRY or ENOLEDGER (v2: 2 or 1), a copy if it is EOK, and
everything else, also a number that nobody knows, says nothing about what the bookie has.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from bkpy.protocol.wire.messages import Status

if TYPE_CHECKING:
    from collections.abc import Mapping


class StatusCode(enum.IntEnum):
    """Statuses of v3."""

    EOK = 0
    ENOLEDGER = 402
    ENOENTRY = 403
    EBADREQ = 404
    EIO = 501
    EUA = 502
    EBADVERSION = 503
    EFENCED = 504
    EREADONLY = 505
    ETOOMANYREQUESTS = 506
    EUNKNOWNLEDGERSTATE = 507


class PacketCode(enum.IntEnum):
    """Return codes of v2. A bookie never sends UNKNOWN_LEDGER_STATE."""

    OK = 0
    NO_LEDGER = 1
    NO_ENTRY = 2
    BAD_REQUEST = 100
    IO_ERROR = 101
    UNAUTHORIZED = 102
    BAD_VERSION = 103
    FENCED = 104
    READ_ONLY = 105
    TOO_MANY_REQUESTS = 106
    UNKNOWN_LEDGER_STATE = 107


# None: the bookie closes the connection, so the client doesn't learn what became of its request.
STATUS_CODES: Final[Mapping[Status, StatusCode | None]] = {
    Status.OK: StatusCode.EOK,
    Status.FENCED: StatusCode.EFENCED,
    Status.UNAUTHORIZED: StatusCode.EUA,
    Status.KEY_REQUIRED: StatusCode.EUNKNOWNLEDGERSTATE,
    Status.READ_ONLY: StatusCode.EREADONLY,
    Status.TOO_MANY_REQUESTS: StatusCode.ETOOMANYREQUESTS,
    Status.BAD_REQUEST: StatusCode.EBADREQ,
    Status.TOO_LARGE: StatusCode.EBADREQ,
    Status.NO_SUCH_LEDGER: StatusCode.ENOLEDGER,
    Status.UNKNOWN: StatusCode.EUNKNOWNLEDGERSTATE,
    Status.WRONG_BOOKIE: StatusCode.EBADREQ,
    Status.UNAVAILABLE: None,
    Status.TLS_REQUIRED: StatusCode.EUA,
    Status.FORBIDDEN: StatusCode.EUA,
}

PACKET_CODES: Final[Mapping[StatusCode, PacketCode]] = {
    StatusCode.EOK: PacketCode.OK,
    StatusCode.ENOLEDGER: PacketCode.NO_LEDGER,
    StatusCode.ENOENTRY: PacketCode.NO_ENTRY,
    StatusCode.EBADREQ: PacketCode.BAD_REQUEST,
    StatusCode.EIO: PacketCode.IO_ERROR,
    StatusCode.EUA: PacketCode.UNAUTHORIZED,
    StatusCode.EBADVERSION: PacketCode.BAD_VERSION,
    StatusCode.EFENCED: PacketCode.FENCED,
    StatusCode.EREADONLY: PacketCode.READ_ONLY,
    StatusCode.ETOOMANYREQUESTS: PacketCode.TOO_MANY_REQUESTS,
    StatusCode.EUNKNOWNLEDGERSTATE: PacketCode.IO_ERROR,
}

_FROM_V3: Final[Mapping[int, Status]] = {
    StatusCode.EOK: Status.OK,
    StatusCode.ENOLEDGER: Status.NO_SUCH_LEDGER,
    StatusCode.EBADREQ: Status.BAD_REQUEST,
    StatusCode.EUA: Status.UNAUTHORIZED,
    StatusCode.EFENCED: Status.FENCED,
    StatusCode.EREADONLY: Status.READ_ONLY,
    StatusCode.ETOOMANYREQUESTS: Status.TOO_MANY_REQUESTS,
}

_FROM_V2: Final[Mapping[int, Status]] = {
    PacketCode.OK: Status.OK,
    PacketCode.NO_LEDGER: Status.NO_SUCH_LEDGER,
    PacketCode.BAD_REQUEST: Status.BAD_REQUEST,
    PacketCode.UNAUTHORIZED: Status.UNAUTHORIZED,
    PacketCode.FENCED: Status.FENCED,
    PacketCode.READ_ONLY: Status.READ_ONLY,
    PacketCode.TOO_MANY_REQUESTS: Status.TOO_MANY_REQUESTS,
}


def status_of_v3(code: int) -> Status:
    """What bkpy calls a status of v3. ENOENTRY has no counterpart: `denies_entry` tells it first."""
    return _FROM_V3.get(code, Status.UNKNOWN)


def status_of_v2(code: int) -> Status:
    """What bkpy calls a return code of v2. NO_ENTRY has no counterpart: `denies_entry` tells it first."""
    return _FROM_V2.get(code, Status.UNKNOWN)


def denies_entry(code: int) -> bool:
    """Whether a bookie that answers a read so, in v3 or v2, promises that it never acknowledged the entry."""
    return code in _DENIALS


_DENIALS: Final = frozenset((StatusCode.ENOENTRY, StatusCode.ENOLEDGER, PacketCode.NO_ENTRY, PacketCode.NO_LEDGER))
